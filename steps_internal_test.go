package quorumlock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// The client and a node run on one host, or get their time from one service, and both
// clocks are set forward together. Keys of other clients end early on that node, so it
// must not vote.
func TestAStepCommonToClientAndNodeIsNoticed(t *testing.T) {
	const by = 5 * time.Second
	servers := redistest.StartWith(t, 3, redistest.Options{Clock: true})
	var step atomic.Int64
	real := clock.New()
	c := clock.From(func() clock.Reading {
		mono := real.Steady()
		return clock.Reading{Mono: time.Duration(mono), Boot: time.Duration(mono), Wall: time.Duration(mono.Add(time.Duration(step.Load())))}
	})
	m, err := newOn(context.Background(), c, Addrs(redistest.Addrs(servers)...), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(context.Background())) }()
	before := m.clock.Jumped()
	require.Eventually(t, func() bool {
		s, err := m.Inspect(context.Background(), "job")
		return err == nil && s.Nodes[0].Err == nil && s.Nodes[1].Err == nil && s.Nodes[2].Err == nil
	}, 20*time.Second, 10*time.Millisecond)
	servers[0].StepClock(by)
	step.Store(int64(by))
	var s Status
	require.Eventually(t, func() bool {
		s, err = m.Inspect(context.Background(), "job")
		return err == nil && s.Nodes[0].QuarantinedFor > 0
	}, 20*time.Second, 10*time.Millisecond, "the node that was stepped does not vote")
	assert.InDelta(t, by, m.clock.Jumped()-before, float64(100*time.Millisecond), "the client's own clock was stepped as well")
	assert.Zero(t, s.Nodes[1].QuarantinedFor)
	assert.Zero(t, s.Nodes[2].QuarantinedFor)
	l, err := m.Acquire(context.Background(), "job")
	require.NoError(t, err, "two nodes are a quorum")
	require.NoError(t, l.Release(context.Background()))
}
