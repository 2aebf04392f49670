package quorumlock

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
)

// idleDog returns a Manager whose watchdog runs only when the test runs it, and a lease
// that the watchdog schedules.
func idleDog(ttl time.Duration, with quorum.Terms) (*Manager, *Lease) {
	return idleDogOn(clock.New(), ttl, with)
}

func idleDogOn(c *clock.Clock, ttl time.Duration, with quorum.Terms) (*Manager, *Lease) {
	m := &Manager{cfg: &config{}, clock: c, reporter: report.New(slog.New(slog.DiscardHandler)), telemetry: &telemetry{}}
	idleNodes(m, 1)
	m.dog = newWatchdog(m)
	with.Nodes, with.TTL, with.Timeout = 1, ttl, ttl
	h := &hold{m: m, terms: &terms{Terms: with}, value: strings.Repeat("0", 32) + " 1 1 - ", index: -1}
	l := &Lease{hold: h, values: context.Background()}
	h.lease = l
	h.machine = quorum.NewMachine(&h.terms.Terms, h.window[:1], m.clock.Now(), quorum.All(1), quorum.All(1))
	l.stop.Store(int64(h.machine.Stop()))
	return m, l
}

// idleNodes gives a Manager nodes that do not run.
func idleNodes(m *Manager, n int) {
	m.ensemble = ensemble.New(&ensemble.Config{
		Nodes: slices.Repeat(Addrs("127.0.0.1:1"), n), Clock: m.clock, Report: m.reporter, Closing: func() bool { return false }, Events: events{m},
	})
}

// The watchdog's timer fires late, as after a resume.
func TestAnOverdueLeaseIsNotValidBeforeItsLossIsReported(t *testing.T) {
	_, l := idleDog(50*time.Millisecond, quorum.Terms{})
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

// The boot clock shows that a machine slept; the wall clock shows that somebody set it
// forward. The first check after either, before any timer, finds the lease lost, and the
// reason.
func TestAfterAJumpOfAClockTheLeaseIsNotValidAndWasSuspended(t *testing.T) {
	const ttl, guard = time.Hour, time.Minute
	for _, c := range []struct {
		name string
		jump func(r *clock.Reading, by time.Duration)
	}{
		{"boot", func(r *clock.Reading, by time.Duration) { r.Boot += by }},
		{"wall", func(r *clock.Reading, by time.Duration) { r.Wall += by }},
	} {
		for _, by := range []time.Duration{ttl - guard/2, ttl + guard} { // between the stop and the deadline, and past both
			now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
			_, l := idleDogOn(clock.From(func() clock.Reading { return now }), ttl, quorum.Terms{Guard: guard})
			assert.True(t, l.Valid())
			c.jump(&now, by)
			assert.False(t, l.Valid(), "%s clock, %v", c.name, by)
			var lost *LostError
			require.ErrorAs(t, l.Err(), &lost, "%s clock, %v", c.name, by)
			assert.Equal(t, LostSuspended, lost.Reason, "%s clock, %v", c.name, by)
		}
		now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		_, l := idleDogOn(clock.From(func() clock.Reading { return now }), ttl, quorum.Terms{Guard: guard})
		c.jump(&now, ttl-2*guard)
		assert.True(t, l.Valid(), "%s clock: a suspend that the lease outlives", c.name)
	}
}

// The watchdog was so late that, if it kept its schedule, it would report the loss after
// the stop.
func TestALateWatchdogLooksForLossesEarlier(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour})
	l.hold.step(quorum.Input{Kind: quorum.InputTick}, nil)
	require.NoError(t, l.Err())
	m.dog.measure(m.clock.Now()-time.Minute, 0)
	l.hold.step(quorum.Input{Kind: quorum.InputTick}, nil)
	require.NoError(t, l.Err(), "an hour is left, and two minutes are needed")
	assert.LessOrEqual(t, l.hold.machine.End(), l.hold.machine.Stop()-2*time.Minute, "the check has to run two minutes earlier")
	m.dog.measure(m.clock.Now()-31*time.Minute, 0)
	l.hold.step(quorum.Input{Kind: quorum.InputTick}, nil)
	require.ErrorIs(t, l.Err(), ErrLost)
}

