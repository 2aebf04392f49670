package hold

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the ways in which a lease ends.

// End ends the lease t and its lock, in the way of e. pending are the answers of the nodes, nil if none are asked now.
// End returns false if the lease had ended, or is found lost.
//
// With Deleted and Unseen, a lock with a Queue stays, and the Queue decides what becomes of it.
func (l *Lock) End(t Tenant, e Ending) (pending *ensemble.Answers, ok bool) {
	if e.Keys == Deleted || e.Keys == Unseen {
		return l.giveBack(t, e)
	}
	if !l.endKeeping(t, e) {
		return nil, false
	}
	if e.What&Detached != 0 {
		pending = l.detach(e.Keep)
	}
	return pending, true
}

// giveBack is End for keys that are deleted.
func (l *Lock) giveBack(t Tenant, e Ending) (*ensemble.Answers, bool) {
	queue, state, ok := l.Vacate(t, e)
	if !ok {
		return nil, false
	}
	if queue != nil {
		return queue.Finish(l, state), true
	}
	return l.Free(wire.TicketUpdate{}), true
}

// Vacate is End for keys that are deleted, without what follows. If the lock has no Queue, it ends as well, and the
// caller frees it. Otherwise the lock stays, and the Queue decides by its state what becomes of it. Settled tells the
// lease whether the nodes deny it: from the Return, or if no node is asked, at a Pass or at the end of the
// lock.
func (l *Lock) Vacate(t Tenant, e Ending) (queue Queue, state quorum.Hold, ok bool) {
	l.mu.Lock()
	if !l.bears(t) {
		l.mu.Unlock()
		return nil, state, false
	}
	l.rest() // the caller counts among calls until it has freed the lock
	in := quorum.Input{Kind: quorum.InputTick}
	if l.queue == nil {
		in.Kind = quorum.InputRelease
	}
	l.is.unsettled, l.is.what, l.is.keys = true, e.What, e.Keys
	s := l.stepLocked(in, nil)
	ok = l.machine.State() != quorum.StateLost
	l.is.unsettled = ok
	if l.queue != nil {
		queue = *l.queue
	}
	if queue != nil && ok {
		l.report(s.now, e.What)
		state = l.holdLocked()
	}
	l.mu.Unlock()
	l.notify(&s)
	l.of.heal(healing(nil).with(l, s.Heal))
	return queue, state, ok
}

// endKeeping is End for keys that stay, without the requests. The lock's Queue learns of the end.
func (l *Lock) endKeeping(t Tenant, e Ending) (ok bool) {
	l.mu.Lock()
	if !l.bears(t) {
		l.mu.Unlock()
		return false
	}
	l.is.what, l.is.keys = e.What, e.Keys
	step := l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil)
	ok = l.machine.State() == quorum.StateReleased
	if l.queue != nil {
		step.lost = *l.queue // its callers ask the nodes
	}
	if e.Keys == Left {
		if l.leavesTicket() {
			l.of.ensemble.LeaveQueues(l.key, l.ticket.text, l.ticket.queued)
			l.ticket = nil
		}
		if l.acquire != nil {
			l.acquire.Withdraw() // a slow node would make the lock after the requests that follow
		}
	}
	l.mu.Unlock()
	l.notify(&step)
	return ok
}

// detach makes the nodes keep the keys for another process. It returns the answers of all nodes: a request that
// ran later would mark the lock after another process has resumed it.
func (l *Lock) detach(keep time.Duration) *ensemble.Answers {
	e := l.of.ensemble
	_, now := l.of.clock.Both()
	pending := e.AskAll(wire.NewDetach(l.key, wire.OwnerOf(l.Value()), keep, now.Add(l.Terms().Timeout)), e.Size(), detached)
	// A node that has not marked the lock in time deletes it. A marked lock is another owner's.
	e.PostTo(quorum.All(e.Size()), l.releaseRequest(wire.TicketUpdate{}), ensemble.Nobody{})
	return pending
}

// detached returns why a node does not keep a lock for the process that resumes it, nil if it does.
func detached(reply *wire.Reply) error {
	switch reply.N {
	case wire.Ours:
		return nil
	case wire.Missing:
		return wire.ErrLate
	case wire.RevokedBefore:
		return ErrRevoked
	}
	return ErrMissing
}

// DeleteKeys deletes the keys that the Ending e has left, because no other lease has taken them over. Nodes may already
// keep them for another process, or may do so when a request arrives late. No minimum hold keeps the name.
func (l *Lock) DeleteKeys(e Ending) {
	l.mu.Lock()
	value := l.value
	l.is.keys = Unseen
	l.mu.Unlock()
	if nodes := l.of.ensemble; e.Keep > 0 {
		_, now := l.of.clock.Both()
		nodes.PostTo(quorum.All(nodes.Size()), wire.NewDrop(l.key, wire.OwnerOf(value), now.Add(e.Keep)), ensemble.Nobody{})
	}
	l.Free(wire.TicketUpdate{}) // also if a detached lock has been revoked since
}

// OnClose sets what becomes of the keys if Close ends the lock: Unseen until a caller has seen its lease, then Deleted.
func (l *Lock) OnClose(keys Keys) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.is.over {
		l.is.keys = keys
	}
}

// End ends every lock for Close, and posts the releases. Locks under which a function runs are renewed until it
// returns. No lock is opened after End: an Open either comes first, and End ends its lock, or it finds that Close has
// begun.
func (s *Locks) End() {
	s.ensemble.Steps.Lock()
	s.ended.Store(true)
	locks := s.schedule.all()
	s.ensemble.Steps.Unlock()
	now := locks[:0]
	for _, l := range locks {
		if l.endForClose(false) {
			now = append(now, l)
		}
	}
	for _, req := range s.releaseAll(now) {
		s.ensemble.PostTo(quorum.All(s.ensemble.Size()), req, &s.unreleased)
	}
}

// Desert ends the locks under which functions run when Close stops waiting, and returns their number. Their keys stay
// until they expire, as if the process had died: the functions may still work.
func (s *Locks) Desert() (deserted int) {
	for _, l := range s.schedule.all() {
		if l.endForClose(true) {
			deserted++
		}
	}
	return deserted
}

// endForClose ends the lock if a function runs under its lease (running), or if none does (not running). Keys that a
// lock delay keeps after a loss outlive Close, so Close need not wait for them.
func (l *Lock) endForClose(running bool) bool {
	l.mu.Lock()
	if l.is.working != running || l.is.over && l.deleteAt == 0 { // the caller that has released it asks the nodes
		l.mu.Unlock()
		return false
	}
	if running {
		l.is.keys = Left
	}
	s := l.stepLocked(quorum.Input{Kind: quorum.InputRelease}, nil)
	l.settle(l.unsettled(), Event{What: Settled})
	l.of.schedule.at(&l.alarm, quorum.Never)
	l.mu.Unlock()
	l.notify(&s)
	return true
}
