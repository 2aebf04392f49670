package queue

import (
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Queue has the callers of this process that want one lock. It also remembers that the lock was
// left to a waiter of another process.
type Queue struct {
	of  *Queues
	key string

	mu      sync.Mutex
	local   quorum.Local
	callers map[quorum.CallerID]*Place
	lock    *hold.Lock     // that this process holds; nil for none
	check   *hold.Check    // the running check of lock; nil for none
	awaited bool           // the lock has no lease until the check ends
	timer   *time.Timer    // runs tend; nil before its first use
	tendAt  clock.Validity // when the timer runs, 0 for never

	setback  Setback        // of the last attempt from this Queue since the last grant; zero for none
	failedAt clock.Validity // when that attempt had failed
}

func (q *Queue) now() clock.Validity { return q.of.config.Clock.Now() }

// dismiss ends the call of a caller that does not wait for the nodes, if the last attempt from this Queue was not
// answered. The caller that made the attempt sees that itself. q.mu is held.
func (q *Queue) dismiss(p *Place) {
	if !p.FailFast || !q.setback.TooFewAnswered || q.lock != nil || !q.local.Waits(p.id) {
		return
	}
	delete(q.callers, p.id)
	q.watch()
	q.carryOut(q.local.Leave(q.now(), p.id))
	p.turn <- Turn{Ends: true, Why: q.setback.Why}
}

// obstacle returns what blocks a caller. q.mu is held.
func (q *Queue) obstacle() Obstacle {
	if q.lock != nil {
		return Obstacle{Lock: q.lock}
	}
	return Obstacle{Why: q.setback.Why, Age: q.now().Sub(q.failedAt)}
}

// enter puts a caller into the Queue. q.mu is held.
func (q *Queue) enter(p *Place) {
	q.callers[p.id] = p
	q.carryOut(q.local.Enter(q.now(), quorum.Caller{ID: p.id, Arrived: p.Arrived, Terms: p.Terms.PassKey}))
	q.watch()
	q.dismiss(p)
}

// granted records that a caller which asked the nodes has the lock l.
func (q *Queue) granted(p *Place, l *hold.Lock) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.callers, p.id)
	q.local.Granted(q.now())
	q.lock, q.check, q.setback = l, nil, Setback{}
	q.watch()
	if l.Over() {
		q.lost(l)
	}
}

// Lost records that a lock was lost.
func (q *Queue) Lost(l *hold.Lock) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost(l)
}

func (q *Queue) lost(l *hold.Lock) {
	if q.lock == l {
		q.drop()
		q.carryOut(q.local.Lost(q.now()))
		q.tendBy(q.now().Add(idleFor))
	}
}

// drop forgets the lock. A running check of it no longer decides anything: the next lock gets its
// own check. q.mu is held.
func (q *Queue) drop() { q.lock, q.check = nil, nil }

// Finish decides what becomes of a lock whose lease was released. It returns the pending answers if it releases the
// lock.
func (q *Queue) Finish(l *hold.Lock, state quorum.Hold) *ensemble.Answers {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.Over() { // since its lease ended, and the news is on the way
		q.lost(l)
	}
	if q.lock != l { // it has left the Queue
		return q.freeUnused(l)
	}
	return q.carryOut(q.local.Finished(q.now(), q.complete(&state)))
}

// complete adds to the state of a lock what its process knows.
func (q *Queue) complete(state *quorum.Hold) *quorum.Hold {
	state.Turn, state.Subscribed = q.of.config.Turn(), q.of.config.Woken() && q.lock.Terms().MinHold == 0 // a release with a minimum hold carries no ticket
	return state
}

// carryOut carries out a decision. When it releases the lock, carryOut returns the pending answers.
// q.mu is held.
func (q *Queue) carryOut(s quorum.Step) *ensemble.Answers {
	switch s.Kind {
	case quorum.StepContend:
		q.send(s.Caller, Turn{NotBefore: s.At})
	case quorum.StepPass:
		if q.pass(s.Caller) {
			return nil
		}
		l := q.lock // lost, or doubtful, since the decision
		q.drop()
		pending := q.freeUnused(l) // before the caller asks: it would find our own keys
		q.carryOut(q.local.NotPassed(q.now()))
		return pending
	case quorum.StepCheck:
		if q.check == nil {
			q.startCheck()
		}
		q.awaited = true
	case quorum.StepRelease:
		l := q.lock
		q.drop()
		previous := l.Tenant()
		pending := q.free(l, s)
		if s.Caller != 0 {
			q.send(s.Caller, Turn{Previous: previous, NotBefore: s.At, Enqueued: s.Enqueue})
		}
		q.tendBy(q.now().Add(idleFor))
		return pending
	}
	return nil
}

