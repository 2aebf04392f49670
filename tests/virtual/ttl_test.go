package virtual

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// validFor is how long a lease with a TTL is valid after a round that took no time.
func validFor(ttl time.Duration) time.Duration {
	return ttl - quorum.Drift(ttl, 0.01) - quorum.SafetyMargin(ttl)
}

// seen returns how long the lock remains held by what other clients see.
func seen(t *testing.T, m *quorumlock.Manager, name string) time.Duration {
	t.Helper()
	s, err := m.Inspect(background, name)
	require.NoError(t, err)
	require.True(t, s.Held)
	return s.TTL
}

func TestALongerTTLHoldsFromItsRoundOn(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const longer = 90 * time.Second
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, m, "job")
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(longer)))
		synctest.Wait() // every node has answered
		assert.Equal(t, validFor(longer), l.Remaining())
		e := <-l.Renewed()
		assert.Equal(t, validFor(longer), time.Until(e.ValidUntil))
		assert.InDelta(t, longer, seen(t, other, "job"), float64(2*time.Millisecond), "what waiters see")
		<-l.Renewed() // this round was due with the shorter TTL
		last := time.Now()
		for range 3 {
			e = <-l.Renewed()
			assert.GreaterOrEqual(t, time.Since(last), longer/3*9/10, "renewals at the pace of the longer TTL")
			assert.Equal(t, validFor(longer), time.Until(e.ValidUntil))
			assert.Equal(t, 1, e.Margin)
			last = time.Now()
		}
		c.Hang()
		<-l.Lost()
		assert.Equal(t, validFor(longer)-early, time.Since(last))
		c.Resume()
	})
}

func TestAShorterTTLHoldsFromItsRoundOn(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const shorter = 3 * time.Second
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, m, "job")
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(shorter)))
		assert.Equal(t, validFor(shorter), l.Remaining())
		synctest.Wait()
		assert.InDelta(t, shorter, seen(t, other, "job"), float64(2*time.Millisecond), "what waiters see")
		<-l.Renewed()
		last := time.Now()
		for range 5 {
			e := <-l.Renewed()
			assert.LessOrEqual(t, time.Since(last), shorter/3*11/10, "renewals at the pace of the shorter TTL")
			assert.Equal(t, validFor(shorter), time.Until(e.ValidUntil))
			last = time.Now()
		}
		c.Hang()
		<-l.Lost()
		assert.Equal(t, validFor(shorter)-early, time.Since(last))
		c.Resume()
	})
}

// The requests with a shorter TTL reach all nodes, or some, or none, and no answer comes back. Another client gets the
// lock when the keys of a majority expire, and the holder knows that before.
func TestAShorterTTLCountsBeforeItsRequestsAreSent(t *testing.T) {
	for _, arrive := range []int{0, 1, 2, 3} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			const longer, shorter = 90 * time.Second, 3 * time.Second
			m, other := managerFor(t, c, "holder", quorumlock.WithTTL(longer)), managerFor(t, c, "other")
			l := acquire(t, m, "job", quorumlock.WithoutRenewal())
			for i, n := range c.Nodes() {
				if i < arrive {
					n.CutReplies()
				} else {
					c.Partition("holder", i)
				}
			}
			began := time.Now()
			renewal := make(chan error, 1)
			go func() { renewal <- l.Renew(background, quorumlock.WithTTL(shorter)) }()
			synctest.Wait() // the requests have arrived
			assert.Equal(t, validFor(shorter), l.Remaining(), "before any answer")
			c.Partition("holder")
			c.Heal()
			require.ErrorIs(t, <-renewal, quorumlock.ErrNoQuorum)
			granted := make(chan *quorumlock.Lease, 1)
			go func() {
				next, err := other.Acquire(background, "job")
				assert.NoError(t, err)
				granted <- next
			}()
			lost := <-l.Lost()
			assert.Empty(t, granted, "the holder knows first")
			assert.Equal(t, quorumlock.LostExpired, lost.Reason)
			assert.Equal(t, validFor(shorter)-early, time.Since(began))
			next := <-granted
			assert.Greater(t, next.Token(), l.Token())
			if after := time.Since(began); arrive >= 2 {
				assert.InDelta(t, shorter, after, float64(time.Second), "the keys of a majority had the shorter TTL")
			} else {
				assert.GreaterOrEqual(t, after, longer-time.Second, "the keys of a majority had the longer TTL")
			}
			c.Rejoin("holder")
		})
	}
}

