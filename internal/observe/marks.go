package observe

import (
	"context"
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Why a node has not marked a lock.
var (
	errGone    = errors.New("the lease is not there any more")
	errEndless = errors.New("its key has no end: another program has changed it")
)

// Ask writes a note into the lock that an owner holds, and waits for all nodes.
func (s *Observers) Ask(ctx context.Context, key, owner string, note wire.Note) *ensemble.Answers {
	_, steady := s.ensemble.Clock.Both()
	timeout := s.timeout()
	return s.ensemble.Collect(ctx, wire.NewAsk(key, owner, note, steady+timeout), timeout, s.ensemble.Size(), marked)
}

// Revoked is what became of a revocation.
type Revoked struct {
	Until   time.Duration     // from then on the lease is not valid, by the validity clock; 0 if that is not known
	Marked  int               // how many nodes do not renew it any more
	Answers *ensemble.Answers // of the last round
}

// Revoke marks the lock of an owner on the nodes, see quorum.Revocation. longest is how long the lock
// lives on any node, and drift the factor of quorum.Drift.
func (s *Observers) Revoke(ctx context.Context, key, owner string, longest time.Duration, drift float64, note wire.Note) (result Revoked) {
	e, timeout := s.ensemble, s.timeout()
	r := quorum.NewRevocation(e.Size(), 2*timeout, longest, drift) // this process may be late, too
	for range e.Size() + 1 {                                       // each further round is for a node that has renewed the lock since the one before
		validity, steady := e.Clock.Both()
		r.Begin(validity)
		answers := e.Collect(ctx, wire.NewRevoke(key, owner, r.Life(), note, steady+timeout), timeout, e.Size(), marked)
		now := e.Clock.Now()
		for i := range answers.Replies {
			if answers.Err(i) == nil && answers.Replies[i].Status == wire.Done {
				r.Marked(now, i, answers.Replies[i].TTL)
			}
		}
		result = Revoked{Marked: r.Count(), Answers: answers}
		if at, known := r.Until(); known {
			result.Until = at
			return result
		}
		if !r.Repeat() {
			return result
		}
	}
	return result
}

// marked returns why a node has not marked a lock, nil if it has.
func marked(reply *wire.Reply) error {
	switch {
	case reply.N == wire.Missing:
		return wire.ErrLate
	case reply.N != wire.Ours:
		return errGone
	case reply.TTL < 0:
		return errEndless
	}
	return nil
}
