package hold

import (
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// longestSleep bounds the watchdog's sleep. Its timer stands still while the machine is
// suspended, and after a resume a lost lease must be reported soon.
const longestSleep = 250 * time.Millisecond

// Watchdog renews the locks of a process and finds out about every loss in time.
type Watchdog struct {
	*Locks
	halt   chan struct{} // closed by Stop
	halted chan struct{} // closed by Run when it ends

	mu      sync.Mutex
	delays  quorum.Lag    // recent delays of the watchdog
	applied time.Duration // every lock has been stepped with this delay or a longer one
}

// NewWatchdog returns the watchdog of a process that has no lock yet.
func NewWatchdog(c *Config) *Watchdog {
	clock := c.Ensemble.Clock
	return &Watchdog{
		Locks: &Locks{
			ensemble: c.Ensemble, clock: clock, unfenced: c.Unfenced, calls: c.Calls, unreleased: unreleased{ensemble: c.Ensemble},
			schedule: newSchedule[*Lock](clock.Now), allPosted: sync.Cond{L: &sync.Mutex{}},
		},
		halt: make(chan struct{}), halted: make(chan struct{}),
	}
}

// Stop ends Run and waits for it.
func (d *Watchdog) Stop() {
	close(d.halt)
	<-d.halted
}

// Run is the watchdog's goroutine.
func (d *Watchdog) Run() {
	defer close(d.halted)
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	due, jumped := d.clock.Now(), d.clock.Jumped() // the instant of the due wake, and the clock's jumps until then
	for {
		now := d.clock.Now()
		d.tend(now, d.schedule.take(now.Add(config.Together)))
		if d.measure(due, jumped) {
			d.stepAll()
		}
		jumped = d.clock.Jumped()
		if wait, ok := d.sleep(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-d.schedule.signal:
		case <-d.halt:
			return
		}
		due = d.schedule.overdue()
	}
}

// sleep returns how long the watchdog may sleep, and false when nothing is scheduled.
func (d *Watchdog) sleep() (time.Duration, bool) {
	wait, empty, ok := d.schedule.sleep(longestSleep)
	if empty { // without locks nothing is measured; the next lock starts it again
		d.mu.Lock()
		d.applied = 0
		d.mu.Unlock()
		d.lag.Store(0)
	}
	return wait, ok
}

// measure records how late the watchdog finished what was due: the delay of its timer, of
// the scheduler, and the work on all the other locks. Jumps of the clock since jumped was
// read do not count, because they are not a sign of load. It reports whether the delay has
// grown so much that every lock must be stepped now: its next wake was computed with the
// old, shorter delay, and would be too late.
func (d *Watchdog) measure(due clock.Validity, jumped time.Duration) bool {
	now := d.clock.Now()
	late := now.Sub(due) - (d.clock.Jumped() - jumped)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delays.Saw(now, late)
	expected := d.delays.Expect(now)
	d.lag.Store(int64(expected))
	d.applied = min(d.applied, expected)
	if expected-d.applied <= max(5*time.Millisecond, d.applied/4) {
		return false
	}
	d.applied = expected
	return true
}

// stepAll steps every lock, so that its next wake allows for the expected delay.
func (d *Watchdog) stepAll() {
	var heal healing
	for _, l := range d.schedule.all() {
		heal = heal.with(l, l.step(quorum.Input{Kind: quorum.InputTick}, nil).Heal)
	}
	d.heal(heal)
}

// tend steps the locks that are due, and renews those whose round is due. Each step returns the
// lock to the schedule, unless the lock has ended.
func (d *Watchdog) tend(now clock.Validity, due []*alarm[*Lock]) {
	var renew, remnants []*Lock
	var heal healing
	for _, one := range due {
		l := one.of
		switch t := l.tick(now); {
		case t.begin:
			renew, heal = append(renew, l), heal.with(l, t.heal)
		case t.live:
			heal = heal.with(l, t.heal)
		case t.deleteAt == 0: // it was released in between, and the caller that has released it asks the nodes
		case now < t.deleteAt:
			d.schedule.at(one, t.deleteAt)
		default:
			remnants = append(remnants, l)
		}
	}
	d.heal(heal)
	d.extend(renew, quorum.All(d.ensemble.Size()))
	// The release does not follow a loss at once: the holder has the safety margin to stop its
	// work.
	d.clear(remnants)
}

// tick is what the passing of time means for a lock.
type tick struct {
	live     bool // the lock was not over before
	begin    bool // a round begins
	heal     quorum.Set
	deleteAt clock.Validity // of a lock that had ended: when its keys are to be deleted; 0 if the watchdog does not delete them
}

// tick applies the passing of time. It begins a round that is due, or due soon enough to go
// together with other locks.
func (l *Lock) tick(now clock.Validity) (t tick) {
	l.mu.Lock()
	t.live, t.deleteAt = !l.is.over, l.deleteAt
	s := l.stepLocked(quorum.Input{Kind: quorum.InputTick}, nil)
	t.heal = s.Heal
	if t.live && !s.over && l.machine.Due(now.Add(l.machine.Terms().Slack)) {
		s = l.stepLocked(quorum.Input{Kind: quorum.InputBegin}, nil)
		t.begin = s.Begin
	}
	l.mu.Unlock()
	l.notify(&s)
	return t
}

// NodeBack renews the locks that are at risk, because node i votes again: by a new round, or by
// asking the node again in the round under way, which may have begun without it.
func (d *Watchdog) NodeBack(i int) {
	var renew, again []*Lock
	for _, l := range d.schedule.all() {
		l.mu.Lock()
		risk := !l.is.over && l.machine.State() == quorum.StateAtRisk
		waiting := l.machine.Waiting()
		l.mu.Unlock()
		switch {
		case !risk:
		case !l.Terms().Manual && l.step(quorum.Input{Kind: quorum.InputBegin}, nil).Begin:
			renew = append(renew, l)
		case waiting:
			again = append(again, l)
		}
	}
	d.extend(renew, quorum.All(d.ensemble.Size()))
	d.extend(again, quorum.Set(0).With(i))
}