// conclusion returns the result of an attempt that a node has granted. The answers were
// counted between the two instants.
func conclusion(m *Manager, t *terms, began, steady time.Duration) (*Lease, error) {
	w := &waiter{m: m, terms: t, lock: "job", ctx: context.Background()}
	a := &attempt{m: m, wait: w, value: strings.Repeat("0", 32) + " 7 1 - ", began: began, steady: steady}
	a.ballot = quorum.NewBallot(1, true, 7)
	a.ballot.Grant(0, 7, 6)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.grant(context.Background())
}

// A lease that would be reported lost at once is not granted.
func TestAGrantIsJudgedByHowLateTheWatchdogIs(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour})
	terms := l.hold.terms
	terms.minUseful = 6 * time.Minute
	granted, err := conclusion(m, terms, m.clock.Now(), m.clock.Now())
	require.NoError(t, err)
	require.True(t, granted.Valid())
	m.dog.measure(m.clock.Now()-28*time.Minute, 0)
	_, err = conclusion(m, terms, m.clock.Now(), m.clock.Now())
	require.ErrorIs(t, err, errTooSlow, "four minutes are left until the loss would be reported")
}

// The clock of a granting node was stepped forward while the attempt ran. The lease ends
// before the caller gets it, so no event reports it.
func TestAGrantThatAClockStepHasEndedIsNotReported(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []time.Duration
		lost  bool
	}{
		{"one step", []time.Duration{2 * time.Hour}, true},
		{"several steps, each of which the lease outlives", []time.Duration{40 * time.Minute, 15 * time.Minute, 10 * time.Minute}, true},
		{"steps that the lease outlives", []time.Duration{10 * time.Minute, 5 * time.Minute}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, l := idleDog(time.Hour, quorum.Terms{})
			events := m.Subscribe(10)
			before := m.dog.live()
			began, steady := m.clock.Both()
			for _, by := range c.steps {
				m.ensemble.Steps.Lock()
				m.ensemble.Steps.Add(&ensemble.Step{Node: 0, By: by, At: steady})
				m.ensemble.Steps.Unlock()
			}
			granted, err := conclusion(m, l.hold.terms, began, steady)
			if !c.lost {
				require.NoError(t, err)
				assert.Less(t, granted.Remaining(), 46*time.Minute, "every step counts")
				assert.Zero(t, granted.hold.proof, "another client may have had the lock on that node")
				assert.IsType(t, Acquired{}, <-events.C())
				return
			}
			require.ErrorIs(t, err, errNoneLeft)
			assert.Nil(t, granted)
			assert.Empty(t, events.C(), "neither Acquired nor Lost")
			assert.Equal(t, before, m.dog.live(), "the watchdog does not schedule it")
		})
	}
}

// An answer that confirms the lease must not end it because the watchdog was late
// meanwhile.
func TestAnAnswerIgnoresThatTheWatchdogIsLate(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour})
	l.hold.step(quorum.Input{Kind: quorum.InputTick}, nil)
	m.dog.measure(m.clock.Now()-31*time.Minute, 0)
	l.hold.step(quorum.Input{Kind: quorum.InputConfirmed, At: m.clock.Now()}, nil)
	require.NoError(t, l.Err())
}

// Sleeping leases would otherwise wake by the delay that they knew before.
func TestEveryLeaseLearnsAtOnceThatTheWatchdogIsLate(t *testing.T) {
	const kept = 200 * time.Millisecond
	m, l := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour})
	_, sleeper := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour})
	sleeper.hold.m = m
	m.dog.schedule(sleeper.hold, sleeper.hold.machine.Wake())
	l.hold.mu.Lock() // keeps the watchdog
	m.dog.schedule(l.hold, m.clock.Now())
	go m.dog.run()
	defer m.dog.stop()
	time.Sleep(kept)
	l.hold.mu.Unlock()
	require.Eventually(t, func() bool {
		sleeper.hold.mu.Lock()
		defer sleeper.hold.mu.Unlock()
		return sleeper.hold.machine.End() < sleeper.hold.machine.Stop()-kept/2
	}, 10*time.Second, time.Millisecond)
}

