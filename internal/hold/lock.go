package hold

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Lock is a lock that this process holds on the nodes, from Open until its keys are released.
type Lock struct {
	of  *Locks
	key string
	// terms are the terms of the requests. A longer TTL is in force only once a majority has confirmed it, see
	// quorum.Machine.Terms. Written with mu held.
	terms atomic.Pointer[config.Terms]

	mu       sync.Mutex
	queue    *Queue // nil while no other caller of this process is known to want the lock; a pointer, because most locks have none
	tenancy  tenancy
	machine  quorum.Machine
	window   [5]clock.Validity // the machine's window for up to 5 nodes: saves an allocation
	jumped   time.Duration     // clock.Jumped at the last step
	is       flags
	deleteAt clock.Validity              // when the watchdog deletes the keys of a lock that has ended; 0 if it does not
	value    string                      // of the keys: owner value, token, metadata
	retry    *backoff.ExponentialBackOff // after a missed round; nil otherwise
	nodes    []error                     // latest error of each node; nil until there is one
	proof    proof
	tokens   block
	acquire  *wire.Request // until every node has answered it
	ticket   *ticket       // of the waiter that acquired the lock; nil for none
	others   others
	alarm    alarm[*Lock] // in the schedule
}

// others are the waiters: tickets of other processes in the queues, and callers of this process.
type others struct {
	tickets int                   // by the latest answers
	asOf    clock.Validity        // when these arrived
	wants   atomic.Pointer[wants] // nil until a lease has asked for it; written with the lock's mutex held
}

// tenancy is the lease that stands on the lock.
type tenancy struct {
	tenant  Tenant         // this lease, or the last one
	granted clock.Validity // when it began
	ended   clock.Validity // when it was released
}

// flags are the state of a lock.
type flags struct {
	taking    quorum.Set // nodes that were asked to let the lease take their reservations, and have not answered
	vacant    bool       // its lease has ended, and it has not been passed on
	unsettled bool       // its lease was released, and the nodes' answers about it are pending
	working   bool       // a function of Do or Lead runs under its lease, and counts among calls
	what      What       // of its Ending; until then, of an end by Close
	keys      Keys       // the same
	over      bool       // it was lost or released
	shared    bool       // its lease is shared
	awaited   bool       // a change of the TTL waits until unposted is 0
	unposted  uint16     // renewals and heals that were built and are not posted yet
}

// Key returns the key of the lock on the nodes.
func (l *Lock) Key() string { return l.key }

// Terms returns the terms that the requests of the lock ask for.
func (l *Lock) Terms() *config.Terms { return l.terms.Load() }

// Tenant returns the lease that stands on the lock, or the last one.
func (l *Lock) Tenant() Tenant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenancy.tenant
}

// Granted returns when the lease that stands on the lock, or the last one, began.
func (l *Lock) Granted() clock.Validity {
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

// entry is what the nodes keep for a lock. l.mu is held.
func (l *Lock) entry() wire.Entry {
	return wire.Entry{Lock: l.key, Value: l.value, Shared: l.is.shared}
}

// Left returns how long a quorum of nodes keeps the keys, 0 if the lock has ended.
func (l *Lock) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := l.machine.Deadline().Sub(l.of.clock.Now()); left > 0 && !l.is.over {
		return left + l.Terms().LockDelay
	}
	return 0
}

// Over reports whether the lock was lost or released.
func (l *Lock) Over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is.over
}

// Tick checks whether the lock is lost by now, and reports a loss.
func (l *Lock) Tick() { l.step(quorum.Input{Kind: quorum.InputTick}, nil) }

// transition is the result of a step.
type transition struct {
	quorum.Output
	now  clock.Validity
	over bool  // the step ended the lock
	lost Queue // must learn that the lock was lost; nil for none
}

// step applies one input and carries out the effects, except Begin and Heal, which the caller
// posts. After Open the machine changes nowhere else. with runs under the mutex before the
// step, unless the lock has ended.
func (l *Lock) step(in quorum.Input, with func()) transition {
	l.mu.Lock()
	s := l.stepLocked(in, with)
	l.mu.Unlock()
	l.notify(&s)
	return s
}

// notify reports a loss to the queue. l.mu is not held.
func (l *Lock) notify(s *transition) {
	if s.lost != nil {
		s.lost.Lost(l)
	}
}

// stepLocked is step for a caller that holds l.mu. The caller calls notify, or does the same
// itself.
func (l *Lock) stepLocked(in quorum.Input, with func()) (s transition) {
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
		l.lose(s.now, in.Kind)
	case quorum.StateReleased:
		s.over = true
		l.release(s.now)
	default:
		l.carryOut(s.now, s.Output)
	}
	return s
}

// clockJumped reports whether the clock has jumped since the last step.
func (l *Lock) clockJumped() bool {
	before := l.jumped
	l.jumped = l.of.clock.Jumped()
	return l.jumped != before
}

// deadlinePassed reports whether the watchdog has not run for so long that the process must have
// been suspended: otherwise the loss would have been found before.
func (l *Lock) deadlinePassed(now clock.Validity) bool {
	deadline := l.machine.Deadline()
	return now > deadline && deadline > 0
}

// lose ends a lock that this kind of input has shown lost. l.mu is held.
func (l *Lock) lose(now clock.Validity, found quorum.Kind) {
	was := l.unsettled() // a lease that was released before
	// The safety margin starts at S, because Remaining allowed work until then. The keys stay for
	// the safety margin, so that work can stop, and for the lock delay, as they would if the process had
	// died.
	l.is.what, l.is.keys = Lost, Delayed
	l.finish(max(now, l.machine.Stop()).Add(l.keysStay()))
	l.report(now, Lost)
	e := Event{What: Settled}
	if l.lostBefore(was.ended, found) {
		e.What, e.Reason, e.Errors = Settled|Lost, l.machine.Reason(), l.nodes
	}
	l.settle(was, e)
}

