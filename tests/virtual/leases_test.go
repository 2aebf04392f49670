package virtual

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

// leaseOf returns what Leases shows of a name.
func leaseOf(t *testing.T, m *quorumlock.Manager, name string) quorumlock.LeaseStatus {
	t.Helper()
	for _, s := range m.Leases() {
		if s.Name == name {
			return s
		}
	}
	require.Fail(t, "no lease", "%s", name)
	return quorumlock.LeaseStatus{}
}

func TestLeasesShowsWhatThisProcessHolds(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		assert.Empty(t, m.Leases())
		l := acquire(t, m, "job")
		granted := time.Now()
		permit := acquire(t, m, "pool", quorumlock.Permits(3))
		reader := acquire(t, m, "prices", quorumlock.Shared())
		acquire(t, other, "not ours")
		time.Sleep(time.Second)

		assert.Len(t, m.Leases(), 3)
		assert.Equal(t, quorumlock.LeaseStatus{
			Name: "job", Token: l.Token(), Slot: -1, Since: granted, TTL: ttl, Remaining: valid - time.Second, Margin: 1,
		}, leaseOf(t, m, "job"))
		assert.Equal(t, permit.Slot(), leaseOf(t, m, "pool").Slot)
		assert.False(t, leaseOf(t, m, "pool").Shared)
		assert.True(t, leaseOf(t, m, "prices").Shared)

		require.NoError(t, permit.Release(background))
		require.NoError(t, reader.Release(background))
		assert.Len(t, m.Leases(), 1)

		c.Cut(1, 2)
		time.Sleep(interval + time.Second)
		s := leaseOf(t, m, "job")
		assert.True(t, s.AtRisk)
		assert.Len(t, s.Nodes, 2, "the nodes that did not answer")
		time.Sleep(ttl)
		assert.Empty(t, m.Leases(), "it is lost")
		c.Heal(1, 2)
		time.Sleep(ttl)
		require.NoError(t, m.Close(background))
		assert.Empty(t, m.Leases())
	})
}

func TestLeasesShowsWhoWantsThem(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, m, "job")
		ctx, stop := context.WithCancel(background)
		defer stop()
		here, there := make(chan error, 1), make(chan error, 1)
		go func() { _, err := m.Acquire(ctx, "job"); here <- err }()
		go func() { _, err := other.Acquire(ctx, "job"); there <- err }()
		time.Sleep(2 * interval)

		_ = m.Leases()
		assert.Equal(t, 1, leaseOf(t, m, "job").Wanted.Waiters, "the caller of this process counts at once")
		require.NoError(t, other.AskRelease(background, "job", "deploy"))
		time.Sleep(2 * interval)
		want := leaseOf(t, m, "job").Wanted
		assert.Equal(t, 2, want.Waiters)
		assert.True(t, want.Asked)
		assert.Equal(t, "deploy", want.Reason)

		select {
		case w := <-l.Wanted():
			assert.Equal(t, want, w, "the lease is told as if nobody had looked")
		default:
			assert.Fail(t, "the lease was not told who wants it")
		}
		stop()
		require.ErrorIs(t, <-here, context.Canceled)
		require.ErrorIs(t, <-there, context.Canceled)
		synctest.Wait()
		time.Sleep(2 * interval)
		assert.Zero(t, leaseOf(t, m, "job").Wanted.Waiters)
	})
}
