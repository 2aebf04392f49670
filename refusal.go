package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the refusals of an attempt, and what they mean for the caller.

// refusal is the answer of a node that named another owner.
type refusal struct {
	quorum.Refusal // Left is the instant at which the lock ends; result makes it a duration
	value          string
}

func newRefusal(i int, reply *wire.Reply, now time.Duration) refusal {
	v := wire.ParseValue(reply.Held)
	r := refusal{value: reply.Held, Refusal: quorum.Refusal{
		Node: i, Left: quorum.Never, Position: int(reply.Position), Reserved: v.Reserved,
		Stranger: v.Since.IsZero() && !v.Reserved, Owner: v.Owner,
	}}
	if reply.TTL >= 0 {
		r.Left = now + reply.TTL
	}
	return r
}

// failure returns the error of a failed attempt. a.mu is held.
func (a *attempt) failure(outcome quorum.Outcome) error {
	switch tie := a.wait.once && quorum.Scattered(a.wait.terms.Nodes, a.result(outcome)); {
	case outcome == quorum.OutcomeHeld, tie:
		holder := a.holder()
		return &HeldError{
			Name: a.wait.name(), Holder: holder, RetryAfter: a.retryAfter(), Self: a.m.dog.Has(a.wait.lock, holder.Owner),
		}
	case outcome == quorum.OutcomeWon, outcome == quorum.OutcomePending:
		return errCutShort
	}
	for i := range a.wait.terms.Nodes {
		if a.ballot.Votes().Silent().Has(i) {
			a.fail(i, errNotAwaited)
		}
	}
	return &QuorumError{
		Op: "acquire", Name: a.wait.name(), Need: a.m.ensemble.Quorum(), Got: a.ballot.Votes().Granted().Len(),
		of: a.m.ensemble.Size(), Nodes: a.m.nodeErrors(a.errs), RetryAfter: a.m.ensemble.Quarantined(),
	}
}

// unanswered reports whether the nodes that have not failed are too few for a quorum. The
// error of an attempt may say that there is no quorum for other reasons, such as votes that
// are split.
func (a *attempt) unanswered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ballot.Outcome() == quorum.OutcomeNoQuorum
}

// holder returns the holder that most refusals name, the zero Holder if the lock is
// reserved. a.mu is held.
func (a *attempt) holder() Holder {
	best, votes := Holder{}, 0
	for _, r := range a.refusals {
		if r.Reserved {
			continue
		}
		h, n := holder(r.value), 0
		for _, other := range a.refusals {
			if !other.Reserved && holder(other.value).Owner == h.Owner {
				n++
			}
		}
		if n > votes {
			best, votes = h, n
		}
	}
	return best
}

// retryAfter returns when a majority of nodes could be free, 0 if that is not known.
// Nodes that granted or failed count as free now. a.mu is held.
func (a *attempt) retryAfter() time.Duration {
	left := make(quorum.Window, a.wait.terms.Nodes)
	for i, r := range a.result(quorum.OutcomeHeld).Refusals {
		left[i] = r.Left
	}
	if d := left.Free(); d != quorum.Never {
		return d
	}
	return 0
}

// result returns what the waiter's decisions need to know of a failed attempt. a.mu is
// held.
func (a *attempt) result(outcome quorum.Outcome) *quorum.AttemptResult {
	now := a.m.clock.Now()
	votes := a.ballot.Votes()
	r := &quorum.AttemptResult{
		Outcome: outcome, Granted: votes.Granted(), Failed: quorum.All(a.wait.terms.Nodes) &^ (votes.Granted() | votes.Refused() | votes.Silent()),
		TooLate: outcome == quorum.OutcomeWon, Owner: wire.OwnerOf(a.value),
		Unqueued: a.unqueued, Refusals: make([]quorum.Refusal, len(a.refusals)),
	}
	for i, refusal := range a.refusals {
		r.Refusals[i] = refusal.Refusal
		if refusal.Left != quorum.Never {
			r.Refusals[i].Left = max(refusal.Left-now, time.Microsecond) // 0 would mean unknown
		}
	}
	return r
}
