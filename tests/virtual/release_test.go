package virtual

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// flush makes nodes forget a lock, and nothing else.
func flush(t *testing.T, c *quorumlocktest.Cluster, name string, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		do(t, c.Nodes()[i], "DEL", config.DefaultPrefix+name)
	}
}

// Another client needs a majority, so a release reports a loss only if one of the nodes had lost the lock before.
func TestAReleaseIsInVainIfAMajorityHadLostTheLock(t *testing.T) {
	for n, least := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3} {
		for gone := range n + 1 {
			run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				l := acquire(t, m, "job")
				for i := range gone {
					flush(t, c, "job", i)
				}
				err := l.Release(background)
				if gone < least {
					assert.NoError(t, err, "%d of %d", gone, n)
					assert.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
					assert.NotErrorIs(t, l.Err(), quorumlock.ErrLost)
					return
				}
				var lost *quorumlock.LostError
				require.ErrorAs(t, err, &lost, "%d of %d", gone, n)
				assert.Len(t, lost.Nodes, gone)
				assert.Equal(t, lost, l.Err())
				assert.Equal(t, err, l.Release(background), "again")
			})
		}
	}
}

// A lease with the votes of two nodes loses its majority with one of them.
func TestANodeThatNeverHadTheLockDoesNotCountAsKeepingIt(t *testing.T) {
	for gone, lost := range []bool{false, true} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			do(t, c.Nodes()[2], "SET", config.DefaultPrefix+"job", "a stranger's")
			l := acquire(t, m, "job")
			for i := range gone {
				flush(t, c, "job", i)
			}
			assert.Equal(t, lost, l.Release(background) != nil)
		})
	}
}

func TestAReleaseFindsALossForEveryKindOfLease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		permit, err := m.Acquire(background, "permit", quorumlock.Permits(2))
		require.NoError(t, err)
		reader, err := m.Acquire(background, "read", quorumlock.Shared())
		require.NoError(t, err)
		other, err := m.Acquire(background, "read", quorumlock.Shared())
		require.NoError(t, err)
		kept := acquire(t, m, "kept", quorumlock.WithMinHold(time.Minute))
		manual := acquire(t, m, "manual", quorumlock.WithoutRenewal())
		all, err := m.AcquireAll(background, []string{"a", "b"})
		require.NoError(t, err)
		synctest.Wait()
		for _, node := range c.Nodes() {
			node.FlushAll()
		}
		for _, l := range []*quorumlock.Lease{permit, reader, other, kept, manual} {
			assert.ErrorIs(t, l.Release(background), quorumlock.ErrLost, l.Name())
			assert.ErrorIs(t, l.Err(), quorumlock.ErrLost, l.Name())
		}
		require.ErrorIs(t, all.Release(background), quorumlock.ErrLost)
		assert.ErrorIs(t, all.Err(), quorumlock.ErrLost)
		_, open := <-all.Lost()
		assert.True(t, open)
	})
}

// The first copy of a release deletes the key and its answer is lost: the second finds no key.
func TestAReleaseThatIsSentAgainIsNoLoss(t *testing.T) {
	for _, n := range []int{1, 3} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			l := acquire(t, m, "job")
			for _, node := range c.Nodes() {
				node.CutReplies()
			}
			released := make(chan error, 1)
			go func() { released <- l.Release(background) }()
			synctest.Wait()
			require.Zero(t, holders(t, c, "job"), "deleted")
			for _, node := range c.Nodes() {
				node.Heal()
			}
			assert.NoError(t, <-released)
			assert.NotErrorIs(t, l.Err(), quorumlock.ErrLost)
		})
	}
}

// The release takes so long to arrive that the keys expire first.
func TestAKeyThatEndsWhileItsReleaseIsOnTheWayIsNoLoss(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithNodeTimeout(time.Second), quorumlock.WithTTL(4*time.Second))
		l := acquire(t, m, "job", quorumlock.WithoutRenewal())
		time.Sleep(l.Remaining() - 50*time.Millisecond)
		for _, node := range c.Nodes() {
			node.Delay(200 * time.Millisecond)
		}
		assert.NoError(t, l.Release(background))
		assert.NotErrorIs(t, l.Err(), quorumlock.ErrLost)
	})
}

