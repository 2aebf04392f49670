package quorumlock

import (
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// locals finds the local queues by the key of their lock. It is empty until a call has to
// wait.
type locals struct {
	mu    sync.Mutex
	byKey map[string]*localQueue
}

// each calls f with every caller in a queue.
func (s *locals) each(f func(*waiter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.byKey {
		q.mu.Lock()
		for _, w := range q.callers {
			f(w)
		}
		q.mu.Unlock()
	}
}

// find returns the queue of a lock, and creates it if necessary. s.mu is held.
func (s *locals) find(m *Manager, key string) *localQueue {
	q := s.byKey[key]
	if q == nil {
		if s.byKey == nil {
			s.byKey = map[string]*localQueue{}
		}
		q = &localQueue{m: m, key: key, callers: map[quorum.CallerID]*waiter{}}
		s.byKey[key] = q
	}
	return q
}

// enter puts a caller into the queue of its lock.
func (s *locals) enter(w *waiter) {
	w.mu.Lock()
	w.prepare()
	w.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.byKey[w.lock]
	if q == nil {
		q = s.find(w.m, w.lock)
		q.attach(w.m.dog.Find(w.lock))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.local = q
	q.callers[w.id] = w
	q.do(q.queue.Enter(w.m.clock.Now(), quorum.Caller{ID: w.id, Arrived: w.arrived, Terms: w.terms.PassKey}))
	if q.lock != nil {
		q.tendBy(w.arrived + w.terms.TTL)
	}
	q.dismiss(w)
}

// attach puts a new queue behind the lock, if this Manager holds it.
func (q *localQueue) attach(l *hold.Lock) {
	if l == nil {
		return
	}
	if granted, ok := l.Attach(q); ok {
		q.lock, q.queue = l, quorum.Held(q.m.clock.Now(), granted, l.Terms().PassKey)
	}
}

// detach removes the queue of a lock that no other caller and no other process is known to
// want: most locks are not contended, and each should cost no more memory than its lease.
func (s *locals) detach(q *localQueue, l *hold.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lock == l && len(q.callers) == 0 && q.check == nil && !q.queue.Needed(q.m.clock.Now()) && l.Detach() {
		delete(s.byKey, q.key)
	}
}

// refusal returns an error for a caller that does not wait, when other callers of this
// process wait for the lock and come first. It returns nil when the nodes have to be
// asked: no caller waits here, or the waiters do not reach a quorum of nodes.
func (s *locals) refusal(key string) error {
	s.mu.Lock()
	q := s.byKey[key]
	s.mu.Unlock()
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.callers) == 0 || q.lock == nil && errors.Is(q.refusal, ErrNoQuorum) {
		return nil
	}
	if err := q.obstacle(); err != nil {
		return err
	}
	return &HeldError{Name: q.name()}
}

// handedOn records that a node has reserved a lock for a waiter of another process.
func (s *locals) handedOn(m *Manager, key string) {
	s.mu.Lock()
	q := s.find(m, key)
	q.mu.Lock()
	now := m.clock.Now()
	q.queue.HandedOn(now, m.turn())
	q.tendBy(now + idleFor)
	q.mu.Unlock()
	s.mu.Unlock()
}

// idleFor is how long a queue that nobody uses stays, at least.
const idleFor = time.Second

// tendBy has the queue's timer run tend at an instant, or earlier. q.mu is held.
func (q *localQueue) tendBy(at time.Duration) {
	if q.tendAt != 0 && q.tendAt <= at {
		return
	}
	q.tendAt = at
	after := max(at-q.m.clock.Now(), 0)
	if q.timer == nil {
		q.timer = time.AfterFunc(after, q.tend)
	} else {
		q.timer.Reset(after)
	}
}

// tend ends a check that is overdue, and removes a queue that has no more use. The queue's
// timer runs it.
func (q *localQueue) tend() {
	if q.m.ending() {
		return // Close ends the calls and the leases of every queue
	}
	q.mu.Lock()
	now := q.m.clock.Now()
	q.tendAt = 0
	var overdue *hold.Check
	switch {
	case q.check == nil:
	case now >= q.check.Until():
		overdue = q.check
	default:
		q.tendBy(q.check.Until())
	}
	self := q.waitsForItself(now)
	q.mu.Unlock()
	if self {
		q.m.warnOfSelf(q.name())
	}
	if overdue != nil {
		overdue.End()
	}
	q.m.locals.sweep(q, now)
}

// sweep removes a queue that nobody uses, and that remembers nothing of use.
func (s *locals) sweep(q *localQueue, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case s.byKey[q.key] != q, len(q.callers) > 0, q.lock != nil:
	case q.queue.Idle(now):
		delete(s.byKey, q.key)
	default:
		q.tendBy(now + quorum.ReacquireDelay)
	}
}

// stop stops the timers, when Close has ended all calls and leases.
func (s *locals) stop() {
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
