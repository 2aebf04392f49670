package virtual

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// A renewal round notices at once that a majority refuses connections. The warning does
// not wait for a node timeout.
func TestARoundIsOverWhenEveryNodeHasAnsweredOrRefused(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		<-l.Renewed()
		synctest.Wait() // every node has answered
		c.Nodes()[0].Kill()
		c.Nodes()[1].Kill()
		var asked time.Time
		c.Nodes()[2].Fail(func(cmd []string) bool {
			if strings.EqualFold(cmd[0], "EVALSHA") { // and no PING
				asked = time.Now()
			}
			return false
		}, "")
		risk := <-l.AtRisk()
		assert.Len(t, risk.Nodes, 2)
		assert.Zero(t, time.Since(asked), "reported in the instant of the round")
		c.Nodes()[2].Fail(nil, "")
	})
}

func TestALeaseIsRenewedAtItsInterval(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		last := time.Now()
		for range 100 {
			e := <-l.Renewed()
			since := time.Since(last)
			assert.GreaterOrEqual(t, since, interval*9/10)
			assert.LessOrEqual(t, since, interval*11/10)
			assert.Equal(t, 1, e.Margin)
			assert.Equal(t, valid, time.Until(e.ValidUntil))
			assert.Equal(t, l.Token(), e.Token)
			last = time.Now()
		}
	})
}

func TestAnHourOfRenewalsLosesNothingAndGrowsNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const ttl = 30 * time.Second
		m := manager(t, c, quorumlock.WithTTL(ttl))
		var leases []*quorumlock.Lease
		for i := range 2 {
			leases = append(leases, acquire(t, m, fmt.Sprint("job-", i)))
		}
		before := goroutines()
		for range 60 {
			time.Sleep(time.Minute)
			for _, l := range leases {
				require.True(t, l.Valid())
				require.GreaterOrEqual(t, l.Remaining(), ttl/2)
			}
		}
		assert.Equal(t, before, goroutines())
		assert.Equal(t, 3, holders(t, c, "job-0"))
	})
}

func TestAMissedRoundIsRetriedWellBeforeTheStop(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		<-l.Renewed()
		c.Nodes()[0].Cut()
		c.Nodes()[1].Cut()
		<-l.AtRisk()
		c.Nodes()[0].Heal()
		c.Nodes()[1].Heal()
		at := time.Now()
		<-l.Renewed()
		assert.Less(t, time.Since(at), interval, "not at the next interval")
		assert.True(t, l.Valid())
	})
}

func TestWithoutRenewalALeaseIsLostAtItsStopUnlessRenewed(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		began := time.Now()
		l := acquire(t, m, "job", quorumlock.WithoutRenewal())
		time.Sleep(5 * time.Second)
		require.NoError(t, l.Renew(background))
		assert.Equal(t, valid, l.Remaining())
		<-l.Lost()
		assert.Equal(t, 5*time.Second+valid-early, time.Since(began))
		assert.Zero(t, l.Remaining())
		require.ErrorIs(t, l.Renew(background), quorumlock.ErrLost)
	})
}

func TestRenewReportsAMissedQuorum(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		c.Nodes()[0].Cut()
		c.Nodes()[1].Cut()
		err := l.Renew(background)
		var short *quorumlock.QuorumError
		require.ErrorAs(t, err, &short)
		assert.Equal(t, "renew", short.Op)
		assert.Equal(t, 1, short.Got)
		assert.True(t, l.Valid(), "at risk is not lost")
		ctx, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Renew(ctx), context.DeadlineExceeded)
	})
}

func TestRenewJoinsARoundThatIsUnderWay(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		for _, n := range c.Nodes() {
			n.Delay(40 * time.Millisecond)
		}
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				assert.NoError(t, l.Renew(background))
			})
		}
		all.Wait()
		select {
		case e := <-l.AtRisk():
			t.Errorf("a reported risk that does not exist: %+v", e)
		default:
		}
	})
}

func TestAThinMarginIsARiskUntilItIsHealed(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		c.Nodes()[2].Kill()
		at := time.Now()
		risk := <-l.AtRisk()
		assert.Zero(t, risk.Margin)
		assert.LessOrEqual(t, time.Since(at), ttl+interval*11/10, "when the node's last confirmation has expired: rounds are up to 10 % more than an interval apart")
		time.Sleep(time.Minute)
		assert.True(t, l.Valid(), "this state may last for hours")
		select {
		case <-l.AtRisk():
			assert.Fail(t, "the same risk was reported twice")
		default:
		}
		for len(l.Renewed()) > 0 {
			assert.Zero(t, (<-l.Renewed()).Margin)
		}
		c.Nodes()[2].Restart()
		for (<-l.Renewed()).Margin == 0 {
		}
		assert.Equal(t, 3, holders(t, c, "job"))
	})
}

