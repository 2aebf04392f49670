//go:build unix

package interop_test

import (
	"testing"

	"github.com/go-redsync/redsync/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// lockedBy returns a mutex of redsync that is locked on all servers.
func lockedBy(t *testing.T, rs *redsync.Redsync, options ...redsync.Option) *redsync.Mutex {
	t.Helper()
	mutex := rs.NewMutex(key, append(options, redsync.WithExpiry(ttl))...)
	require.NoError(t, mutex.LockContext(t.Context()))
	return mutex
}

// With WithSetNXOnExtend redsync continues without the keys of a majority. This library loses the lease, see
// TestADELOnAMajorityIsALossAndOnAMinorityIsRepaired.
func TestRedsyncNoticesADELAtItsExtensionUnlessItSetsTheKeysAgain(t *testing.T) {
	servers := redistest.Start(t, 3)
	rs := newRedsync(t, redistest.Addrs(servers))
	mutex := lockedBy(t, rs)
	remove(t, servers[:2])
	another := lockedBy(t, rs)
	ok, err := mutex.ExtendContext(t.Context())
	assert.False(t, ok)
	taken := (*redsync.ErrTaken)(nil)
	require.ErrorAs(t, err, &taken)
	require.NotErrorIs(t, err, redsync.ErrExtendFailed)
	_, err = another.UnlockContext(t.Context())
	require.NoError(t, err)
	remove(t, servers[2:])

	mutex = lockedBy(t, rs, redsync.WithSetNXOnExtend())
	remove(t, servers[:2])
	ok, err = mutex.ExtendContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	everywhere(t, servers)
}

func TestAReleaseOfALockWhoseKeysAreGoneIsAnErrorInRedsyncAndHere(t *testing.T) {
	servers := redistest.Start(t, 3)
	rs, m := newRedsync(t, redistest.Addrs(servers)), newManager(t, redistest.Addrs(servers))
	mutex := lockedBy(t, rs)
	remove(t, servers[:2])
	ok, err := mutex.UnlockContext(t.Context())
	assert.False(t, ok)
	require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired)

	lease := testkit.Acquired(t, m, key)
	everywhere(t, servers)
	remove(t, servers[:2])
	assert.Equal(t, quorumlock.LostMissing, lostFor(t, lease.Release(t.Context())))

	lease = testkit.Acquired(t, m, key)
	everywhere(t, servers)
	remove(t, servers[:1])
	testkit.Released(t, lease)
}

func TestAReleaseOfALockThatAnotherHasIsAnErrorInRedsyncAndHere(t *testing.T) {
	servers := redistest.Start(t, 3)
	rs, m := newRedsync(t, redistest.Addrs(servers)), newManager(t, redistest.Addrs(servers))
	mutex := lockedBy(t, rs)
	remove(t, servers)
	lease := testkit.Acquired(t, m, key)
	everywhere(t, servers)
	ok, err := mutex.UnlockContext(t.Context())
	assert.False(t, ok)
	taken := (*redsync.ErrTaken)(nil)
	require.ErrorAs(t, err, &taken)

	remove(t, servers)
	mutex = lockedBy(t, rs)
	assert.Equal(t, quorumlock.LostTaken, lostFor(t, lease.Release(t.Context())))
	ok, err = mutex.UnlockContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok, "its keys are untouched")
}

func TestRedsyncUnlocksFromElsewhereWithTheValue(t *testing.T) {
	rs := newRedsync(t, redistest.Addrs(redistest.Start(t, 3)))
	mutex := lockedBy(t, rs)
	ok, err := rs.NewMutex(key, redsync.WithValue(mutex.Value())).UnlockContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
}

func TestRedsyncLeavesItsKeysAfterAnUnlockWithAContextThatHasEnded(t *testing.T) {
	servers := redistest.Start(t, 3)
	mutex := lockedBy(t, newRedsync(t, redistest.Addrs(servers)))
	ok, err := mutex.UnlockContext(ended(t))
	require.Error(t, err)
	require.False(t, ok)
	everywhere(t, servers)
}
