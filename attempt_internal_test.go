package quorumlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// attemptOn returns an attempt on three nodes that proposes token 7.
func attemptOn(m *Manager) *attempt {
	w := &waiter{m: m, terms: idleTerms(3, time.Hour), lock: "job", ctx: context.Background()}
	a := &attempt{m: m, wait: w, value: strings.Repeat("0", wire.OwnerLen) + " 7 1 - ", began: m.clock.Now(), steady: m.clock.Steady()}
	a.ballot = quorum.NewBallot(3, true, 7)
	return a
}

// A raise is a vote for the token. A missing answer and a refusal are no votes.
func TestARaiseCountsOnlyWhenTheNodeConfirmsIt(t *testing.T) {
	m := idleManager(clock.New(), 3)
	raise := &wire.Request{Kind: wire.Raise}
	for name, c := range map[string]struct {
		reply wire.Reply
		won   bool
	}{
		"raised":       {wire.Reply{Status: wire.Done, Before: 7}, true},
		"refused":      {wire.Reply{Status: wire.Done, Before: -1}, false},
		"lost":         {wire.Reply{Status: wire.Unknown, Err: wire.ErrReconnected}, false},
		"not sent":     {wire.Reply{Status: wire.NotApplied, Err: wire.ErrExpired}, false},
		"failed":       {wire.Reply{Status: wire.Failed, Err: ensemble.Silence(0)}, false},
		"not possible": {wire.Reply{Status: wire.Misconfigured, Err: ensemble.Silence(0)}, false},
	} {
		a := attemptOn(m)
		a.ballot.Grant(0, 7, 6)
		require.Equal(t, quorum.All(2), a.ballot.Grant(1, 0, 9))
		a.count(1, raise, &wire.Reply{Status: wire.Done, Before: 9})
		a.count(0, raise, &c.reply)
		assert.Equal(t, c.won, a.ballot.Outcome() == quorum.OutcomeWon, name)
		assert.Equal(t, c.won, a.errs == nil, name)
	}
}

// Late answers of nodes, and those to raises, find the attempt by a pointer. The attempt must
// not be reused while any of them can still arrive.
func TestAnAttemptIsReusedOnceNothingRefersToIt(t *testing.T) {
	m := idleManager(clock.New(), 1)
	w := &waiter{m: m, terms: idleTerms(1, time.Hour), lock: "job", ctx: context.Background()}
	begin := func() *attempt { return m.newAttempt(w, quorum.Ask{}, nil) }
	inUse := func(a *attempt) bool { return a.m != nil }

	a := begin()
	l := idleLease(t, m, w.terms, func(g *hold.Grant) { g.Acquire = &a.req })
	a.lock = l.lock
	a.leave()
	assert.True(t, inUse(a), "the node has answered, but the caller has not finished")
	a.leave()
	assert.False(t, inUse(a))
	assert.Zero(t, a.req.Locks(), "fully reset")
	l.abandon()
	assert.False(t, a.req.Withdrawn(), "its release has nothing to undo")

	a = begin()
	a.raise = &wire.Request{}
	a.leave()
	a.leave()
	assert.True(t, inUse(a), "more answers may come")
}
