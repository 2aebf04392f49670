package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A release ends the context of its lease, and the contexts of Do derived from it.
func TestAReleaseIsNotCutShortByTheContextThatItEnds(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	for range 20 {
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		derived, cancel := context.WithCancel(l.Context())
		require.NoError(t, l.Release(derived))
		cancel()
		require.NoError(t, m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error { return l.Release(ctx) }))
	}
	testkit.Eventually(t, "the last node has also answered", func() bool { return testkit.Locks(t, servers, "job") == 0 })
}

func TestAReleaseThatIsCutShortSaysThatItGoesOn(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	for _, s := range servers {
		s.Stop()
	}
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	err = l.Release(ctx)
	for _, s := range servers {
		s.Continue()
	}
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Contains(t, err.Error(), `quorumlock: release "job": reached 0 nodes, need 2 of 3`)
	assert.Contains(t, err.Error(), "stopped waiting for answers; the release continues: context deadline exceeded")
	testkit.Eventually(t, "the deletion goes on", func() bool { return testkit.Locks(t, servers, "job") == 0 })
}

func TestCloseEndsWaitersAndRemovesTheirTickets(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	other, err := testkit.New(t, redistest.Addrs(servers), testkit.Lazily())
	require.NoError(t, err)
	testkit.Subscribe(t, other, servers)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	gone := make(chan error, 1)
	go func() { _, err := other.Acquire(background, "job"); gone <- err }()
	testkit.Queued(t, servers, 1)
	require.NoError(t, other.Close(background))
	assert.ErrorIs(t, <-gone, quorumlock.ErrClosed)
	assert.Equal(t, []int64{0, 0, 0}, testkit.Queues(servers))
	require.NoError(t, l.Release(background))
}
