package quorumlocktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// nodes runs a test over n nodes in virtual time.
func nodes(t *testing.T, n int, test func(*testing.T, *quorumlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, quorumlocktest.Start(t, n)) })
}

func acquired(t *testing.T, m *quorumlock.Manager, name string) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(context.Background(), name)
	require.NoError(t, err)
	synctest.Wait() // late votes have arrived
	return l
}

func TestForceLostEndsThatLeaseAndNoOther(t *testing.T) {
	for _, opts := range [][]quorumlock.AcquireOption{nil, {quorumlock.WithoutRenewal()}, {quorumlock.WithHolder("me")}} {
		nodes(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := c.Manager(t, quorumlock.WithPrefix("app:"))
			l, err := m.Acquire(context.Background(), "job", opts...)
			require.NoError(t, err)
			other := acquired(t, m, "other")
			c.ForceLost(t, l)
			assert.Equal(t, quorumlock.LostRevoked, (<-l.Lost()).Reason)
			require.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrLost)
			assert.True(t, other.Valid())
			_, err = m.TryAcquire(context.Background(), "job")
			require.ErrorIs(t, err, quorumlock.ErrHeld, "the name stays taken until the lock expires")
		})
	}
}

// An example of a user's test: the job has to stop when its lease is lost.
func TestMyJobStopsWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		m := cluster.Manager(t)
		steps, stopped := 0, make(chan error, 1)
		leases := make(chan *quorumlock.Lease, 1)
		go func() {
			stopped <- m.Do(t.Context(), "my-job", func(ctx context.Context, l *quorumlock.Lease) error {
				leases <- l
				for ; ctx.Err() == nil; steps++ { // the behaviour under test
					time.Sleep(100 * time.Millisecond)
				}
				return nil
			})
		}()
		l := <-leases
		time.Sleep(time.Minute)
		cluster.ForceLost(t, l)
		require.ErrorIs(t, <-stopped, quorumlock.ErrLost)
		assert.InDelta(t, 600, steps, 1)
	})
}

func TestFaultsOfTheWholeClusterAreOneLine(t *testing.T) {
	for name, fault := range map[string]struct {
		begin, mend func(*quorumlocktest.Cluster)
		reason      quorumlock.LostReason
	}{
		"kill": {func(c *quorumlocktest.Cluster) { c.Kill() }, func(c *quorumlocktest.Cluster) { c.Restart() }, quorumlock.LostExpired},
		"hang": {func(c *quorumlocktest.Cluster) { c.Hang() }, func(c *quorumlocktest.Cluster) { c.Resume() }, quorumlock.LostExpired},
		"cut":  {func(c *quorumlocktest.Cluster) { c.Cut(0, 1) }, func(c *quorumlocktest.Cluster) { c.Heal() }, quorumlock.LostExpired},
		"step": {func(c *quorumlocktest.Cluster) { c.StepClock(time.Minute) }, func(*quorumlocktest.Cluster) {}, quorumlock.LostRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			nodes(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := c.Manager(t)
				l := acquired(t, m, "job")
				fault.begin(c)
				assert.Equal(t, fault.reason, (<-l.Lost()).Reason)
				fault.mend(c)
				next, err := m.Acquire(context.Background(), "job", quorumlock.WithWait(time.Hour))
				require.NoError(t, err)
				require.NoError(t, next.Release(context.Background()))
			})
		})
	}
}
