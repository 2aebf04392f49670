package quorumlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// localQueue is the queue of the callers of one name in this process. It also remembers
// that a lock was left to a waiter of another process. quorum.Local decides for it.
type localQueue struct {
	m   *Manager
	key string

	mu      sync.Mutex // taken after locals.mu and before a lock's mutex
	queue   quorum.Local
	callers map[quorum.CallerID]*waiter
	lock    *hold.Lock    // that this process holds; nil for none
	timer   *time.Timer   // runs tend; nil before its first use
	tendAt  time.Duration // when the timer runs, 0 for never
	check   *hold.Check   // the running check of lock; nil for none
	awaited bool          // the lock has no lease until the check ends

	// The error of the last failed attempt from this queue since the last grant, and when
	// it came; nil for none.
	refusal    error
	refusedAt  time.Duration
	unanswered bool // too few nodes have answered that attempt
}

// turn ends a caller's wait in a local queue.
type turn struct {
	lease     *Lease   // the lease that is passed on; nil when the caller has to contend
	err       error    // ends the call
	previous  *spanRef // the span of this process's previous lease; nil for none
	notBefore time.Duration
	enqueued  bool // the nodes have the caller's ticket
}

// name returns the name of the lock.
func (q *localQueue) name() string { return q.key[len(q.m.cfg.Prefix):] }

// refused records the error of a failed attempt from this queue. It ends the calls that do
// not wait for the nodes, if too few of these have answered.
func (q *localQueue) refused(err error, unanswered bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refusal, q.refusedAt, q.unanswered = err, q.m.clock.Now(), unanswered
	for _, w := range q.callers {
		q.dismiss(w)
	}
}

// dismiss ends the call of a waiter that has WithFailFast, if the last attempt from this
// queue was not answered. The caller that made it sees that itself. q.mu is held.
func (q *localQueue) dismiss(w *waiter) {
	if !w.failFast || !q.unanswered || q.lock != nil || !q.queue.Waits(w.id) {
		return
	}
	delete(q.callers, w.id)
	q.do(q.queue.Leave(q.m.clock.Now(), w.id))
	w.turn <- turn{err: q.refusal}
}

// lastRefusal returns that error, with RetryAfter counted from now. q.mu is held.
func (q *localQueue) lastRefusal() error {
	var held *HeldError
	if !errors.As(q.refusal, &held) {
		return q.refusal
	}
	now := *held
	now.RetryAfter = max(held.RetryAfter-(q.m.clock.Now()-q.refusedAt), 0)
	return &now
}

// obstacle returns what blocks a caller in this queue: a lease of this process, or the
// error of the last attempt. Nil means unknown. q.mu is held.
func (q *localQueue) obstacle() error {
	l := q.lock
	if l == nil {
		return q.lastRefusal()
	}
	by := holder(l.Value())
	by.TraceParent = leaseOn(l).acquired.traceParent() // the value has the first lease's
	return &HeldError{Name: q.name(), Holder: by, RetryAfter: l.Left(), Self: true}
}

// met evaluates the refusals of an attempt from this queue. A lock without our metadata
// shows that clients without tickets compete.
func (q *localQueue) met(a *attempt) {
	stranger := false
	a.mu.Lock()
	for i := range a.refusals {
		stranger = stranger || a.refusals[i].Stranger
	}
	a.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if stranger {
		q.queue.StrangerSeen(q.m.clock.Now())
	}
}

// await waits for the caller's turn. It returns the lease that was passed on, or nil when
// the caller has to contend. It returns an error when the caller's wait or the
// Manager has ended; then the caller has left the queue.
func (w *waiter) await() (*Lease, error) {
	var err error
	select {
	case t := <-w.turn:
		return w.take(t), t.err
	case <-w.ctx.Done():
		err = context.Cause(w.ctx)
	case <-w.m.closing:
		err = ErrClosed
	}
	w.quit()
	return nil, err
}

// take begins a turn. It returns the lease that was passed on, nil when there is none.
func (w *waiter) take(t turn) *Lease {
	w.call.follows(t.previous)
	if t.lease != nil {
		return t.lease
	}
	if !t.enqueued && t.err == nil { // see enqueue
		w.mu.Lock()
		w.machine = quorum.NewWaiter(w.config(t.notBefore, false))
		w.mu.Unlock()
	}
	return nil
}

// enqueue prepares a caller whose ticket goes to the nodes with the release of the
// previous lease.
func (w *waiter) enqueue(notBefore time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.machine = quorum.NewWaiter(w.config(notBefore, true))
	if !w.enrolled {
		w.enrol()
	}
}

// quit removes a caller that has given up from the local queue.
func (w *waiter) quit() {
	q := w.local
	if q == nil {
		return
	}
	q.mu.Lock()
	delete(q.callers, w.id)
	q.do(q.queue.Leave(w.m.clock.Now(), w.id))
	q.tendBy(w.m.clock.Now() + idleFor)
	q.mu.Unlock()
	select {
	case t := <-w.turn: // the turn came at the same time
		if t.lease != nil {
			t.lease.abandon()
		}
	default:
	}
}

