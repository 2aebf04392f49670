package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file drives a client's ticket in the queues of the nodes, as the waiter
// does in production.

// waiter is the state that goes from attempt to attempt.
type waiter struct {
	queues     bool   // it is one that queues
	contended  bool   // it has been refused, so it subscribes
	ticket     uint32 // 0 as long as it does not queue
	enqueuedAt int64  // the score of the ticket: when the wait began, µs
	queued     quorum.Set
	notQueued  quorum.Set              // nodes in whose queues the attempt certainly did not put it
	turns      quorum.Turns            // wake-ups since the attempt began
	wokenBy    quorum.Set              // the same, for a planted bug
	next       bool                    // a node reserves the lock for the ticket before it
	lapses     [maxNodes]time.Duration // when a node's reservation for another ticket ends; 0 if none is known
	splits     int                     // attempts in a row that some nodes granted
	completed  uint32                  // the last ticket with which all nodes granted
	last       struct{ ticket, owner uint32 }
}

// yieldAfter is the number of attempts in a row, granted by some nodes and by
// no quorum, after which others go first.
const yieldAfter = 3

// stays returns what becomes of the ticket after a failed attempt.
func (c *client) stays() ticketUpdate {
	if c.splits >= yieldAfter {
		return yields
	}
	return keepsPlace
}

// beginWait gives an attempt its ticket, and forgets the wake-ups before it.
func (c *client) beginWait(clusterTime int64) {
	c.notQueued = 0
	if c.ticket == 0 && c.queues && c.contended {
		c.w.owners++
		c.ticket, c.enqueuedAt = c.w.owners, clusterTime
		c.queued, c.wokenBy, c.next, c.splits = 0, 0, false, 0
		c.lapses = [maxNodes]time.Duration{}
		c.turns = quorum.NewTurns(c.w.p.Nodes)
	}
	c.turns.Ask()
}

// takeLapsed returns the nodes whose reservation for another ticket the client
// has waited out, and forgets what it knows of reservations. It is about each
// node alone: the lock may be free on another one because its head just gave
// it back to try again.
func (c *client) takeLapsed(now time.Duration) (lapsed quorum.Set) {
	for i, end := range c.lapses {
		if c.ticket != 0 && end != 0 && now >= end {
			lapsed = lapsed.With(i)
		}
	}
	c.lapses = [maxNodes]time.Duration{}
	return lapsed
}

// woken takes a wake-up.
func (c *client) woken(m *message, now time.Duration) {
	w, i, ticket := c.w, int(m.node), m.ticket
	w.stats[WakeUps]++
	if w.p.Trace != nil {
		w.trace("client %d is woken by node %d for ticket %d: %v", c.id, i, ticket, m.answer)
	}
	switch {
	case m.answer == askAgain:
		if c.ticket == ticket && c.phase == resting {
			c.until = min(c.until, now+w.upTo(2*minGrace))
		}
	case m.answer == forNext:
		if c.ticket == ticket && c.phase != holding {
			c.next = true
			c.lapses[i] = now + w.config.grace + time.Millisecond
			c.look(now)
		}
	case c.ticket == ticket && c.phase == holding:
		if c.incomplete.Has(i) && ticket != c.completed {
			c.askMore(i, now)
		}
	case c.ticket == ticket:
		c.wokenBy = c.wokenBy.With(i)
		c.lapses[i] = 0
		c.turns.Told(i)
		c.look(now)
	case ticket == c.completed:
	case w.bugs.has(AsksTooLate) && ticket == c.last.ticket:
		before := *c
		before.owner, before.ticket = c.last.owner, ticket
		before.ask(i, before.clusterTime(), false, now+w.config.terms.Timeout)
	default: // the waiter is gone; pass the lock on to the next one
		w.stats[PassedOn]++
		c.request(i, &message{op: opPassOn, ticket: ticket})
	}
}

// askMore asks for one more vote, for the same token. It must not lock after
// the end, whose release goes before it.
func (c *client) askMore(i int, now time.Duration) {
	if bound := min(c.machine.Stop(), now+c.w.config.terms.Timeout); now < bound &&
		c.ask(i, c.top, false, bound) {
		c.asked = c.asked.With(i)
	}
}

// look moves the next attempt forward, after a wake-up.
func (c *client) look(now time.Duration) {
	if c.phase != resting || c.ticket == 0 {
		return
	}
	turn, some := c.turns.Turn()
	next := c.next
	c.next = false
	switch {
	case turn:
		c.w.stats[WokenAttempts]++
		c.try(now)
	case some: // before the reservation lapses: the next one would clear the queue
		c.until = min(c.until, now+c.w.config.grace/2+c.w.upTo(2*time.Millisecond))
	case next:
		c.until = min(c.until, now+c.w.config.grace+time.Millisecond+c.w.upTo(2*time.Millisecond))
	}
}

// recordVotes notes votes for the lease.
func (c *client) recordVotes(votes quorum.Set) {
	c.w.stats[LateVotes] += (votes & c.incomplete & c.asked).Len()
	if c.incomplete &^= votes; c.incomplete == 0 && c.ticket != 0 {
		c.completed = c.ticket
	}
}

// endWait ends the wait of a lease that is over. A ticket with which every
// node granted is in no queue.
func (c *client) endWait() {
	c.last.ticket, c.last.owner = c.ticket, c.owner
	if c.ticket == c.completed {
		c.ticket = 0
	}
}

// leave takes the ticket out of the queues, and passes reservations for it on.
func (c *client) leave() {
	if c.ticket == 0 {
		return
	}
	m := message{op: opPassOn, ticket: c.ticket}
	for i := range c.w.p.Nodes {
		if c.queued.Has(i) {
			c.request(i, &m)
		}
	}
	c.ticket = 0
}

// enqueued notes where the ticket may be after an attempt that failed.
func (c *client) enqueued() {
	if c.ticket != 0 {
		c.queued |= quorum.All(c.w.p.Nodes) &^ c.notQueued
	}
}

// refuse notes a node's answer that did not grant the lock.
func (c *client) refuse(i int, m *message, now time.Duration) {
	if m.position < 0 {
		c.notQueued = c.notQueued.With(i)
	}
	ends := now + time.Duration(m.left)*time.Millisecond
	if c.lapses[i] = 0; m.reservation {
		c.lapses[i] = ends
	}
	c.refusals[c.refused] = quorum.Refusal{Left: ends, Place: int(m.position)}
	c.refused++
}

// retryDelay returns the time until the next attempt if no wake-up arrives;
// poll is the delay of a client that knows nothing.
func (c *client) retryDelay(now, poll time.Duration) time.Duration {
	n, votes := c.w.p.Nodes, c.ballot.Votes()
	refusals := c.refusals[:c.refused]
	for i := range refusals {
		refusals[i].Left = max(refusals[i].Left-now, time.Microsecond)
	}
	need := quorum.Size(n) - votes.Granted().Len()
	if votes.Outcome() == quorum.OutcomeHeld {
		need = len(refusals) - (n - quorum.Size(n))
	}
	return quorum.Look(refusals, need, poll)
}

// countReservations takes the nodes that reserve the lock for votes, if they
// make a quorum.
func (c *client) countReservations() {
	votes := c.ballot.Votes()
	woken := c.wokenBy & votes.Silent()
	for i := range c.w.p.Nodes {
		if woken.Has(i) && votes.Granted().Len()+woken.Len() >= quorum.Size(c.w.p.Nodes) {
			c.inventVotes(quorum.Set(0).With(i))
			woken = woken.Without(i)
		}
	}
}
