package hold

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Lock is a lock that this process holds on the nodes, from Open until its keys are released.
type Lock struct{ state }

// state is a Lock without the methods that others call: it has the steps of the machine, and what
// follows from them.
type state struct {
	of    *Locks
	terms *config.Terms
	key   string

	mu       sync.Mutex
	queue    *Queue // nil while no other caller of this process is known to want the lock; a pointer, because most locks have none
	tenancy  tenancy
	machine  quorum.Machine
	window   [5]time.Duration // the machine's window for up to 5 nodes: saves an allocation
	jumped   time.Duration    // clock.Jumped at the last step
	is       flags
	deleteAt time.Duration               // when the watchdog deletes the keys of a lock that is over
	value    string                      // of the keys: owner value, token, metadata
	retry    *backoff.ExponentialBackOff // after a missed round; nil otherwise
	nodes    []error                     // latest error of each node; nil until there is one
	proof    proof
	tokens   block
	acquire  *wire.Request // until every node has answered it
	ticket   *ticket       // of the waiter that acquired the lock; nil for none
	others   others
	slot     slot[*Lock] // in the schedule
}

// others are who waits: the tickets of other processes in the queues, and callers of this one.
type others struct {
	tickets int                   // by the latest answers
	asOf    time.Duration         // when these arrived
	wants   atomic.Pointer[wants] // nil while no lease has asked to be told; written with the lock's mutex held
}

// tenancy is the lease that stands on the lock.
type tenancy struct {
	tenant  Tenant        // this lease, or the last one
	granted time.Duration // when it began
}

// flags say how a lock stands.
type flags struct {
	taking   quorum.Set // nodes that were asked to let the lease take their reservations, and have not answered
	vacant   bool       // its lease is over, and it has not been passed on
	working  bool       // a function of Do or Lead runs under its lease
	unused   bool       // nobody has seen its lease, so there is no minimum hold
	stopped  bool       // it has ended by Halt
	left     bool       // it has ended by Leave, and its keys are not deleted
	detached bool       // by Detach
	over     bool       // it was lost or released
	shared   bool       // it is one of several leases that read
	stays    bool       // Close waits until its keys are deleted, see Locks.End
}

// Key returns the key of the lock on the nodes.
func (l *Lock) Key() string { return l.key }

// Terms returns the terms under which the lock was acquired.
func (l *Lock) Terms() *config.Terms { return l.terms }

// Tenant returns the lease that stands on the lock, or the last one.
func (l *Lock) Tenant() Tenant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenancy.tenant
}

// Granted returns when the lease that stands on the lock, or the last one, began.
func (l *Lock) Granted() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenancy.granted
}

// Value returns the value of the lock's keys. A check replaces it.
func (l *Lock) Value() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value
}

// entryOf is what the nodes keep for a lock. l.mu is held.
func entryOf(l *state) wire.Entry {
	return wire.Entry{Lock: l.key, Value: l.value, Shared: l.is.shared}
}

// Left returns how long a quorum of nodes keeps the keys, 0 if it does not.
func (l *Lock) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.machine.Deadline()-l.of.clock.Now(), 0)
}

// Over reports whether the lock was lost or released.
func (l *Lock) Over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is.over
}

// Tick finds out whether the lock is lost by now, and reports it.
func (l *Lock) Tick() { l.step(quorum.Input{Kind: quorum.InputTick}, nil) }

// transition is the result of a step.
type transition struct {
	quorum.Output
	now  time.Duration
	over bool  // the step ended the lock
	lost Queue // has to learn that the lock was lost; nil for none
}

// step applies one input and carries out the effects, except Begin and Heal, which the caller
// posts. After Open the machine changes nowhere else. with runs under the mutex before the
// step, unless the lock is over.
func (l *state) step(in quorum.Input, with func()) transition {
	l.mu.Lock()
	s := l.stepLocked(in, with)
	l.mu.Unlock()
	l.notify(&s)
	return s
}

// notify reports a loss to the queue. l.mu is not held.
func (l *state) notify(s *transition) {
	if s.lost != nil {
		s.lost.Lost(l.slot.of)
	}
}

// stepLocked is step for a caller that holds l.mu. The caller calls notify, or does the same
// itself.
func (l *state) stepLocked(in quorum.Input, with func()) (s transition) {
	s.now = l.of.clock.Now()
	if l.is.over {
		return s
	}
	if with != nil {
		with()
	}
	in.Jump, in.Lag = l.clockJumped() || l.deadlinePassed(s.now), l.of.expectedLag()
	s.Output = l.machine.Step(s.now, in)
	switch l.machine.State() {
	case quorum.StateLost:
		s.over = true
		if l.queue != nil {
			s.lost = *l.queue
		}
		l.lose(s.now)
	case quorum.StateReleased:
		s.over = true
		l.release(s.now)
	default:
		l.carryOut(s.now, s.Output)
	}
	return s
}

// clockJumped reports whether the clock has jumped since the last step.
func (l *state) clockJumped() bool {
	before := l.jumped
	l.jumped = l.of.clock.Jumped()
	return l.jumped != before
}

// deadlinePassed reports whether the watchdog has not run for so long that the process must have
// been suspended: otherwise the loss would have been found before.
func (l *state) deadlinePassed(now time.Duration) bool {
	deadline := l.machine.Deadline()
	return now > deadline && deadline > 0
}

