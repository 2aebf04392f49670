package quorumlock

import (
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
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
	q := s.find(w.m, w.lock)
	q.mu.Lock()
	defer q.mu.Unlock()
	w.local = q
	q.callers[w.id] = w
	q.do(q.queue.Enter(w.m.clock.Now(), quorum.Caller{ID: w.id, Arrived: w.arrived, Terms: w.terms.key}))
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
func (s *locals) handedOn(m *Manager, lock string, i int) {
	s.mu.Lock()
	q := s.find(m, lock)
	q.mu.Lock()
	now := m.clock.Now()
	trip := time.Duration(0)
	if reading, ok := m.nodes[i].Reading(); ok {
		trip = reading.RoundTrip
	}
	q.queue.HandedOn(now)
	q.handOff.Reserved(now, i, m.grace(), trip) // the head's grace is usually about the same
	q.late = false
	at := q.handOff.At()
	q.mu.Unlock()
	s.mu.Unlock()
	q.tendBy(at)
}

// tend checks locks that were left to other processes, ends checks that are overdue, and
// removes queues that have no more use. The watchdog calls it.
func (s *locals) tend(now time.Duration) {
	for _, q := range s.agenda.take(now) {
		s.mu.Lock()
		q.mu.Lock()
		at, overdue := q.tend(now)
		if at == quorum.Never && len(q.callers) == 0 && q.hold == nil {
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
	if ask := q.handOff.Look(now); ask != 0 {
		q.recall(ask)
	}
	at = q.handOff.At()
	if q.check == nil {
		return at, nil
	}
	if now >= q.check.until {
		return at, q.check
	}
	return min(at, q.check.until), nil
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

// recall asks nodes to wake all tickets that wait behind a reservation that was not used.
// q.mu is held.
func (q *localQueue) recall(nodes quorum.Set) {
	_, now := q.m.clock.Both()
	req := node.NewRecall(q.lock, now+q.m.cfg.terms.Timeout)
	for i := range q.m.nodes {
		if nodes.Has(i) {
			q.m.nodes[i].Post(req, recalled{q}) // a closed node refuses it, and then no caller waits
		}
	}
}

// recalled receives the answers to a recall.
type recalled struct{ q *localQueue }

// Receive implements node.Receiver.
func (r recalled) Receive(i int, req *node.Request, reply *node.Reply) {
	r.q.m.answered(i, req, reply)
	q, lapsed := r.q, reply.Status == node.Done && reply.N == 1
	q.mu.Lock()
	ask := q.handOff.Answered(i, lapsed)
	switch {
	case ask != 0:
		q.recall(ask)
	case !lapsed && !q.late:
		defer q.m.locals.lookAgain(q.m, q.lock, i)
	}
	q.mu.Unlock()
}

// lookAgain schedules one more check of a lock that is still reserved, because a distant
// head has a longer grace. The check covers the nodes from first on.
func (s *locals) lookAgain(m *Manager, lock string, first int) {
	s.mu.Lock()
	q := s.find(m, lock) // possibly a new queue
	q.mu.Lock()
	q.late = true
	for i := first; i < len(m.nodes); i++ {
		q.handOff.Reserved(m.clock.Now(), i, maxGrace, 0)
	}
	at := q.handOff.At()
	q.mu.Unlock()
	s.mu.Unlock()
	q.tendBy(at)
}
