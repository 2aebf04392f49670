package hold

import (
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file has the change from one lease on a lock to the next.

// Pass gives the lock to the next lease, which gets the next token of the block. It returns false, and the lock stays
// without a lease, if the lock has ended, or if a quorum of nodes no longer shows that it is ours. check means that the
// tokens are running out, or that the answers are getting old: a Check would renew both.
func (l *Lock) Pass(to Tenant) (check, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over || !l.proven() || l.tokensLeft() == 0 {
		return false, false
	}
	l.settle(l.unsettled(), Event{What: Settled}) // no node is asked
	now := l.of.clock.Now()
	l.tenancy, l.is.vacant, l.is.what, l.is.keys = tenancy{tenant: to, granted: now}, false, Released, Deleted
	l.report(now, Opened|Passed)
	return now > l.others.asOf.Add(quorum.CheckAfter/2) || l.tokensLeft() < 16, true
}

// Listen tells the lease t who wants its lock: what the nodes have answered by now, and each change. SetCallers adds
// the callers of this process.
func (l *Lock) Listen(t Tenant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over || !l.bears(t) {
		return
	}
	w, _ := l.attend()
	w.told = Want{}
	l.tellWant(l.of.clock.Now())
}

// attend makes the lock remember who wants it, from now on. first means that it did not before. l.mu is held.
func (l *Lock) attend() (w *wants, first bool) {
	if w = l.others.wants.Load(); w == nil {
		w, first = newWants(l.Terms().Nodes, l.others.tickets), true
		l.others.wants.Store(w)
	}
	return w, first
}

// SetCallers sets how many callers of this process wait for the lock. It takes no mutex while no lease listens, because
// a lock may be passed on 400,000 times a second.
func (l *Lock) SetCallers(callers int) {
	w := l.others.wants.Load()
	if w == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w.callers = callers
	l.tellWant(l.of.clock.Now())
}

// Attach lets q decide what becomes of the lock. It returns when the current lease began, and false if the lock has
// ended.
func (l *Lock) Attach(q Queue) (granted clock.Validity, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.over {
		return 0, false
	}
	l.queue = &q
	return l.tenancy.granted, true
}

// Unqueue takes the queue away, unless another process is known to want the lock. It returns
// whether it did.
func (l *Lock) Unqueue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.others.tickets > 0 {
		return false
	}
	l.queue = nil
	return true
}

// holdLocked returns the facts by which the queue decides about the lock. l.mu is held.
func (l *Lock) holdLocked() quorum.Hold {
	t := l.Terms()
	return quorum.Hold{
		Tokens: l.tokensLeft(), Proven: l.proven(),
		Useful: !l.machine.Changed() && t.MaxHold == 0 && t.MinHold == 0 && !t.Manual && !l.of.ended.Load() && l.machine.State() == quorum.StateHeld &&
			l.machine.End().Sub(l.of.clock.Now()) > t.MinUseful,
		Others: l.others.tickets, AnsweredAt: l.others.asOf,
	}
}

// proven reports whether a quorum of nodes has shown that the lock is ours. l.mu is held.
func (l *Lock) proven() bool { return l.proof.nodes.Len() >= quorum.Size(l.Terms().Nodes) }

// tokensLeft returns how many leases the block has tokens for; 1 without fencing. l.mu is held.
func (l *Lock) tokensLeft() int {
	if l.of.unfenced {
		return 1
	}
	return l.tokens.size()
}

// Work records that a function begins under the lease t: Close waits for it. It returns false if the lease
// has ended.
func (l *Lock) Work(t Tenant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bears(t) {
		return false
	}
	l.is.working = true
	l.of.calls.Add(1) // not too late: Close waits after it has ended all locks without a function
	return true
}

// Enter admits a call that ends the lease t, once Close has begun, while a function runs under it. The
// call ends with calls.Done.
func (l *Lock) Enter(t Tenant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bears(t) || !l.is.working {
		return false
	}
	l.of.calls.Add(1)
	return true
}

// bears reports whether the lease t stands on the lock. l.mu is held.
func (l *Lock) bears(t Tenant) bool { return l.tenancy.tenant == t && !l.is.vacant }

// Rest records that the function under the lease t has returned.
func (l *Lock) Rest(t Tenant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tenancy.tenant == t { // otherwise Vacate has, and the lock was passed on
		l.rest()
	}
}

// rest is Rest for a caller that holds l.mu. Vacate calls it too.
func (l *Lock) rest() {
	if l.is.working {
		l.is.working = false
		l.of.calls.Done()
	}
}
