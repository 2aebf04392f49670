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

// idleDog is a Manager whose watchdog does not run unless the test runs it, and
// a lease that it knows.
func idleDog(ttl time.Duration, with quorum.Terms) (*Manager, *Lease) {
	m := &Manager{cfg: &config{}, clock: clock.New(), reporter: newReporter(), telemetry: &telemetry{}}
	m.dog = newWatchdog(m)
	with.Nodes, with.TTL, with.Timeout = 1, ttl, ttl
	l := &Lease{m: m, terms: &terms{Terms: with}, values: context.Background(), index: -1}
	l.machine = quorum.NewMachine(&l.terms.Terms, l.window[:1], m.clock.Now(), quorum.All(1), quorum.All(1))
	l.stop.Store(int64(l.machine.Stop()))
	return m, l
}

// As after a resume in which the watchdog's timer comes late.
func TestAnOverdueLeaseIsNotValidBeforeAnybodyWasTold(t *testing.T) {
	_, l := idleDog(50*time.Millisecond, quorum.Terms{})
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

// The watchdog was late by so much that the loss, if it looked for it no
// earlier than ever, would be told after the stop.
func TestALateWatchdogLooksForLossesEarlier(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour})
	l.step(quorum.Input{Kind: quorum.Tick}, nil)
	require.NoError(t, l.Err())
	m.dog.measure(m.clock.Now() - time.Minute)
	l.step(quorum.Input{Kind: quorum.Tick}, nil)
	require.NoError(t, l.Err(), "an hour is left, and two minutes are enough")
	assert.LessOrEqual(t, l.wake, l.machine.Stop()-2*time.Minute, "it has to be looked at so much earlier")
	m.dog.measure(m.clock.Now() - 31*time.Minute)
	l.step(quorum.Input{Kind: quorum.Tick}, nil)
	require.ErrorIs(t, l.Err(), ErrLost)
}

// Whatever keeps the watchdog counts, not its timer alone.
func TestTheWatchdogMeasuresHowLateItIs(t *testing.T) {
	const kept = 200 * time.Millisecond
	m, l := idleDog(time.Hour, quorum.Terms{})
	go m.dog.run()
	defer m.dog.stop()
	l.mu.Lock()
	m.dog.schedule(l, m.clock.Now())
	time.Sleep(kept)
	l.mu.Unlock()
	require.Eventually(t, func() bool { return m.dog.lagging() >= kept }, 10*time.Second, time.Millisecond)
}
