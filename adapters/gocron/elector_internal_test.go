package gocronlock

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// After a suspend, the scheduler's goroutine may run before the one that notices
// the loss.
func TestALeaseThatIsNotValidMakesNoLeaderEvenIfNobodyHasNoticedYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := quorumlock.New(t.Context(), quorumlocktest.Start(t, 3).Options())
		require.NoError(t, err)
		lease, err := m.Acquire(t.Context(), "scheduler")
		require.NoError(t, err)
		var e Elector
		e.lease.Store(lease)
		require.NoError(t, e.IsLeader(t.Context()))
		require.Same(t, lease, e.Lease())
		require.NoError(t, lease.Release(t.Context()))
		require.ErrorIs(t, e.IsLeader(t.Context()), ErrNotLeader)
		require.Nil(t, e.Lease())
		require.NoError(t, m.Close(t.Context()))
	})
}
