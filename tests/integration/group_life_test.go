package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A lease lives its whole life on each kind of failover group, as on one server.
func TestTheWholeLifeOfALeaseOnFailoverGroups(t *testing.T) {
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	for kind, start := range map[string]func(testing.TB) (nodes []rueidis.ClientOption, master *redistest.Server){
		"Sentinel": func(tb testing.TB) ([]rueidis.ClientOption, *redistest.Server) {
			g := redistest.StartGroup(tb, redistest.GroupOptions{Args: quick})
			return []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)}, g.Servers()[0]
		},
		"ClusterSlot": func(tb testing.TB) ([]rueidis.ClientOption, *redistest.Server) {
			c := redistest.StartCluster(tb, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
			owner, _ := c.Owner(redistest.Slot(tag))
			return []rueidis.ClientOption{quorumlock.ClusterSlot(tag, c.Addrs()[:3]...)}, c.Servers()[owner]
		},
		"a group and two servers": func(tb testing.TB) ([]rueidis.ClientOption, *redistest.Server) {
			g := redistest.StartGroup(tb, redistest.GroupOptions{Args: quick})
			return append(quorumlock.Addrs(redistest.Addrs(redistest.Start(tb, 2))...), quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)), g.Servers()[0]
		},
	} {
		for protocol, resp2 := range map[string]bool{"RESP3": false, "RESP2": true} {
			t.Run(kind+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				nodes, master := start(t)
				for i := range nodes {
					nodes[i].AlwaysRESP2 = resp2
				}
				life(t, nodes, master)
			})
		}
	}
}

func life(t *testing.T, nodes []rueidis.ClientOption, master *redistest.Server) {
	const ttl = 5 * time.Second
	opts := []quorumlock.Option{quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(time.Second), quorumlock.WithPrefix(tag + ":"),
		quorumlock.WithRestartGuard(ttl + window), quorumlock.WithFailover(window)}
	m, other := open(t, nodes, append(opts, quorumlock.WithHolder("first"))...), open(t, nodes, opts...)
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()

	l, err := m.Acquire(ctx, "job") // when the quarantine of a new term has ended
	require.NoError(t, err)
	require.Eventually(t, func() bool { return other.Ready() == nil }, 10*time.Second, time.Millisecond, "the quarantine may last a moment longer for it")
	_, err = other.TryAcquire(ctx, "job")
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, "first", held.Holder.Label)
	status, err := other.Inspect(ctx, "job")
	require.NoError(t, err)
	assert.Equal(t, "first", status.Holder.Label)
	assert.Greater(t, status.Votes, len(nodes)/2)

	granted := make(chan *quorumlock.Lease)
	go func() {
		next, err := other.Acquire(ctx, "job")
		assert.NoError(t, err)
		granted <- next
	}()
	<-l.Renewed()
	testkit.Eventually(t, "the waiter stands in the queue", func() bool {
		status, err := m.Inspect(ctx, "job")
		return err == nil && status.Waiters == 1
	})
	testkit.Released(t, l)
	next := <-granted
	require.NotNil(t, next)
	assert.Greater(t, next.Token(), l.Token())
	testkit.Confirmed(t, next.Verify)
	testkit.Released(t, next)

	var mu sync.Mutex
	var callers sync.WaitGroup
	last, holders := next.Token(), 0
	for range 5 {
		for _, m := range []*quorumlock.Manager{m, other} {
			callers.Go(func() {
				assert.NoError(t, m.Do(ctx, "job", func(_ context.Context, l *quorumlock.Lease) error {
					mu.Lock()
					defer mu.Unlock()
					holders++
					assert.Greater(t, l.Token(), last)
					last = l.Token()
					return nil
				}))
			})
		}
	}
	callers.Wait()
	assert.Equal(t, 10, holders)

	l = testkit.Acquired(t, m, "lost")
	master.MustDo("DEL", tag+":lost")
	if len(nodes) == 1 {
		select {
		case lost := <-l.Lost():
			assert.Equal(t, quorumlock.LostMissing, lost.Reason)
		case <-ctx.Done():
			assert.Fail(t, "no loss was reported")
		}
	} else {
		testkit.Eventually(t, "the key is restored", func() bool { return master.MustDo("EXISTS", tag+":lost") == int64(1) })
		require.NoError(t, l.Err())
	}

	l = testkit.Acquired(t, m, "stuck")
	revoked, err := other.Revoke(ctx, "stuck", "it hangs")
	require.NoError(t, err)
	assert.Greater(t, time.Until(revoked.Until), ttl+window, "a master that was replaced may go on renewing for the window")
	select {
	case lost := <-l.Lost():
		assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
		assert.ErrorContains(t, lost.Nodes[0], "lease was revoked: it hangs")
	case <-ctx.Done():
		assert.Fail(t, "no loss was reported")
	}

	_ = testkit.Acquired(t, m, "open at the end")
	require.NoError(t, m.Close(ctx))
	l = testkit.Acquired(t, other, "open at the end")
	testkit.Released(t, l)
	_, err = m.TryAcquire(ctx, "job")
	require.ErrorIs(t, err, quorumlock.ErrClosed)
}
