package quorumlock

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A lease may be released while its lock is at risk, and callers of its process wait for the lock: the lease has ended,
// and the lock has not yet.
func TestALeaseThatIsOverDoesNotCountAsAtRisk(t *testing.T) {
	nodes := Addrs("127.0.0.1:1")
	cfg, err := newSettings(nodes, []Option{WithPrefix("")})
	require.NoError(t, err)
	m, err := build(clock.New(), cfg, []list{{"", nodes}}, nil)
	require.NoError(t, err)
	l := &Lease{m: m, lock: &hold.Lock{}, values: context.Background()}
	(*tenant)(l).Report(hold.Event{What: hold.AtRisk, State: quorum.StateAtRisk})
	assert.True(t, l.risky)
	(*tenant)(l).Report(hold.Event{What: hold.Released, State: quorum.StateAtRisk, Value: strings.Repeat("a", wire.OwnerLen)})
	assert.False(t, l.risky)
}

// dialError is the error of a user's dial function. Its text needs the lease.
type dialError struct{ lease **Lease }

func (e dialError) Error() string { return "left: " + (*e.lease).lock.Left().String() }

func TestTheErrorOfAUsersDialFunctionRunsUnderNoMutex(t *testing.T) {
	var l *Lease
	m := idleManager(clock.New())
	m.cfg.Log = slog.New(slog.DiscardHandler)
	l = idleLease(t, m, idleTerms(50*time.Millisecond), func(g *hold.Grant) { g.Errors = []error{dialError{&l}} })
	require.Eventually(t, func() bool {
		done := make(chan bool, 1)
		go func() { done <- l.Valid() }()
		select {
		case valid := <-done:
			return !valid
		case <-time.After(5 * time.Second):
			t.Error("the loss waits for the text of the error")
			return true
		}
	}, 20*time.Second, 10*time.Millisecond)
}
