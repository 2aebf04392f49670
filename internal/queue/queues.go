package queue

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Config is what queues need.
type Config struct {
	Clock   *clock.Clock
	Locks   *hold.Locks
	Closing context.Context // ends when Close begins
	// Turn is what a turn of this process costs the others, see quorum.Turn, and Woken reports
	// whether a quorum of nodes can wake a waiter of this process.
	Turn  func() time.Duration
	Woken func() bool
	// WaitsForItself reports that a caller has waited for a lease of this process for longer than a TTL.
	WaitsForItself func(key string)
}

// Queues finds the queues by the key of their lock. It is empty until a call must wait.
type Queues struct {
	config Config

	mu    sync.Mutex
	byKey map[string]*Queue
	last  quorum.CallerID
}

// New returns the queues of a process that has none yet.
func New(c *Config) *Queues { return &Queues{config: *c} }

// ending reports whether Close has begun.
func (s *Queues) ending() bool { return s.config.Closing.Err() != nil }

// open returns the queue of a lock with its mutex held. It makes the queue if necessary, behind the
// lock if this process holds it. s.mu is held.
func (s *Queues) open(key string) *Queue {
	q := s.byKey[key]
	if q != nil {
		q.mu.Lock()
		return q
	}
	if s.byKey == nil {
		s.byKey = map[string]*Queue{}
	}
	q = &Queue{of: s, key: key, callers: map[quorum.CallerID]*Place{}}
	s.byKey[key] = q
	q.mu.Lock()
	q.attach(s.config.Locks.Find(key))
	q.local.Spread(rand.Float64())
	return q
}

// Enter puts a caller into the queue of its lock.
func (s *Queues) Enter(key string, w Waiting) *Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.open(key)
	defer q.mu.Unlock()
	s.last++
	p := &Place{Waiting: w, queue: q, id: s.last, turn: make(chan Turn, 1)}
	q.enter(p)
	return p
}

// attach puts a new queue behind the lock, if this process holds it. q.mu is held: a loss that
// comes at once finds the lock in the queue.
func (q *Queue) attach(l *hold.Lock) {
	if l == nil {
		return
	}
	if granted, ok := l.Attach(q); ok {
		q.lock, q.local = l, quorum.Held(q.now(), granted, l.Terms().PassKey)
	}
}

// retire removes the queue of a lock that no other caller and no other process is known to want.
func (s *Queues) retire(q *Queue, l *hold.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lock == l && len(q.callers) == 0 && q.check == nil && !q.local.Needed(q.now()) && l.Unqueue() {
		delete(s.byKey, q.key)
	}
}

// Busy returns why a caller that does not wait is refused, if other callers of this process wait for the lock: they
// come first. It returns false when the nodes must be asked: no caller waits here, or too few nodes have answered the
// callers.
func (s *Queues) Busy(key string) (Obstacle, bool) {
	s.mu.Lock()
	q := s.byKey[key]
	s.mu.Unlock()
	if q == nil {
		return Obstacle{}, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.callers) == 0 || q.lock == nil && q.setback.NoQuorum {
		return Obstacle{}, false
	}
	return q.obstacle(), true
}

// HandedOn records that a node has reserved a lock for a waiter of another process.
func (s *Queues) HandedOn(key string) {
	if s.ending() {
		return // Stop has stopped the timers, or will
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.open(key)
	defer q.mu.Unlock()
	now := q.now()
	q.local.HandedOn(now, s.config.Turn())
	q.tendBy(now.Add(idleFor))
}

// sweep removes a queue that no caller uses, and that remembers nothing of use.
func (s *Queues) sweep(q *Queue, now clock.Validity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.byKey[q.key] != q || len(q.callers) > 0 || q.lock != nil {
		return
	}
	if idle := q.local.IdleFrom(); idle > now {
		q.tendBy(idle)
	} else {
		delete(s.byKey, q.key)
	}
}

// Stop stops the timers, when Close has ended all calls and leases.
func (s *Queues) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.byKey {
		q.mu.Lock()
		if q.timer != nil {
			q.timer.Stop()
		}
		q.mu.Unlock()
	}
}

// Tell tells the lock of a key how many callers of this process wait for it.
func (s *Queues) Tell(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.byKey[key]; q != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.watch()
	}
}

// Counts returns, for each lock with a queue, how many callers of this process are in it: the one that
// asks the nodes, and those behind it.
func (s *Queues) Counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[string]int{}
	for key, q := range s.byKey {
		q.mu.Lock()
		counts[key] = len(q.callers)
		q.mu.Unlock()
	}
	return counts
}