// lostBefore reports whether a node's answer has just shown that another client may have had the lost lock before its
// lease was released, as an answer to the release would. A renewal that began later does not show it: the keys may have gone
// in between. l.mu is held.
func (l *Lock) lostBefore(released clock.Validity, found quorum.Kind) bool {
	votes, why := l.machine.Release(released), l.machine.Reason()
	denied := (why == quorum.ReasonTaken || why == quorum.ReasonMissing) && found != quorum.InputClockStep
	return denied && l.machine.Began() <= released && votes.Lost()
}

// release ends a lock that is released. l.mu is held.
func (l *Lock) release(now clock.Validity) {
	keep := now
	switch l.is.keys {
	case Deleted:
		keep = l.tenancy.granted.Add(l.Terms().MinHold)
	case Delayed:
		keep = now.Add(l.keysStay())
	case Unseen, Left:
	}
	if keep <= now {
		keep = quorum.Never
	}
	l.finish(keep)
	l.report(now, l.is.what)
}

// keysStay returns how long the keys stay after the end, so that work can stop. l.mu is held.
func (l *Lock) keysStay() time.Duration { return l.machine.Terms().SafetyMargin + l.Terms().LockDelay }

// finish ends the lock. The watchdog deletes its keys at deleteAt, or never for quorum.Never.
func (l *Lock) finish(deleteAt clock.Validity) {
	l.is.over = true
	if deleteAt != quorum.Never {
		l.deleteAt = deleteAt
	}
	l.of.schedule.at(&l.alarm, deleteAt)
	l.of.registry.remove(l)
}

// carryOut reports the effects of a step of a live lock, and schedules the next step. l.mu is
// held.
func (l *Lock) carryOut(now clock.Validity, out quorum.Output) {
	if w := l.others.wants.Load(); w != nil && out.Silent != 0 {
		w.forget(out.Silent)
	}
	t := l.machine.Terms()
	for i := range out.Silent.All() {
		if l.nodes == nil || l.nodes[i] == nil {
			l.note(i, ensemble.Silence(t.Timeout))
		}
	}
	switch {
	case l.Terms().Manual:
	case out.Begin:
		l.machine.Arm(now.Add(l.nextRound()))
	case out.Missed:
		if l.retry == nil {
			l.retry = backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(t.TTL/20), backoff.WithMaxInterval(t.Interval),
				backoff.WithMaxElapsedTime(0))
		}
		// The retry comes no later than the next round would: a process that reads late misses each round.
		l.machine.Arm(min(l.machine.Wake(), now.Add(l.retry.NextBackOff())))
	}
	if out.Confirmed {
		l.retry = nil
	}
	l.report(now, happened(out))
	l.tellWant(now)
	l.of.schedule.at(&l.alarm, max(now, l.machine.Wake())) // the watchdog measures its own delay from this instant, so it must not lie in the past
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
func (l *Lock) report(now clock.Validity, what What) {
	if l.is.vacant {
		return
	}
	e := Event{What: what, State: l.machine.State(), Now: now, Stop: l.machine.Stop(), Granted: l.tenancy.granted, Errors: l.nodes, Value: l.value}
	if e.Is(Opened | Renewed | AtRisk | RoundOver) {
		e.Margin, e.Confirmed = l.machine.Margin(now), l.machine.Confirmed()
	}
	if e.Is(Lost) {
		e.Reason, e.Free = l.machine.Reason(), min(l.deleteAt, l.machine.Deadline().Add(l.Terms().LockDelay))
	}
	if e.Is(Released) {
		if l.tenancy.ended = now; l.is.unsettled {
			e.What |= Asking
		}
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

// unsettled takes out of the lock the tenancy whose release waits to be settled; the zero tenancy for none. l.mu is
// held.
func (l *Lock) unsettled() (was tenancy) {
	if l.is.unsettled && l.is.vacant {
		l.is.unsettled, was = false, l.tenancy
	}
	return was
}

// settle sends the last report about a lease that was released. l.mu is held.
func (l *Lock) settle(was tenancy, e Event) {
	if was.tenant != nil {
		e.Granted, e.Now, e.Value = was.granted, was.ended, l.value
		was.tenant.Report(e)
	}
}

// tellWant tells the lease who wants the lock, if that has changed. l.mu is held.
func (l *Lock) tellWant(now clock.Validity) {
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
func (l *Lock) nextRound() time.Duration {
	return time.Duration(float64(l.machine.Terms().Interval) * (0.95 + 0.15*rand.Float64()))
}

// note records the latest error of a node as evidence; nil clears it. l.mu is held.
func (l *Lock) note(i int, err error) {
	if l.nodes == nil {
		if err == nil {
			return
		}
		l.nodes = make([]error, l.Terms().Nodes)
	}
	l.nodes[i] = err
}

// resetProof resets the proof: another client may have had the lock since. l.mu is held.
func (l *Lock) resetProof() { l.proof.reset(l.of.clock.Now()) }

// applyClockStep shortens a node's vote: the node's clock was stepped forward, so the key
// expires that much earlier.
func (l *Lock) applyClockStep(step *ensemble.Step) {
	l.step(quorum.Input{Kind: quorum.InputClockStep, Node: step.Node, By: step.By}, func() {
		l.note(step.Node, step)
		l.resetProof()
	})
}
