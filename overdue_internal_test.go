package quorumlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A Manager whose watchdog does not run, as after a resume in which its timer
// comes late.
func TestAnOverdueLeaseIsNotValidBeforeAnybodyWasTold(t *testing.T) {
	m := &Manager{cfg: &config{}, clock: clock.New(), reporter: newReporter(), telemetry: &telemetry{}}
	m.dog = newWatchdog(m)
	terms := &terms{Terms: quorum.Terms{Nodes: 1, TTL: 50 * time.Millisecond, Timeout: time.Second}}
	l := &Lease{m: m, terms: terms, values: context.Background(), index: -1}
	l.machine = quorum.NewMachine(&terms.Terms, l.window[:1], m.clock.Now(), quorum.All(1), quorum.All(1))
	l.stop.Store(int64(l.machine.Stop()))
	assert.True(t, l.Valid())
	done := l.Done()
	time.Sleep(60 * time.Millisecond)
	select {
	case <-done:
		require.Fail(t, "somebody was told: this shows nothing")
	default:
	}
	assert.False(t, l.Valid(), "by the clock")
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "whoever finds it tells it")
	}
	require.ErrorIs(t, l.Err(), ErrLost)
}
