package campaign

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// The turn of a campaign comes while a node's messages begin. It must not miss both the node and the news of it:
// otherwise it would poll the node. With two of three nodes its attempts carry a ticket.
func TestACampaignThatComesWhileANodeIsSubscribedKnowsTheNode(t *testing.T) {
	notQueued := quorum.AttemptResult{Refusals: []quorum.Refusal{{Node: 0, Position: -1}, {Node: 1, Position: -1}, {Node: 2, Position: -1}}}
	for name, c := range map[string]struct {
		kind Kind
		turn func(*Campaign)
	}{
		"behind others, to ask":                           {Exclusive, func(c *Campaign) { c.Restart(0) }},
		"behind others, whose release carries its ticket": {Exclusive, func(c *Campaign) { c.CarryTicket(0) }},
		"for the nodes alone":                             {Shared(), (*Campaign).Enrol},
	} {
		t.Run(name, func(t *testing.T) {
			s := idle(3)
			s.contended.Store(true)
			for range 20_000 {
				s.subscribed = quorum.Set(0).With(0)
				one := beginAs(s, Call{Kind: c.kind})
				var both sync.WaitGroup
				both.Go(func() { s.Subscribed(1) })
				both.Go(func() { c.turn(one) })
				both.Wait()
				one.machine.Begin(s.clock.Now())
				one.machine.Ended(s.clock.Now(), &notQueued, 0, 0)
				require.True(t, one.machine.Begin(s.clock.Now()).Ticket)
				one.GiveUp()
			}
		})
	}
}

// A far process whose first attempt had no quorum has met no contention. The nodes reserve the lock for it for as long as
// its ticket says, and it must not ask as if that was the shortest time.
func TestACampaignWaitsForTheGraceThatItsTicketNames(t *testing.T) {
	for _, contended := range []bool{true, false} {
		s := idle(3)
		s.contended.Store(contended)
		s.late.Store(int64(35 * time.Millisecond))
		c, now := begin(s, &caller{}), s.clock.Now()
		c.CarryTicket(now.Add(time.Hour))
		require.Regexp(t, "^.{32}140$", c.ticket)
		c.wake(0, quorum.WakeNext, 1, -1)
		assert.Greater(t, c.due().Sub(now), 140*time.Millisecond, "contended: %v", contended)
		assert.Less(t, c.due().Sub(now), time.Minute)
		c.GiveUp()
	}
}
