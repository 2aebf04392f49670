package campaign

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// holders is the value of a holder.
var holders = wire.Compose("0123456789abcdef0123456789abcdef", 7, "1 - ")

// taken is the refusal of a slot.
func taken(held string, position, free int64) *wire.Reply {
	return &wire.Reply{Status: wire.Taken, Held: held, TTL: time.Second, Position: position, FreeSlot: free}
}

func TestARefusalOfASlotSaysWhetherTheCallIsLetIn(t *testing.T) {
	for _, c := range []struct {
		held     string
		position int64
		ticket   bool
		letIn    bool
		ends     clock.Validity
	}{
		{holders, 0, true, false, clock.Validity(time.Second)},
		{holders, -1, true, true, clock.Validity(time.Second)},
		{holders, -1, false, false, clock.Validity(time.Second)},
		{"", 0, true, false, clock.Validity(time.Second)},
		{"", 1, true, false, quorum.Never},
		{"", -1, true, true, quorum.Never},
		{"", -1, false, false, quorum.Never},
	} {
		v := votes{ballot: quorum.NewBallot(3, true, 8), meaning: Permit(3), ticket: c.ticket}
		v.count(0, 3, taken(c.held, c.position, -1), 0)
		assert.Equal(t, c.letIn, v.refusals[0].LetIn, "%+v", c)
		assert.Equal(t, c.ends, v.refusals[0].ends, "a slot that is free is kept for others, whose rights only the next one waits out: %+v", c)
		assert.False(t, v.strange(), "%+v", c)
		_, _, named := holder(v.refusals)
		assert.Equal(t, c.held != "", named, "a slot that is kept has no key that could be another program's: %+v", c)
	}
	v := votes{ballot: quorum.NewBallot(3, true, 8), meaning: Permit(3), ticket: true}
	v.count(0, 3, taken("a stranger's", 0, -1), 0)
	assert.True(t, v.strange())
}

// refusedOn begins an attempt that one node grants and the others refuse, with what they offer.
func refusedOn(c *Campaign, free ...int64) (*attempt, *Failure) {
	a := c.begin()
	a.votes.ballot.Grant(0, a.votes.proposal, 0)
	for i, slot := range free {
		a.votes.count(1+i, 3, taken("x", -1, slot), c.of.clock.Now())
	}
	return a, a.conclude(false)
}

func TestACallThatIsRefusedAsksForTheSlotThatIsOffered(t *testing.T) {
	for what, c := range map[string]struct {
		free  []int64
		slot  string // "" for none
		until func(*Campaign, *Failure)
	}{
		"one is free":           {free: []int64{2, 2}, slot: "2"},
		"one node names it":     {free: []int64{-1, 1}, slot: "1"},
		"none is free":          {free: []int64{-1, -1}},
		"it is above the limit": {free: []int64{3, 3}},
		"the nodes are too few": {free: []int64{2, 2}, until: func(_ *Campaign, f *Failure) { f.Reason = NoQuorum }},
		"the wait is over": {free: []int64{2, 2}, until: func(c *Campaign, _ *Failure) {
			ended, end := context.WithCancel(context.Background())
			end()
			c.Wait = ended
		}},
		"it asks for no permit": {free: []int64{2, 2}, until: func(c *Campaign, _ *Failure) { c.Kind = Exclusive }},
	} {
		s := idle(3)
		campaign := beginAs(s, Call{Kind: Permit(3)})
		a, f := refusedOn(campaign, c.free...)
		require.Equal(t, Held, f.Reason)
		if c.until != nil {
			c.until(campaign, f)
		}
		again := campaign.Kind.elsewhere(campaign, a, f)
		assert.Equal(t, c.slot != "", again, what)
		if again {
			next := campaign.unreleased
			assert.NotSame(t, a, next, what)
			assert.Equal(t, campaign.Key+c.slot, next.key, what)
			assert.NotEqual(t, a.value, next.value, "the votes for the slot before are released: %s", what)
			assert.True(t, a.req.Withdrawn(), what)
		}
	}
}

// A call keeps its right to enter when it asks for another slot.
func TestACallThatAsksForAnotherSlotKeepsItsTicket(t *testing.T) {
	s := idle(3)
	s.contended.Store(true)
	s.subscribed = quorum.All(3)
	c := beginAs(s, Call{Kind: Permit(3)})
	c.Enrol()
	a, f := refusedOn(c, 2, 2)
	require.True(t, a.ask.Ticket)
	require.True(t, c.Kind.elsewhere(c, a, f))
	assert.True(t, c.unreleased.ask.Ticket)
	assert.True(t, c.unreleased.votes.ticket)
}

func TestAMessageNamesASlotBelowTheLimit(t *testing.T) {
	s := idle(3)
	s.subscribed = quorum.All(3)
	c := beginAs(s, Call{Kind: Permit(3)})
	c.Enrol()
	names := func(slot int) string {
		key := wire.SlotKey("p:job", slot)
		if slot < 0 {
			key = wire.FamilyKey("p:job")
		}
		for i := range 3 {
			s.Wake(i, wire.WakeReserved, c.ticket[:wire.TicketLen], key)
		}
		_, key = c.beginAttempt()
		return key
	}
	for _, slot := range []int{0, 1, 2} {
		assert.Equal(t, wire.SlotKey("p:job", slot), names(slot))
	}
	assert.Equal(t, wire.SlotKey("p:job", 2), names(3), "another client's limit is larger")
	assert.Equal(t, wire.SlotKey("p:job", 2), names(-1))
	s.Wake(0, wire.WakeReserved, c.ticket[:wire.TicketLen], wire.SlotKey("p:job", 1))
	s.Wake(0, wire.WakeNext, c.ticket[:wire.TicketLen], wire.FamilyKey("p:job"))
	_, key := c.beginAttempt()
	assert.Equal(t, wire.SlotKey("p:job", 1), key, "a later message that names none takes nothing back")
	c.Key = wire.FamilyKey("p:job2")
	assert.Equal(t, wire.SlotKey("p:job2", 1), names(2), "of another name")
}

// Nodes may let different waiters in, so one less than a majority is not enough here.
func TestACallForAPermitWaitsForAMajorityOfMessages(t *testing.T) {
	for kind, hasty := range map[Kind]bool{Permit(3): false, Exclusive: true} {
		s := idle(3)
		s.contended.Store(true)
		s.subscribed = quorum.All(3)
		c := beginAs(s, Call{Kind: kind})
		c.Enrol()
		a := c.begin()
		for i := range 3 {
			a.votes.count(i, 3, taken(holders, 0, -1), s.clock.Now())
		}
		require.Equal(t, Held, a.conclude(false).Reason)
		require.True(t, c.Concede(time.Hour))
		woken := func(i int) bool {
			now := s.clock.Now()
			s.Wake(i, wire.WakeReserved, c.ticket[:wire.TicketLen], c.Key)
			return c.machine.At() < now.Add(quorum.MinGrace/2)
		}
		assert.Equal(t, hasty, woken(0))
		assert.True(t, woken(1))
	}
}
