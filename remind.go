package quorumlock

import "time"

// Warnings about leases that look like mistakes of the program. A Manager gives each
// warning once, because it is a hint for the author of the program and does not count
// anything.

// forgottenAfter is how long a lease must have been renewed, at least, to look forgotten.
const forgottenAfter = time.Minute

// remind warns when the lease on a hold that is being renewed looks forgotten, or when a
// caller seems to wait for itself.
func (h *hold) remind(now time.Duration) {
	m := h.m
	if m.forgottenWarned.Load() && m.selfWarned.Load() {
		return
	}
	h.mu.Lock()
	l, age, local := h.lease, now-h.lease.granted, h.local
	h.mu.Unlock()
	if age > max(forgottenAfter, 10*h.terms.ttl) && !l.asked.Load() && !m.forgottenWarned.Swap(true) {
		m.reporter.Warn("a lease was renewed for long, and the program has never asked whether it is still valid; "+
			"if it is forgotten, release it; if work runs under it, watch its Context or Lost",
			"name", h.name(), "token", l.token, "for", age.Round(time.Second))
	}
	if age > h.terms.ttl && local != nil && local.waitsSince(h, now-h.terms.ttl) {
		m.warnOfSelf(h.name())
	}
}

// waitsSince reports whether a caller has waited for the hold since before then.
func (q *localQueue) waitsSince(h *hold, then time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hold != h {
		return false
	}
	for _, w := range q.callers {
		if w.arrived < then {
			return true
		}
	}
	return false
}

// selfish warns when a lease of the caller's own Manager has refused the caller for
// longer than a TTL.
func (w *waiter) selfish(held *HeldError) {
	if held.Self && !w.once && w.m.clock.Now()-w.arrived > w.terms.ttl {
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
