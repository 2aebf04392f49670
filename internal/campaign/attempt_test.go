package campaign

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A raise is a vote for the token. A missing answer and a refusal are not votes.
func TestARaiseCountsOnlyWhenTheNodeConfirmsIt(t *testing.T) {
	for name, c := range map[string]struct {
		reply wire.Reply
		won   bool
	}{
		"raised":       {wire.Reply{Status: wire.Done, Before: 7}, true},
		"refused":      {wire.Reply{Status: wire.Done, Before: -1}, false},
		"lost":         {wire.Reply{Status: wire.Unknown, Err: wire.ErrClosed}, false},
		"not sent":     {wire.Reply{Status: wire.NotApplied, Err: wire.ErrExpired}, false},
		"failed":       {wire.Reply{Status: wire.Failed, Err: ensemble.Silence(0)}, false},
		"not possible": {wire.Reply{Status: wire.Misconfigured, Err: ensemble.Silence(0)}, false},
	} {
		v := votes{ballot: quorum.NewBallot(3, true, 7), proposal: 7}
		v.ballot.Grant(0, 7, 6)
		require.Equal(t, quorum.All(2), v.ballot.Grant(1, 0, 9))
		v.countRaise(1, 3, &wire.Reply{Status: wire.Done, Before: 9})
		v.countRaise(0, 3, &c.reply)
		assert.Equal(t, c.won, v.ballot.Outcome() == quorum.OutcomeWon, name)
		assert.Equal(t, c.won, v.errs == nil, name)
	}
}

// Late answers of nodes, and answers to raises, find the attempt by a pointer. The attempt must not be reused while any
// of them can still arrive.
func TestAnAttemptIsReusedOnceNothingRefersToIt(t *testing.T) {
	s := idle(1)
	by := &caller{}
	c := begin(s, by)
	inUse := func(a *attempt) bool { return a.c != nil }

	a := s.newAttempt(c, c.Key, quorum.Ask{}, nil)
	a.votes.ballot.Grant(0, a.votes.proposal, a.votes.proposal-1)
	l := granted(t, a)
	require.Same(t, by.lock, l)
	a.unref()
	assert.True(t, inUse(a), "the node has answered, but the caller has not finished")
	a.unref()
	assert.False(t, inUse(a))
	assert.Zero(t, a.req.Locks(), "fully reset")
	l.Free(wire.TicketUpdate{})
	assert.False(t, a.req.Withdrawn(), "its release has nothing to undo")

	a = s.newAttempt(c, c.Key, quorum.Ask{}, nil)
	a.raise = &wire.Request{}
	a.votes.ballot.Grant(0, a.votes.proposal, a.votes.proposal-1)
	granted(t, a)
	a.unref()
	a.unref()
	assert.True(t, inUse(a), "more answers may come")

	a = s.newAttempt(c, c.Key, quorum.Ask{}, nil)
	a.unref()
	a.unref()
	assert.True(t, inUse(a), "the release of a failed attempt looks at its request")
}

// A majority has granted the lock, and the lease would be of no use. These nodes have not failed, but the caller must
// learn why their votes do not count.
func TestAnAttemptThatWasWonInVainHasTheReason(t *testing.T) {
	won := func(s *Campaigns, c *Campaign) *Failure {
		a := s.newAttempt(c, c.Key, quorum.Ask{}, nil)
		for i := range 2 {
			a.votes.ballot.Grant(i, a.votes.proposal, a.votes.proposal-1)
		}
		return a.conclude(false)
	}
	s := idle(3)
	c := begin(s, &caller{})
	c.Terms.MinUseful = 2 * c.Terms.TTL
	f := won(s, c)
	assert.Equal(t, NoQuorum, f.Reason)
	assert.Equal(t, []error{hold.ErrTooSlow, hold.ErrTooSlow, errNotAwaited}, f.Errors)
	assert.Equal(t, 2, f.Granted)
	assert.False(t, f.TooFewAnswered, "another attempt may be faster")

	s = idle(3)
	s.locks.End()
	f = won(s, begin(s, &caller{}))
	assert.Equal(t, CutShort, f.Reason, "Close has begun")
	assert.Nil(t, f.Errors)
}

// A client that reads too late holds the nodes for two timeouts in each attempt. So it counts the nodes that have granted
// and whose raise was not answered in time among those that have failed, and loses its place like one that no node answers.
func TestANodeWhoseRaiseIsNotAnsweredInTimeHasFailed(t *testing.T) {
	for name, answer := range map[string]func(*votes){
		"none":    func(*votes) {},
		"refused": func(v *votes) { v.countRaise(1, 3, &wire.Reply{Status: wire.Done, Before: -1}) },
	} {
		v := votes{ballot: quorum.NewBallot(3, true, 9)}
		v.ballot.Grant(0, 9, 3)
		require.Equal(t, quorum.Set(0).With(1), v.ballot.Grant(1, 7, 3))
		v.ballot.Refuse(2)
		answer(&v)
		v.expire(3, ensemble.Silence(0), true)
		r := v.result(3, v.ballot.Outcome(), "", 0)
		assert.Equal(t, name == "none", r.Failed.Has(1), name)
		require.Len(t, v.errs, 3, name)
		assert.Equal(t, map[string]error{"none": ensemble.Silence(0), "refused": errNotRaised}[name], v.errs[1], "the caller learns why its grant does not count")
		assert.Equal(t, 2, r.Granted.Len())
	}
}
