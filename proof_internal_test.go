package quorumlock

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A lease is passed on inside the process only on proof: what the nodes have shown of it.

// held returns a hold that three nodes have proved, and its Manager. The nodes of the
// Manager do not run.
func held() (*Manager, *hold) {
	m, l := idleDog(time.Hour, quorum.Terms{})
	m.cfg.nodes = 3
	idleNodes(m, 3)
	h := l.hold
	h.lock = "job"
	h.terms.Nodes, h.terms.Timeout = 3, time.Hour
	h.machine = quorum.NewMachine(&h.terms.Terms, h.window[:3], m.clock.Now(), quorum.All(3), quorum.All(3))
	h.proof = quorum.All(3)
	return m, h
}

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
		m, h := held()
		h.proof = c.before
		r := &round{m: m, holds: []*hold{h}, began: m.clock.Now(), steady: m.clock.Steady()}
		c.reply.Sent = m.clock.Now()
		r.Receive(1, &wire.Request{Kind: c.kind}, &c.reply)
		assert.Equal(t, c.want, h.proof, name)
	}

	// The answer to a request sent before a proof was withdrawn does not restore the
	// proof, but can withdraw another.
	_, reset := held()
	sent := reset.m.clock.Now()
	reset.recordProof(2, wire.Another, sent)
	require.Zero(t, reset.proof)
	assert.Greater(t, reset.provenFrom, sent)
	reset.recordProof(0, wire.Ours, sent)
	reset.recordProof(1, wire.OursWithoutToken, sent)
	assert.Zero(t, reset.proof)
	reset.recordProof(0, wire.Ours, reset.m.clock.Now())
	reset.recordProof(0, wire.OursWithoutToken, sent)
	assert.Equal(t, quorum.Set(0).With(0), reset.proof, "the node has shown the token since then")

	reset.applyClockStep(&ensemble.Step{Node: 2, By: time.Second})
	assert.Zero(t, reset.proof, "keys have expired early on that node")

	m, h := held()
	for _, c := range []struct {
		nodes int
		want  bool
	}{{3, true}, {2, true}, {1, false}, {0, false}} {
		h.proof = quorum.All(c.nodes)
		assert.Equal(t, c.want, h.stateLocked().Proven, "%d nodes", c.nodes)
	}
	h.proof = quorum.All(3)
	h.vote(1, m.clock.Now(), &wire.Reply{Status: wire.Taken})
	assert.Equal(t, others, h.proof, "a node that never voted does not affect the proof of the others")
}

// The raises of a check mint tokens. Each must be above the previous token of every
// counted node, because another attempt may have been granted that one.
func TestACheckMintsTokensAboveWhereTheNodesStood(t *testing.T) {
	raise := &wire.Request{Kind: wire.Raise}
	raised := func(before int64, waiters int64) *wire.Reply {
		return &wire.Reply{Status: wire.Done, Before: before, Waiters: waiters}
	}
	m, h := held()
	q := &localQueue{m: m, lock: "job", callers: map[quorum.CallerID]*waiter{}, hold: h}
	h.local, h.next, h.last, h.proof = q, 4, 3, 0
	const token = 1_000_000
	check1 := func(token int64) *check {
		c := &check{q: q, h: h, token: token, sent: m.clock.Now()}
		q.check = c
		return c
	}
	first := check1(token)
	first.Receive(0, raise, raised(token-50, 0))
	assert.Zero(t, h.proof, "one node is no quorum")
	first.Receive(1, raise, raised(token-10, 2))
	assert.Equal(t, []int64{token - 9, token}, []int64{h.next, h.last})
	assert.EqualValues(t, token, wire.ParseValue(h.value).Token)
	assert.Equal(t, quorum.All(2), h.proof)
	assert.Equal(t, 2, h.others)
	assert.Greater(t, h.answeredAt, first.sent)
	assert.Nil(t, q.check)
	first.Receive(2, raise, raised(token-70, 0))
	assert.Equal(t, quorum.All(3), h.proof, "late, but at the token")
	assert.Equal(t, []int64{token - 9, token}, []int64{h.next, h.last}, "the block is in use")

	// A check that fails leaves some nodes at another token.
	second := check1(token + 100)
	second.Receive(0, raise, raised(token, 0))
	second.Receive(1, raise, raised(-1, 0))
	second.Receive(2, raise, &wire.Reply{Status: wire.Unknown, Err: ensemble.Silence(0)})
	assert.Equal(t, quorum.All(3).Without(0), h.proof)
	assert.Equal(t, []int64{token - 9, token}, []int64{h.next, h.last})
	second.Receive(2, raise, raised(token, 0))
	assert.Equal(t, quorum.Set(0).With(1), h.proof)

	// All nodes were far below: the block has its maximum size.
	third := check1(5 * token)
	third.Receive(0, raise, raised(token, 0))
	third.Receive(1, raise, raised(token, 0))
	assert.EqualValues(t, 5*token-blockSize+1, h.next)

	// Tokens that are already in use are not granted again.
	h.next = 5*token + 1
	fourth := check1(5*token + 3)
	fourth.Receive(0, raise, raised(5*token-5, 0)) // a node that lost its registers
	fourth.Receive(1, raise, raised(5*token-5, 0))
	assert.EqualValues(t, 5*token+1, h.next)

	// An answer to a check sent before the proof was withdrawn proves nothing.
	fifth := check1(6 * token)
	h.resetProof()
	fifth.Receive(0, raise, raised(5*token+3, 0))
	fifth.Receive(1, raise, raised(5*token+3, 0))
	fifth.Receive(2, raise, raised(5*token+3, 0))
	assert.EqualValues(t, 6*token, h.last, "its tokens are valid anyway")
	assert.Zero(t, h.proof)
}

// A node that reserves the lock for a waiter has lost our key. The key is restored; the
// reservation is no sign that another client holds the lock.
func TestVerifyTakesAReservationForAMissingKey(t *testing.T) {
	_, h := held()
	waiter := strings.Repeat("1", wire.TicketLen)
	for value, want := range map[string]error{
		h.value: nil, wire.Compose(ownerOf(h.value), 0, ""): nil, waiter + " w ": errMissing, waiter + " w x": errTaken,
		"": errTaken, "x": errTaken, wire.Compose(waiter, 1, "1 - "): errTaken,
	} {
		assert.Equal(t, want, h.owns(&wire.Reply{Held: value, TTL: time.Second}), "%q", value)
	}
	assert.Equal(t, errMissing, h.owns(&wire.Reply{TTL: absent}))
	assert.Equal(t, errTaken, h.owns(&wire.Reply{TTL: endless}), "another's empty key")
}

// The release of a hold may itself find the hold lost, after a suspend for example. The
// queue must not wait for itself then.
func TestAHoldThatIsFoundLostWhenItIsReleasedHoldsUpNoCaller(t *testing.T) {
	m, h := held()
	q := &localQueue{m: m, lock: h.lock, hold: h, callers: map[quorum.CallerID]*waiter{}}
	h.local = q
	h.lease.err = ErrReleased // its last lease was released while a check was under way
	h.machine = quorum.NewMachine(&h.terms.Terms, h.window[:3], m.clock.Now()-2*h.terms.TTL, quorum.All(3), quorum.All(3))
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.do(quorum.Step{Kind: quorum.StepRelease})
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.Fail(t, "the queue waits for itself")
	}
	assert.True(t, h.over)
	assert.Nil(t, q.hold)
}
