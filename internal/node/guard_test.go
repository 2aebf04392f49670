package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// The marker survives with the rest, and names the process that wrote it: what
// that process had not put on disk is lost.
func TestARestartThatFindsItsDataIsQuarantinedAllTheSame(t *testing.T) {
	server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "always")[0]
	greet := func() node.Health {
		up := make(chan node.Health, 64)
		n := node.New(node.Config{
			Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}},
			Prefix: "p:", Now: clock.New().Now, Guard: 50 * time.Millisecond,
			Changed: func(_ int, h node.Health) { up <- h },
		})
		ended := make(chan struct{})
		go func() { defer close(ended); n.Run() }()
		defer func() { n.Close(context.Background(), nil, nil); <-ended }()
		return <-up
	}
	require.NotZero(t, greet().Quarantined, "first use")
	time.Sleep(60 * time.Millisecond)
	require.Zero(t, greet().Quarantined, "known")
	before := server.MustDo("GET", node.GuardKey("p:"))
	server.Restart()
	require.Equal(t, before, server.MustDo("GET", node.GuardKey("p:")), "the data is there")
	h := greet()
	require.NoError(t, h.Err)
	assert.NotZero(t, h.Quarantined)
	assert.ErrorIs(t, h.Why, node.ErrQuarantined)
}
