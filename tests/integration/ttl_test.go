package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// The servers are stopped for longer than the first TTL. The lease with the longer TTL outlives this; with the shorter
// TTL, another client gets the name long before the first TTL would have expired.
func TestAnotherTTLHoldsOnTheServers(t *testing.T) {
	testkit.OnlyAddrs(t, "a server that stands still is a failover there")
	t.Parallel()
	const first, longer, shorter = 10 * time.Second, 10 * time.Minute, 5 * time.Second
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(first))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	testkit.Renewed(t, l, quorumlock.WithTTL(longer))
	assert.Greater(t, l.Remaining(), longer/2)
	s, err := m.Inspect(background, "job")
	require.NoError(t, err)
	assert.Greater(t, s.TTL, longer/2)
	for _, server := range servers {
		server.Stop()
	}
	time.Sleep(first + 2*time.Second)
	assert.True(t, l.Valid(), "%v", l.Err())
	for _, server := range servers {
		server.Continue()
	}
	testkit.Renewed(t, l, quorumlock.WithTTL(shorter))
	assert.LessOrEqual(t, l.Remaining(), shorter)
	testkit.Eventually(t, "every server has the shorter TTL", func() bool {
		s, err := m.Inspect(background, "job")
		return err == nil && s.TTL <= shorter+time.Second
	})
	require.NoError(t, l.Err())
	require.NoError(t, l.Release(background))
}