// granted records that a caller which contended has a lease on l.
func (q *localQueue) granted(w *waiter, l *hold.Lock) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.callers, w.id)
	q.queue.Granted(q.m.clock.Now())
	q.lock, q.check, q.refusal = l, nil, nil
	if l.Over() {
		q.lostLocked(l)
	}
}

// Lost records that a lock was lost.
func (q *localQueue) Lost(l *hold.Lock) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lostLocked(l)
}

func (q *localQueue) lostLocked(l *hold.Lock) {
	if q.lock == l {
		q.drop()
		q.do(q.queue.Lost(q.m.clock.Now()))
		q.tendBy(q.m.clock.Now() + idleFor)
	}
}

// drop forgets the lock. A running check of it no longer decides anything: the next lock gets its
// own check. q.mu is held.
func (q *localQueue) drop() { q.lock, q.check = nil, nil }

// finish decides what becomes of a lock whose lease was released. It returns the pending answers
// if that is its release.
func (q *localQueue) finish(l *hold.Lock, state quorum.Hold) *ensemble.Answers {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lock != l { // granted is still running, so no other caller knows the lock
		return q.freeUnused(l)
	}
	q.complete(&state)
	return q.do(q.queue.Finished(q.m.clock.Now(), &state))
}

// complete adds to the state of a lock what this process knows.
func (q *localQueue) complete(state *quorum.Hold) {
	w := &q.m.waiters
	state.Turn = q.m.turn()
	state.Subscribed = w.subscribedNodes().Len() >= q.m.ensemble.Quorum() && !w.left.Load()
}

// do carries out a step. When the step releases the lock, it returns the pending answers.
// q.mu is held.
func (q *localQueue) do(s quorum.Step) *ensemble.Answers {
	switch s.Kind {
	case quorum.StepContend:
		q.send(s.Caller, turn{notBefore: s.At})
	case quorum.StepPass:
		if !q.pass(s.Caller) { // lost or doubtful since the decision
			l := q.lock
			q.drop()
			q.do(q.queue.NotPassed(q.m.clock.Now()))
			return q.freeUnused(l)
		}
	case quorum.StepCheck:
		if q.check == nil {
			q.startCheck()
		}
		q.awaited = true
	case quorum.StepRelease:
		l := q.lock
		q.drop()
		previous := leaseOn(l).acquired
		pending := q.free(l, s)
		if s.Caller != 0 {
			q.send(s.Caller, turn{previous: previous, notBefore: s.At, enqueued: s.Enqueue})
		}
		q.tendBy(q.m.clock.Now() + idleFor)
		return pending
	}
	return nil
}

// send starts a caller's turn. q.mu is held.
func (q *localQueue) send(id quorum.CallerID, t turn) {
	if w := q.callers[id]; w != nil {
		w.turn <- t
	}
}

// pass gives a caller the next lease on the lock. It returns false when the lock cannot be passed
// on any more, or the caller is gone. q.mu is held.
func (q *localQueue) pass(id quorum.CallerID) bool {
	w := q.callers[id]
	if w == nil {
		return false
	}
	previous := leaseOn(q.lock).acquired
	l := &Lease{m: q.m, lock: q.lock, granted: q.m.clock.Now(), label: w.call.metricLabel(), values: w.ctx, acquired: w.call.ref()}
	check, ok := q.lock.Pass((*tenant)(l))
	if !ok {
		return false
	}
	delete(q.callers, id)
	w.turn <- turn{lease: l, previous: previous}
	if check && q.check == nil && q.queue.Waiting() > 0 {
		q.startCheck()
	}
	return true
}

// startCheck begins a check of the lock. q.mu is held.
func (q *localQueue) startCheck() {
	q.check, q.awaited = q.lock.Check(q.checked), false
	q.tendBy(q.check.Until())
}

// checked handles the end of a check.
func (q *localQueue) checked(c *hold.Check, now time.Duration, state quorum.Hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.check != c { // the lock has left the queue
		return
	}
	q.check = nil
	if q.awaited && !q.lock.Over() {
		q.complete(&state)
		q.do(q.queue.Checked(now, &state))
	}
}

// freeUnused releases a lock that no lease stands on. One that was lost meanwhile is the
// watchdog's: a lock delay may keep its keys. q.mu is held.
func (q *localQueue) freeUnused(l *hold.Lock) *ensemble.Answers {
	if l.Over() {
		return nil
	}
	return q.free(l, quorum.Step{})
}

// free releases a lock on the nodes. q.mu is held.
func (q *localQueue) free(l *hold.Lock, s quorum.Step) *ensemble.Answers {
	update := wire.TicketUpdate{LeavesFree: s.LeaveFree}
	if w := q.callers[s.Caller]; w != nil && s.Enqueue {
		w.enqueue(s.At) // before a node can wake the caller
		update.Ticket, update.EnqueuedAt = w.ticket, w.enqueuedAt
	}
	return l.Free(update)
}
