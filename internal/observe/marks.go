package observe

import (
	"context"
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// These are the reasons why a node has not marked a lock.
var (
	errGone    = errors.New("the lease has already ended on this node")
	errEndless = errors.New("the key never expires: another program has changed it")
	// errNotInTime is why a mark does not count.
	errNotInTime = errors.New("revoked here, but the answer came too late to tell when the lease ends")
)

// Ask writes a note into the lock that an owner holds, and waits for all nodes.
func (s *Observers) Ask(ctx context.Context, key, owner string, note wire.Note) *ensemble.Answers {
	_, steady := s.ensemble.Clock.Both()
	timeout := s.timeout()
	return s.ensemble.Collect(ctx, wire.NewAsk(key, owner, note, steady.Add(timeout)), timeout, s.ensemble.Size(), marked)
}

// Lease is the lease that is to be revoked, as the nodes were read.
type Lease struct {
	Key, Owner string
	Longest    time.Duration // how long its lock lives on any node, at most
	Again      bool          // a majority has revoked it already
}

// Revoked is the result of a revocation.
type Revoked struct {
	Until  clock.Validity // from then on the lease is not valid, by the validity clock; 0 if that is not known
	Marked int            // how many nodes no longer renew it
	Gone   int            // how many nodes have answered that the lease is not there
	Errors []error        // why nodes have not marked it, by node; without Until there are some
}

// Revoke marks the lock of a lease on the nodes, see quorum.Revocation. drift is the factor of quorum.Drift.
func (s *Observers) Revoke(ctx context.Context, l Lease, drift float64, note wire.Note) (result Revoked) {
	e, timeout := s.ensemble, s.timeout()
	r := quorum.NewRevocation(e.Size(), 2*timeout, l.Longest, drift, l.Again) // this process may be late, too
	// A further round is for a node that has renewed the lock since the one before, or for late answers.
	for range e.Size() + 1 {
		validity, steady := e.Clock.Both()
		r.Begin(validity)
		answers := e.Collect(ctx, wire.NewRevoke(l.Key, l.Owner, r.Life(), note, steady.Add(timeout)), timeout, e.Size(), marked)
		now := e.Clock.Now()
		result = Revoked{Errors: make([]error, e.Size())}
		for i := range answers.Replies {
			switch err := answers.Err(i); {
			case err == nil:
				result.Errors[i] = errNotInTime // unless the lease has ended
				r.Marked(now, i, answers.Replies[i].TTL, answers.Replies[i].N == wire.RevokedBefore)
			case errors.Is(err, errGone):
				result.Gone++
				fallthrough
			default:
				result.Errors[i] = err
			}
		}
		result.Marked = r.Count()
		if at, known := r.Until(); known {
			result.Until = at
		}
		if !r.Repeat() || ctx.Err() != nil {
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
	case reply.N < wire.Ours:
		return errGone
	case reply.TTL < 0:
		return errEndless
	}
	return nil
}
