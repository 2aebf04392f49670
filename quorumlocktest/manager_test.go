package quorumlocktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The whole Manager with real rueidis, in virtual time: the times in these tests are
// exact, to the nanosecond.

const (
	ttl      = 9 * time.Second
	interval = ttl / 3
	guard    = 180 * time.Millisecond // 2 % of ttl
	drift    = 92 * time.Millisecond  // 1 % of ttl and 2 ms
	// valid is how long a lease is valid after a round that took no time.
	valid   = ttl - drift - guard
	early   = 25 * time.Millisecond  // a loss is reported this much before the stop
	timeout = 500 * time.Millisecond // of a node
)

var background = context.Background()

// virtual runs a test over n nodes in virtual time.
func virtual(t *testing.T, n int, test func(*testing.T, *quorumlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, quorumlocktest.Start(t, n)) })
}

func manager(t *testing.T, c *quorumlocktest.Cluster, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	return managerFor(t, c, "", opts...)
}

func managerFor(t *testing.T, c *quorumlocktest.Cluster, client string, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.New(background, c.OptionsFor(client), append([]quorumlock.Option{quorumlock.WithTTL(ttl)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(background)) })
	return m
}

func acquire(t *testing.T, m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(background, name, opts...)
	require.NoError(t, err)
	synctest.Wait() // late votes have arrived
	return l
}

// holders returns how many nodes hold the lock.
func holders(t *testing.T, c *quorumlocktest.Cluster, name string) (n int) {
	t.Helper()
	for _, node := range c.Nodes() {
		v, err := node.Do("EXISTS", quorumlock.DefaultPrefix+name)
		require.NoError(t, err)
		if v == int64(1) {
			n++
		}
	}
	return n
}

// goroutines counts the goroutines of the test's bubble once they are all blocked. The
// PINGs of rueidis are short-lived goroutines, and the process has others that come and
// go.
func goroutines() int {
	time.Sleep(time.Millisecond)
	synctest.Wait()
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	n := bytes.Count(all, []byte(", synctest bubble "))
	if n == 0 {
		panic("goroutine dumps no longer name their bubble")
	}
	return n
}

func TestAFreshLeaseIsValidForExactlyItsWindow(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		virtual(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			l := acquire(t, manager(t, c), "job")
			assert.Equal(t, valid, l.Remaining())
			assert.True(t, l.Valid())
			time.Sleep(time.Second)
			assert.Equal(t, valid-time.Second, l.Remaining())
		})
	}
}

func TestValidityCountsFromBeforeTheSend(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(100 * time.Millisecond)
		}
		l := acquire(t, m, "job")
		assert.Equal(t, valid-200*time.Millisecond, l.Remaining(), "the round trip of 200 ms is not part of the validity")
		at := time.Now()
		renewed := <-l.Renewed()
		assert.GreaterOrEqual(t, time.Since(at), interval*9/10)
		assert.Equal(t, valid-200*time.Millisecond, time.Until(renewed.ValidUntil))
	})
}

func TestALeaseIsRenewedAtItsInterval(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestASilentMajorityMeansAtRiskThenLostByTheStopExactly(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		virtual(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			l := acquire(t, manager(t, c), "job")
			renewed := <-l.Renewed()
			stop := time.Now().Add(valid)
			for _, node := range c.Nodes()[:n/2+1] {
				node.Cut()
			}
			risk := <-l.AtRisk()
			assert.LessOrEqual(t, time.Until(stop), valid-interval*9/10, "not before a round, nor after its timeout")
			assert.GreaterOrEqual(t, time.Until(stop), valid-interval*11/10-timeout)
			assert.Equal(t, time.Until(stop), risk.Remaining)
			assert.NotEmpty(t, risk.Nodes)
			assert.True(t, l.Valid())

			lost := <-l.Lost()
			assert.Equal(t, early, time.Until(stop), "reported so early that a late timer is still in time")
			assert.Equal(t, quorumlock.LostExpired, lost.Reason)
			assert.True(t, lost.At.Add(early).Equal(renewed.ValidUntil))
			assert.True(t, lost.ValidUntil.Equal(lost.At))
			assert.Len(t, lost.Nodes, n/2+1)
			assert.False(t, l.Valid())
		})
	}
}

