package quorumlock

import (
	"sync"
	"sync/atomic"
)

// ownLocks finds the holds of this Manager by their lock, so that a caller that is refused
// learns whether its own Manager has the lock. Nothing is kept before the first refusal:
// most Managers never meet one.
type ownLocks struct {
	used atomic.Bool

	mu    sync.Mutex // taken after a hold's
	holds map[string]*hold
}

// has reports whether a hold of this Manager has the lock, with that owner.
func (o *ownLocks) has(m *Manager, lock, owner string) bool {
	o.mu.Lock()
	if !o.used.Swap(true) {
		o.holds = map[string]*hold{}
		// A grant from now on adds itself, and one from before is in here.
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

// add takes a new hold. h.mu is held, and the watchdog knows the hold.
func (o *ownLocks) add(h *hold) {
	if !o.used.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holds[h.lock] = h
}

// remove takes a hold that is over. h.mu is held.
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
