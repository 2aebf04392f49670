package virtual

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Events between the votes and the grant. Messages take 10 ms each way, so that a test
// can act in between.

func TestAGrantNeedsAQuorumThatTookTheToken(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		unlevel(t, c, m) // the register of node 0 must be raised above node 1's
		c.Nodes()[2].Cut()
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(10 * time.Millisecond)
		time.AfterFunc(25*time.Millisecond, func() { // both have voted, and the raise is in flight
			_, err := c.Nodes()[0].Do("DEL", "quorumlock:job")
			assert.NoError(t, err)
		})
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.ErrorContains(t, err, "no longer holds the lock for this caller")
		c.Nodes()[2].Heal()
	})
}

// Owner values before and after every random one.
var smallest, large, largest = strings.Repeat("0", 32), strings.Repeat("f", 31) + "e", strings.Repeat("f", 32)

// scatter gives a node's vote to another caller, for this number of milliseconds.
func scatter(t *testing.T, n *quorumlocktest.Node, owner, px string) {
	t.Helper()
	do(t, n, "SET", config.DefaultPrefix+"job", owner+" 0 1795344466720373 - ", "PX", px)
}

// Two other clients have asked at the same instant and have two nodes each. The smallest of
// the three owner values decides.
func TestTryAcquireAsksAgainWhenTheVotesWereSplit(t *testing.T) {
	run(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		split := func(first, second, px string) {
			for i, owner := range []string{first, first, second, second} {
				scatter(t, c.Nodes()[i], owner, px)
			}
		}
		own := func() bool { return do(t, c.Nodes()[4], "EXISTS", config.DefaultPrefix+"job") == int64(1) }
		split(largest, large, "20") // they release after 20 ms
		l, err := m.TryAcquire(background, "job")
		require.NoError(t, err)
		require.NoError(t, l.Release(background))

		split(largest, large, "60000") // they have died
		began := time.Now()
		go func() {
			time.Sleep(2 * timeout)
			assert.True(t, own(), "its vote stays")
		}()
		_, err = m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.GreaterOrEqual(t, time.Since(began), 2*timeout)
		assert.Less(t, time.Since(began), 2*timeout+25*time.Millisecond)
		synctest.Wait()
		assert.False(t, own(), "its vote is released")

		ctx, cancel := context.WithTimeout(background, timeout)
		defer cancel()
		_, err = m.TryAcquire(ctx, "job")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		assert.False(t, own(), "its vote is released when the context ends")

		split(smallest, largest, "60000")
		began = time.Now()
		_, err = m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.Zero(t, time.Since(began), "the smaller value comes first")
		synctest.Wait()
		assert.False(t, own(), "its vote is released")
	})
}

// Two nodes refuse for two different clients, and the vote of another node is still on its way. That vote decides the
// tie for this caller, so it waits for it.
func TestInATieEveryVoteCounts(t *testing.T) {
	for _, n := range []int{3, 4} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			scatter(t, c.Nodes()[0], largest, "20")
			scatter(t, c.Nodes()[1], large, "20")
			for _, node := range c.Nodes()[2:] {
				node.Delay(5 * time.Millisecond)
			}
			l, err := m.TryAcquire(background, "job")
			require.NoError(t, err)
			require.NoError(t, l.Release(background))
		})
	}
}

// Two nodes have voted, and one of them hangs before the tie ends. Later attempts do not ask it.
func TestAVoteThatWasKeptIsReleasedOnANodeThatWasNotAskedAgain(t *testing.T) {
	run(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for i, owner := range []string{largest, largest, large} {
			scatter(t, c.Nodes()[i], owner, "60000")
		}
		time.AfterFunc(time.Millisecond, func() { c.Hang(4) })
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		c.Resume(4)
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, 0, do(t, c.Nodes()[4], "EXISTS", config.DefaultPrefix+"job"))
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
		_, err := m.Inspect(background, "job") // the nodes are distant, and their workers know that from now on
		require.NoError(t, err)
		began := time.Now()
		_, err = m.TryAcquire(background, "job")
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
		assert.True(t, node.Misconfigured)
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
		began := time.Now()
		_, err := manager(t, c).TryAcquire(background, "job") // no majority has it: a tie
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.InDelta(t, 5*time.Second-time.Since(began), held.RetryAfter, float64(100*time.Millisecond))
	})
}

func TestTimeoutsOfNodesAreNotTheCallersDeadline(t *testing.T) {
	for name, fault := range map[string]func(*quorumlocktest.Node){
		"cut":  (*quorumlocktest.Node).Cut,  // dials time out
		"hung": (*quorumlocktest.Node).Hang, // the connections' first commands time out
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				for _, node := range c.Nodes() {
					fault(node)
				}
				time.Sleep(10 * time.Second) // connections are found dead
				_, err := m.TryAcquire(background, "job")
				require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
				assert.NotErrorIs(t, err, context.DeadlineExceeded)
				ctx, cancel := context.WithTimeout(background, 5*time.Second)
				defer cancel()
				_, err = m.Acquire(ctx, "job")
				require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		})
	}
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
		assert.Nil(t, do(t, c.Nodes()[0], "ZSCORE", wire.RegistersKey(config.DefaultPrefix), "quorumlock:job"),
			"the release has cancelled the acquisition, which was not sent")
	})
}

// The call ends with the second refusal, and its release waits for the third node. That node refuses as well, so there
// is nothing to release.
func TestANodeThatRefusesLateIsSentNoRelease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, asks, waits := manager(t, c), manager(t, c), manager(t, c)
		acquire(t, holder, "job")
		ctx, cancel := context.WithCancel(background)
		var done sync.WaitGroup
		done.Go(func() { _, err := waits.Acquire(ctx, "job"); assert.Error(t, err) })
		time.Sleep(500 * time.Millisecond) // its ticket is in the queues
		late := c.Nodes()[2]
		for _, node := range c.Nodes()[:2] { // otherwise the call may end before the third node is asked
			node.Delay(10 * time.Millisecond)
		}
		_, err := asks.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld) // from now on it knows for each node that the prefix has queues
		for _, node := range c.Nodes()[:2] {
			node.Delay(0)
		}
		late.Delay(10 * time.Millisecond)
		asked, releases := map[string]bool{}, 0 // asked by owner
		late.Fail(func(args []string) bool {
			for i, arg := range args[:len(args)-1] {
				owner, _, _ := strings.Cut(args[i+1], " ")
				switch {
				case arg == "acquire", arg == "wait":
					asked[owner] = true
				case (arg == "release" || arg == "leave") && asked[owner]: // others get one because of the ticket
					releases++
				}
			}
			return false
		}, "")
		_, err = asks.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		time.Sleep(5 * time.Second)
		late.Fail(nil, "")
		assert.Greater(t, len(asked), 1, "the waiter asked as well")
		assert.Zero(t, releases)
		cancel()
		done.Wait()
	})
}
