package hold

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// lagging returns the terms of a lease whose loss may be reported two hours early.
func lagging() *config.Terms {
	t := hour(1)
	t.MaxLag = 2 * time.Hour
	return t
}

// The watchdog was so late that, if it kept its schedule, it would report the loss after
// the stop.
func TestALateWatchdogLooksForLossesEarlier(t *testing.T) {
	p := idle(1)
	l, first := p.open(t, p.grant(lagging()))
	l.Tick()
	assert.False(t, first.saw(Lost))
	p.measure(p.clock.Now().Add(-time.Minute), 0)
	l.Tick()
	assert.False(t, first.saw(Lost), "an hour is left, and two minutes are needed")
	assert.LessOrEqual(t, l.machine.End(), l.machine.Stop().Add(-(2 * time.Minute)), "the check must run two minutes earlier")
	p.measure(p.clock.Now().Add(-(31 * time.Minute)), 0)
	l.Tick()
	assert.True(t, first.saw(Lost))
}

// An answer that confirms the lease must not end it because the watchdog was late in between.
func TestAnAnswerIgnoresThatTheWatchdogIsLate(t *testing.T) {
	p := idle(1)
	l, first := p.open(t, p.grant(lagging()))
	l.Tick()
	p.measure(p.clock.Now().Add(-(31 * time.Minute)), 0)
	l.Vote(0, p.clock.Now(), &wire.Reply{Status: wire.Granted})
	assert.False(t, first.saw(Lost))
}

// Otherwise, sleeping leases would wake by the delay that they knew before.
func TestEveryLeaseLearnsAtOnceThatTheWatchdogIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kept = 200 * time.Millisecond
		p := idle(1)
		l, first := p.open(t, p.grant(lagging()))
		sleeper, _ := p.open(t, p.grant(lagging()))
		first.then = func(Event) { first.then = nil; time.Sleep(kept) } // keeps the watchdog
		p.schedule.at(&l.alarm, p.clock.Now())
		go p.Run()
		defer p.Stop()
		time.Sleep(2 * kept)
		synctest.Wait()
		assert.Less(t, sleeper.machine.End(), sleeper.machine.Stop().Add(-(kept / 2)))
	})
}

// Every delay of the watchdog counts: a late timer, a late signal, and its own work while
// a lease was due.
func TestTheWatchdogMeasuresHowLateItIs(t *testing.T) {
	p := idle(1)
	l, _ := p.open(t, p.grant(hour(1)))
	s, now := &p.schedule, p.clock.Now()
	s.asleep = now.Add(-time.Minute)
	assert.Equal(t, now.Add(-time.Minute), s.overdue(), "the timer")
	s.asleep = p.clock.Now().Add(time.Hour)
	s.at(&l.alarm, now)
	rung := s.overdue()
	assert.LessOrEqual(t, rung, p.clock.Now(), "the signal")
	s.at(&l.alarm, now.Add(-time.Second))
	assert.Equal(t, rung, s.overdue(), "the first one counts")
	wait, _ := p.sleep()
	assert.Zero(t, wait)
	assert.Equal(t, now.Add(-time.Second), s.overdue(), "due while it was awake")
	assert.True(t, p.measure(p.clock.Now().Add(-time.Second), 0))
	assert.GreaterOrEqual(t, p.expectedLag(), 2*time.Second)
	assert.False(t, p.measure(p.clock.Now().Add(-time.Second), 0), "hardly worse than before")
}

// A clock jump, by a suspend or by a change of the time, isn't a delay of the watchdog.
func TestAJumpOfTheClockIsNoLateness(t *testing.T) {
	p := idle(1)
	p.measure(p.clock.Now().Add(-time.Hour), time.Duration(clock.Validity(-time.Hour)))
	assert.Less(t, p.expectedLag(), time.Minute)
}

// A watchdog without a lease does not measure, so it must not remember a delay. It
// measures again at once with the next lease.
func TestAWatchdogWithoutLeasesExpectsNothing(t *testing.T) {
	p := idle(1)
	p.measure(p.clock.Now().Add(-time.Second), 0)
	p.sleep()
	assert.Zero(t, p.expectedLag())
	l, _ := p.open(t, p.grant(hour(1)))
	p.schedule.at(&l.alarm, p.clock.Now())
	assert.True(t, p.measure(p.schedule.overdue(), 0), "every lease must be updated again")
	assert.GreaterOrEqual(t, p.expectedLag(), 2*time.Second)
}

// However early a loss is reported, the rest of the lease keeps others out until the
// safety margin after S, as Remaining has promised.
func TestALossThatIsReportedEarlyKeepsOthersOutAsLong(t *testing.T) {
	p, terms := idle(1), lagging()
	terms.SafetyMargin = time.Minute
	l, first := p.open(t, p.grant(terms))
	p.schedule.at(&l.alarm, quorum.Never) // as when the watchdog looks at it
	stop := first.events[0].Stop
	p.measure(p.clock.Now().Add(-time.Hour), 0)
	l.Tick()
	assert.True(t, first.saw(Lost))
	assert.Equal(t, stop.Add(time.Minute), l.deleteAt)
	assert.EqualValues(t, l.deleteAt, l.alarm.wake.Load())
}
