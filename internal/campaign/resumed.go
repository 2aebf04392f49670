package campaign

import (
	"slices"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Resumed is an exclusive lease that was detached. from is the owner value that its lock shows.
func Resumed(from string) Kind { return resumed{from: from} }

type resumed struct {
	exclusive
	from string
}

// Queues is false: the lock is kept for the call.
func (resumed) Queues() bool { return false }

func (r resumed) acquisition(of wire.Acquisition) wire.Acquisition {
	of.From = r.from
	return of
}

// result keeps only the refusals by other calls that resume the lease: only these may give way. The other nodes no
// longer have what the handle names, and count as failed.
func (r resumed) result(a *attempt, result *quorum.AttemptResult) {
	for i, refusal := range a.votes.refusals {
		if refusal.value == "" || refusal.Owner == r.from || wire.ParseValue(refusal.value).Detached {
			result.Failed = result.Failed.With(result.Refusals[i].Node)
		}
	}
	result.Refusals = slices.DeleteFunc(result.Refusals, func(one quorum.Refusal) bool { return result.Failed.Has(one.Node) })
}

// undo gives the locks back to the others that have the handle, while that may be of use.
func (r resumed) undo(a *attempt, update wire.TicketUpdate, expires clock.Steady) *wire.Request {
	outcome := a.votes.ballot.Outcome()
	if outcome == quorum.OutcomeHeld && !quorum.Scattered(a.c.Terms.Nodes, a.resultLocked(outcome)) {
		return r.exclusive.undo(a, update, expires)
	}
	return wire.NewBack(a.key, a.value, r.from, &a.req, expires)
}

// passedBy deletes the detached lock on nodes without which its lease was resumed: its handle is used up.
func (r resumed) passedBy(c *Campaign, nodes quorum.Set) {
	_, now := c.of.clock.Both()
	c.of.ensemble.PostTo(nodes, wire.NewDrop(c.Key, r.from, now.Add(c.Terms.TTL+c.Terms.LockDelay)), ensemble.Nobody{})
}
