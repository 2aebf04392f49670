package quorumlock

import (
	"context"
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// localQueue is the queue of the callers of one name in this process, and what the
// process remembers of a name that it has handed on. Its decisions are quorum.Local's.
type localQueue struct {
	m    *Manager
	lock string

	mu      sync.Mutex // taken after locals.mu and before a hold's
	queue   quorum.Local
	callers map[quorum.CallerID]*waiter
	hold    *hold // on which the current lease of this process stands
	handOff quorum.HandOff
	tendAt  time.Duration // when the watchdog looks after the queue, 0 for never; guarded by the agenda's mutex
	late    bool          // handOff has looked once, too early for a head with a longer grace than ours
	check   *check        // of hold, under way

	// What stood in the way of the last attempt from this queue, since the last grant, and
	// when; nil for nothing.
	refusal   error
	refusedAt time.Duration
}

// turn is what a caller in a local queue waits for.
type turn struct {
	lease     *Lease   // passed on to it; nil when it has to contend
	previous  *spanRef // the span of this process's lease that ended before; nil for none
	notBefore time.Duration
	enqueued  bool // the nodes have its ticket
}

// name returns the name of the lock.
func (q *localQueue) name() string { return q.lock[len(q.m.cfg.prefix):] }

// refused takes what stood in the way of an attempt from this queue.
func (q *localQueue) refused(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refusal, q.refusedAt = err, q.m.clock.Now()
}

// lastRefusal returns that for a caller of now. q.mu is held.
func (q *localQueue) lastRefusal() error {
	var held *HeldError
	if !errors.As(q.refusal, &held) {
		return q.refusal
	}
	now := *held
	now.RetryAfter = max(held.RetryAfter-(q.m.clock.Now()-q.refusedAt), 0)
	return &now
}

// obstacle returns what stands in the way of a caller that waits here: a lease of this
// process, or what the last attempt has met. Nil is not known. q.mu is held.
func (q *localQueue) obstacle() error {
	h := q.hold
	if h == nil {
		return q.lastRefusal()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	by := holder(h.value)
	by.TraceParent = h.lease.acquired.traceParent() // the value's is that of the first lease on the hold
	return &HeldError{
		Name: q.name(), Holder: by, RetryAfter: max(h.machine.Deadline()-q.m.clock.Now(), 0), Self: true,
	}
}

// met takes what an attempt from this queue was refused by: a lease shows that the queues
// on the nodes move, and a stranger's lock that clients without tickets are around.
func (q *localQueue) met(a *attempt) {
	var settled, stranger bool
	a.mu.Lock()
	for i := range a.refusals {
		settled = settled || !a.refusals[i].Reserved
		stranger = stranger || a.refusals[i].Stranger
	}
	a.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if settled {
		q.handOff.Settled()
	}
	if stranger {
		q.queue.StrangerSeen(q.m.clock.Now())
	}
}

// settled takes a sign that the queues on the nodes move.
func (q *localQueue) settled() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handOff.Settled()
}

// await returns when it is the caller's turn: with a lease that was passed on to it, or
// to contend for one. It returns an error when its patience or the Manager has ended; then the
// caller is not in the queue any more.
func (w *waiter) await() (*Lease, error) {
	var err error
	select {
	case t := <-w.turn:
		return w.take(t), nil
	case <-w.ctx.Done():
		err = context.Cause(w.ctx)
	case <-w.m.closing:
		err = ErrClosed
	}
	w.quit()
	select {
	case t := <-w.turn: // both
		if l := w.take(t); l != nil {
			l.abandon()
		}
	default:
	}
	return nil, err
}

// take begins a turn.
func (w *waiter) take(t turn) *Lease {
	w.call.follows(t.previous)
	if t.lease != nil {
		return t.lease
	}
	if !t.enqueued { // see enqueue
		w.mu.Lock()
		w.machine = quorum.NewWaiter(w.config(t.notBefore, false))
		w.mu.Unlock()
	}
	return nil
}

// enqueue prepares a caller for a ticket that the release of the lease before it carries to
// the nodes.
func (w *waiter) enqueue(notBefore time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.machine = quorum.NewWaiter(w.config(notBefore, true))
	if !w.enrolled {
		w.enrol()
	}
}

// abandon releases a lease that nobody waits for any more.
func (l *Lease) abandon() {
	_, _ = l.give()
}

// quit takes the caller out of the local queue: it has given up.
func (w *waiter) quit() {
	q := w.local
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.callers, w.id)
	q.do(q.queue.Leave(w.m.clock.Now(), w.id))
	q.tendBy(w.m.clock.Now() + time.Second)
}

