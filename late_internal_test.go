package quorumlock

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// The watchdog's timer fires late, as after a resume.
func TestAnOverdueLeaseIsNotValidBeforeItsLossIsReported(t *testing.T) {
	l := idleLease(t, idleManager(clock.New()), idleTerms(50*time.Millisecond), nil)
	assert.True(t, l.Valid())
	done := l.Done()
	time.Sleep(60 * time.Millisecond)
	select {
	case <-done:
		require.Fail(t, "the loss was reported too early for this test")
	default:
	}
	assert.False(t, l.Valid(), "by the clock")
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the check that finds the loss reports it")
	}
	require.ErrorIs(t, l.Err(), ErrLost)
}

// The boot clock shows that a machine slept; the wall clock shows that it was set forward. The first check after
// either, before any timer, finds that the lease is lost, and why.
func TestAfterAJumpOfAClockTheLeaseIsNotValidAndWasSuspended(t *testing.T) {
	const ttl, margin = time.Hour, time.Minute
	lease := func(now *clock.Reading) *Lease {
		*now = clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		terms := idleTerms(ttl)
		terms.SafetyMargin = margin
		return idleLease(t, idleManager(clock.From(func() clock.Reading { return *now })), terms, nil)
	}
	for _, c := range []struct {
		name string
		jump func(r *clock.Reading, by time.Duration)
	}{
		{"boot", func(r *clock.Reading, by time.Duration) { r.Boot += by }},
		{"wall", func(r *clock.Reading, by time.Duration) { r.Wall += by }},
	} {
		var now clock.Reading
		for _, by := range []time.Duration{ttl - margin/2, ttl + margin} { // between the stop and the deadline, and past both
			l := lease(&now)
			assert.True(t, l.Valid())
			c.jump(&now, by)
			assert.False(t, l.Valid(), "%s clock, %v", c.name, by)
			var lost *LostError
			require.ErrorAs(t, l.Err(), &lost, "%s clock, %v", c.name, by)
			assert.Equal(t, LostSuspended, lost.Reason, "%s clock, %v", c.name, by)
		}
		l := lease(&now)
		c.jump(&now, ttl-2*margin)
		assert.True(t, l.Valid(), "%s clock: a suspend that the lease outlives", c.name)
	}
}

// The release finds the loss before a timer does, as after a resume of the machine. Its end is reported once.
func TestALossThatTheReleaseFindsIsReportedOnce(t *testing.T) {
	now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
	l := idleLease(t, idleManager(clock.From(func() clock.Reading { return now })), idleTerms(time.Hour), nil)
	lost := l.Lost()
	now.Boot += 2 * time.Hour
	require.ErrorIs(t, l.Release(t.Context()), ErrLost)
	assert.Equal(t, LostSuspended, (<-lost).Reason)
	_, more := <-lost
	assert.False(t, more)
}

// When Done is closed, the loss is already in the channel.
func TestWhoSeesDoneOfALostLeaseFindsItsLoss(t *testing.T) {
	var now clock.Reading
	for range 5000 {
		now = clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		l := idleLease(t, idleManager(clock.From(func() clock.Reading { return now })), idleTerms(time.Hour), nil)
		found := make(chan bool)
		done := l.Done()
		go func() {
			<-done
			select {
			case _, open := <-l.Lost():
				found <- open
			default:
				found <- false
			}
		}()
		runtime.Gosched()
		now.Boot += 2 * time.Hour
		require.ErrorIs(t, l.Err(), ErrLost)
		require.True(t, <-found, "done, and no loss in the channel")
	}
}
