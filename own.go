package quorumlock

import (
	"sync"
	"sync/atomic"
)

// ownLocks finds the holds of this Manager by their lock, so that a refused caller learns
// whether its own Manager has the lock. It is empty before the first refusal, because
// most Managers never meet one.
type ownLocks struct {
	used atomic.Bool

	mu    sync.Mutex // taken after a hold's mutex
	holds map[string]*hold
}

// has reports whether a hold of this Manager has the lock, with that owner.
func (o *ownLocks) has(m *Manager, lock, owner string) bool {
	o.mu.Lock()
	if !o.used.Swap(true) {
		o.holds = map[string]*hold{}
		// Later grants add themselves; earlier ones are in the watchdog's list.
		for _, h := range m.dog.live() {
			o.holds[h.lock] = h
		}
	}
	h := o.holds[lock]
	o.mu.Unlock()
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.over && ownerOf(h.value) == owner
}

// add adds a new hold. h.mu is held, and the watchdog has the hold.
func (o *ownLocks) add(h *hold) {
	if !o.used.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds[h.lock] = h
}

// remove removes a hold that is over. h.mu is held.
func (o *ownLocks) remove(h *hold) {
	if !o.used.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holds[h.lock] == h {
		delete(o.holds, h.lock)
	}
}
