package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file is what a client does with its ticket in the queues of the nodes, as
// the waiter in production.

// pastAfter is how many attempts in a row may be granted by some nodes and no
// quorum before others go first.
const pastAfter = 3

// past reports whether others go first, this once.
func (c *client) past() bool { return c.splits >= pastAfter }

// hear takes what a node tells: it keeps the lock for a ticket, or for the one
// before it.
func (c *client) hear(m *message, now time.Duration) {
	w, i, number := c.w, int(m.node), m.ticket
	w.stats.Told++
	if w.p.Trace != nil {
		w.trace("client %d is told by node %d of ticket %d, kept: %v", c.id, i, number, m.answer == kept)
	}
	switch {
	case m.answer != kept:
		if c.ticket == number && c.phase != holding {
			c.next = true
			c.look(now)
		}
	case c.ticket == number && c.phase == holding:
		if c.missing.Has(i) && number != c.served {
			c.askMore(i, now)
		}
	case c.ticket == number:
		c.toldBy = c.toldBy.With(i)
		c.turns.Told(i)
		c.look(now)
	case number == c.served:
	case w.bugs.has(AsksTooLate) && number == c.last.ticket:
		before := *c
		before.owner, before.ticket = c.last.owner, number
		before.ask(i, now, micros(epoch+c.wall+w.now), now+w.config.terms.Timeout)
	default: // it has what it waited for, or has given up: whoever is next may come
		w.stats.PassedOn++
		c.request(i, &message{op: release, owner: number, pass: true, sent: now})
	}
}

// askMore asks for one more vote. It must not lock after the end, whose release goes
// before it.
func (c *client) askMore(i int, now time.Duration) {
	if bound := min(c.machine.Stop(), now+c.w.config.terms.Timeout); now < bound &&
		c.ask(i, now, micros(epoch+c.wall+c.w.now), bound) {
		c.asked = c.asked.With(i)
	}
}

// look moves the next attempt forward, after what was told.
func (c *client) look(now time.Duration) {
	if c.phase != resting || c.ticket == 0 {
		return
	}
	turn, some := c.turns.Turn()
	next := c.next
	c.next = false
	switch {
	case turn:
		c.w.stats.Called++
		c.attempt(now)
	case some, next:
		c.until = min(c.until, now+minGrace+time.Millisecond+c.w.upTo(2*time.Millisecond))
	}
}

// got notes votes for the lease.
func (c *client) got(votes quorum.Set) {
	c.w.stats.LateVotes += (votes & c.missing & c.asked).Len()
	if c.missing &^= votes; c.missing == 0 && c.ticket != 0 {
		c.served = c.ticket
	}
}

// leave takes the ticket out of the queues, and passes on what is kept for it.
func (c *client) leave(now time.Duration) {
	if c.ticket == 0 {
		return
	}
	m := message{op: release, owner: c.ticket, ticket: c.ticket, pass: true, sent: now}
	for i := range c.w.p.Nodes {
		if c.queued.Has(i) {
			c.request(i, &m)
		}
	}
	c.ticket = 0
}

// enqueued notes where the ticket may be after an attempt that came to nothing.
func (c *client) enqueued() {
	if c.ticket != 0 {
		c.queued |= quorum.All(c.w.p.Nodes) &^ c.outof
	}
}

// refuse notes what a node said that did not grant the lock.
func (c *client) refuse(i int, m *message, now time.Duration) {
	if m.place < 0 {
		c.outof = c.outof.With(i)
	}
	c.refusals[c.refused] = quorum.Refusal{Left: now + time.Duration(m.number)*time.Millisecond, Place: int(m.place)}
	c.refused++
}

// again returns how long to wait until the next attempt, if nobody tells anything
// and poll is how long one waits who knows nothing.
func (c *client) again(now, poll time.Duration) time.Duration {
	n, votes := c.w.p.Nodes, c.claim.Votes()
	refusals := c.refusals[:c.refused]
	for i := range refusals {
		refusals[i].Left = max(refusals[i].Left-now, time.Microsecond)
	}
	need := quorum.Size(n) - votes.Granted().Len()
	if votes.Outcome() == quorum.Held {
		need = len(refusals) - (n - quorum.Size(n))
	}
	return quorum.Look(refusals, need, poll)
}
