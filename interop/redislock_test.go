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
)

// bsm/redislock locks on one node, so it and we can share a lock on one node only.
func TestRedislockAndWeExcludeEachOtherOnOneNode(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 1))
	m := newManager(t, addrs)
	client := redislock.New(newClients(t, addrs)[0])

	lease, err := m.Acquire(t.Context(), key)
	require.NoError(t, err)
	_, err = client.Obtain(t.Context(), key, ttl, nil)
	require.ErrorIs(t, err, redislock.ErrNotObtained)
	require.NoError(t, lease.Release(t.Context()))
	lock, err := client.Obtain(t.Context(), key, ttl, nil)
	require.NoError(t, err)
	_, err = m.TryAcquire(t.Context(), key)
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Contains(t, held.Holder.Owner, lock.Token())
	require.NoError(t, lock.Refresh(t.Context(), ttl, nil), "we have left its key alone")
	require.NoError(t, lock.Release(t.Context()))

	theirs := library{"redislock", func(ctx context.Context) (func() error, error) {
		lock, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
		if err != nil {
			return nil, err
		}
		return func() error { return lock.Release(context.WithoutCancel(ctx)) }, nil
	}}
	requireHandOver(t, ours(m), theirs)
	requireHandOver(t, theirs, ours(m))
	had, overlaps := compete(t, ours(m), theirs)
	requireExclusion(t, had, overlaps, ours(m), theirs)
}
