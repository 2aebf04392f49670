package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestAnEndedWaitHasAllItsCausesOnOneLine(t *testing.T) {
	m, _ := testkit.Manager(t, 3, quorumlock.WithHolder("web-1"))
	_, err := m.Acquire(background, "job")
	require.NoError(t, err)
	mine := errors.New("the request is over")
	ctx, cancel := context.WithTimeoutCause(background, 50*time.Millisecond, mine)
	defer cancel()
	_, err = m.Acquire(ctx, "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a cause does not hide the context's error")
	require.ErrorIs(t, err, mine)
	assert.Regexp(t, `^quorumlock: "job" is held by "web-1" \(this Manager\); the lease expires in 9\.\d+s unless renewed; `+
		`stopped waiting: context deadline exceeded \(the request is over\)$`, err.Error())

	_, err = m.Acquire(ctx, "other")
	require.ErrorIs(t, err, mine)
	assert.Equal(t, `quorumlock: acquire "other": context deadline exceeded (the request is over)`, err.Error())

	lead := m.Lead(ctx, "leader", func(context.Context, *quorumlock.Lease) error { return nil })
	require.ErrorIs(t, lead, context.DeadlineExceeded)
	assert.NotContains(t, lead.Error(), "\n")
}

func TestErrorsOfDoAndItsFunctionAreOnOneLine(t *testing.T) {
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(2*time.Second))
	mine := errors.New("half done")
	err := m.Do(background, "job", func(_ context.Context, l *quorumlock.Lease) error {
		testkit.Forgotten(t, l, servers[:2])
		return mine
	})
	require.ErrorIs(t, err, quorumlock.ErrLost)
	require.ErrorIs(t, err, mine)
	assert.NotContains(t, err.Error(), "\n")
}

func TestNodesReturnsWhatAHealthEndpointNeeds(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a guard of its own")
	m, servers := testkit.Manager(t, 3)
	for i, n := range m.Nodes() {
		assert.Equal(t, servers[i].Addr(), n.Addr)
		assert.Regexp(t, `^\d+\.\d+`, n.Version)
		assert.True(t, n.Voting)
		assert.NoError(t, n.Err)
		assert.NoError(t, n.Warning)
		assert.Positive(t, n.RoundTrip)
		assert.Less(t, n.ClockOffset.Abs(), time.Second, "both clocks are of one machine")
	}
	servers[1].Kill()
	testkit.Eventually(t, "the failure is noticed", func() bool { return !m.Nodes()[1].Voting })
	assert.Error(t, m.Nodes()[1].Err)
	assert.True(t, m.Nodes()[0].Voting)

	guarded := testkit.Connect(t, []string{servers[0].Addr()}, quorumlock.WithRestartGuard(time.Minute))
	n := guarded.Nodes()[0]
	assert.False(t, n.Voting)
	assert.InDelta(t, time.Minute, n.QuarantinedFor, float64(20*time.Second))
	assert.ErrorContains(t, n.Err, "quarantine")
}

// Labels, values of other programs and texts of servers are foreign input: they break no line of a log and move no
// cursor, and an error shows at most 32 bytes of a value.
func TestOtherPeoplesTextIsQuoted(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	put := func(value string) *quorumlock.HeldError {
		for _, s := range servers {
			s.MustDo("SET", testkit.Prefix+"job", value, "PX", "60000")
		}
		var held *quorumlock.HeldError
		require.ErrorAs(t, refused(t, m, "job"), &held)
		return held
	}
	const hostile = "\x1b[2J\r\nforged"
	held := put(strings.Repeat("a", 32) + " 7 1 - " + hostile)
	assert.Equal(t, hostile, held.Holder.Label)
	assert.Contains(t, held.Error(), `is held by "\x1b[2J\r\nforged"; the lease expires in `)
	held = put("secret of another program \n" + strings.Repeat("s", 500))
	assert.Equal(t, "secret of another program \nsssss", held.Holder.Owner)
	assert.Contains(t, held.Error(), `is held by owner "secret of another program \nsssss"; the lease expires in `)
	assert.NotContains(t, held.Error(), "ssssss")
	inspected := testkit.Inspected(t, m)
	assert.Equal(t, held.Holder, inspected.Holder)

	failed := &quorumlock.NodeError{Addr: "a:1", Err: errors.New("ERR \"x\" " + hostile)}
	assert.Equal(t, `node 0 (a:1): ERR "x" \x1b[2J\r\nforged`, failed.Error())
	invalid := &quorumlock.InvalidError{What: "node 0", Bound: hostile, Fix: "other"}
	assert.Equal(t, `quorumlock: node 0: \x1b[2J\r\nforged; other`, invalid.Error())
}
