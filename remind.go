package quorumlock

import "time"

// Warnings about leases that look like mistakes of the program. A Manager gives each
// warning once, because it is a hint for the author of the program and does not count
// anything.

// forgottenAfter is how long a lease must have been renewed, at least, to look forgotten.
const forgottenAfter = time.Minute

// remind warns when a lease that was renewed looks forgotten.
func (m *Manager) remind(l *Lease, now time.Duration) {
	if l.asked.Load() || m.forgottenWarned.Load() {
		return
	}
	age := now - l.granted
	if age > max(forgottenAfter, 10*l.lock.Terms().TTL) && !m.forgottenWarned.Swap(true) {
		m.reporter.Warn("a lease was renewed for long, and the program has never asked whether it is still valid; "+
			"if it is forgotten, release it; if work runs under it, watch its Context or Lost",
			"name", l.Name(), "token", l.token, "for", age.Round(time.Second))
	}
}

// waitsForItself reports whether a caller has waited for a lease of this process for longer than a
// TTL. If one waits for less, the queue's timer looks again. q.mu is held.
func (q *localQueue) waitsForItself(now time.Duration) bool {
	if q.lock == nil || q.m.selfWarned.Load() {
		return false
	}
	granted := leaseOn(q.lock).granted
	for _, w := range q.callers {
		due := max(w.arrived, granted) + w.terms.TTL
		if due < now {
			return true
		}
		q.tendBy(due + 1)
	}
	return false
}

// selfish warns when a lease of the caller's own Manager has refused the caller for
// longer than a TTL.
func (w *waiter) selfish(held *HeldError) {
	if held.Self && !w.once && w.m.clock.Now()-w.arrived > w.terms.TTL {
		w.m.warnOfSelf(w.name())
	}
}

// warnOfSelf warns, once, that a caller waits for a name which its own Manager holds.
func (m *Manager) warnOfSelf(name string) {
	if !m.selfWarned.Swap(true) {
		m.reporter.Warn("a caller waits for a name that this Manager holds itself; if the caller is the holder, it waits for ever, "+
			"because a lease is not reentrant", "name", name)
	}
}
