//go:build unix

package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// onOne returns a server, a redislock client of it and a Manager.
func onOne(t *testing.T) (*redistest.Server, *redislock.Client, *quorumlock.Manager) {
	t.Helper()
	server := redistest.Start(t, 1)[0]
	return server, redislock.New(newClients(t, []string{server.Addr()})[0]), newManager(t, []string{server.Addr()})
}

func obtained(t *testing.T, client *redislock.Client, options *redislock.Options) *redislock.Lock {
	t.Helper()
	lock, err := client.Obtain(t.Context(), key, ttl, options)
	require.NoError(t, err)
	return lock
}

func TestARefreshWithAnotherTTLIsARenewWithIt(t *testing.T) {
	server, client, m := onOne(t)
	const long = time.Hour
	lock := obtained(t, client, nil)
	require.NoError(t, lock.Refresh(t.Context(), long, nil))
	assert.Greater(t, pttl(t, server), long/2)
	require.NoError(t, lock.Release(t.Context()))

	lease := testkit.Acquired(t, m, key)
	testkit.Renewed(t, lease, quorumlock.WithTTL(long))
	assert.Greater(t, pttl(t, server), long/2)
	assert.Greater(t, lease.Remaining(), long/2)
	testkit.Renewed(t, lease) // the later rounds ask for it, too
	assert.Greater(t, lease.Remaining(), long/2)
	testkit.Released(t, lease)
}

func TestRedislockNoticesADELAtItsRefreshAndRelease(t *testing.T) {
	server, client, m := onOne(t)
	lock := obtained(t, client, nil)
	remove(t, []*redistest.Server{server})
	another := obtained(t, client, nil)
	require.ErrorIs(t, lock.Refresh(t.Context(), ttl, nil), redislock.ErrNotObtained)
	require.ErrorIs(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
	require.NoError(t, another.Release(t.Context()))
	require.ErrorIs(t, another.Release(t.Context()), redislock.ErrLockNotHeld)

	lease := testkit.Acquired(t, m, key)
	remove(t, []*redistest.Server{server})
	another = obtained(t, client, nil)
	assert.Equal(t, quorumlock.LostTaken, lostFor(t, lease.Renew(t.Context())))
	require.ErrorIs(t, lease.Release(t.Context()), quorumlock.ErrLost)
	require.NoError(t, another.Release(t.Context()), "its key is untouched")
	lease = testkit.Acquired(t, m, key)
	testkit.Released(t, lease)
	require.ErrorIs(t, lease.Release(t.Context()), quorumlock.ErrReleased)
}

func TestRedislockObtainsALockAgainWithTheToken(t *testing.T) {
	_, client, _ := onOne(t)
	lock := obtained(t, client, nil)
	_, err := client.Obtain(t.Context(), key, ttl, nil)
	require.ErrorIs(t, err, redislock.ErrNotObtained)
	again := obtained(t, client, &redislock.Options{Token: lock.Token()})
	require.NoError(t, again.Release(t.Context()))
}

// Without a deadline both stop after the TTL.
func TestAnObtainThatRetriesIsAnAcquireWithAWait(t *testing.T) {
	t.Parallel()
	server, client, m := onOne(t)
	const ttl = 300 * time.Millisecond
	lease := testkit.Acquired(t, m, key)
	_, err := client.Obtain(t.Context(), key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	begun := time.Now()
	_, err = newManager(t, []string{server.Addr()}).Acquire(t.Context(), key, quorumlock.WithTTL(ttl), quorumlock.WithWait(ttl))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	assert.GreaterOrEqual(t, time.Since(begun), ttl)
	testkit.Released(t, lease)
}

func TestRedislockLeavesItsKeyAfterAReleaseWithAContextThatHasEnded(t *testing.T) {
	server, client, _ := onOne(t)
	lock := obtained(t, client, nil)
	require.ErrorIs(t, lock.Release(ended(t)), context.Canceled)
	everywhere(t, []*redistest.Server{server})
}