// A lease with the votes of two nodes may have been lost, until both have answered. Another one needs only one of them.
func TestALeaseMayBeginBeforeTheEndOfTheLastOneIsKnown(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(4, quorumlock.Acquired{}, quorumlock.Released{})
		do(t, c.Nodes()[2], "SET", config.DefaultPrefix+"job", "a stranger's")
		first := acquire(t, m, "job")
		flush(t, c, "job", 2)
		c.Nodes()[1].CutReplies()
		released := make(chan error, 1)
		go func() { released <- first.Release(background) }()
		synctest.Wait()
		second := acquire(t, m, "job")
		c.Nodes()[1].Heal()
		require.NoError(t, <-released)
		for _, begun := range []*quorumlock.Lease{first, second} {
			assert.Equal(t, begun.Token(), (<-events.C()).(quorumlock.Acquired).Token)
		}
		assert.Equal(t, quorumlock.Released{Name: "job", Token: first.Token()}, <-events.C())
	})
}

// For a silent node, the holder's own knowledge counts: it had the lock.
func TestASilentNodeNeitherHidesALossNorIsOne(t *testing.T) {
	for gone, want := range map[int]error{1: nil, 2: quorumlock.ErrLost} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			l := acquire(t, m, "job")
			for i := range gone {
				flush(t, c, "job", i)
			}
			c.Nodes()[2].Cut()
			began := time.Now()
			assert.ErrorIs(t, l.Release(background), want)
			assert.Equal(t, timeout, time.Since(began), "it may have lost the lock, too")
			c.Nodes()[2].Heal()
		})
	}
}

// A lock that is passed on asks no node, so the first lease that asks finds the loss.
func TestALossIsFoundByTheFirstReleaseThatAsksTheNodes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		first, leases := acquire(t, m, "job"), make(chan *quorumlock.Lease)
		for range 2 {
			go func() {
				l, err := m.Acquire(background, "job")
				assert.NoError(t, err)
				leases <- l
			}()
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, first.Release(background))
		second := <-leases
		flush(t, c, "job", 0, 1, 2)
		require.NoError(t, second.Release(background))
		third := <-leases
		require.Equal(t, first.Owner(), third.Owner(), "it was passed on twice")
		_, open := <-second.Lost()
		require.False(t, open)
		assert.ErrorIs(t, third.Release(background), quorumlock.ErrLost)
	})
}

// waitedFor returns a lease for which another caller of its process waits, and where that caller's lease comes.
func waitedFor(t *testing.T, m *quorumlock.Manager) (*quorumlock.Lease, <-chan *quorumlock.Lease) {
	t.Helper()
	first, next := acquire(t, m, "job"), make(chan *quorumlock.Lease)
	go func() {
		l, err := m.Acquire(background, "job")
		assert.NoError(t, err)
		next <- l
	}()
	time.Sleep(100 * time.Millisecond)
	return first, next
}

// If a check asks before the lock is passed on, Release has already returned, and the lease still learns of the loss.
func TestALossThatACheckFindsIsReportedToTheLeaseThatWasReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		ends := m.Subscribe(8, quorumlock.Lost{}, quorumlock.Released{})
		first, next := waitedFor(t, m)
		flush(t, c, "job", 0, 1, 2)
		require.NoError(t, first.Release(background))
		second := <-next
		require.NotEqual(t, first.Owner(), second.Owner(), "it was not passed on")
		lost := <-first.Lost()
		assert.Len(t, lost.Nodes, 3)
		assert.ErrorIs(t, first.Err(), quorumlock.ErrLost)
		assert.Equal(t, lost, <-ends.C())
		require.NoError(t, second.Release(background))
		assert.IsType(t, quorumlock.Released{}, <-ends.C())
	})
}