func TestALongerTTLNeedsAMajorityOfOneRound(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const longer = 90 * time.Second
		l := acquire(t, manager(t, c), "job")
		c.Hang(1, 2)
		require.ErrorIs(t, l.Renew(background, quorumlock.WithTTL(longer)), quorumlock.ErrNoQuorum)
		assert.Equal(t, valid-timeout, l.Remaining(), "one node has the longer TTL")
		assert.Equal(t, 1, (<-l.AtRisk()).Confirmed)
		at := time.Now()
		c.Resume(1) // the next round asks for the longer TTL as well, at the pace of the shorter one
		e := <-l.Renewed()
		assert.Less(t, time.Since(at), interval)
		assert.Equal(t, validFor(longer), time.Until(e.ValidUntil))
		c.Resume(2)
	})
}

func TestAnEarlierRenewalDoesNotTakeALongerTTLAway(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const longer = 90 * time.Second
		m := manager(t, c)
		l, events := acquire(t, m, "job"), m.Subscribe(1000)
		c.Cut(0, 1)
		<-l.AtRisk()
		time.Sleep(2 * time.Second) // the connections are given up
		c.Heal(0, 1)
		awaitVotes(events, 0, 1)
		require.NoError(t, l.Renew(background))
		err := l.Renew(background, quorumlock.WithTTL(longer))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum, "a renewal may still be on its way over the connections from before")
		require.ErrorContains(t, err, "reconnected: an earlier renewal with a shorter TTL may still run after this one")
		assert.Equal(t, valid, l.Remaining())
		began := time.Now()
		for l.Remaining() < 2*ttl {
			require.NoError(t, l.Err())
			time.Sleep(time.Second)
		}
		assert.Less(t, time.Since(began), 2*ttl)
	})
}

func TestATTLOutOfItsBoundsRenewsNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithRestartGuard(20*time.Second), quorumlock.WithTrustEmptyNodes())
		l := acquire(t, m, "job", quorumlock.WithoutRenewal(), quorumlock.WithLockDelay(2*time.Second))
		at := time.Now()
		time.Sleep(time.Second)
		for d, bound := range map[time.Duration]string{
			0:                        "100ms",
			-time.Second:             "100ms",
			99 * time.Millisecond:    "100ms",
			25 * time.Hour:           "24h0m0s",
			time.Second + 1:          "whole milliseconds",
			18001 * time.Millisecond: "WithRestartGuard's 20s",
		} {
			var invalid *quorumlock.InvalidError
			err := l.Renew(background, quorumlock.WithTTL(d))
			require.ErrorAs(t, err, &invalid)
			require.ErrorIs(t, err, quorumlock.ErrInvalid)
			assert.Equal(t, "WithTTL", invalid.What)
			require.ErrorContains(t, err, bound)
		}
		assert.Equal(t, valid-time.Since(at), l.Remaining())
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(18*time.Second)), "the guard covers it, with the lock delay")
		assert.Equal(t, validFor(18*time.Second), l.Remaining())
		require.NoError(t, l.Renew(background, nil))
		assert.Equal(t, validFor(18*time.Second), l.Remaining(), "without an option the TTL stays")
	})
}

func TestConcurrentRenewalsWithDifferentTTLsEndWithTheLast(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		for _, n := range c.Nodes() {
			n.Delay(40 * time.Millisecond)
		}
		var all sync.WaitGroup
		for i, d := range []time.Duration{60 * time.Second, 3 * time.Second, 30 * time.Second, 3 * time.Second, 20 * time.Second} {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				assert.NoError(t, l.Renew(background, quorumlock.WithTTL(d)))
			})
		}
		all.Wait()
		assert.Greater(t, l.Remaining(), validFor(20*time.Second)-timeout)
		assert.LessOrEqual(t, l.Remaining(), validFor(20*time.Second))
		for _, n := range c.Nodes() {
			n.Delay(0)
		}
		require.NoError(t, l.Renew(background))
		assert.Equal(t, validFor(20*time.Second), l.Remaining())
		select {
		case e := <-l.AtRisk():
			t.Errorf("a reported risk that does not exist: %+v", e)
		default:
		}
	})
}