// send starts a caller's turn. q.mu is held.
func (q *Queue) send(id quorum.CallerID, t Turn) {
	if p := q.callers[id]; p != nil {
		p.turn <- t
	}
}

// pass gives a caller the next lease on the lock. It returns false when the lock can no longer be passed on, or the
// caller is gone. q.mu is held.
func (q *Queue) pass(id quorum.CallerID) bool {
	p := q.callers[id]
	if p == nil {
		return false
	}
	previous, lease := q.lock.Tenant(), p.Caller.Tenant(q.lock)
	check, ok := q.lock.Pass(lease)
	if !ok {
		return false
	}
	delete(q.callers, id)
	p.turn <- Turn{Lease: lease, Previous: previous}
	q.watch()
	if check && q.check == nil && q.local.Waiting() > 0 {
		q.startCheck()
	}
	return true
}

// startCheck begins a check of the lock. q.mu is held.
func (q *Queue) startCheck() {
	q.check, q.awaited = q.lock.Check(q.checked), false
	q.tendBy(q.check.Until())
}

// checked handles the end of a check.
func (q *Queue) checked(c *hold.Check, now clock.Validity, state quorum.Hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.check != c { // the lock has left the Queue
		return
	}
	q.check = nil
	if q.awaited && !q.lock.Over() {
		q.carryOut(q.local.Checked(now, q.complete(&state)))
	}
}

// freeUnused releases a lock that no lease stands on. A lock that was lost in between is left to the watchdog: a lock
// delay may keep its keys. q.mu is held.
func (q *Queue) freeUnused(l *hold.Lock) *ensemble.Answers {
	if l.Over() {
		return nil
	}
	return q.free(l, quorum.Step{})
}

// free releases a lock on the nodes. q.mu is held.
func (q *Queue) free(l *hold.Lock, s quorum.Step) *ensemble.Answers {
	var update wire.TicketUpdate
	if p := q.callers[s.Caller]; p != nil && s.Enqueue {
		update = p.Caller.CarryTicket(s.At) // before a node can wake the caller
	}
	update.LeavesFree = s.LeaveFree
	return l.Free(update)
}

// idleFor is how long an unused Queue stays, at least.
const idleFor = time.Second

// tendBy makes the Queue's timer run tend at an instant, or earlier. q.mu is held.
func (q *Queue) tendBy(at clock.Validity) {
	if q.tendAt != 0 && q.tendAt <= at {
		return
	}
	q.tendAt = at
	after := max(at.Sub(q.now()), 0)
	if q.timer == nil {
		q.timer = time.AfterFunc(after, q.tend)
	} else {
		q.timer.Reset(after)
	}
}

// tend ends a check that is overdue, looks for callers that may wait for themselves, and removes an unused Queue. The
// Queue's timer runs it.
func (q *Queue) tend() {
	if q.of.ending() {
		return // Close ends the calls and the leases of every Queue
	}
	q.mu.Lock()
	now := q.now()
	q.tendAt = 0
	overdue := q.check
	if overdue != nil && now < overdue.Until() {
		q.tendBy(overdue.Until())
		overdue = nil
	}
	self := q.waitsForItself(now)
	q.mu.Unlock()
	if self {
		q.of.config.WaitsForItself(q.key)
	}
	if overdue != nil {
		overdue.End()
	}
	q.of.sweep(q, now)
}

// watch follows a change of the callers: the holder learns how many wait, and the timer looks for callers that may wait
// for themselves. q.mu is held.
func (q *Queue) watch() {
	if q.lock == nil {
		return
	}
	q.lock.SetCallers(len(q.callers))
	if len(q.callers) > 0 {
		q.tendBy(q.now().Add(q.lock.Terms().TTL))
	}
}

// waitsForItself reports whether a caller has waited for a lease of this process for longer than a
// TTL. If one waits for less, the timer looks again. q.mu is held.
func (q *Queue) waitsForItself(now clock.Validity) bool {
	if q.lock == nil {
		return false
	}
	granted := q.lock.Granted()
	for _, p := range q.callers {
		due := max(p.Arrived, granted).Add(p.Terms.TTL)
		if due < now {
			return true
		}
		q.tendBy(due + 1)
	}
	return false
}
