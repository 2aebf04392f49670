package quorumlock

import (
	"sync"
	"sync/atomic"
)

// ownLocks finds the holds of this Manager by their lock, so that a refused caller learns
// whether its own Manager has the lock, and so that a caller can wait behind it. It is empty
// before the first refusal, because most Managers never meet one.
type ownLocks struct {
	used atomic.Bool

	mu    sync.Mutex // taken after a hold's mutex
	holds map[string]*hold
}

// find returns this Manager's hold of a lock, nil if there is none.
func (o *ownLocks) find(m *Manager, lock string) *hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.used.Swap(true) {
		o.holds = map[string]*hold{}
		// Later grants add themselves; earlier ones are in the watchdog's list.
		for _, h := range m.dog.live() {
			o.holds[h.lock] = h
		}
	}
	return o.holds[lock]
}

// has reports whether a hold of this Manager has the lock, with that owner.
func (o *ownLocks) has(m *Manager, lock, owner string) bool {
	h := o.find(m, lock)
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
