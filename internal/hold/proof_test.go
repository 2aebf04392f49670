package hold

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A lock is passed on inside the process only on proof, which the answers of the nodes give.

func TestAProofCountsAnswersSinceItWasLastWithdrawn(t *testing.T) {
	all, others := quorum.All(3), quorum.All(3).Without(1)
	for name, c := range map[string]struct {
		kind   wire.Kind
		reply  wire.Reply
		before quorum.Set
		want   quorum.Set
	}{
		"owner and token":           {wire.Extend, wire.Reply{Status: wire.Done, Answers: []int64{wire.Ours}}, others, all},
		"never the token":           {wire.Extend, wire.Reply{Status: wire.Done, Answers: []int64{wire.OursWithoutToken}}, others, others},
		"the token no more":         {wire.Extend, wire.Reply{Status: wire.Done, Answers: []int64{wire.OursWithoutToken}}, all, 0},
		"healed":                    {wire.Heal, wire.Reply{Status: wire.Done, Answers: []int64{wire.Ours}}, others, others},
		"missing":                   {wire.Extend, wire.Reply{Status: wire.Done, Answers: []int64{wire.Missing}}, all, 0},
		"another's":                 {wire.Extend, wire.Reply{Status: wire.Done, Answers: []int64{wire.Another}}, all, 0},
		"no answer":                 {wire.Extend, wire.Reply{Status: wire.Unknown, Err: ensemble.Silence(0)}, all, all},
		"an operation failed":       {wire.Extend, wire.Reply{Status: wire.Done, Err: ensemble.Silence(0), Answers: []int64{wire.Unanswered}}, all, all},
		"answers that misfit":       {wire.Extend, wire.Reply{Status: wire.Done, Answers: []int64{wire.Ours, wire.Ours}}, others, others},
		"a heal that came too late": {wire.Heal, wire.Reply{Status: wire.Done, Answers: []int64{wire.Missing}}, all, all},
	} {
		p := idle(3)
		l, _ := p.open(t, p.grant(hour(3)))
		l.proof.nodes = c.before
		r := &round{of: p.Locks, locks: []*Lock{l}, began: p.clock.Now(), steady: p.clock.Steady()}
		c.reply.Sent = clock.Validity(time.Duration(p.clock.Now()))
		r.Receive(1, &wire.Request{Kind: c.kind}, &c.reply)
		assert.Equal(t, c.want, l.proof.nodes, name)
	}

	// The answer to a request sent before a proof was withdrawn does not restore the
	// proof, but can withdraw another.
	p := idle(3)
	l, _ := p.open(t, p.grant(hour(3)))
	sent := p.clock.Now()
	record := func(i int, answer int64, sent time.Duration) {
		l.proof.record(i, answer, clock.Validity(sent), p.clock.Now())
	}
	record(2, wire.Another, time.Duration(sent))
	require.Zero(t, l.proof.nodes)
	assert.Greater(t, l.proof.from, sent)
	record(0, wire.Ours, time.Duration(sent))
	record(1, wire.OursWithoutToken, time.Duration(sent))
	assert.Zero(t, l.proof.nodes)
	record(0, wire.Ours, time.Duration(p.clock.Now()))
	record(0, wire.OursWithoutToken, time.Duration(sent))
	assert.Equal(t, quorum.Set(0).With(0), l.proof.nodes, "the node has shown the token since then")

	p.stepClock(2, time.Second)
	assert.Zero(t, l.proof.nodes, "keys have expired early on that node")

	for _, c := range []struct {
		nodes int
		want  bool
	}{{3, true}, {2, true}, {1, false}, {0, false}} {
		g := p.grant(hour(3))
		g.Queue = &queue{}
		l, first := p.open(t, g)
		l.proof.nodes = quorum.All(c.nodes)
		_, state, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok)
		assert.Equal(t, c.want, state.Proven, "%d nodes", c.nodes)
	}
	l, _ = p.open(t, p.grant(hour(3)))
	l.Vote(1, p.clock.Now(), &wire.Reply{Status: wire.Taken})
	assert.Equal(t, others, l.proof.nodes, "a node that never voted does not affect the proof of the others")
}

