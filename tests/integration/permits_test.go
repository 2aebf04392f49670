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
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Sixteen processes share four permits, while a server is killed and comes back. At most four work at once, no two
// share a slot, and each process has its share.
func TestPermitsBoundHowManyWorkAtOnce(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{4, 2, 1}[:testkit.Count(3, 1)] {
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
					err := m.Do(ctx, "job", func(_ context.Context, l *quorumlock.Lease) error {
						n := atWork.Add(1)
						assert.LessOrEqual(t, n, int32(limit))
						most.Store(max(most.Load(), n))
						assert.EqualValues(t, 1, slots[l.Slot()].Add(1))
						time.Sleep(2 * time.Millisecond)
						slots[l.Slot()].Add(-1)
						atWork.Add(-1)
						turns[p].Add(1)
						return nil
					}, quorumlock.Permits(limit))
					if err != nil && ctx.Err() == nil {
						assert.ErrorIs(t, err, quorumlock.ErrLost)
					}
				}
			})
		}
		workThroughARestart(t, servers[0], 3, turns[:])
		testkit.Eventually(t, "all permits in use", func() bool { return most.Load() == int32(limit) })
		cancel()
		clients.Wait()
		clean(t, servers)
	}
}

// All permits are usable with one node down.
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
		l, err := by.TryAcquire(t.Context(), "job", quorumlock.Permits(10))
		require.NoError(t, err, "permit %d", i)
		leases = append(leases, l)
	}
	_, err := m.TryAcquire(t.Context(), "job", quorumlock.Permits(10))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	s, err := m.Inspect(t.Context(), "job", quorumlock.Permits(10))
	require.NoError(t, err)
	assert.Len(t, s.Slots, 10)
	for i := range s.Slots {
		assert.True(t, s.Slots[i].Held, "slot %d", i)
	}
	for _, l := range leases {
		assert.Equal(t, "job", l.Name())
		testkit.Confirmed(t, l.Verify)
		testkit.Renewed(t, l)
		testkit.Released(t, l)
	}
}

// More callers than free permits come at one instant, in several processes: soon all permits are in use at once. Then
// they are released together, and the other callers get theirs. With MaxPermits, most permits are in use before.
func TestAllPermitsAreInUseWhenCallersAreEnough(t *testing.T) {
	t.Parallel()
	const free = 128
	for _, limit := range []int{free, config.MaxPermits} {
		servers := testkit.Start(t, 3)
		managers := testkit.Crowd(t, servers, 8, quorumlock.WithTTL(30*time.Second), quorumlock.WithNodeTimeout(5*time.Second))
		var inUse atomic.Int32
		var calls sync.WaitGroup
		full := make(chan struct{})
		once := sync.OnceFunc(func() { close(full) })
		use := func(l *quorumlock.Lease, err error) {
			if !assert.NoError(t, err) {
				return
			}
			calls.Go(func() {
				n := inUse.Add(1)
				assert.LessOrEqual(t, n, int32(limit))
				if n == int32(limit) {
					once()
				}
				<-full
				inUse.Add(-1)
				assert.NoError(t, l.Release(t.Context()))
			})
		}
		for i := range limit - free {
			use(managers[i%len(managers)].Acquire(t.Context(), "job", quorumlock.Permits(limit)))
		}
		began := time.Now()
		for i := range free + free/4 {
			calls.Go(func() { use(managers[i%len(managers)].Acquire(t.Context(), "job", quorumlock.Permits(limit))) })
		}
		select {
		case <-full:
			t.Logf("%d permits in use after %v", limit, time.Since(began))
		case <-time.After(2 * time.Minute):
			assert.Fail(t, "not all permits are in use", "%d of %d", inUse.Load(), limit)
			once()
		}
		calls.Wait()
	}
}