func TestAMissedRoundIsRetriedWellBeforeTheStop(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestTheEndIsReportedInTheOrderThatReadersRelyOn(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		ctx := l.Context()
		lost, done, renewed, atRisk := l.Lost(), l.Done(), l.Renewed(), l.AtRisk()
		isClosed := func() bool {
			for range 2 { // one value may be waiting
				select {
				case _, open := <-renewed:
					if !open {
						for range atRisk { // this ends, because atRisk is closed too
						}
						return true
					}
				default:
					return false
				}
			}
			return false
		}
		for _, node := range c.Nodes() {
			node.FlushAll()
		}
		var all sync.WaitGroup
		all.Go(func() {
			<-ctx.Done()
			assert.ErrorIs(t, l.Err(), quorumlock.ErrLost)
			assert.Equal(t, l.Err(), context.Cause(ctx))
			assert.True(t, isClosed())
		})
		all.Go(func() {
			<-done
			assert.Error(t, ctx.Err())
		})
		all.Go(func() {
			v, open := <-lost
			assert.True(t, open)
			assert.Equal(t, quorumlock.LostRevoked, v.Reason)
			<-done // closed before
			_, open = <-lost
			assert.False(t, open, "exactly one")
		})
		all.Wait()
	})
}

func TestAReleaseClosesLostWithoutAValue(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		lost := l.Lost()
		require.NoError(t, l.Release(background))
		_, open := <-lost
		assert.False(t, open)
		assert.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrReleased, "asked for after the end")
		<-l.Done()
		_, open = <-l.Renewed()
		assert.False(t, open)
	})
}

func TestALeaseKeepsTheValuesOfItsContextAndNotItsEnd(t *testing.T) {
	virtual(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(background, key{}, "v"), time.Second)
		l, err := manager(t, c).Acquire(ctx, "job")
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Minute)
		assert.NoError(t, l.Context().Err())
		assert.Equal(t, "v", l.Context().Value(key{}))
		_, limited := l.Context().Deadline()
		assert.False(t, limited)
	})
}

func TestMaxHoldEndsALeaseAtItsAgeExactly(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		began := time.Now()
		l := acquire(t, m, "job", quorumlock.WithMaxHold(time.Minute))
		lost := <-l.Lost()
		assert.Equal(t, time.Minute, time.Since(began))
		assert.Equal(t, quorumlock.LostMaxHold, lost.Reason)
		synctest.Wait()
		assert.Equal(t, 3, holders(t, c, "job"), "the holder has the guard's time to stop")
		time.Sleep(guard)
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"), "the lock is released after the guard")
	})
}

func TestWithoutRenewalALeaseIsLostAtItsStopUnlessRenewed(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestALockDelayKeepsSuccessorsOutAndDoesNotLengthenTheLease(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		began := time.Now()
		l := acquire(t, m, "job", quorumlock.WithLockDelay(4*time.Second))
		assert.Equal(t, valid, l.Remaining())
		for _, node := range c.Nodes() {
			node.CutReplies()
		}
		<-l.Lost()
		for _, node := range c.Nodes() {
			node.Heal()
		}
		_ = began
	})
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		dead := managerFor(t, c, "dead")
		l := acquire(t, dead, "job", quorumlock.WithLockDelay(4*time.Second), quorumlock.WithoutRenewal())
		began := time.Now()
		c.Partition("dead")
		next, err := manager(t, c).Acquire(background, "job")
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(began), ttl+4*time.Second)
		assert.Less(t, time.Since(began), ttl+5*time.Second)
		assert.Greater(t, next.Token(), l.Token())
		c.Rejoin("dead")
	})
}

func TestAKeyThatANodeLostIsHealedInTheNextRound(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		c.Nodes()[2].Restart()
		assert.Equal(t, 2, holders(t, c, "job"))
		time.Sleep(interval * 11 / 10)
		synctest.Wait()
		assert.Equal(t, 3, holders(t, c, "job"))
		v, err := c.Nodes()[2].Do("GET", "quorumlock:job")
		require.NoError(t, err)
		assert.Contains(t, v, l.Owner()+" 0 ", "its register may be lost as well")
		all, err := c.Nodes()[2].Do("KEYS", "*")
		require.NoError(t, err)
		assert.Len(t, all, 1, "the lock alone: only an acquisition makes a register")
	})
}