// The raises of a check mint tokens. Each must be above the previous token of every
// counted node, because another attempt may have been granted that one.
func TestACheckMintsTokensAboveWhereTheNodesStood(t *testing.T) {
	raise := &wire.Request{Kind: wire.Raise}
	raised := func(before int64, waiters int64) *wire.Reply {
		return &wire.Reply{Status: wire.Done, Before: before, Waiters: waiters}
	}
	p := idle(3)
	l, _ := p.open(t, p.grant(hour(3)))
	l.tokens, l.proof.nodes = block{next: 4, last: 3}, 0
	const token = 1_000_000
	var ended *Check // the last check that has ended
	var at time.Duration
	var state quorum.Hold
	check := func(token int64) *Check {
		c := l.Check(func(c *Check, now clock.Validity, s quorum.Hold) {
			assert.NotSame(t, ended, c, "it ends once")
			ended, at, state = c, time.Duration(now), s
		})
		c.token = token // no node runs, so no node has seen another token
		return c
	}
	first := check(token)
	first.Receive(0, raise, raised(token-50, 0))
	assert.Zero(t, l.proof.nodes, "one node is no quorum")
	assert.Nil(t, ended)
	first.Receive(1, raise, raised(token-10, 2))
	assert.Same(t, first, ended)
	assert.Equal(t, block{next: token - 8, last: token}, l.tokens)
	assert.EqualValues(t, token, wire.ParseValue(l.Value()).Token)
	assert.Equal(t, quorum.All(2), l.proof.nodes)
	assert.Equal(t, 9, state.Tokens, "the first behind where a node stood may be a reader's")
	assert.True(t, state.Proven)
	assert.Equal(t, 2, state.Others)
	assert.Equal(t, clock.Validity(at), state.AnsweredAt)
	assert.Greater(t, clock.Validity(at), first.sent)
	first.Receive(2, raise, raised(token-70, 0))
	assert.Equal(t, quorum.All(3), l.proof.nodes, "late, but at the token")
	assert.Equal(t, block{next: token - 8, last: token}, l.tokens, "the block is in use")

	// A check that fails leaves some nodes at another token.
	second := check(token + 100)
	second.Receive(0, raise, raised(token, 0))
	second.Receive(1, raise, raised(-1, 0))
	second.Receive(2, raise, &wire.Reply{Status: wire.Unknown, Err: ensemble.Silence(0)})
	assert.Same(t, second, ended)
	assert.Equal(t, quorum.All(3).Without(0), l.proof.nodes)
	assert.Equal(t, block{next: token - 8, last: token}, l.tokens)
	second.Receive(2, raise, raised(token, 0))
	assert.Equal(t, quorum.Set(0).With(1), l.proof.nodes)

	// All nodes were far below: the block has its maximum size.
	third := check(5 * token)
	third.Receive(0, raise, raised(token, 0))
	third.Receive(1, raise, raised(token, 0))
	assert.EqualValues(t, 5*token-blockSize+1, l.tokens.next)

	// Tokens that are already in use are not granted again.
	l.tokens.next = 5*token + 1
	fourth := check(5*token + 3)
	fourth.Receive(0, raise, raised(5*token-5, 0)) // a node that lost its registers
	fourth.Receive(1, raise, raised(5*token-5, 0))
	assert.EqualValues(t, 5*token+1, l.tokens.next)

	// An answer to a check sent before the proof was withdrawn proves nothing.
	fifth := check(6 * token)
	p.stepClock(2, time.Second)
	fifth.Receive(0, raise, raised(5*token+3, 0))
	fifth.Receive(1, raise, raised(5*token+3, 0))
	fifth.Receive(2, raise, raised(5*token+3, 0))
	assert.EqualValues(t, 6*token, l.tokens.last, "its tokens are valid anyway")
	assert.Zero(t, l.proof.nodes)
}

// Odd numbers are the tokens of readers.
func TestACheckMintsAnEvenTokenAboveTheLast(t *testing.T) {
	p := idle(3)
	l, _ := p.open(t, p.grant(hour(3)))
	for _, last := range []int64{0, 1 << 52, 1<<52 + 1} { // the last two are above the clocks
		for range 16 {
			l.tokens = block{next: last, last: last}
			token := l.Check(nil).token
			assert.Zero(t, token%2)
			assert.Greater(t, token, last)
			time.Sleep(time.Microsecond)
		}
	}
}

// A node that reserves the lock for a waiter has lost our key. The key is restored; the
// reservation is not a sign that another client holds the lock.
func TestVerifyTakesAReservationForAMissingKey(t *testing.T) {
	p := idle(3)
	l, _ := p.open(t, p.grant(hour(3)))
	waiter := strings.Repeat("1", wire.TicketLen)
	for value, want := range map[string]error{
		l.Value(): nil, wire.Compose(owner, 0, ""): nil, waiter + " w ": ErrMissing, waiter + " w x": ErrTaken,
		"": ErrTaken, "x": ErrTaken, wire.Compose(waiter, 1, "1 - "): ErrTaken,
	} {
		assert.Equal(t, want, l.owns(&wire.Reply{Held: value, TTL: time.Second}), "%q", value)
	}
	assert.Equal(t, ErrMissing, l.owns(&wire.Reply{TTL: wire.Absent}))
	assert.Equal(t, ErrTaken, l.owns(&wire.Reply{TTL: wire.Endless}), "another's empty key")
}

// A lock that the lean way has made without a vote shows our token, although the register may have stood above it
// before. It proves nothing until a check has moved the token.
func TestALockThatIsNoVoteProvesNothing(t *testing.T) {
	p := idle(3)
	g := p.grant(hour(3))
	g.Acquire = &wire.Request{Kind: wire.Acquire}
	g.Acquire.MarkUnproven(1 << 2)
	l, _ := p.open(t, g)
	ours := func(i int) { l.proof.record(i, wire.Ours, p.clock.Now(), p.clock.Now()) }
	ours(2)
	assert.False(t, l.proof.nodes.Has(2), "unproven at the grant")
	l.proof.nodes = quorum.All(2)
	g.Acquire.MarkUnproven(1 << 1)
	l.Vote(1, l.tenancy.granted, &wire.Reply{Status: wire.Unknown, Err: wire.ErrClosed})
	assert.False(t, l.proof.nodes.Has(1), "its answer was lost after the grant")
	l.resetProof()
	ours(1)
	ours(0)
	assert.Equal(t, quorum.Set(0).With(0), l.proof.nodes)
}
