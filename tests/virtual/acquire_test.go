package virtual

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Events between the votes and the grant. Messages take 10 ms each way, so that a test
// can act in between.

func TestAGrantNeedsAQuorumThatTookTheToken(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		unlevel(t, c, m) // the register of node 0 has to be raised above that of node 1
		c.Nodes()[2].Cut()
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(10 * time.Millisecond)
		time.AfterFunc(25*time.Millisecond, func() { // both have voted, and the raise is in flight
			_, err := c.Nodes()[0].Do("DEL", "quorumlock:job")
			assert.NoError(t, err)
		})
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.ErrorContains(t, err, "no longer ours")
		c.Nodes()[2].Heal()
	})
}

// Two other clients have asked at the same instant, and release what they were granted.
func TestTryAcquireAsksAgainWhenTheVotesWereSplit(t *testing.T) {
	run(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		split := func(px string) {
			for i, owner := range []string{"a", "a", "b", "b"} {
				do(t, c.Nodes()[i], "SET", quorumlock.DefaultPrefix+"job", strings.Repeat(owner, 32)+" 0 1795344466720373 - ", "PX", px)
			}
		}
		split("2")
		l, err := m.TryAcquire(background, "job")
		require.NoError(t, err)
		require.NoError(t, l.Release(background))
		split("60000")
		began := time.Now()
		_, err = m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.Less(t, time.Since(began), 100*time.Millisecond)
		synctest.Wait()
		v, err := c.Nodes()[4].Do("EXISTS", quorumlock.DefaultPrefix+"job")
		require.NoError(t, err)
		assert.EqualValues(t, 0, v, "its own vote is released")
	})
}

func TestAmbiguousIsNeverAVoteAndIsAlwaysReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		c.Nodes()[0].CutReplies()
		c.Nodes()[1].CutReplies()
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.NotErrorIs(t, err, quorumlock.ErrHeld)
		c.Nodes()[0].Heal()
		c.Nodes()[1].Heal()
		time.Sleep(3 * time.Second)
		assert.Zero(t, holders(t, c, "job"))
	})
}

func TestAnAcquireThatArrivesLateLocksNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(2 * time.Second) // beyond the node timeout
		}
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		for range 20 {
			time.Sleep(250 * time.Millisecond)
			assert.Zero(t, holders(t, c, "job"))
		}
	})
}

func TestALeaseThatWasWonTooSlowlyIsNotGranted(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithTTL(time.Second), quorumlock.WithNodeTimeout(500*time.Millisecond))
		unlevel(t, c, m)
		// Votes and the raise take 900 of the 938 ms that the lease is valid.
		for _, node := range c.Nodes() {
			node.Delay(225 * time.Millisecond)
		}
		began := time.Now()
		_, err := m.TryAcquire(background, "job")
		assert.Equal(t, 900*time.Millisecond, time.Since(began))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Contains(t, err.Error(), "too late")
		time.Sleep(time.Second)
		assert.Zero(t, holders(t, c, "job"))
	})
}

func TestMisconfiguredNodesEndTheWaitAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		isScript := func(cmd []string) bool { return strings.EqualFold(cmd[0], "EVALSHA") }
		for _, node := range c.Nodes()[:2] {
			node.Fail(isScript, "NOPERM User app has no permissions to run the 'evalsha' command")
		}
		_, err := m.Acquire(background, "job")
		var node *quorumlock.NodeError
		require.ErrorAs(t, err, &node)
		assert.True(t, node.Misconfigured())
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Contains(t, err.Error(), "rights")

		for _, node := range c.Nodes()[:2] {
			node.Fail(isScript, "LOADING Redis is loading the dataset in memory")
		}
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		began := time.Now()
		_, err = m.Acquire(ctx, "job")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(began), "the waiter waits, because the state passes")
	})
}

func TestACancelledAttemptIsReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(100 * time.Millisecond)
		}
		cause := errors.New("changed my mind")
		ctx, cancel := context.WithTimeoutCause(background, 150*time.Millisecond, cause)
		defer cancel()
		began := time.Now()
		_, err := m.Acquire(ctx, "job")
		assert.Equal(t, 150*time.Millisecond, time.Since(began), "at once")
		require.ErrorIs(t, err, cause)
		time.Sleep(time.Second)
		assert.Zero(t, holders(t, c, "job"))
	})
}

func TestAStrangersKeyWithoutAnEndIsNotFreeNow(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		for _, node := range c.Nodes() {
			_, err := node.Do("SET", "quorumlock:job", "theirs")
			require.NoError(t, err)
		}
		_, err := manager(t, c).TryAcquire(background, "job")
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.Zero(t, held.RetryAfter)
		assert.NotContains(t, err.Error(), "0s")
	})
}

func TestRetryAfterIsWhenAQuorumIsFree(t *testing.T) {
	run(t, 4, func(t *testing.T, c *quorumlocktest.Cluster) {
		for i, ms := range []string{"8000", "5000"} { // of four nodes: three are a majority
			_, err := c.Nodes()[i].Do("SET", "quorumlock:job", "theirs", "PX", ms)
			require.NoError(t, err)
		}
		_, err := manager(t, c).TryAcquire(background, "job")
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.InDelta(t, 5*time.Second, held.RetryAfter, float64(100*time.Millisecond))
	})
}

func TestTimeoutsOfNodesAreNotTheCallersDeadline(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Cut()
		}
		time.Sleep(10 * time.Second) // connections are found dead, and dials time out
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.NotErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel := context.WithTimeout(background, 5*time.Second)
		defer cancel()
		_, err = m.Acquire(ctx, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestAReleaseNeverOvertakesItsAcquire(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(100 * time.Millisecond)
		}
		go func() { _, _ = m.Inspect(background, "other") }()
		synctest.Wait() // the nodes' connections are busy, so the next requests wait
		ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
		defer cancel()
		_, err := m.Acquire(ctx, "job")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		assert.Zero(t, holders(t, c, "job"))
		assert.Nil(t, do(t, c.Nodes()[0], "ZSCORE", node.RegistersKey(quorumlock.DefaultPrefix), "quorumlock:job"),
			"the release has cancelled the acquisition, which was not sent")
	})
}
