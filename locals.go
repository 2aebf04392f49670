package quorumlock

import (
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// locals finds the local queues by the key of their lock. There is none before the
// Manager has met contention.
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

// find returns the queue of a lock, made if necessary. s.mu is held.
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

// refusal returns what stands in the way of a caller that does not wait: others of this
// process wait for the lock and come before it. It returns nil when the nodes have to be
// asked: nobody waits here, or the waiters do not reach a quorum of nodes.
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

// handedOn takes that a node has left a lock to a waiter of another process.
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
	q.handOff.Reserved(now, i, m.grace(), trip) // the head's is about the same, mostly
	q.late = false
	at := q.handOff.At()
	q.mu.Unlock()
	s.mu.Unlock()
	q.tendBy(at)
}

// tend looks after locks that were handed on, ends checks that were not answered, and
// forgets queues that are of no use any more. The watchdog calls it.
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

// tend returns when the watchdog has to look again, and a check whose time is over. q.mu
// is held.
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

// tendBy has the watchdog look after the queue at an instant, or earlier.
func (q *localQueue) tendBy(at time.Duration) {
	if at == quorum.Never || !q.m.locals.agenda.add(q, at) {
		return
	}
	d := q.m.dog
	d.mu.Lock()
	d.wakeBy(at)
	d.mu.Unlock()
}

// recall has nodes wake everybody whose ticket waits behind a reservation that nobody
// used. q.mu is held.
func (q *localQueue) recall(nodes quorum.Set) {
	_, now := q.m.clock.Both()
	req := node.NewRecall(q.lock, now+q.m.cfg.terms.Timeout)
	for i := range q.m.nodes {
		if nodes.Has(i) {
			q.m.nodes[i].Post(req, recalled{q}) // refused by one that is closed: nobody waits then
		}
	}
}

// recalled takes the answers to a recall.
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

// lookAgain has a lock looked at once more that was reserved still: a distant head has a
// longer grace. first is the first node that had left the lock to it.
func (s *locals) lookAgain(m *Manager, lock string, first int) {
	s.mu.Lock()
	q := s.find(m, lock) // perhaps another one by now
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
