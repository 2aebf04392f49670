package hold

import (
	"slices"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the releases of locks that have ended.

// Free ends the lock, unless it has ended, and posts its release, which carries the ticket of the next caller of this
// process. With a minimum hold the keys stay until it ends; then the watchdog releases them, so that waiters are woken.
// Free returns the pending answers.
func (l *Lock) Free(update wire.TicketUpdate) *ensemble.Answers {
	r := &Return{lock: l}
	l.mu.Lock()
	l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil) // no notify: the queue itself frees the lock
	r.was = l.unsettled()
	r.votes = l.machine.Release(r.was.ended)
	l.mu.Unlock()
	var req *wire.Request
	req, r.keep = l.lastRequest(update)
	r.Ask(l.of.ensemble, req, r)
	return &r.Answers
}

// A Return is a lock on its way back to the nodes. Their answers show whether the released lease had it until then.
type Return struct {
	ensemble.Answers

	lock *Lock
	was  tenancy       // whose release waits for the answers; no tenant if none does
	keep time.Duration // for which the nodes keep the keys; 0 if they delete them

	// Guarded by the mutex of the Answers.
	votes  quorum.Release
	denied []error // why the key on a node was not ours; nil until there is a reason
}

// Judge implements ensemble.Judge. A node that does not have the key confirms the release all the same.
func (r *Return) Judge(i int, req *wire.Request, reply *wire.Reply) error {
	if reply.Err != nil {
		r.votes.Unclear(i)
		return reply.Err
	}
	found := reply.N
	if req.Kind == wire.Extend {
		found = reply.Answers[0]
	}
	now := r.lock.of.clock.Now()
	switch {
	case found > wire.Missing, len(reply.Wants) > 0 && reply.Wants[0].Marked: // ours, or revoked: no other client has had it
		r.votes.Deleted(i)
	case reply.Again, r.keep > 0 && now > r.was.ended.Add(r.keep/2): // an earlier copy may have deleted it; or the request came too late
		r.votes.Unclear(i)
	default:
		r.votes.Denied(i, found == wire.Another, now)
		if r.denied == nil {
			r.denied = make([]error, r.lock.Terms().Nodes)
		}
		if r.denied[i] = ErrMissing; found == wire.Another {
			r.denied[i] = ErrTaken
		}
	}
	return nil
}

// Decides implements ensemble.Judge. A loss waits for each node's answer, as evidence.
func (r *Return) Decides(got int) bool {
	return got >= quorum.Size(r.lock.Terms().Nodes) && r.votes.Kept()
}

// End implements ensemble.Judge: the lease learns whether it was lost.
func (r *Return) End() {
	if r.was.tenant == nil {
		return
	}
	e := Event{What: Settled}
	if r.votes.Lost() {
		e.What, e.Reason, e.Errors = Settled|Lost, r.votes.Reason(), make([]error, r.lock.Terms().Nodes)
		for i := range e.Errors {
			if e.Errors[i] = r.Err(i); r.denied[i] != nil {
				e.Errors[i] = r.denied[i]
			}
		}
	}
	r.lock.mu.Lock()
	defer r.lock.mu.Unlock()
	r.lock.settle(r.was, e)
}

// lastRequest returns the request of a lock that has ended: keepRequest, or else the release.
func (l *Lock) lastRequest(update wire.TicketUpdate) (last *wire.Request, keep time.Duration) {
	if last, keep = l.keepRequest(); last == nil {
		last = l.releaseRequest(update)
	}
	return last, keep
}

// keepRequest returns a request that keeps the keys of a released lock until its lease reaches the minimum hold, and
// how long that takes. It returns nil when the lease is that old, or was lost.
func (l *Lock) keepRequest() (keep *wire.Request, left time.Duration) {
	if l.Terms().MinHold == 0 {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, now := l.of.clock.Both()
	left = l.tenancy.granted.Add(l.Terms().MinHold).Sub(l.of.clock.Now())
	if left <= 0 || l.is.keys == Unseen || l.is.keys == Left || l.machine.State() != quorum.StateReleased {
		return nil, 0
	}
	left = left.Round(time.Millisecond) + time.Millisecond // never shorter than the rest
	return l.entry().Keep(strconv.FormatInt(left.Milliseconds(), 10), now.Add(left)), left
}

// releaseRequest returns a request that deletes the lock on every node that may have it. The
// lock has ended. The ticket of the waiter that acquired it leaves the queues of the nodes that
// have not granted: otherwise a node could reserve the lock for a waiter that is gone, and keep
// the others waiting.
func (l *Lock) releaseRequest(update wire.TicketUpdate) *wire.Request {
	_, now := l.of.clock.Both()
	l.mu.Lock()
	defer l.mu.Unlock()
	expires := now.Add(l.keyLife())
	if l.leavesTicket() {
		if update.Ticket == "" {
			update.Ticket = l.ticket.text // the release takes it along, at no cost
		} else {
			l.of.ensemble.LeaveQueues(l.key, l.ticket.text, l.ticket.queued)
		}
		l.ticket = nil
	}
	if l.acquire != nil {
		l.acquire.Withdraw()
	}
	return l.entry().Release(l.acquire, update, expires)
}

// keyLife returns how long it takes until the keys have expired on every node. l.mu is held.
func (l *Lock) keyLife() time.Duration { return l.machine.Longest() + l.Terms().LockDelay }

// leavesTicket reports whether the ticket of the waiter that acquired the lock may be in a queue.
// l.mu is held.
func (l *Lock) leavesTicket() bool { return l.ticket != nil && l.ticket.queued != 0 }

// clear posts the releases of locks that have ended.
func (s *Locks) clear(locks []*Lock) {
	for _, req := range s.releaseAll(locks) {
		s.ensemble.PostTo(quorum.All(s.ensemble.Size()), req, ensemble.Nobody{})
	}
}

// ReleaseAll returns requests that delete the keys of all remaining locks, for Close.
func (s *Locks) ReleaseAll() []*wire.Request { return s.releaseAll(s.schedule.all()) }

// releaseAll returns requests that delete the keys of locks that have ended, so that waiters need
// not wait for the TTL.
func (s *Locks) releaseAll(locks []*Lock) (requests []*wire.Request) {
	_, now := s.clock.Both()
	for locks := range slices.Chunk(locks, wire.MaxLocks) {
		plain := wire.NewBatch(wire.Release, len(locks), now)
		for _, l := range locks {
			l.mu.Lock()
			_, _, permit := wire.SlotOf(l.key) // a request cannot be divided, and a release of a permit has more weight
			life := l.keyLife()
			special, entry := l.leavesTicket() || l.acquire != nil || l.is.shared || permit, l.entry()
			left := l.is.keys == Left
			delayed := l.is.keys == Delayed && l.Terms().LockDelay > 0 && s.clock.Now() < l.deleteAt
			l.mu.Unlock()
			if left || delayed { // Close: the keys of a lost lease expire by themselves, after the delay
				continue
			}
			if keep, _ := l.keepRequest(); keep != nil {
				requests = append(requests, keep)
				continue
			}
			if special {
				requests = append(requests, l.releaseRequest(wire.TicketUpdate{}))
				continue
			}
			entry.Delete(plain)
			plain.Expires = max(plain.Expires, now.Add(life))
		}
		if plain.Locks() > 0 {
			requests = append(requests, plain)
		}
	}
	return requests
}

// Last receives the answers to the releases that Close posts.
func (s *Locks) Last() node.Receiver { return &s.unreleased }

// Unreleased returns how many locks may remain after Close, and on how many nodes.
func (s *Locks) Unreleased() (locks, nodes int) { return s.unreleased.count() }