// lose ends a lock that was lost. l.mu is held.
func (l *state) lose(now time.Duration) {
	// The guard starts at S, because Remaining allowed work until then. The keys stay for
	// the guard, so that work can stop, and for the lock delay, as they would if the process had
	// died.
	l.finish(max(now, l.machine.Stop()) + l.terms.Guard + l.terms.LockDelay)
	l.report(now, Lost)
}

// release ends a lock that is released. With a minimum hold its keys stay. l.mu is held.
func (l *state) release(now time.Duration) {
	keep := l.tenancy.granted + l.minHold()
	if l.is.stopped {
		keep = now + l.terms.Guard + l.terms.LockDelay
	}
	if keep <= now || l.is.left {
		keep = quorum.Never
	}
	l.finish(keep)
	what := Released
	if l.is.detached {
		what |= Detached
	}
	l.report(now, what)
}

// minHold returns for how long the keys of a released lock stay. l.mu is held.
func (l *state) minHold() time.Duration {
	if l.is.unused {
		return 0
	}
	return l.terms.MinHold
}

// halted reports whether the lock has ended so that its keys stay for the guard and the lock delay.
// l.mu is held.
func (l *state) halted() bool { return l.machine.State() == quorum.StateLost || l.is.stopped }

// finish ends the lock, whose keys the watchdog deletes at an instant; quorum.Never if it does not
// have to.
func (l *state) finish(deleteAt time.Duration) {
	l.is.over = true
	if deleteAt != quorum.Never {
		l.deleteAt = deleteAt
	}
	l.of.schedule.at(&l.slot, deleteAt)
	l.of.registry.remove(l.slot.of)
}

// carryOut reports the effects of a step of a live lock, and schedules the next step. l.mu is
// held.
func (l *state) carryOut(now time.Duration, out quorum.Output) {
	if w := l.others.wants.Load(); w != nil && out.Silent != 0 {
		w.forget(out.Silent)
	}
	for i := 0; out.Silent>>i != 0; i++ {
		if out.Silent.Has(i) && (l.nodes == nil || l.nodes[i] == nil) {
			l.note(i, ensemble.Silence(l.terms.Timeout))
		}
	}
	switch {
	case l.terms.Manual:
	case out.Begin:
		l.machine.Arm(now + l.nextRound())
	case out.Missed:
		if l.retry == nil {
			l.retry = backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(l.terms.TTL/20), backoff.WithMaxInterval(l.terms.Interval),
				backoff.WithMaxElapsedTime(0))
		}
		l.machine.Arm(now + l.retry.NextBackOff())
	}
	if out.Confirmed {
		l.retry = nil
	}
	l.report(now, happened(out))
	tellWant(l, now)
	l.of.schedule.at(&l.slot, max(now, l.machine.Wake())) // the watchdog measures its own delay from this instant, so it must not lie in the past
}

// happened returns what a step of a live lock means for its lease.
func happened(out quorum.Output) (what What) {
	if (out.Confirmed || out.Missed) && !out.Begin {
		what |= RoundOver
	}
	if out.Missed {
		what |= Missed
	}
	if out.Events&quorum.Renewed != 0 {
		what |= Renewed
	}
	if out.Events&quorum.AtRisk != 0 {
		what |= AtRisk
	}
	return what
}

// report tells the lease what has happened. Its end is the last event. l.mu is held.
func (l *state) report(now time.Duration, what What) {
	if l.is.vacant {
		return
	}
	e := Event{What: what, State: l.machine.State(), Now: now, Stop: l.machine.Stop(), Granted: l.tenancy.granted, Errors: l.nodes, Value: l.value}
	if e.Is(Opened | Renewed | AtRisk | RoundOver) {
		e.Margin, e.Confirmed = l.machine.Margin(now), l.machine.Confirmed()
	}
	if e.Is(Lost) {
		e.Reason = l.machine.Reason()
	}
	if e.Is(Opened) && !l.of.unfenced {
		e.Token = l.tokens.next
		l.tokens.next++
	}
	l.tenancy.tenant.Report(e)
	if e.Is(Lost | Released) {
		l.is.vacant, l.retry = true, nil
	}
}

// tellWant tells the lease who wants the lock, if that has changed. l.mu is held.
func tellWant(l *state, now time.Duration) {
	w := l.others.wants.Load()
	if w == nil || l.is.over || l.is.vacant {
		return
	}
	if want, changed := w.news(); changed {
		l.tenancy.tenant.Report(Event{
			What: Wanted, Want: &want, State: l.machine.State(), Now: now, Granted: l.tenancy.granted, Stop: l.machine.Stop(), Value: l.value,
		})
	}
}

// nextRound returns a renewal interval with its jitter, −5 % … +10 %. A round may start up
// to 5 % of the interval earlier still, to go together with other locks.
func (l *state) nextRound() time.Duration {
	return time.Duration(float64(l.terms.Interval) * (0.95 + 0.15*rand.Float64()))
}

// note records the latest error of a node as evidence; nil clears it. l.mu is held.
func (l *state) note(i int, err error) {
	if l.nodes == nil {
		if err == nil {
			return
		}
		l.nodes = make([]error, l.terms.Nodes)
	}
	l.nodes[i] = err
}

// resetProof resets the proof: another client may have had the lock since. l.mu is held.
func (l *state) resetProof() { l.proof.reset(l.of.clock.Now()) }

// applyClockStep shortens a node's vote: the node's clock was stepped forward, so the key
// expires that much earlier.
func (l *state) applyClockStep(step *ensemble.Step) {
	l.step(quorum.Input{Kind: quorum.InputClockStep, Node: step.Node, By: step.By}, func() {
		l.note(step.Node, step)
		l.resetProof()
	})
}