func TestAHealThatComesLateDoesNotLock(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		c.Nodes()[2].FlushAll()
		c.Nodes()[2].Delay(3 * time.Second)
		<-l.Renewed() // the extend is in flight to a missing key
		require.NoError(t, l.Release(background))
		time.Sleep(time.Minute)
		c.Nodes()[2].Heal()
		assert.Zero(t, holders(t, c, "job"))
	})
}

// A release can end the lease long before its stop. It can then overtake a heal that is
// stuck on a connection that was given up.
func TestAHealIsVoidOnceItsNodeTimeoutIsOver(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithNodeTimeout(100*time.Millisecond))
		l := acquire(t, m, "job")
		c.Nodes()[2].Delay(150 * time.Millisecond)
		c.Nodes()[2].FlushAll()
		time.Sleep(time.Minute)
		assert.True(t, l.Valid())
		assert.Equal(t, 2, holders(t, c, "job"), "each heal was too late, although the lease lives")
		c.Nodes()[2].Delay(10 * time.Millisecond)
		time.Sleep(2 * interval)
		assert.Equal(t, 3, holders(t, c, "job"))
	})
}

func TestAThinMarginIsARiskUntilItIsHealed(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		c.Nodes()[2].Kill()
		at := time.Now()
		risk := <-l.AtRisk()
		assert.Zero(t, risk.Margin)
		assert.Less(t, time.Since(at), ttl+interval, "when the node's last confirmation has expired")
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(10)
		c.Nodes()[2].Delay(50 * time.Millisecond)
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		e := (<-events.C()).(quorumlock.Acquired)
		assert.Zero(t, e.Margin, "returned at the majority")
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, l.Renew(background))
		assert.Equal(t, 1, (<-events.C()).(quorumlock.Renewed).Margin)
	})
}

func TestALateAnswerDoesNotBringALeaseBack(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestAmbiguousIsNeverAVoteAndIsAlwaysReleased(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

// ahead is how far the register of node 1 is ahead after unlevel.
const ahead = 10 * time.Second

// unlevel makes the registers of "job" differ. It returns the value on node 1, which is
// the largest.
func unlevel(t *testing.T, c *quorumlocktest.Cluster, m *quorumlock.Manager) (largest int64) {
	t.Helper()
	first := acquire(t, m, "job")
	require.NoError(t, first.Release(background))
	synctest.Wait()
	for i, by := range []time.Duration{0, ahead, ahead / 2} {
		setRegister(t, c.Nodes()[i], first.Token()+by.Microseconds())
	}
	time.Sleep(time.Millisecond) // the register of node 0 is below the next proposal
	return first.Token() + ahead.Microseconds()
}

// register returns the value of a node's register of "job".
func register(t *testing.T, n *quorumlocktest.Node) int64 {
	t.Helper()
	text, ok := admin(t, n, "ZSCORE", node.RegistersKey(quorumlock.DefaultPrefix), "quorumlock:job").(string)
	require.True(t, ok)
	at, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return at
}

func setRegister(t *testing.T, n *quorumlocktest.Node, at int64) {
	t.Helper()
	admin(t, n, "ZADD", node.RegistersKey(quorumlock.DefaultPrefix), strconv.FormatInt(at, 10), "quorumlock:job")
}

func TestLevelRegistersTakeOneRoundTrip(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		virtual(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			for _, node := range c.Nodes() {
				node.Delay(10 * time.Millisecond)
			}
			var last int64
			for range 10 {
				began := time.Now()
				l := acquire(t, m, "job")
				assert.Equal(t, 20*time.Millisecond, time.Since(began))
				assert.Greater(t, l.Token(), last)
				last = l.Token()
				require.NoError(t, l.Release(background))
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}

func TestNodesWhoseClocksDifferStillAgreeOnAFreshToken(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Nodes()[0].StepClock(-1500 * time.Millisecond)
		c.Nodes()[1].StepClock(1900 * time.Millisecond)
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(10 * time.Millisecond)
		}
		began := time.Now()
		l := acquire(t, m, "job")
		assert.Equal(t, 20*time.Millisecond, time.Since(began))
		assert.InDelta(t, began.UnixMicro(), l.Token(), 100_000, "by the median clock")
	})
}

// A register that is days ahead lifts the tokens above the clocks. If a node forgot it
// before the clocks reach it, the tokens would start again below it.
func TestTokensRiseOverARegisterThatTheClocksHaveNotReached(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		nodes := c.Nodes()
		nodes[1].Cut() // so that nodes 0 and 2 are the majority
		setRegister(t, nodes[2], time.Now().Add(48*time.Hour).UnixMicro())
		m, err := quorumlock.New(background, c.Options())
		require.NoError(t, err)
		last := acquire(t, m, "job")
		require.Greater(t, time.Until(time.UnixMicro(last.Token())), 47*time.Hour)
		require.NoError(t, last.Release(background))
		require.NoError(t, m.Close(background))

		nodes[1].Heal()
		nodes[2].Cut() // so that nodes 0 and 1 are the majority
		for range 6 {
			time.Sleep(13 * time.Hour)
			m, err = quorumlock.New(background, c.Options())
			require.NoError(t, err)
			next := acquire(t, m, "job")
			assert.Greater(t, next.Token(), last.Token())
			last = next
			require.NoError(t, m.Close(background))
			time.Sleep(13 * time.Hour)
		}
		require.WithinDuration(t, time.Now(), time.UnixMicro(last.Token()), 30*time.Hour, "the clocks have caught up")
	})
}

