package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file has the refusals of an attempt, and what they mean for the caller.

// refusal is the answer of a node that named another owner.
type refusal struct {
	quorum.Refusal // Left is the instant at which the lock ends; result makes it a duration
	value          string
}

func newRefusal(i int, reply *node.Reply, now time.Duration) refusal {
	v := node.ParseValue(reply.Held)
	r := refusal{value: reply.Held, Refusal: quorum.Refusal{
		Node: i, Left: quorum.Never, Position: int(reply.Position), Reserved: v.Reserved,
		Stranger: v.Since.IsZero() && !v.Reserved,
	}}
	if reply.TTL >= 0 {
		r.Left = now + reply.TTL
	}
	return r
}

// failure returns the error of a failed attempt. a.mu is held.
func (a *attempt) failure(outcome quorum.Outcome) error {
	switch outcome {
	case quorum.OutcomeHeld:
		holder := a.holder()
		return &HeldError{
			Name: a.wait.name(), Holder: holder, RetryAfter: a.retryAfter(), Self: a.m.own.has(a.m, a.wait.lock, holder.Owner),
		}
	case quorum.OutcomeWon, quorum.OutcomePending:
		return errCutShort
	}
	return &QuorumError{
		Op: "acquire", Name: a.wait.name(), Need: a.m.quorum(), Got: a.ballot.Votes().Granted().Len(),
		of: len(a.m.nodes), Nodes: a.m.nodeErrors(a.errs), RetryAfter: a.m.quarantined(),
	}
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

// scattered reports whether several callers asked at one instant and each got some of the
// votes: the attempt was refused, and no caller has a majority. a.mu is held.
func (a *attempt) scattered(outcome quorum.Outcome) bool {
	if outcome != quorum.OutcomeHeld {
		return false
	}
	votes := map[string]int{}
	for _, r := range a.refusals {
		owner := holder(r.value).Owner
		if votes[owner]++; r.Reserved || votes[owner] >= a.m.quorum() {
			return false
		}
	}
	return true
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
		Outcome: outcome, Granted: votes.Granted(), Failed: quorum.All(a.wait.terms.Nodes) &^ (votes.Granted() | votes.Refused()),
		Unqueued: a.unqueued, Refusals: make([]quorum.Refusal, len(a.refusals)),
	}
	r.TooLate, r.Scattered = outcome == quorum.OutcomeWon, a.scattered(outcome)
	for i, refusal := range a.refusals {
		r.Refusals[i] = refusal.Refusal
		if refusal.Left != quorum.Never {
			r.Refusals[i].Left = max(refusal.Left-now, time.Microsecond) // 0 would mean unknown
		}
	}
	return r
}
