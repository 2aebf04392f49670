package campaign

import (
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Shared is a shared lease.
func Shared() Kind { return reader }

// Downgraded is the shared lease that replaces an exclusive one. from is the value of its locks, which become shared, and
// until is when work under it must stop: a request that ran later could find that a writer has come and gone.
func Downgraded(from string, until clock.Steady) Kind { return shared{from: from, until: until} }

var reader Kind = shared{}

// shared is a reader of the lock. Its value shows no token, because it moves no register.
type shared struct {
	exclusive
	from  string
	until clock.Steady // with from
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
	if of.Shared, of.From = true, s.from; s.from != "" {
		of.NotAfter = min(of.NotAfter, s.until)
	}
	return of
}

func (shared) entry(a *attempt) wire.Entry {
	return wire.Entry{Lock: a.key, Value: a.value, Shared: true}
}

// result shows no owner: a lock that refuses a reader is a writer's, or becomes the readers'.
func (shared) result(_ *attempt, r *quorum.AttemptResult) { r.Owner = wire.Nobody }
