package quorumlock

import (
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// locals finds the local queues by the key of their lock. It is empty until a call has to
// wait.
type locals struct {
	agenda agenda

	mu     sync.Mutex
	byLock map[string]*localQueue
}

// each calls f with every caller in a queue.
func (s *locals) each(f func(*waiter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.byLock {
		q.mu.Lock()
		for _, w := range q.callers {
			f(w)
		}
		q.mu.Unlock()
	}
}

// find returns the queue of a lock, and creates it if necessary. s.mu is held.
func (s *locals) find(m *Manager, lock string) *localQueue {
	q := s.byLock[lock]
	if q == nil {
		if s.byLock == nil {
			s.byLock = map[string]*localQueue{}
		}
		q = &localQueue{m: m, lock: lock, callers: map[quorum.CallerID]*waiter{}}
		s.byLock[lock] = q
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
	q := s.byLock[w.lock]
	if q == nil {
		q = s.find(w.m, w.lock)
		q.attach(w.m.own.find(w.m, w.lock))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	w.local = q
	q.callers[w.id] = w
	q.do(q.queue.Enter(w.m.clock.Now(), quorum.Caller{ID: w.id, Arrived: w.arrived, Terms: w.terms.key}))
	q.dismiss(w)
}

// attach puts a new queue behind the hold of the lock, if this Manager has one.
func (q *localQueue) attach(h *hold) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		q.hold, h.local = h, q
		q.queue = quorum.Held(q.m.clock.Now(), h.lease.granted, h.terms.key)
	}
}

// detach removes the queue of a hold that no other caller and no other process is known to
// want: most locks are not contended, and each should cost no more memory than its lease.
func (s *locals) detach(q *localQueue, h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if q.hold == h && h.others == 0 && len(q.callers) == 0 && q.check == nil && !q.queue.Needed(q.m.clock.Now()) {
		h.local = nil
		delete(s.byLock, q.lock)
	}
}

// refusal returns an error for a caller that does not wait, when other callers of this
// process wait for the lock and come first. It returns nil when the nodes have to be
// asked: no caller waits here, or the waiters do not reach a quorum of nodes.
func (s *locals) refusal(lock string) error {
	s.mu.Lock()
	q := s.byLock[lock]
	s.mu.Unlock()
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.callers) == 0 || q.hold == nil && errors.Is(q.refusal, ErrNoQuorum) {
		return nil
	}
	if err := q.obstacle(); err != nil {
		return err
	}
	return &HeldError{Name: q.name()}
}

// handedOn records that a node has reserved a lock for a waiter of another process.
func (s *locals) handedOn(m *Manager, lock string) {
	s.mu.Lock()
	q := s.find(m, lock)
	q.mu.Lock()
	now := m.clock.Now()
	q.queue.HandedOn(now, m.turn())
	q.mu.Unlock()
	s.mu.Unlock()
	q.tendBy(now + time.Second)
}

// tend ends checks that are overdue, and removes queues that have no more use. The watchdog
// calls it.
func (s *locals) tend(now time.Duration) {
	for _, q := range s.agenda.take(now) {
		s.mu.Lock()
		q.mu.Lock()
		at, overdue := q.tend(now)
		if s.byLock[q.lock] != q {
			at = quorum.Never // it has been removed
		} else if at == quorum.Never && len(q.callers) == 0 && q.hold == nil {
			if q.queue.Idle(now) {
				delete(s.byLock, q.lock)
			} else {
				at = now + quorum.ReacquireDelay
			}
		}
		q.mu.Unlock()
		s.mu.Unlock()
		if overdue != nil {
			overdue.end()
		}
		q.tendBy(at)
	}
}

// tend returns when the watchdog has to check the queue again, and a check that is
// overdue. q.mu is held.
func (q *localQueue) tend(now time.Duration) (at time.Duration, overdue *check) {
	if q.check == nil {
		return quorum.Never, nil
	}
	if now >= q.check.until {
		return quorum.Never, q.check
	}
	return q.check.until, nil
}

// tendBy makes the watchdog check the queue at an instant, or earlier.
func (q *localQueue) tendBy(at time.Duration) {
	if at == quorum.Never || !q.m.locals.agenda.add(q, at) {
		return
	}
	d := q.m.dog
	d.mu.Lock()
	d.wakeBy(at)
	d.mu.Unlock()
}
