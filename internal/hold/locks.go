package hold

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Config is what the locks of a process need.
type Config struct {
	Ensemble *ensemble.Ensemble
	Unfenced bool
	Calls    *sync.WaitGroup // counts the functions that run under locks: Close waits for them
}

// Locks are the locks of this process.
type Locks struct {
	ensemble   *ensemble.Ensemble
	clock      *clock.Clock
	unfenced   bool
	calls      *sync.WaitGroup
	unreleased unreleased // what Close could not release
	schedule   schedule[*Lock]
	registry   registry
	lag        atomic.Int64 // the expected delay, which each step of a lock uses
	allPosted  sync.Cond    // a lock that is awaited has posted all that was built; its own mutex is taken after a Lock's
	// ended means that Close has begun, and no further lock is opened. Written with the mutex of Steps held: either
	// End ends a new lock, or its Open sees ended.
	ended atomic.Bool
}

// expectedLag returns the expected delay before a reader observes a loss.
func (s *Locks) expectedLag() time.Duration { return time.Duration(s.lag.Load()) }

// ClockStepped shortens the locks by a step of a node's clock. The mutex of Steps is held: a lock that is being opened
// is either among these or finds the step. apply runs without the mutex.
func (s *Locks) ClockStepped(step *ensemble.Step) (apply func()) {
	locks := s.schedule.all()
	return func() {
		for _, l := range locks {
			l.applyClockStep(step)
		}
	}
}

// registry finds locks by their key, so that a refused caller learns whether its own Manager has
// the lock, and so that a caller can wait behind it. It is empty before the first refusal,
// because most Managers never meet one.
type registry struct {
	fill sync.Once // with the locks from before the first refusal
	used atomic.Bool

	mu      sync.Mutex // taken after a Lock's mutex
	byKey   map[string]*Lock
	readers map[string]struct{} // the owner values of shared locks: no caller waits behind a shared lock
}

// Find returns this process's lock of a key, nil if there is none. Shared locks do not count.
func (s *Locks) Find(key string) *Lock {
	r := &s.registry
	r.fill.Do(func() {
		r.used.Store(true)
		// Later locks add themselves; earlier ones are in the schedule, with some that have ended.
		for _, l := range s.schedule.all() {
			l.mu.Lock()
			if !l.is.over {
				r.add(l)
			}
			l.mu.Unlock()
		}
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byKey[key]
}

// Has reports whether this process holds the lock of a key, with that owner value.
func (s *Locks) Has(key, owner string) bool {
	l := s.Find(key)
	if l == nil {
		s.registry.mu.Lock()
		defer s.registry.mu.Unlock()
		_, reads := s.registry.readers[owner]
		return reads
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.is.over && wire.OwnerOf(l.value) == owner
}

// add adds a lock. l.mu is held.
func (r *registry) add(l *Lock) {
	if !r.used.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey == nil {
		r.byKey, r.readers = map[string]*Lock{}, map[string]struct{}{}
	}
	if l.is.shared {
		r.readers[wire.OwnerOf(l.value)] = struct{}{}
		return
	}
	r.byKey[l.key] = l
}

// remove removes a lock that has ended. l.mu is held.
func (r *registry) remove(l *Lock) {
	if !r.used.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[l.key] == l {
		delete(r.byKey, l.key)
	}
	if l.is.shared {
		delete(r.readers, wire.OwnerOf(l.value))
	}
}
