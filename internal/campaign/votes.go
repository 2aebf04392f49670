package campaign

import (
	"errors"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// These are the reasons why a node does not count in an attempt.
var (
	// errNotAwaited is the error of a node whose answer could not have changed the outcome.
	errNotAwaited = errors.New("answer not awaited: the other nodes had already decided")
	// errNotRaised means that a node refused a raise: the attempt no longer owns the lock there,
	// or the register is ahead of the token.
	errNotRaised = errors.New("this node no longer holds the lock for this caller, or has seen a later fencing token")
	// errRegister means that a node's register is past every token, because another program wrote
	// the register or the base.
	errRegister = &wire.ConfigError{
		Problem: "granted, but the fencing register of the lock holds no valid token",
		Fix:     "another program wrote to the keys of this prefix: choose another prefix, or repair the register, see https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md",
	}
)

// votes are the answers to one attempt.
type votes struct {
	ballot     quorum.Ballot
	proposal   int64
	others     int // most tickets in a queue of a node that granted
	errs       []error
	refusals   []refusal
	notApplied quorum.Set // nodes that certainly did not apply the acquisition
	meaning    meaning
	ticket     bool       // with a ticket
	unqueued   quorum.Set // failed nodes that certainly did not queue the ticket
	raiseLate  quorum.Set // nodes whose answer to a raise did not come in time
}

// count counts the answer of node i to the acquisition, and returns the nodes to ask for a raise.
func (v *votes) count(i, nodes int, reply *wire.Reply, now clock.Validity) (raise quorum.Set) {
	switch reply.Status {
	case wire.Granted:
		moved, before := reply.Moved, reply.Before
		v.others = max(v.others, int(reply.Waiters))
		if moved == wire.AsProposed {
			moved, before = v.proposal, v.proposal-1
		}
		raise = v.ballot.Grant(i, moved, before)
		if !v.ballot.Votes().Granted().Has(i) {
			v.fail(i, nodes, errRegister)
		}
		return raise
	case wire.Taken:
		v.ballot.Refuse(i)
		v.fail(i, nodes, hold.ErrTaken)
		v.notApplied = v.notApplied.With(i)
		v.refusals = append(v.refusals, v.meaning.refused(newRefusal(i, reply, now), reply, v.ticket))
		return 0
	case wire.NotApplied:
		v.notApplied, v.unqueued = v.notApplied.With(i), v.unqueued.With(i)
	}
	v.ballot.Fail(i)
	v.fail(i, nodes, reply.Err)
	return 0
}

// countRaise counts the answer of node i to a raise.
func (v *votes) countRaise(i, nodes int, reply *wire.Reply) {
	ok := reply.Status == wire.Done && reply.Before >= 0
	v.ballot.Raised(i, reply.Before, ok)
	if err := reply.Err; !ok {
		if err == nil {
			err = errNotRaised
		}
		v.fail(i, nodes, err)
	}
}

func (v *votes) fail(i, nodes int, err error) {
	if v.errs == nil {
		v.errs = make([]error, nodes)
	}
	v.errs[i] = err
}

// expire fails the votes that have not arrived; with raises, it fails those as well.
func (v *votes) expire(nodes int, why error, raises bool) {
	v.failSilent(nodes, why)
	v.ballot.Votes().Expire()
	if raises {
		v.raiseLate = v.ballot.Asked()
		for i := range v.raiseLate.All() {
			v.fail(i, nodes, why)
		}
		v.ballot.Expire()
	}
}

// failSilent records why nodes that have not answered do not count.
func (v *votes) failSilent(nodes int, why error) {
	for i := range v.ballot.Votes().Silent().All() {
		v.fail(i, nodes, why)
	}
}

// result returns what the Waiter's decisions need to know of a failed attempt.
func (v *votes) result(nodes int, outcome quorum.Outcome, owner string, now clock.Validity) *quorum.AttemptResult {
	tally := v.ballot.Votes()
	return &quorum.AttemptResult{
		Outcome: outcome, Granted: tally.Granted(), Failed: v.failed(nodes), Overtaken: v.ballot.Overtaken() && v.raiseLate == 0,
		TooLate: outcome == quorum.OutcomeWon, Owner: owner, Unqueued: v.unqueued, Refusals: remaining(v.refusals, now),
	}
}

// failed returns the nodes that gave no usable answer in time.
func (v *votes) failed(nodes int) quorum.Set {
	tally := v.ballot.Votes()
	return quorum.All(nodes)&^(tally.Granted()|tally.Refused()|tally.Silent()) | v.raiseLate
}

// strange reports whether a client without queue support has the lock on a node.
func (v *votes) strange() bool {
	for i := range v.refusals {
		if v.refusals[i].Stranger {
			return true
		}
	}
	return false
}