func TestLateVotesRaiseTheMargin(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		synctest.Wait() // every node is connected
		events := m.Subscribe(10)
		c.Nodes()[2].Delay(50 * time.Millisecond)
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		e := (<-events.C()).(quorumlock.Acquired)
		assert.Zero(t, e.Margin, "returned at the majority")
		time.Sleep(150 * time.Millisecond) // there and back take 100 ms
		require.NoError(t, l.Renew(background))
		assert.Equal(t, 1, (<-events.C()).(quorumlock.Renewed).Margin)
	})
}

func TestALateAnswerDoesNotBringALeaseBack(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		for _, node := range c.Nodes() {
			node.Hang()
		}
		<-l.Done()
		for _, node := range c.Nodes() {
			node.Resume() // the node executes and answers the extends now
		}
		time.Sleep(time.Minute)
		assert.False(t, l.Valid())
		assert.ErrorIs(t, l.Err(), quorumlock.ErrLost)
		assert.Zero(t, holders(t, c, "job"), "the restored key was released")
	})
}

func TestLeasesThatAreDueTogetherAreRenewedInOneScript(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		const leases = 150
		for i := range leases {
			acquire(t, m, fmt.Sprint("job-", i))
		}
		before := goroutines()
		var scripts atomic.Int64
		c.Nodes()[0].Fail(func(cmd []string) bool {
			if strings.EqualFold(cmd[0], "EVALSHA") {
				scripts.Add(1)
			}
			return false
		}, "")
		const rounds = 3
		time.Sleep(rounds * interval)
		assert.Equal(t, before, goroutines())
		// Whatever phases the jitter causes, 3 s have 30 windows of 100 ms. That makes 30 scripts a round; separate
		// renewals would be 150.
		assert.Less(t, scripts.Load(), int64(rounds*40))
		t.Logf("%d scripts for %d renewals", scripts.Load(), rounds*leases)
	})
}

func TestALeaseAtRiskIsRenewedAsSoonAsANodeIsBack(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		events := m.Subscribe(1000)
		<-l.Renewed()
		synctest.Wait() // every node has renewed it, so its key is still there when it is back
		c.Nodes()[0].Cut()
		c.Nodes()[1].Cut()
		<-l.AtRisk()
		time.Sleep(2 * time.Second) // the backoff between two rounds has grown
		c.Nodes()[0].Heal()
		awaitVotes(events, 0)
		back := time.Now()
		<-l.Renewed()
		assert.Zero(t, time.Since(back))
		c.Nodes()[1].Heal()
	})
}

// A round may have begun, and may have failed on a node, just before that node is back.
func TestANodeThatIsBackIsAskedInTheRoundUnderWay(t *testing.T) {
	for after := time.Duration(0); after < time.Second; after += 50 * time.Millisecond {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			l := acquire(t, m, "job")
			events := m.Subscribe(1000)
			c.Nodes()[0].Cut()
			c.Nodes()[1].Hang() // rounds wait for it until the node timeout
			<-l.AtRisk()
			var calls sync.WaitGroup
			calls.Go(func() {
				for l.Renew(background) != nil && l.Err() == nil {
					time.Sleep(time.Millisecond)
				}
			})
			time.Sleep(after)
			c.Nodes()[0].Heal()
			awaitVotes(events, 0)
			back := time.Now()
			<-l.Renewed()
			assert.Zero(t, time.Since(back), "healed after %v", after)
			calls.Wait()
		})
	}
}

// WithoutRenewal leaves renewing to Renew, even when a node is back.
func TestALeaseAtRiskThatItsHolderRenewsIsLeftToIt(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job", quorumlock.WithoutRenewal())
		events := m.Subscribe(1000)
		c.Nodes()[0].Cut()
		c.Nodes()[1].Cut()
		require.ErrorIs(t, l.Renew(background), quorumlock.ErrNoQuorum)
		<-l.AtRisk()
		end := time.Now().Add(l.Remaining())
		time.Sleep(2 * time.Second) // the connections are given up
		c.Nodes()[0].Heal()
		c.Nodes()[1].Heal()
		awaitVotes(events, 0, 1)
		synctest.Wait()
		assert.Equal(t, end, time.Now().Add(l.Remaining()))
		require.NoError(t, l.Renew(background))
	})
}

// awaitVotes reads events until they have reported that each of these nodes votes.
func awaitVotes(events *quorumlock.Subscription, nodes ...int) {
	for len(nodes) > 0 {
		e, ok := (<-events.C()).(quorumlock.NodeChanged)
		if ok && e.Err == nil {
			nodes = slices.DeleteFunc(nodes, func(i int) bool { return i == e.Node })
		}
	}
}