// granted takes that the caller, which contended, has a lease on h.
func (q *localQueue) granted(w *waiter, h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.callers, w.id)
	q.handOff.Settled()
	q.queue.Granted(q.m.clock.Now())
	q.hold, q.check, q.refusal = h, nil, nil
	h.mu.Lock()
	over := h.over
	h.mu.Unlock()
	if over {
		q.lostLocked(h)
	}
}

// lost takes that a hold was lost.
func (q *localQueue) lost(h *hold) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lostLocked(h)
}

func (q *localQueue) lostLocked(h *hold) {
	if q.hold == h {
		q.drop()
		q.do(q.queue.Lost(q.m.clock.Now()))
		q.tendBy(q.m.clock.Now() + time.Second)
	}
}

// drop forgets the hold. A check of it that is under way decides nothing any more: the
// next hold gets its own. q.mu is held.
func (q *localQueue) drop() { q.hold, q.check = nil, nil }

// finish ends a lease and passes its hold on or releases it. Like Lease.give, it returns
// the answers to come, or what Release has to return.
func (q *localQueue) finish(l *Lease) (*answers, error) {
	var heal healing
	pending, err := q.finishWith(l, &heal)
	q.m.dog.heal(heal)
	return pending, err
}

func (q *localQueue) finishWith(l *Lease, heal *healing) (*answers, error) {
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
	if q.hold != h { // granted has not come to its end: nobody else knows the hold
		return q.releaseHold(h, quorum.Step{}), nil
	}
	return q.do(q.queue.Finished(now, &state)), nil
}

// stateLocked returns what quorum.Local needs to know of a hold. h.mu is held.
func (h *hold) stateLocked() quorum.Hold {
	return quorum.Hold{
		Tokens: h.tokensLocked(),
		Proven: h.proof.Len() >= h.m.quorum(),
		Useful: h.terms.maxHold == 0 && h.terms.minHold == 0 && !h.terms.manual && !h.m.ending() && h.machine.State() == quorum.StateHeld &&
			h.machine.End()-h.m.clock.Now() > h.terms.minUseful,
		Others: h.others, ToldAt: h.toldAt,
		Subscribed: h.m.waiters.subscribedNodes().Len() >= h.m.quorum() && !h.m.waiters.left.Load() &&
			h.terms.minHold == 0, // its release carries no ticket
	}
}

func (h *hold) tokensLocked() int {
	if h.m.cfg.unfenced {
		return 1
	}
	return int(max(h.last-h.next+1, 0))
}

// do carries out a step. When the hold is being released, it returns the answers to come.
// q.mu is held.
func (q *localQueue) do(s quorum.Step) *answers {
	for {
		switch s.Kind {
		case quorum.StepContend:
			q.send(s.Caller, turn{notBefore: s.At})
		case quorum.StepPass:
			if !q.pass(s.Caller) { // the hold was lost a moment ago
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
			q.tendBy(q.m.clock.Now() + time.Second)
			return pending
		}
		return nil
	}
}

// send gives a caller its turn. q.mu is held.
func (q *localQueue) send(id quorum.CallerID, t turn) {
	if w := q.callers[id]; w != nil {
		w.turn <- t
	}
}

// pass gives a caller the next lease on the hold, and reports whether there was one to
// give. q.mu is held.
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
	if q.check == nil && q.queue.Waiting() > 0 && (now > h.toldAt+quorum.CheckAfter/2 || h.tokensLocked() < 16) {
		q.startCheck()
	}
	return true
}

// releaseHold gives a hold back to the nodes. q.mu is held.
func (q *localQueue) releaseHold(h *hold, s quorum.Step) *answers {
	h.mu.Lock()
	h.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil) // no notify: lost or released, the queue is through with it
	h.mu.Unlock()
	if keep := h.keepRequest(); keep != nil {
		return q.m.askAll(keep, q.m.quorum(), nil)
	}
	update := node.TicketUpdate{LeavesFree: s.LeaveFree}
	if w := q.callers[s.Caller]; w != nil && s.Enqueue {
		w.enqueue(s.At) // before a node can wake it
		update.Ticket, update.Place = w.ticket, w.place
	}
	q.handOff.Released()
	return q.m.askAll(h.releaseRequest(update), q.m.quorum(), nil)
}

// termsKey returns a number that is equal for terms under which a hold may be passed on.
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