func TestEveryKindOfLeaseGetsAnotherTTL(t *testing.T) {
	for _, another := range []time.Duration{3 * time.Second, 90 * time.Second} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m, other := manager(t, c), manager(t, c)
			reader := acquire(t, m, "shared", quorumlock.Shared())
			permit := acquire(t, m, "permits", quorumlock.Permits(3))
			both, err := m.AcquireAll(background, []string{"a", "b"})
			require.NoError(t, err)
			synctest.Wait()
			for _, l := range append(both.All(), reader, permit) {
				require.NoError(t, l.Renew(background, quorumlock.WithTTL(another)), l.Name())
				assert.Equal(t, validFor(another), l.Remaining(), l.Name())
			}
			synctest.Wait()
			assert.Equal(t, validFor(another), both.Remaining())
			assert.InDelta(t, another, seen(t, other, "a"), float64(2*time.Millisecond))
			time.Sleep(another + 5*time.Second)
			for _, l := range append(both.All(), reader, permit) {
				require.NoError(t, l.Err(), l.Name())
			}
			require.NoError(t, reader.Release(background))
			require.NoError(t, permit.Release(background))
			require.NoError(t, both.Release(background))
			for _, name := range []string{"shared", "permits", "a", "b"} {
				require.NoError(t, acquire(t, other, name).Release(background), name)
			}
		})
	}
}

// A shared lease with a shorter TTL bars a writer for no longer than that TTL after its process has died.
func TestAReaderWithAShorterTTLBarsAWriterForThat(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const shorter = 3 * time.Second
		m, other := managerFor(t, c, "reader", quorumlock.WithTTL(time.Hour)), manager(t, c)
		l := acquire(t, m, "job", quorumlock.Shared())
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(shorter)))
		synctest.Wait()
		c.Partition("reader")
		at := time.Now()
		require.NoError(t, acquire(t, other, "job").Release(background))
		assert.InDelta(t, shorter, time.Since(at), float64(time.Second))
		require.ErrorIs(t, l.Err(), quorumlock.ErrLost)
		c.Rejoin("reader")
	})
}

func TestATTLEndsWithItsLease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const longer = 90 * time.Second
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, m, "job")
		waiting := make(chan *quorumlock.Lease, 1)
		go func() {
			next, err := m.Acquire(background, "job")
			assert.NoError(t, err)
			waiting <- next
		}()
		synctest.Wait()
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(longer)))
		synctest.Wait()
		require.NoError(t, l.Release(background))
		next := <-waiting
		synctest.Wait()
		assert.NotEqual(t, l.Owner(), next.Owner(), "the lock is not passed on: its keys have another TTL")
		assert.Equal(t, valid, next.Remaining())
		require.NoError(t, next.Renew(background, quorumlock.WithTTL(longer)))
		h, err := next.Detach(background, 20*time.Second)
		require.NoError(t, err)
		resumed, err := other.Resume(background, h)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, valid, resumed.Remaining())
		require.NoError(t, resumed.Renew(background, quorumlock.WithTTL(longer)))
		reader, err := resumed.Downgrade(background)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, validFor(longer), reader.Remaining(), "the same options")
		require.NoError(t, reader.Release(background))
	})
}

func TestWorkMayGetALongerTTL(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		require.NoError(t, m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
			err := l.Renew(ctx, quorumlock.WithTTL(10*time.Minute))
			c.Hang()
			time.Sleep(5 * time.Minute)
			c.Resume()
			return errors.Join(err, ctx.Err(), l.Err())
		}))
	})
}

// A node that receives a release late may still have the key with the longer TTL.
func TestALateReleaseDeletesKeysOfTheLongerTTL(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const longer, shorter = time.Hour, 3 * time.Second
		l := acquire(t, manager(t, c, quorumlock.WithTTL(longer)), "job")
		c.Cut(2)
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(shorter)))
		require.NoError(t, l.Release(background))
		time.Sleep(time.Minute)
		assert.Equal(t, 1, holders(t, c, "job"))
		c.Heal(2)
		time.Sleep(20 * time.Second) // the client connects to the node again
		assert.Zero(t, holders(t, c, "job"))
	})
}

func TestAHealHasTheTTLOfTheLease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const longer = 90 * time.Second
		l := acquire(t, manager(t, c), "job")
		require.NoError(t, l.Renew(background, quorumlock.WithTTL(longer)))
		c.Nodes()[1].FlushAll()
		time.Sleep(2 * interval)
		require.NoError(t, l.Renew(background))
		synctest.Wait()
		assert.Equal(t, 3, holders(t, c, "job"))
		assert.Greater(t, do(t, c.Nodes()[1], "PTTL", config.DefaultPrefix+"job"), (longer - 3*interval).Milliseconds())
	})
}
