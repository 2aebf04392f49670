package integration

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Sixteen processes share four permits, while a server is killed and comes back: never more than four
// at work, never two in one slot, and each process has its share.
func TestPermitsBoundHowManyWorkAtOnce(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2, 4} {
		servers := testkit.Start(t, 3)
		addrs := redistest.Addrs(servers)
		var atWork, most atomic.Int32
		slots := make([]atomic.Int32, limit)
		var turns [16]atomic.Int32
		ctx, cancel := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		for p := range turns {
			m := testkit.Connect(t, addrs, quorumlock.WithTTL(3*time.Second))
			clients.Go(func() {
				for ctx.Err() == nil {
					err := m.DoPermit(ctx, "job", limit, func(_ context.Context, l *quorumlock.Lease) error {
						n := atWork.Add(1)
						assert.LessOrEqual(t, n, int32(limit))
						most.Store(max(most.Load(), n))
						assert.EqualValues(t, 1, slots[l.Slot()].Add(1))
						time.Sleep(2 * time.Millisecond)
						slots[l.Slot()].Add(-1)
						atWork.Add(-1)
						turns[p].Add(1)
						return nil
					})
					if err != nil && ctx.Err() == nil {
						assert.ErrorIs(t, err, quorumlock.ErrLost)
					}
				}
			})
		}
		workThroughARestart(t, servers[0], 5, turns[:])
		testkit.Eventually(t, "all permits in use", func() bool { return most.Load() == int32(limit) })
		cancel()
		clients.Wait()
		clean(t, servers)
	}
}

// All permits are in use with one node down.
func TestAllPermitsAreUsedWithANodeDown(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3)
	other := testkit.Connect(t, redistest.Addrs(servers))
	servers[2].Kill()
	var leases []*quorumlock.Lease
	for i := range 10 {
		by := m
		if i%2 == 0 {
			by = other
		}
		l, err := by.TryAcquirePermit(t.Context(), "job", 10)
		require.NoError(t, err, "permit %d", i)
		leases = append(leases, l)
	}
	_, err := m.TryAcquirePermit(t.Context(), "job", 10)
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	held, slots, err := m.InspectPermits(t.Context(), "job", 10)
	require.NoError(t, err)
	assert.Equal(t, 10, held)
	for i := range slots {
		assert.True(t, slots[i].Held, "slot %d", i)
	}
	for _, l := range leases {
		assert.Equal(t, "job", l.Name())
		require.NoError(t, l.Verify(t.Context()))
		require.NoError(t, l.Renew(t.Context()))
		require.NoError(t, l.Release(t.Context()))
	}
}
