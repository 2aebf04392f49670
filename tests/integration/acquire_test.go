package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestAFailedAttemptLeavesNoKeys(t *testing.T) {
	servers := testkit.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := testkit.Connect(t, addrs, quorumlock.WithTTL(time.Hour)) // no key expires during the test
	t.Run("replies lost on a majority", func(t *testing.T) {
		for _, p := range proxies[:2] {
			p.DropReply(func(cmd []string) bool { return len(cmd) > 3 && cmd[0] == "EVALSHA" })
		}
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.NotErrorIs(t, err, quorumlock.ErrHeld, "an attempt's own key is no contention")
		testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "job") == 0 })
	})
	t.Run("cancelled during the attempt", func(t *testing.T) {
		for _, p := range proxies {
			p.Delay(50 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
		defer cancel()
		_, err := m.Acquire(ctx, "job")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, p := range proxies {
			p.Delay(0)
		}
		time.Sleep(200 * time.Millisecond) // the late grants have arrived
		testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "job") == 0 })
	})
	t.Run("another owner on a majority", func(t *testing.T) {
		for _, s := range servers[:2] {
			s.MustDo("SET", testkit.Prefix+"split", "somebody")
		}
		_, err := m.TryAcquire(background, "split")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		testkit.Eventually(t, "the third is free again", func() bool { return testkit.Locks(t, servers[2:], "split") == 0 })
	})
}

// An attempt that has no answer when its caller gives up is not late: it may have queued.
func TestACallerThatGivesUpInAnAttemptLeavesTheQueues(t *testing.T) {
	for _, end := range []string{"context", "Close"} {
		t.Run(end, func(t *testing.T) {
			holder, servers := testkit.Manager(t, 3)
			_ = testkit.Acquired(t, holder, "job")
			m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithNodeTimeout(5*time.Second), quorumlock.WithTTL(60*time.Second),
				quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(time.Millisecond) }))
			testkit.Subscribe(t, m, servers)
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			gone := make(chan error)
			go func() { _, err := m.Acquire(ctx, "job"); gone <- err }()
			testkit.Queued(t, servers, 1)
			for _, s := range servers {
				s.Stop()
			}
			time.Sleep(50 * time.Millisecond) // time for another attempt; the test also passes without one
			if end == "context" {
				cancel()
				require.ErrorIs(t, <-gone, context.Canceled)
			}
			time.AfterFunc(100*time.Millisecond, func() {
				for _, s := range servers {
					s.Continue()
				}
			})
			if end == "Close" {
				require.NoError(t, m.Close(background))
				require.ErrorIs(t, <-gone, quorumlock.ErrClosed)
			}
			testkit.Queued(t, servers, 0)
		})
	}
}

func TestTryAcquireDoesNotOvertakeWaiters(t *testing.T) {
	m, servers := testkit.Manager(t, 1)
	servers[0].MustDo("ZADD", testkit.QueueKey("job"), "1", strings.Repeat("a", 32)+"200")
	servers[0].MustDo("SET", hintKey, "1")
	l, err := m.TryAcquire(background, "job")
	require.NoError(t, err, "no client is subscribed for that ticket")
	require.NoError(t, l.Release(background))

	managers := testkit.Crowd(t, servers, 1)
	l, err = m.Acquire(background, "job")
	require.NoError(t, err)
	come := line(t, managers, servers)
	released := make(chan error, 1)
	go func() { released <- l.Release(background) }()
	for ended := false; !ended; { // an attempt in between does not get the lock before the waiter
		select {
		case err := <-released:
			require.NoError(t, err)
			ended = true
		default:
		}
		if l, err := m.TryAcquire(background, "job"); err == nil {
			assert.Equal(t, []int{0}, come(), "only behind the waiter")
			require.NoError(t, l.Release(background))
		} else {
			require.ErrorIs(t, err, quorumlock.ErrHeld)
		}
	}
	come()
}
