package campaign

import (
	mathrand "math/rand/v2"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Permit is one of limit permits: an exclusive lease on a slot of the name. The Kind belongs to one campaign.
func Permit(limit int) Kind { return &permit{limit: limit} }

type permit struct {
	exclusive
	limit int
	slots quorum.Slots // which slot to ask for; the campaign's mutex guards it
}

func (*permit) Queues() bool { return false }

// begin makes the key the key of all slots: they have one queue. An attempt asks for the key of a slot.
func (p *permit) begin(c *Campaign) {
	c.Key = wire.FamilyKey(c.Key)
	p.slots = quorum.NewSlots(c.of.ensemble.Order(), mathrand.IntN(p.limit))
}

func (p *permit) key(c *Campaign) string { return slotKey(c, p.slots.Begin()) }

// slotKey returns the key of a slot.
func slotKey(c *Campaign, slot int) string { return c.Key + strconv.Itoa(slot) }

func (p *permit) named(i, slot int) {
	if slot >= 0 && slot < p.limit {
		p.slots.Named(i, slot)
	}
}

func (p *permit) mark(ticket []byte) []byte {
	return strconv.AppendInt(append(ticket, wire.PermitMark), int64(p.limit), 10)
}

// sure is true: nodes may let different waiters in.
func (*permit) sure() bool { return true }

func (p *permit) acquisition(of wire.Acquisition) wire.Acquisition {
	of.Limit = p.limit
	return of
}

// refused handles a slot that is free and kept for waiters that were let in: the next one asks again when their rights
// end, and the others are woken then. A waiter that is not in the queue has been let in itself.
func (*permit) refused(r refusal, reply *wire.Reply, ticket bool) refusal {
	if reply.Held == "" {
		r.vacant, r.Stranger, r.Reserved = true, false, r.Position == 0
		if !r.Reserved {
			r.ends = quorum.Never
		}
	}
	r.LetIn = ticket && r.Position < 0
	return r
}

// elsewhere begins an attempt for another slot, if the nodes have refused the previous one and named a free one. For
// the machine both are one attempt.
func (p *permit) elsewhere(c *Campaign, a *attempt, f *Failure) bool {
	if f.Reason != Held || c.Wait.Err() != nil || c.of.ending() {
		return false
	}
	a.mu.Lock()
	free := p.free(c.Terms.Nodes, a.votes.refusals)
	a.mu.Unlock()
	c.mu.Lock()
	slot, again := p.slots.Refused(free)
	c.mu.Unlock()
	if !again {
		return false
	}
	update := wire.TicketUpdate{}
	if a.ask.Ticket {
		update = wire.TicketUpdate{Ticket: c.ticket, EnqueuedAt: c.score}
	}
	c.end(a, update)
	next := c.of.newAttempt(c, slotKey(c, slot), quorum.Ask{Ticket: a.ask.Ticket}, nil)
	c.unreleased = next
	c.of.ensemble.Ask(&next.req, next, next.steady)
	return true
}

// free returns the slot that each node has offered in place of the one that it refused, −1 for none.
func (p *permit) free(nodes int, refusals []refusal) []int {
	all := make([]int, nodes)
	for i := range all {
		all[i] = -1
	}
	for _, r := range refusals {
		if r.freeSlot < p.limit {
			all[r.Node] = r.freeSlot
		}
	}
	return all
}

// record also remembers rights without a ticket. The answers of the others may still come, and the slot may be free
// there by then.
func (*permit) record(l *hold.Lock, ticket string, others, _ quorum.Set) quorum.Set {
	l.RecordTicket(ticket, others, others)
	return others
}

// takeUp asks for the slot again, even without a ticket: most likely its last holder's release was on its way, and
// while a node shows the slot as free, others ask for it without success. The rights to other slots pass on.
func (*permit) takeUp(c *Campaign, l *hold.Lock, refused quorum.Set) {
	l.TakeReservations(refused)
	if c.ticket != "" && refused != 0 {
		c.of.ensemble.LeaveQueues(c.Key, c.ticket, refused)
	}
}
