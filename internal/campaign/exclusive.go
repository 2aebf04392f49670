package campaign

import (
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Exclusive is an exclusive lease: no other lease of the name is valid at the same time.
var Exclusive Kind = exclusive{}

// exclusive is also the base of the others, which differ in some methods.
type exclusive struct{}

func (exclusive) Queues() bool { return true }

func (exclusive) begin(*Campaign) {}

func (exclusive) key(c *Campaign) string { return c.Key }

func (exclusive) named(int, int) {}

func (exclusive) mark(ticket []byte) []byte { return ticket }

func (exclusive) sure() bool { return false }

func (exclusive) propose(a *attempt) {
	if s := a.c.of; !s.unfenced {
		a.votes.proposal = quorum.Register(s.ensemble.Time(a.steady).Microseconds())
	}
	a.write(a.c.TraceParent, a.c.Terms.Label)
}

func (exclusive) ballot(a *attempt) quorum.Ballot {
	return quorum.NewBallot(a.c.Terms.Nodes, !a.c.of.unfenced, a.votes.proposal)
}

func (exclusive) acquisition(of wire.Acquisition) wire.Acquisition { return of }

func (exclusive) entry(a *attempt) wire.Entry { return wire.Entry{Lock: a.key, Value: a.value} }

func (exclusive) refused(r refusal, _ *wire.Reply, _ bool) refusal { return r }

func (exclusive) result(*attempt, *quorum.AttemptResult) {}

func (exclusive) elsewhere(*Campaign, *attempt, *Failure) bool { return false }

func (exclusive) undo(a *attempt, update wire.TicketUpdate, expires clock.Steady) *wire.Request {
	return a.c.Kind.entry(a).Undo(&a.req, update, expires)
}

func (exclusive) record(l *hold.Lock, ticket string, others, reserved quorum.Set) quorum.Set {
	if ticket != "" {
		l.RecordTicket(ticket, others, reserved)
	}
	return reserved
}

func (exclusive) takeUp(c *Campaign, l *hold.Lock, refused quorum.Set) {
	if c.ticket != "" { // otherwise it has no reservation
		l.TakeReservations(refused)
	}
}

func (exclusive) passedBy(*Campaign, quorum.Set) {}
