package quorumlock

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// localQueue is the queue of the callers of one name in this process. It also remembers
// that a lock was left to a waiter of another process. quorum.Local decides for it.
type localQueue struct {
	m    *Manager
	lock string

	mu      sync.Mutex // taken after locals.mu and before a hold's mutex
	queue   quorum.Local
	callers map[quorum.CallerID]*waiter
	hold    *hold         // the hold of this process's current lease
	timer   *time.Timer   // runs tend; nil before its first use
	tendAt  time.Duration // when the timer runs, 0 for never
	check   *check        // the running check of hold

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
func (q *localQueue) name() string { return q.lock[len(q.m.cfg.prefix):] }

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
	if !w.failFast || !q.unanswered || q.hold != nil || !q.queue.Waits(w.id) {
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
	h := q.hold
	if h == nil {
		return q.lastRefusal()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	by := holder(h.value)
	by.TraceParent = h.lease.acquired.traceParent() // the value has the first lease's
	return &HeldError{
		Name: q.name(), Holder: by, RetryAfter: max(h.machine.Deadline()-q.m.clock.Now(), 0), Self: true,
	}
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

// abandon releases a lease whose caller has given up.
func (l *Lease) abandon() {
	_, _ = l.give()
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

// granted records that a caller which contended has a lease on h.
func (q *localQueue) granted(w *waiter, h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.callers, w.id)
	q.queue.Granted(q.m.clock.Now())
	q.hold, q.check, q.refusal = h, nil, nil
	h.mu.Lock()
	over := h.over
	h.mu.Unlock()
	if over {
		q.lostLocked(h)
	}
}

// lost records that a hold was lost.
func (q *localQueue) lost(h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lostLocked(h)
}

func (q *localQueue) lostLocked(h *hold) {
	if q.hold == h {
		q.drop()
		q.do(q.queue.Lost(q.m.clock.Now()))
		q.tendBy(q.m.clock.Now() + idleFor)
	}
}

// drop forgets the hold. A running check of it no longer decides anything: the next hold
// gets its own check. q.mu is held.
func (q *localQueue) drop() { q.hold, q.check = nil, nil }

// finish ends a lease, and passes its hold on or releases it. Like Lease.give, it returns
// the pending answers, or the result of Release.
func (q *localQueue) finish(l *Lease) (*ensemble.Answers, error) {
	var heal healing
	pending, err := q.finishWith(l, &heal)
	q.m.dog.heal(heal)
	return pending, err
}

func (q *localQueue) finishWith(l *Lease, heal *healing) (*ensemble.Answers, error) {
	h, now := l.hold, q.m.clock.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	h.mu.Lock()
	if l.err != nil {
		defer h.mu.Unlock()
		return nil, l.err
	}
	tick := h.stepLocked(quorum.Input{Kind: quorum.InputTick}, nil)
	heal.add(h, tick.Heal)
	if tick.over {
		err := l.err
		h.mu.Unlock()
		q.m.telemetry.held(l, now)
		q.lostLocked(h)
		return nil, err
	}
	l.endLocked(ErrReleased)
	state := h.stateLocked()
	h.mu.Unlock()
	q.m.telemetry.held(l, now)
	if q.hold != h { // granted is still running, so no other caller knows the hold
		return q.releaseHold(h, quorum.Step{}), nil
	}
	return q.do(q.queue.Finished(now, &state)), nil
}

// stateLocked returns the state of a hold for quorum.Local. h.mu is held.
func (h *hold) stateLocked() quorum.Hold {
	return quorum.Hold{
		Tokens: h.tokensLocked(),
		Proven: h.proof.Len() >= h.m.ensemble.Quorum(),
		Useful: h.terms.maxHold == 0 && h.terms.minHold == 0 && !h.terms.manual && !h.m.ending() && h.machine.State() == quorum.StateHeld &&
			h.machine.End()-h.m.clock.Now() > h.terms.minUseful,
		Others: h.others, Turn: h.m.turn(), AnsweredAt: h.answeredAt,
		Subscribed: h.m.waiters.subscribedNodes().Len() >= h.m.ensemble.Quorum() && !h.m.waiters.left.Load() &&
			h.terms.minHold == 0, // a release with a minimum hold carries no ticket
	}
}

func (h *hold) tokensLocked() int {
	if h.m.cfg.unfenced {
		return 1
	}
	return int(max(h.last-h.next+1, 0))
}

// do carries out a step. When the step releases the hold, it returns the pending answers.
// q.mu is held.
func (q *localQueue) do(s quorum.Step) *ensemble.Answers {
	for {
		switch s.Kind {
		case quorum.StepContend:
			q.send(s.Caller, turn{notBefore: s.At})
		case quorum.StepPass:
			if !q.pass(s.Caller) { // the hold was just lost
				q.drop()
				s = q.queue.NotPassed(q.m.clock.Now())
				continue
			}
		case quorum.StepCheck:
			if q.check == nil {
				q.startCheck()
			}
			q.check.awaited = true
		case quorum.StepRelease:
			h := q.hold
			q.drop()
			pending := q.releaseHold(h, s)
			if s.Caller != 0 {
				h.mu.Lock()
				previous := h.lease.acquired
				h.mu.Unlock()
				q.send(s.Caller, turn{previous: previous, notBefore: s.At, enqueued: s.Enqueue})
			}
			q.tendBy(q.m.clock.Now() + idleFor)
			return pending
		}
		return nil
	}
}

// send starts a caller's turn. q.mu is held.
func (q *localQueue) send(id quorum.CallerID, t turn) {
	if w := q.callers[id]; w != nil {
		w.turn <- t
	}
}

// pass gives a caller the next lease on the hold. It returns false when the hold is over
// or the caller is gone. q.mu is held.
func (q *localQueue) pass(id quorum.CallerID) bool {
	h, w := q.hold, q.callers[id]
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || w == nil {
		return false
	}
	now := q.m.clock.Now()
	l, previous := &Lease{hold: h, granted: now, values: w.ctx, acquired: w.call.ref()}, h.lease.acquired
	if !q.m.cfg.unfenced {
		l.token = h.next
		h.next++
	}
	h.lease = l
	l.stop.Store(int64(h.machine.Stop()))
	q.m.open(l, pathProcess)
	delete(q.callers, id)
	w.turn <- turn{lease: l, previous: previous}
	if q.check == nil && q.queue.Waiting() > 0 && (now > h.answeredAt+quorum.CheckAfter/2 || h.tokensLocked() < 16) {
		q.startCheck()
	}
	return true
}

// releaseHold releases a hold on the nodes. q.mu is held.
func (q *localQueue) releaseHold(h *hold, s quorum.Step) *ensemble.Answers {
	h.mu.Lock()
	h.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil) // no notify: lost or released, the queue is through with it
	h.mu.Unlock()
	if keep := h.keepRequest(); keep != nil {
		return q.m.ensemble.AskAll(keep, q.m.ensemble.Quorum(), nil)
	}
	update := wire.TicketUpdate{LeavesFree: s.LeaveFree}
	if w := q.callers[s.Caller]; w != nil && s.Enqueue {
		w.enqueue(s.At) // before a node can wake the caller
		update.Ticket, update.EnqueuedAt = w.ticket, w.enqueuedAt
	}
	return q.m.ensemble.AskAll(h.releaseRequest(update), q.m.ensemble.Quorum(), nil)
}

// termsKey returns a number that is equal for terms between which a hold may be passed
// on.
func termsKey(t *terms) uint64 {
	h := fnv.New64a()
	for _, part := range []string{
		t.ttl.String(), t.lockDelay.String(), t.maxHold.String(), t.minHold.String(), strconv.FormatBool(t.manual), t.label,
	} {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}
