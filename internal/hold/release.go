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

// This file has the releases of locks that are over.

// Free ends the lock, unless it is over, and posts its release, which carries the ticket of the
// next caller of this process. With a minimum hold the keys stay until then, and the watchdog
// releases them, so that waiters are woken.
func (l *Lock) Free(update wire.TicketUpdate) *ensemble.Answers {
	l.mu.Lock()
	l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil) // no notify: the queue itself frees the lock
	l.mu.Unlock()
	req := l.keepRequest()
	if req == nil {
		req = l.releaseRequest(update)
	}
	return l.of.ensemble.AskAll(req, l.of.ensemble.Quorum(), nil)
}

// keepRequest returns a request that keeps the keys of a released lock until its lease reaches
// the minimum hold. It returns nil when the lease is that old, or was lost.
func (l *state) keepRequest() *wire.Request {
	if l.terms.MinHold == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, now := l.of.clock.Both()
	left := l.tenancy.granted + l.minHold() - l.of.clock.Now()
	if left <= 0 || l.machine.State() != quorum.StateReleased {
		return nil
	}
	left = left.Round(time.Millisecond) + time.Millisecond // never shorter than the rest
	return entryOf(l).Keep(strconv.FormatInt(left.Milliseconds(), 10), now+left)
}

// releaseRequest returns a request that deletes the lock on every node that may have it. The
// lock is over. The ticket of the waiter that acquired it leaves the queues of the nodes that
// have not granted: otherwise a node could reserve the lock for a waiter that is gone, and keep
// the others waiting.
func (l *state) releaseRequest(update wire.TicketUpdate) *wire.Request {
	_, now := l.of.clock.Both()
	expires := now + l.terms.TTL + l.terms.LockDelay // after that the keys have expired
	l.mu.Lock()
	defer l.mu.Unlock()
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
	return entryOf(l).Release(l.acquire, update, expires)
}

// leavesTicket reports whether the ticket of the waiter that acquired the lock may be in a queue.
// l.mu is held.
func (l *state) leavesTicket() bool { return l.ticket != nil && l.ticket.queued != 0 }

// Unused records whether the lease of a lock is one that nobody has seen: then a minimum hold does not
// keep the name.
func (s *Locks) Unused(l *Lock, unused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.is.unused = unused
}

// Halt ends a lock under the lease t, and its keys stay for the guard and the lock delay, as those of
// a lost one do: work under the lease has to stop. It does nothing if the lease has ended.
func (s *Locks) Halt(l *Lock, t Tenant) {
	l.mu.Lock()
	if !l.bears(t) || l.is.over {
		l.mu.Unlock()
		return
	}
	l.is.stopped = true
	step := l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil)
	if l.queue != nil {
		step.lost = *l.queue
	}
	l.mu.Unlock()
	l.notify(&step)
}

// Detach ends a lock under the lease t, whose keys stay on the nodes for keep from the arrival of a
// request; the answers to it are pending. It returns false if the lease has ended.
func (s *Locks) Detach(l *Lock, t Tenant, keep time.Duration) (pending *ensemble.Answers, ok bool) {
	value, ok := s.Leave(l, t, Detached)
	if !ok {
		return nil, false
	}
	_, now := s.clock.Both()
	return s.ensemble.AskAll(wire.NewDetach(l.key, wire.OwnerOf(value), keep, now+l.terms.Timeout), s.ensemble.Quorum(), detached), true
}

// Leave ends a lock under the lease t and leaves its keys on the nodes, for what follows. as is Released or
// Detached. It returns the value of a reader with the same owner, and false if the lease has ended.
func (s *Locks) Leave(l *Lock, t Tenant, as What) (value string, ok bool) {
	l.mu.Lock()
	if !l.bears(t) || l.is.over {
		l.mu.Unlock()
		return "", false
	}
	l.is.left, l.is.detached = true, as == Detached
	step := l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil)
	ok = l.machine.State() == quorum.StateReleased
	l.is.left = ok
	if l.queue != nil {
		step.lost = *l.queue // its callers ask the nodes
	}
	if l.leavesTicket() {
		s.ensemble.LeaveQueues(l.key, l.ticket.text, l.ticket.queued)
		l.ticket = nil
	}
	value = wire.Compose(wire.OwnerOf(l.value), 0, wire.MetadataOf(l.value))
	l.mu.Unlock()
	l.notify(&step)
	return value, ok
}

// detached returns why a node does not keep a lock for the process that resumes it, nil if it does.
func detached(reply *wire.Reply) error {
	switch reply.N {
	case wire.Ours:
		return nil
	case wire.Missing:
		return wire.ErrLate
	}
	return ErrMissing
}

