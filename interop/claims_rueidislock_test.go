//go:build unix

package interop_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func newLocker(t *testing.T, addr string, validity time.Duration) rueidislock.Locker {
	t.Helper()
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true},
		KeyValidity:  validity, TryNextAfter: 10 * time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(locker.Close)
	return locker
}

// Its next extension would be half an hour later. It has three keys, on one server.
func TestRueidislockNoticesADELOfAMajorityOfItsKeysAtOnce(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	held, cancel, err := newLocker(t, server.Addr(), time.Hour).WithContext(t.Context(), key)
	require.NoError(t, err)
	defer cancel()
	testkit.Eventually(t, "it has all its keys", func() bool { return server.MustDo("DBSIZE") == int64(3) })
	server.MustDo("DEL", "rueidislock:0:"+key)
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, held.Err())
	server.MustDo("DEL", "rueidislock:1:"+key)
	select {
	case <-held.Done():
	case <-time.After(time.Minute):
		t.Fatal("the context has not ended")
	}
}

// The holder hears nothing from its server, and works.
func TestForceWithContextTakesALockWhileTheOldHolderWorks(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	old, cancel, err := newLocker(t, proxy.Addr(), 10*time.Minute).WithContext(t.Context(), key)
	require.NoError(t, err)
	defer cancel()
	testkit.Eventually(t, "it has all its keys", func() bool { return server.MustDo("DBSIZE") == int64(3) })
	proxy.SwallowReplies()
	defer proxy.Heal()
	second, release, err := newLocker(t, server.Addr(), time.Hour).ForceWithContext(t.Context(), key)
	require.NoError(t, err)
	defer release()
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, old.Err())
	require.NoError(t, second.Err())
}

// The holder hears nothing from the nodes, and works until its lease ends. Then a waiter is first.
func TestRevokeEndsTheLeaseFirstAndAnAcquireQueuesBehindTheWaiters(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	direct := redistest.Addrs(servers)
	holder, waiter, operator := newManager(t, addrs), newManager(t, direct), newManager(t, direct)
	old := testkit.Acquired(t, holder, key, quorumlock.WithTTL(3*time.Second))
	everywhere(t, servers)
	waited := acquiring(t, waiter)
	testkit.Eventually(t, "the waiter is in the queue", func() bool {
		for _, s := range servers {
			if s.MustDo("ZCARD", key+"\xffq") != int64(1) {
				return false
			}
		}
		return true
	})
	for _, p := range proxies {
		p.SwallowReplies()
	}
	revoked, err := operator.Revoke(t.Context(), key, "stuck")
	require.NoError(t, err)
	assert.Equal(t, old.Owner(), revoked.Holder.Owner)
	asked := acquiring(t, operator)
	lease := <-waited
	require.False(t, old.Valid(), "the old holder must have stopped")
	time.Sleep(100 * time.Millisecond)
	require.Empty(t, asked, "the waiter has the lock")
	testkit.Released(t, lease)
	testkit.Released(t, <-asked)
	for _, p := range proxies {
		p.Heal()
	}
}

// acquiring acquires in the background.
func acquiring(t *testing.T, m *quorumlock.Manager) <-chan *quorumlock.Lease {
	t.Helper()
	got := make(chan *quorumlock.Lease, 1)
	go func() {
		lease, err := m.Acquire(context.WithoutCancel(t.Context()), key)
		assert.NoError(t, err)
		got <- lease
	}()
	return got
}
