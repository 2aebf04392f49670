//go:build unix

package interop_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// These tests check what docs/migrating.md says about this library and about the peers.

// remove is a DEL by hand.
func remove(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		require.Equal(t, int64(1), s.MustDo("DEL", key))
	}
}

// everywhere waits until each server has the key: a lease begins with the votes of a majority.
func everywhere(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	testkit.Eventually(t, "each node has the key", func() bool {
		for _, s := range servers {
			if s.MustDo("EXISTS", key) != int64(1) {
				return false
			}
		}
		return true
	})
}

func lostFor(t *testing.T, err error) quorumlock.LostReason {
	t.Helper()
	require.ErrorIs(t, err, quorumlock.ErrLost)
	var lost *quorumlock.LostError
	require.ErrorAs(t, err, &lost)
	return lost.Reason
}

func TestADELOnAMajorityEndsOurContextAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	servers := redistest.Start(t, 3)
	m, another := newManager(t, redistest.Addrs(servers)), newManager(t, redistest.Addrs(servers))
	lease := testkit.Acquired(t, m, key, quorumlock.WithTTL(ttl))
	everywhere(t, servers)
	<-lease.Renewed()
	began := time.Now()
	remove(t, servers[:2])
	second, err := another.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lease.Context().Err(), "another client may get the lock before")
	<-lease.Context().Done()
	assert.Equal(t, quorumlock.LostTaken, lostFor(t, context.Cause(lease.Context())))
	assert.Greater(t, time.Since(began), ttl/12)
	testkit.Released(t, second)
}

func TestADELOnAMajorityIsALossAndOnAMinorityIsRepaired(t *testing.T) {
	servers := redistest.Start(t, 3)
	m := newManager(t, redistest.Addrs(servers), quorumlock.WithTTL(time.Minute))
	lease := testkit.Acquired(t, m, key)
	everywhere(t, servers)
	remove(t, servers[:1])
	testkit.Renewed(t, lease)
	everywhere(t, servers)
	require.True(t, lease.Valid())

	remove(t, servers[:2])
	require.True(t, lease.Valid())
	assert.Equal(t, quorumlock.LostMissing, lostFor(t, lease.Renew(t.Context())))
	require.ErrorIs(t, context.Cause(lease.Context()), quorumlock.ErrLost)
}

// ended returns a context that has ended.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestAReleaseWithAContextThatHasEndedDeletesTheKeysInTheBackground(t *testing.T) {
	servers := redistest.Start(t, 3)
	m := newManager(t, redistest.Addrs(servers), quorumlock.WithTTL(time.Hour))
	lease := testkit.Acquired(t, m, key)
	everywhere(t, servers)
	err := lease.Release(ended(t))
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, lease.Err(), quorumlock.ErrReleased)
	testkit.Eventually(t, "the keys are deleted", func() bool {
		for _, s := range servers {
			if s.MustDo("EXISTS", key) != int64(0) {
				return false
			}
		}
		return true
	})
}

func TestRemainingIsLessThanTheTTLByDriftAndMargin(t *testing.T) {
	m := newManager(t, redistest.Addrs(redistest.Start(t, 3)))
	began := time.Now()
	lease := testkit.Acquired(t, m, key)
	remaining := lease.Remaining()
	const subtracted = ttl/100 + 2*time.Millisecond + 200*time.Millisecond // drift, and the margin of docs/reference.md
	assert.LessOrEqual(t, remaining, ttl-subtracted)
	assert.GreaterOrEqual(t, remaining, ttl-subtracted-time.Since(began))
	testkit.Released(t, lease)
}

func TestTheBoundsOfTTLAndNameAreThoseOfThePage(t *testing.T) {
	m := newManager(t, redistest.Addrs(redistest.Start(t, 1)))
	for d, good := range map[time.Duration]bool{
		99 * time.Millisecond: false, 100 * time.Millisecond: true, 24 * time.Hour: true, 24*time.Hour + time.Millisecond: false,
	} {
		bounded(t, m, key+d.String(), good, quorumlock.WithTTL(d))
	}
	for name, good := range map[string]bool{"": false, "n": true, strings.Repeat("n", 512): true, strings.Repeat("n", 513): false, "\xff": false} {
		bounded(t, m, name, good)
	}
}

func bounded(t *testing.T, m *quorumlock.Manager, name string, good bool, opts ...quorumlock.AcquireOption) {
	t.Helper()
	lease, err := m.TryAcquire(t.Context(), name, opts...)
	if !good {
		require.ErrorIs(t, err, quorumlock.ErrInvalid, name)
		return
	}
	require.NotErrorIs(t, err, quorumlock.ErrInvalid, name) // a busy machine may be too slow for 100 ms
	if err == nil {
		_ = lease.Release(t.Context())
	}
}

// WithValue of redsync and Token of redislock are for this: another process takes over the lock, or gives it back.
func TestAHandleMovesALeaseToAnotherProcess(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	first, second := newManager(t, addrs), newManager(t, addrs)
	lease := testkit.Acquired(t, first, key)
	handle, err := lease.Detach(t.Context(), time.Minute)
	require.NoError(t, err)
	require.ErrorIs(t, lease.Err(), quorumlock.ErrDetached)
	_, err = second.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	resumed, err := second.Resume(t.Context(), handle)
	require.NoError(t, err)
	assert.Greater(t, resumed.Token(), lease.Token())

	handle, err = resumed.Detach(t.Context(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, first.ReleaseHandle(t.Context(), handle))
	free, err := first.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	testkit.Released(t, free)
}

// pttl is how long the key lives on a server.
func pttl(t *testing.T, s *redistest.Server) time.Duration {
	t.Helper()
	ms, ok := s.MustDo("PTTL", key).(int64)
	require.True(t, ok, fmt.Sprint(ms))
	return time.Duration(ms) * time.Millisecond
}