// Drop deletes the keys of a lock that no majority keeps for another process. Some nodes may keep it
// for keep.
func (s *Locks) Drop(l *Lock, keep time.Duration) {
	_, now := s.clock.Both()
	s.ensemble.PostTo(quorum.All(s.ensemble.Size()), wire.NewDrop(l.key, wire.OwnerOf(l.Value()), now+keep), ensemble.Nobody{})
	s.Abandon(l)
}

// Abandon deletes the keys of a lock after Leave.
func (s *Locks) Abandon(l *Lock) {
	l.mu.Lock()
	l.is.left = false
	l.mu.Unlock()
	l.Free(wire.TicketUpdate{})
}

// End ends every lock for Close, and posts the releases that need not wait. Afterwards no lock is
// held, and none is opened: each one that is opened is among these, or finds that Close has begun.
func (s *Locks) End() {
	s.ensemble.Steps.Lock()
	s.ended.Store(true)
	locks := s.schedule.all()
	s.ensemble.Steps.Unlock()
	now := locks[:0]
	for _, l := range locks {
		if !l.shut() {
			now = append(now, l)
		}
	}
	s.clear(now)
}

// shut ends a lock for Close. It reports whether the keys stay for a while, because a function of
// Do or Lead still runs: then the end of the function clears them, or the watchdog when the
// guard is over. Keys that a lock delay keeps after a loss outlive Close, so it need not wait.
func (l *Lock) shut() (stays bool) {
	l.mu.Lock()
	s := l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil)
	lost := l.halted()
	if l.is.working && s.over && !lost {
		l.deleteAt = s.now + l.terms.Guard
	}
	delayed := lost && l.terms.LockDelay > 0
	stays = l.is.working && (s.over || lost) && !delayed && l.deleteAt > s.now
	if l.is.stays = stays; stays {
		l.of.calls.Enter()
		l.of.schedule.at(&l.slot, l.deleteAt)
	} else {
		l.of.schedule.at(&l.slot, quorum.Never)
	}
	l.mu.Unlock()
	l.notify(&s)
	return stays
}

// clear posts the releases of locks that are over.
func (s *Locks) clear(locks []*Lock) {
	requests, stayed := s.releaseAll(locks)
	for _, req := range requests {
		if s.ended.Load() {
			s.ensemble.PostTo(quorum.All(s.ensemble.Size()), req, &s.unreleased)
		} else {
			s.ensemble.PostTo(quorum.All(s.ensemble.Size()), req, ensemble.Nobody{})
		}
	}
	for range stayed {
		s.calls.Leave()
	}
}

// ReleaseAll returns requests that delete the keys of all that are left, for Close.
func (s *Locks) ReleaseAll() []*wire.Request {
	requests, stayed := s.releaseAll(s.schedule.all())
	for range stayed {
		s.calls.Leave()
	}
	return requests
}

// releaseAll returns requests that delete the keys of locks that are over, so that waiters need
// not wait for the TTL. stayed is how many of the locks Close waits for: the caller calls
// calls.Leave for each, when it has posted the requests.
func (s *Locks) releaseAll(locks []*Lock) (requests []*wire.Request, stayed int) {
	_, now := s.clock.Both()
	for locks := range slices.Chunk(locks, wire.MaxLocks) {
		plain := make([][2]string, 0, len(locks))
		expires := now
		for _, l := range locks {
			l.mu.Lock()
			special, value := l.leavesTicket() || l.acquire != nil || l.is.shared, l.value
			left := l.is.left // its keys are another process's
			delayed := l.halted() && l.terms.LockDelay > 0 && s.clock.Now() < l.deleteAt
			if l.is.stays {
				l.is.stays = false
				stayed++
			}
			l.mu.Unlock()
			if left || delayed { // Close: the keys of a lost lease expire by themselves, after the delay
				continue
			}
			if keep := l.keepRequest(); keep != nil {
				requests = append(requests, keep)
				continue
			}
			if special {
				requests = append(requests, l.releaseRequest(wire.TicketUpdate{}))
				continue
			}
			plain = append(plain, [2]string{l.key, value})
			expires = max(expires, now+l.terms.TTL+l.terms.LockDelay)
		}
		if len(plain) > 0 {
			requests = append(requests, wire.NewReleases(plain, expires))
		}
	}
	return requests, stayed
}

// Last receives the answers to the releases that Close posts.
func (s *Locks) Last() node.Receiver { return &s.unreleased }

// Unreleased returns how many locks may remain after Close, and on how many nodes.
func (s *Locks) Unreleased() (locks, nodes int) { return s.unreleased.count() }
