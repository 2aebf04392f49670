package campaign

import (
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Shared is a shared lease. from is the value of locks that are the caller's own, and become shared; "" for none.
func Shared(from string) Kind {
	if from == "" {
		return reader
	}
	return shared{from: from}
}

var reader Kind = shared{}

// shared is a reader of the lock. Its value shows no token, because it moves no register.
type shared struct {
	exclusive
	from string
}

func (shared) Queues() bool { return false }

func (shared) mark(ticket []byte) []byte { return append(ticket, wire.ReaderMark) }

func (s shared) propose(a *attempt) {
	if s.from != "" {
		a.value, a.kept = s.from, quorum.All(a.c.Terms.Nodes)
		return
	}
	a.write(a.c.TraceParent, a.c.Terms.Label)
}

func (shared) ballot(a *attempt) quorum.Ballot {
	return quorum.NewSharedBallot(a.c.Terms.Nodes, !a.c.of.unfenced)
}

func (s shared) acquisition(of wire.Acquisition) wire.Acquisition {
	of.Shared, of.From = true, s.from
	return of
}

func (shared) entry(a *attempt) wire.Entry {
	return wire.Entry{Lock: a.key, Value: a.value, Shared: true}
}

// result shows no owner: a lock that refuses a reader is a writer's, or becomes the readers'.
func (shared) result(_ *attempt, r *quorum.AttemptResult) { r.Owner = wire.Nobody }
