package quorumlock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// attemptOn returns an attempt on three nodes that proposes token 7.
func attemptOn(m *Manager, local *localQueue) *attempt {
	t := &terms{Terms: quorum.Terms{Nodes: 3, TTL: time.Hour, Timeout: time.Hour}}
	w := &waiter{m: m, terms: t, lock: "job", ctx: context.Background(), local: local}
	a := &attempt{m: m, wait: w, value: strings.Repeat("0", wire.OwnerLen) + " 7 1 - ", began: m.clock.Now(), steady: m.clock.Steady()}
	a.ballot = quorum.NewBallot(3, true, 7)
	return a
}

// granted ends an attempt that has its votes.
func granted(t *testing.T, a *attempt) *hold {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	l, err := a.grant(context.Background())
	require.NoError(t, err)
	return l.hold
}

// Node 1 was below the token and was raised. Node 2 is above the token, so its answer is
// a vote but no proof.
func TestAGrantRecordsTheTopTokenAndTheNodesAtIt(t *testing.T) {
	m, _ := idleDog(time.Hour, quorum.Terms{})
	a := attemptOn(m, nil)
	a.ballot.Grant(0, 9, 6)
	a.ballot.Grant(1, 0, 8)
	a.ballot.Raised(1, 8, true)
	a.ballot.Grant(2, 0, 12)
	h := granted(t, a)
	assert.EqualValues(t, 9, h.lease.token)
	assert.EqualValues(t, 9, wire.ParseValue(h.value).Token, "the token in renewals")
	assert.Equal(t, quorum.All(2), h.proof)

	for _, c := range []struct {
		local *localQueue
		first int64
		more  int
	}{{nil, 7, 0}, {&localQueue{m: m}, 4, 3}} {
		a := attemptOn(m, c.local)
		a.ballot.Grant(0, 7, 3)
		a.ballot.Grant(2, 7, 2)
		h := granted(t, a)
		assert.Equal(t, c.first, h.lease.token)
		assert.Equal(t, c.more, h.tokensLocked(), "tokens for callers that queue in this process")
		assert.EqualValues(t, 7, wire.ParseValue(h.value).Token)
	}
}

// A raise is a vote for the token. A missing answer and a refusal are no votes.
func TestARaiseCountsOnlyWhenTheNodeConfirmsIt(t *testing.T) {
	m, _ := idleDog(time.Hour, quorum.Terms{})
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
		a := attemptOn(m, nil)
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
	m, l := idleDog(time.Hour, quorum.Terms{})
	w := &waiter{m: m, terms: l.hold.terms, lock: "job", ctx: context.Background()}
	begin := func() *attempt { return m.newAttempt(w, quorum.Ask{}, nil) }
	inUse := func(a *attempt) bool { return a.m != nil }

	a := begin()
	a.hold, l.hold.acquire = l.hold, &a.req
	a.leave()
	assert.True(t, inUse(a), "the node has answered, but the caller has not finished")
	a.leave()
	assert.False(t, inUse(a))
	assert.Nil(t, l.hold.acquire, "its release has nothing to undo")
	assert.Zero(t, a.req.Locks(), "fully reset")

	a = begin()
	a.raise = &wire.Request{}
	a.leave()
	a.leave()
	assert.True(t, inUse(a), "more answers may come")
}
