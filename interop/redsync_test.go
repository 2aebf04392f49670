//go:build unix

package interop_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func newRedsync(t *testing.T, addrs []string) *redsync.Redsync {
	t.Helper()
	var pools []redsyncpool.Pool
	for _, client := range newClients(t, addrs) {
		pools = append(pools, goredis.NewPool(client))
	}
	return redsync.New(pools...)
}

func theirs(rs *redsync.Redsync) library {
	return library{"redsync", func(ctx context.Context) (func() error, error) {
		mutex := rs.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt32), redsync.WithRetryDelay(5*time.Millisecond))
		if err := mutex.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error {
			_, err := mutex.UnlockContext(context.WithoutCancel(ctx))
			return err
		}, nil
	}}
}

func TestRedsyncIsRefusedALockThatWeHold(t *testing.T) {
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	m, rs := newManager(t, addrs), newRedsync(t, addrs)
	lease, err := m.Acquire(t.Context(), key)
	require.NoError(t, err)
	testkit.Eventually(t, "the last node has the key, which a majority granted before it", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.MustDo("EXISTS", key) != int64(1) })
	})
	var taken *redsync.ErrTaken
	mutex := rs.NewMutex(key)
	require.ErrorAs(t, mutex.TryLockContext(t.Context()), &taken)
	assert.Len(t, taken.Nodes, 3)
	require.True(t, lease.Valid())
	require.NoError(t, lease.Verify(t.Context()), "redsync's clean-up has left our keys alone")
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, mutex.TryLockContext(t.Context()))
}

func TestWeAreRefusedALockThatRedsyncHolds(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	m, rs := newManager(t, addrs), newRedsync(t, addrs)
	mutex := rs.NewMutex(key, redsync.WithExpiry(ttl))
	require.NoError(t, mutex.LockContext(t.Context()))
	_, err := m.TryAcquire(t.Context(), key)
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, mutex.Value(), held.Holder.Owner)
	assert.InDelta(t, ttl.Seconds(), held.RetryAfter.Seconds(), 2)
	ok, err := mutex.ExtendContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok, "we have left redsync's keys alone")
	ok, err = mutex.UnlockContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	lease, err := m.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context()))
}

func TestTheLockPassesBetweenRedsyncAndUsBothWays(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	m, rs := newManager(t, addrs), newRedsync(t, addrs)
	requireHandOver(t, ours(m), theirs(rs))
	requireHandOver(t, theirs(rs), ours(m))
}

func TestWeGetTheLockOfARedsyncHolderThatDied(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	m, rs := newManager(t, addrs), newRedsync(t, addrs)
	require.NoError(t, rs.NewMutex(key, redsync.WithExpiry(time.Second)).LockContext(t.Context()))
	began := time.Now()
	lease, err := m.Acquire(t.Context(), key)
	require.NoError(t, err)
	assert.Greater(t, time.Since(began), 800*time.Millisecond)
	require.NoError(t, lease.Release(t.Context()))
}

func TestUnderLoadRedsyncAndWeExcludeEachOther(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	us, them := ours(newManager(t, addrs)), theirs(newRedsync(t, addrs))
	had, overlaps := compete(t, us, them)
	requireExclusion(t, had, overlaps, us, them)
}

// Different keys do not exclude: the check of the test above notices it.
func TestWithAnotherPrefixRedsyncAndWeDoNotExcludeEachOther(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	_, overlaps := compete(t, ours(newManager(t, addrs, quorumlock.WithPrefix("other:"))), theirs(newRedsync(t, addrs)))
	require.Positive(t, overlaps)
}