// Registers have no TTL. A node drops those that have not moved for a day, and its base
// has to keep their values.
func TestTokensRiseOverRegistersThatWereForgotten(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options())
		require.NoError(t, err)
		first := acquire(t, m, "job")
		require.NoError(t, first.Release(background))
		require.NoError(t, m.Close(background))
		time.Sleep(25 * time.Hour)
		m = manager(t, c)
		time.Sleep(2 * time.Minute)
		for _, n := range c.Nodes() {
			assert.EqualValues(t, 0, admin(t, n, "EXISTS", node.RegistersKey(quorumlock.DefaultPrefix)))
			assert.Equal(t, strconv.FormatInt(first.Token(), 10), admin(t, n, "GET", node.BaseKey(quorumlock.DefaultPrefix)))
			n.StepClock(-36 * time.Hour) // tokens by the clocks alone would go back
		}
		time.Sleep(time.Minute)
		assert.Greater(t, acquire(t, m, "job").Token(), first.Token())
	})
}

func TestRegistersThatDisagreeAreRaisedBeforeTheGrant(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		largest := unlevel(t, c, m)
		c.Nodes()[2].Delay(50 * time.Millisecond) // so that nodes 0 and 1 are the majority
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(10 * time.Millisecond)
		began := time.Now()
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		assert.Equal(t, 40*time.Millisecond, time.Since(began), "votes and one raise")
		assert.Equal(t, largest+1, l.Token())
		for _, n := range c.Nodes()[:2] {
			assert.Equal(t, l.Token(), register(t, n))
		}
	})
}

func TestAWaiterComesNoLaterThanTheHoldersKeysEnd(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		dead := managerFor(t, c, "dead")
		acquire(t, dead, "job", quorumlock.WithoutRenewal())
		began := time.Now()
		c.Partition("dead")
		m := manager(t, c, quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }))
		time.Sleep(time.Second)
		_, err := m.Acquire(background, "job")
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(began), ttl+5*time.Millisecond)
		c.Rejoin("dead")
	})
}

// One node refuses, one hangs, one grants: the result is neither contention nor a missing
// majority. The refusing node's key is the only one with a known end.
func TestAWaiterOfASplitComesNoLaterThanTheKnownKeysEnd(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		dead := managerFor(t, c, "dead")
		acquire(t, dead, "job", quorumlock.WithoutRenewal())
		began := time.Now()
		c.Partition("dead")
		c.Nodes()[1].FlushAll()
		m := manager(t, c, quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }))
		c.Nodes()[2].Hang()
		_, err := m.Acquire(background, "job")
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(began), ttl+5*time.Millisecond)
		c.Nodes()[2].Resume()
		c.Rejoin("dead")
	})
}

func TestMisconfiguredNodesEndTheWaitAtOnce(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestLeasesThatAreDueTogetherAreRenewedInOneScript(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
		// Whatever the jitter does to their phases, 3 s have 30 windows of 100 ms. That
		// makes 30 scripts a round; single renewals would be 150.
		assert.Less(t, scripts.Load(), int64(rounds*40))
		t.Logf("%d scripts for %d renewals", scripts.Load(), rounds*leases)
	})
}

