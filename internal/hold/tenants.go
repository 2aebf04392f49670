package hold

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file has what happens between the leases that stand on a lock one after the other.

// Vacate ends the lease t by its release. If the lock has no Queue, it ends as well, and the
// caller frees it. Otherwise the lock stays, and the Queue decides what becomes of it by its
// state. ok is false if the lease had ended, or is found lost.
func (l *Lock) Vacate(t Tenant) (queue Queue, state quorum.Hold, ok bool) {
	l.mu.Lock()
	if !l.bears(t) {
		l.mu.Unlock()
		return nil, state, false
	}
	in := quorum.Input{Kind: quorum.InputTick}
	if l.queue == nil {
		in.Kind = quorum.InputRelease
	}
	s := l.stepLocked(in, nil)
	ok = l.machine.State() != quorum.StateLost
	if l.queue != nil {
		queue = *l.queue
	}
	if queue != nil && ok {
		l.report(s.now, Released)
		state = l.holdLocked()
	}
	l.mu.Unlock()
	l.notify(&s)
	l.of.heal(healing(nil).with(l, s.Heal))
	return queue, state, ok
}

// Pass gives the lock to the next lease, which gets the next token of the block. It returns false,
// and the lock stays without a lease, if the lock is over, or if a quorum of nodes no longer
// shows that it is ours. check means that the block or the answers are running out: a Check
// would renew them.
func (l *Lock) Pass(to Tenant) (check, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over || !l.proven() || l.tokensLeft() == 0 {
		return false, false
	}
	now := l.of.clock.Now()
	l.tenancy, l.is.vacant, l.is.working = tenancy{tenant: to, granted: now}, false, false
	l.report(now, Opened|Passed)
	return now > l.others.asOf+quorum.CheckAfter/2 || l.tokensLeft() < 16, true
}

// Listen has the lease t told who wants its lock: now what the nodes have said, and each change. Of the
// callers of this process it learns by Wait.
func (s *Locks) Listen(l *Lock, t Tenant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over || !l.bears(t) {
		return
	}
	w := l.others.wants.Load()
	if w == nil {
		w = newWants(l.terms.Nodes, l.others.tickets)
		l.others.wants.Store(w)
	}
	w.told = Want{}
	tellWant(&l.state, s.clock.Now())
}

// Wait tells a lock how many callers of this process wait for it. It takes no mutex while no lease
// listens, because a lock may be passed on 400,000 times a second.
func (s *Locks) Wait(l *Lock, callers int) {
	w := l.others.wants.Load()
	if w == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w.callers = callers
	tellWant(&l.state, s.clock.Now())
}

// Attach has q decide what becomes of the lock. It returns when the current lease began, and false if the
// lock is over.
func (l *Lock) Attach(q Queue) (granted time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over {
		return 0, false
	}
	l.queue = &q
	return l.tenancy.granted, true
}

// Detach takes the queue away, unless another process is known to want the lock. It returns
// whether it did.
func (l *Lock) Detach() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.others.tickets > 0 {
		return false
	}
	l.queue = nil
	return true
}

// holdLocked returns the facts by which the queue decides about the lock. l.mu is held.
func (l *state) holdLocked() quorum.Hold {
	t := l.terms
	return quorum.Hold{
		Tokens: l.tokensLeft(), Proven: l.proven(),
		Useful: t.MaxHold == 0 && t.MinHold == 0 && !t.Manual && !l.of.ended.Load() && l.machine.State() == quorum.StateHeld &&
			l.machine.End()-l.of.clock.Now() > t.MinUseful,
		Others: l.others.tickets, AnsweredAt: l.others.asOf,
	}
}

// proven reports whether a quorum of nodes has shown that the lock is ours. l.mu is held.
func (l *state) proven() bool { return l.proof.nodes.Len() >= quorum.Size(l.terms.Nodes) }

// tokensLeft returns how many leases the block has tokens for; 1 without fencing. l.mu is held.
func (l *state) tokensLeft() int {
	if l.of.unfenced {
		return 1
	}
	return l.tokens.size()
}

// Work records that a function begins under the lease t. It returns false if the lease has ended.
func (l *Lock) Work(t Tenant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bears(t) {
		return false
	}
	l.is.working = true
	return true
}

// bears reports whether the lease t stands on the lock. l.mu is held.
func (l *state) bears(t Tenant) bool { return l.tenancy.tenant == t && !l.is.vacant }

// Rest records that the function under the lease t has returned. If Close has ended the lock
// meanwhile and waits for the function, the keys are deleted now.
func (l *Lock) Rest(t Tenant) {
	l.mu.Lock()
	if l.tenancy.tenant != t { // the function has released it, and the lock was passed on
		l.mu.Unlock()
		return
	}
	l.is.working = false
	stays := l.is.stays
	if stays {
		l.of.schedule.at(&l.slot, quorum.Never)
	}
	l.mu.Unlock()
	if stays {
		l.of.clear([]*Lock{l})
	}
}
