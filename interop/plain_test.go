//go:build unix

package interop_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// errStop ends work that a test has seen enough of.
var errStop = errors.New("stop")

// compareAndDelete is how careful plain locks are released.
const compareAndDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// The plain lock expires while its holder works. Later this holder deletes the key of the second one.
func TestPlainDELDeletesTheLockOfTheNextHolder(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	client := newClients(t, []string{server.Addr()})[0]
	working, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- plain(t.Context(), client, func(context.Context) error {
			close(working)
			<-end
			return nil
		})
	}()
	<-working
	server.MustDo("PEXPIRE", "lock:report", "0") // 30 s have passed
	third := false
	require.NoError(t, plain(t.Context(), client, func(context.Context) error {
		close(end)
		require.NoError(t, <-ended) // the first one is done, and deletes
		return plain(t.Context(), client, func(context.Context) error { third = true; return nil })
	}))
	require.True(t, third, "it works beside the second one")
}

// After a cancellation the plain key stays for the whole TTL. Do releases it.
func TestAPlainLockStaysAfterACancellationAndOursDoesNot(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	options := &redis.Options{Addr: server.Addr()}
	client := newClients(t, []string{server.Addr()})[0]
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, plain(ctx, client, func(context.Context) error { cancel(); return errStop }), errStop)
	require.Equal(t, int64(1), server.MustDo("EXISTS", "lock:report"))
	server.MustDo("DEL", "lock:report")

	m, err := managerFor(t.Context(), options)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(t.Context())) }()
	ctx, cancel = context.WithCancel(t.Context())
	require.ErrorIs(t, fromPlain(ctx, m, func(context.Context) error {
		assert.Equal(t, int64(1), server.MustDo("EXISTS", "lock:report"))
		cancel()
		return errStop
	}), errStop)
	require.Eventually(t, func() bool { return server.MustDo("EXISTS", "lock:report") == int64(0) }, 10*time.Second, time.Millisecond)
}

// The reply to SET NX is lost. go-redis sends the command again, and finds its own key. Ours does not
// send it again, takes away what may be there, and gets the lock.
func TestALostReplyLeavesThePlainLockTakenByNobody(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	client := newClients(t, []string{proxy.Addr()})[0]
	require.NoError(t, client.Ping(t.Context()).Err())
	proxy.DropReply(func(cmd []string) bool { return strings.EqualFold(cmd[0], "SET") })
	worked := false
	require.NoError(t, plain(t.Context(), client, func(context.Context) error { worked = true; return nil }))
	require.False(t, worked)
	require.Equal(t, int64(1), server.MustDo("EXISTS", "lock:report"), "taken, and nobody works")
	server.MustDo("DEL", "lock:report")

	m, err := managerFor(t.Context(), &redis.Options{Addr: proxy.Addr()})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(t.Context())) }()
	var lost atomic.Bool
	proxy.DropReply(func(cmd []string) bool {
		found := slices.Contains(cmd, "lock:report")
		lost.Store(lost.Load() || found)
		return found
	})
	begun := time.Now()
	lease, err := m.Acquire(t.Context(), "report", quorumlock.WithTTL(time.Minute))
	require.NoError(t, err)
	assert.True(t, lost.Load())
	assert.Less(t, time.Since(begun), 30*time.Second)
	require.NoError(t, lease.Release(t.Context()))
}

func TestACarefulPlainLockAndWeExcludeEachOtherOnOneNode(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 1))
	m, client := newManager(t, addrs), newClients(t, addrs)[0]
	theirs := library{"SET NX", func(ctx context.Context) (func() error, error) {
		owner := rand.Text()
		for {
			free, err := client.SetNX(ctx, key, owner, ttl).Result()
			if err != nil {
				return nil, err
			}
			if free {
				return func() error {
					return client.Eval(context.WithoutCancel(ctx), compareAndDelete, []string{key}, owner).Err()
				}, nil
			}
			time.Sleep(5 * time.Millisecond)
		}
	}}
	requireHandOver(t, ours(m), theirs)
	requireHandOver(t, theirs, ours(m))
	had, overlaps := compete(t, ours(m), theirs)
	requireExclusion(t, had, overlaps, ours(m), theirs)
}
