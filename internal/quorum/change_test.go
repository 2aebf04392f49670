package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A TTL whose requests can no longer run is forgotten: a program may compute its TTL anew each second, for months.
func TestALeaseRemembersATTLUntilNoRequestForItCanRun(t *testing.T) {
	terms := withTTL(&quorum.Terms{Nodes: 1}, 10*time.Second)
	for name, c := range map[string]struct {
		ttl  func(i int) time.Duration
		most int
	}{
		"each second another one": {func(i int) time.Duration { return terms.TTL + time.Duration(i)*time.Millisecond }, 42}, // 30 s to be sent, 10 s and 1 s to run
		"three in turn":           {func(i int) time.Duration { return terms.TTL + time.Duration(i%3)*time.Second }, 3},
	} {
		m := quorum.NewMachine(terms, make(quorum.Window[clock.Validity], 1), clock.Validity(origin), 1, 1)
		most := 0
		for i := 1; i < 600; i++ {
			now, t := clock.Validity(origin).Add(time.Duration(i)*time.Second), withTTL(terms, c.ttl(i))
			m.Step(now, quorum.Input{Kind: quorum.InputBegin, Terms: t})
			m.Step(now, quorum.Input{Kind: quorum.InputConfirmed, At: now, Terms: t})
			most = max(most, m.Earlier())
		}
		assert.Equal(t, quorum.StateHeld, m.State(), name)
		assert.Equal(t, c.most, most, name)
	}
}