func TestASlowReaderOfEventsGetsTheLatestAndTheNumberOfMissedOnes(t *testing.T) {
	virtual(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(2)
		l := acquire(t, m, "job")
		renewed := l.Renewed()
		time.Sleep(time.Minute)
		c.Nodes()[0].FlushAll()
		<-l.Done()
		require.NoError(t, m.Close(background))
		var last quorumlock.Event
		n := 0
		for e := range events.C() {
			if _, ok := e.(quorumlock.NodeChanged); !ok {
				last = e
			}
			n++
		}
		assert.Equal(t, 2, n)
		assert.IsType(t, quorumlock.Lost{}, last)
		assert.GreaterOrEqual(t, events.Dropped(), uint64(15))
		e, open := <-renewed
		assert.True(t, open, "the latest renewal was kept")
		assert.Less(t, time.Since(e.ValidUntil), time.Duration(0))
	})
}

func TestACancelledAttemptIsReleased(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestAShortMaxHoldIsGrantedAndEnds(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job", quorumlock.WithMaxHold(500*time.Millisecond))
		began := time.Now()
		<-l.Done()
		assert.Equal(t, 500*time.Millisecond, time.Since(began))
	})
}

func TestDoReportsThatCloseEndedItsLease(t *testing.T) {
	virtual(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		err := m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			go func() { _ = m.Close(background) }()
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, quorumlock.ErrClosed)
		_, err = m.Inspect(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

func TestLeadReturnsTheErrorOfTheWorkWhenItsContextEnds(t *testing.T) {
	virtual(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		ctx, cancel := context.WithCancel(background)
		err := manager(t, c).Lead(ctx, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			cancel()
			<-ctx.Done()
			return fmt.Errorf("row 17 not written: %w", ctx.Err())
		})
		require.ErrorContains(t, err, "row 17")
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestAStrangersKeyWithoutAnEndIsNotFreeNow(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 4, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
		assert.Nil(t, admin(t, c.Nodes()[0], "ZSCORE", node.RegistersKey(quorumlock.DefaultPrefix), "quorumlock:job"),
			"the release has cancelled the acquisition, which was not sent")
	})
}

// Partitions, hangs and delays of random nodes, for minutes each. No grant ever
// contradicts the validity that another lease reports.
func TestNeverTwoValidLeasesThroughManyFaults(t *testing.T) {
	for seed, n := range []int{3, 5} {
		virtual(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			random := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
			var (
				mu     sync.Mutex
				held   *quorumlock.Lease
				last   int64
				grants int
			)
			ctx, cancel := context.WithTimeout(background, 3*time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for i := range 3 {
				client := fmt.Sprint("client-", i)
				m := managerFor(t, c, client, quorumlock.WithTTL(time.Second))
				all.Go(func() {
					for ctx.Err() == nil {
						l, err := m.Acquire(ctx, "job")
						if err != nil {
							continue
						}
						mu.Lock()
						if held != nil && held.Valid() && l.Valid() {
							assert.Fail(t, "two valid leases", "seed %d: tokens %d and %d", seed, held.Token(), l.Token())
						}
						assert.Greater(t, l.Token(), last, "seed %d", seed)
						held, last = l, l.Token()
						grants++
						hold := time.Duration(random.Int64N(int64(5 * time.Second)))
						mu.Unlock()
						select {
						case <-l.Done():
						case <-time.After(hold):
							_ = l.Release(background)
						}
					}
				})
			}
			for ctx.Err() == nil {
				mu.Lock()
				node, client := random.IntN(n), fmt.Sprint("client-", random.IntN(3))
				fault, lasts := random.IntN(5), time.Duration(random.Int64N(int64(3*time.Second)))
				mu.Unlock()
				switch fault {
				case 0:
					c.Nodes()[node].Hang()
					time.Sleep(lasts)
					c.Nodes()[node].Resume()
				case 1:
					c.Nodes()[node].CutReplies()
					time.Sleep(lasts)
					c.Nodes()[node].Heal()
				case 2:
					c.Partition(client)
					time.Sleep(lasts)
					c.Rejoin(client)
				case 3:
					c.Partition(client, node)
					time.Sleep(lasts)
					c.Rejoin(client)
				case 4:
					c.Nodes()[node].Delay(lasts / 20)
					time.Sleep(lasts)
					c.Nodes()[node].Heal()
				}
				time.Sleep(lasts / 3)
			}
			all.Wait()
			assert.Greater(t, grants, 20)
			t.Logf("n=%d seed=%d: %d grants", n, seed, grants)
		})
	}
}