// Every delay of the watchdog counts: a late timer, a late signal, and its own work while
// a lease was due.
func TestTheWatchdogMeasuresHowLateItIs(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{})
	d, now := m.dog, m.clock.Now()
	d.asleep = now - time.Minute
	assert.Equal(t, now-time.Minute, d.overdue(), "the timer")
	d.asleep = m.clock.Now() + time.Hour
	d.schedule(l.hold, now)
	rung := d.overdue()
	assert.LessOrEqual(t, rung, m.clock.Now(), "the signal")
	d.schedule(l.hold, now-time.Second)
	assert.Equal(t, rung, d.overdue(), "the first one counts")
	wait, _ := d.sleep()
	assert.Zero(t, wait)
	assert.Equal(t, now-time.Second, d.overdue(), "due while it was awake")
	assert.True(t, d.measure(m.clock.Now()-time.Second, 0))
	assert.GreaterOrEqual(t, d.expectedLag(), 2*time.Second)
	assert.False(t, d.measure(m.clock.Now()-time.Second, 0), "hardly worse than before")
}

// A clock jump, by a suspend or by a change of the time, is no delay of the watchdog.
func TestAJumpOfTheClockIsNoLateness(t *testing.T) {
	m, _ := idleDog(time.Hour, quorum.Terms{})
	m.dog.measure(m.clock.Now()-time.Hour, -time.Hour)
	assert.Less(t, m.dog.expectedLag(), time.Minute)
}

// A watchdog without a lease does not measure, so it must not remember a delay. It
// measures again at once with the next lease.
func TestAWatchdogWithoutLeasesExpectsNothing(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{})
	m.dog.measure(m.clock.Now()-time.Second, 0)
	m.dog.sleep()
	assert.Zero(t, m.dog.expectedLag())
	m.dog.schedule(l.hold, m.clock.Now())
	assert.True(t, m.dog.measure(m.dog.overdue(), 0), "every lease has to be updated again")
	assert.GreaterOrEqual(t, m.dog.expectedLag(), 2*time.Second)
}

// However early a loss is reported, the rest of the lease keeps others out until the
// guard after S, as Remaining has promised.
func TestALossThatIsReportedEarlyKeepsOthersOutAsLong(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{MaxLag: 2 * time.Hour, Guard: time.Minute})
	stop := l.hold.machine.Stop()
	m.dog.measure(m.clock.Now()-time.Hour, 0)
	l.hold.step(quorum.Input{Kind: quorum.InputTick}, nil)
	require.ErrorIs(t, l.Err(), ErrLost)
	assert.Equal(t, stop+time.Minute, l.hold.remains)
	assert.EqualValues(t, l.hold.remains, l.hold.wake.Load())
}

// A late watchdog does not use up the time that the options give to a round.
func TestHowMuchEarlierALossMayBeReportedIsBounded(t *testing.T) {
	for _, c := range []struct {
		opts []Option
		want time.Duration
	}{
		{nil, DefaultTTL / 10},
		{[]Option{WithTTL(time.Second), WithNodeTimeout(400 * time.Millisecond)}, 97500 * time.Microsecond},
		// two thirds of 1 s − 367 ms for an interval with its jitter − 450 − 50 − 25 − 12
		{[]Option{WithTTL(time.Second), WithNodeTimeout(450 * time.Millisecond)}, 64 * time.Millisecond},
	} {
		cfg, err := newConfig(Addrs("a:1", "b:1", "c:1"), c.opts)
		require.NoError(t, err)
		assert.InDelta(t, c.want, cfg.terms.MaxLag, float64(time.Millisecond))
	}
}