// A caller of this process waits for each name, so Release asks no node itself.
func TestErrOfSeveralLeasesShowsALossThatIsFoundAfterTheirRelease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		all, err := m.AcquireAll(background, []string{"a", "b"})
		require.NoError(t, err)
		var calls sync.WaitGroup
		for _, l := range all.All() {
			calls.Go(func() {
				next, err := m.Acquire(background, l.Name())
				if assert.NoError(t, err) {
					assert.NoError(t, next.Release(background))
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		flush(t, c, "b", 0, 1, 2)
		for _, n := range c.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		require.NoError(t, all.Release(background))
		require.ErrorIs(t, all.Err(), quorumlock.ErrReleased)
		calls.Wait()
		var lost *quorumlock.LostError
		require.ErrorAs(t, all.Lease("b").Err(), &lost)
		assert.Equal(t, lost, all.Err())
		assert.Equal(t, lost, all.Release(background), "again")
		_, open := <-all.Lost()
		assert.False(t, open, "Release has closed it")
	})
}

// A renewal finds the loss before the lock is passed on or freed: its answers come first, and no node is asked again.
func TestALossThatARenewalFindsIsReportedToTheLeaseThatWasReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		ends := m.Subscribe(8, quorumlock.Lost{}, quorumlock.Released{})
		first, next := waitedFor(t, m)
		flush(t, c, "job", 0, 1)
		rival := acquire(t, other, "job")
		for _, n := range c.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		go func() { _ = first.Renew(background) }()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, first.Release(background))
		require.ErrorIs(t, first.Err(), quorumlock.ErrReleased)
		lost, open := <-first.Lost()
		assert.True(t, open)
		assert.Equal(t, quorumlock.LostTaken, lost.Reason)
		assert.Len(t, lost.Nodes, 2)
		assert.ErrorIs(t, first.Err(), quorumlock.ErrLost)
		assert.Equal(t, lost, <-ends.C())
		require.NoError(t, rival.Release(background))
		require.NoError(t, (<-next).Release(background))
	})
}

// Do returns the loss, and Lead campaigns again as after any other loss.
func TestDoAndLeadSayThatTheReleaseWasInVain(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		err := m.Do(background, "job", func(context.Context, *quorumlock.Lease) error {
			synctest.Wait() // all votes are in
			flush(t, c, "job", 0, 1)
			return assert.AnError
		})
		require.ErrorIs(t, err, quorumlock.ErrLost)
		require.ErrorIs(t, err, assert.AnError)
		var terms atomic.Int32
		require.NoError(t, m.Lead(background, "leader", func(context.Context, *quorumlock.Lease) error {
			if terms.Add(1) == 1 {
				synctest.Wait()
				flush(t, c, "leader", 0, 1, 2)
			}
			return nil
		}))
		assert.EqualValues(t, 2, terms.Load())
	})
}

// Detach reports it as well, because its handle would be useless.
func TestADetachSaysThatAMajorityHadLostTheLock(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		flush(t, c, "job", 0, 1)
		_, err := l.Detach(background, time.Minute)
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		require.ErrorIs(t, err, quorumlock.ErrLost)
		l = acquire(t, m, "other")
		flush(t, c, "other", 0)
		h, err := l.Detach(background, time.Minute)
		require.NoError(t, err)
		require.NoError(t, m.ReleaseHandle(background, h))
	})
}

// After an operator's revocation, no other client can have had the lock.
func TestAReleaseOfARevokedLeaseIsNoLoss(t *testing.T) {
	for _, hold := range []time.Duration{0, 30 * time.Second} { // the release deletes the keys, or keeps them
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			l := acquire(t, manager(t, c), "job", quorumlock.WithMinHold(hold))
			_, err := manager(t, c).Revoke(background, "job", "it hangs")
			require.NoError(t, err)
			require.NoError(t, l.Release(background))
			require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
			require.NotErrorIs(t, l.Err(), quorumlock.ErrLost)
		})
	}
}
