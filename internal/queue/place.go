package queue

import (
	"context"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Caller is a call that waits in a Queue. The methods run with the mutex of the Queue
// held, unless they say otherwise.
type Caller interface {
	// Tenant returns the lease to which the lock is passed on.
	Tenant(l *hold.Lock) hold.Tenant
	// CarryTicket returns the caller's ticket. The release of the lock puts it into the nodes' queues, and
	// the caller asks the nodes at notBefore or later.
	CarryTicket(notBefore clock.Validity) wire.TicketUpdate
	// Abandon releases a lease that came when the caller had given up. It runs without a mutex.
	Abandon(lease hold.Tenant)
}

// Waiting is what a Queue needs to know of a caller.
type Waiting struct {
	Caller   Caller
	Terms    *config.Terms
	Arrived  clock.Validity
	FailFast bool // its call ends when too few nodes answer
}

// Turn ends a caller's wait.
type Turn struct {
	Lease    hold.Tenant // that has the lock; nil when the caller must ask the nodes
	Ends     bool        // the call must end, for the reason that the last attempt failed
	Why      any         // that reason, as Failed got it
	Previous hold.Tenant // the previous lease of this process; nil for none
	// NotBefore is when the caller may ask, and Enqueued means that the nodes have its ticket.
	NotBefore clock.Validity
	Enqueued  bool
}

// Obstacle is what a caller waits for.
type Obstacle struct {
	Lock *hold.Lock    // this process holds the lock itself; nil if it does not
	Why  any           // why the last attempt from the Queue failed, as Failed got it; nil if that is not known
	Age  time.Duration // since then
}

// Place is the place of a caller in a Queue.
type Place struct {
	Waiting
	queue *Queue
	id    quorum.CallerID
	// turn has capacity 1: the caller's turn has come. Sent once at most, never
	// closed.
	turn chan Turn
}

// Wait waits for the caller's turn. It returns false when ctx or the Manager has ended first; then
// the caller has left the Queue.
func (p *Place) Wait(ctx context.Context) (Turn, bool) {
	select {
	case t := <-p.turn:
		return t, true
	case <-ctx.Done():
	case <-p.queue.of.config.Closing.Done():
	}
	p.Leave()
	return Turn{}, false
}

// Here reports whether the caller's turn has come.
func (p *Place) Here() bool { return len(p.turn) > 0 }

// Queue returns the queue of the place, which decides what becomes of the lock.
func (p *Place) Queue() hold.Queue { return p.queue }

// Obstacle returns what the caller waits for.
func (p *Place) Obstacle() Obstacle {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	return p.queue.obstacle()
}

// Leave removes a caller that has given up. A lease whose turn came at the same time is released.
func (p *Place) Leave() {
	q := p.queue
	q.mu.Lock()
	delete(q.callers, p.id)
	q.watch()
	q.carryOut(q.local.Leave(q.now(), p.id))
	q.tendBy(q.now().Add(idleFor))
	q.mu.Unlock()
	select {
	case t := <-p.turn:
		if t.Lease != nil {
			p.Caller.Abandon(t.Lease)
		}
	default:
	}
}

// Setback is why an attempt has failed.
type Setback struct {
	Why            any  // for other callers, see Obstacle
	NoQuorum       bool // it has found no other holder
	TooFewAnswered bool // because too few nodes have answered
	Stranger       bool // a client without queue support has the lock
}

// Failed records why an attempt of the caller has failed. It ends the calls that do not wait for the
// nodes, if too few of these have answered.
func (p *Place) Failed(s Setback) {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setback, q.failedAt = s, q.now()
	if s.Stranger {
		q.local.StrangerSeen(q.now())
	}
	for _, other := range q.callers {
		q.dismiss(other)
	}
}

// Granted records that the caller has got the lock from the nodes. The Queue is removed if no other caller is known to
// want the lock: most locks are not contended, and each should cost no more memory than its lease.
func (p *Place) Granted(l *hold.Lock) {
	p.queue.granted(p, l)
	p.queue.of.retire(p.queue, l)
}
