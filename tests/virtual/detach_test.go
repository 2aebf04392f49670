package virtual

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestADetachedLeaseIsResumedInAnotherProcess(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		before, after, other := manager(t, c), manager(t, c, quorumlock.WithTTL(3*time.Second)), manager(t, c)
		l := acquire(t, before, "job")
		granted := grantTo(other)
		h, err := l.Detach(background, 30*time.Second)
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(string(h), "ql1."))
		assert.False(t, l.Valid())
		require.ErrorIs(t, l.Err(), quorumlock.ErrDetached)
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		require.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrDetached)
		_, open := <-l.Lost()
		assert.False(t, open, "nothing was lost")
		require.ErrorIs(t, l.Release(background), quorumlock.ErrReleased)
		require.NoError(t, before.Close(background), "its Close leaves the keys")
		time.Sleep(20 * time.Second)
		assert.Equal(t, 3, holders(t, c, "job"))
		assert.Empty(t, granted, "nobody gets the name in between")

		next, err := after.Resume(background, h)
		require.NoError(t, err)
		assert.Greater(t, next.Token(), l.Token())
		assert.NotEqual(t, l.Owner(), next.Owner())
		assert.Equal(t, "job", next.Name())
		time.Sleep(time.Minute) // it is renewed
		require.NoError(t, next.Verify(background))
		assert.Empty(t, granted)

		_, err = after.Resume(background, h)
		require.ErrorIs(t, err, quorumlock.ErrLost)
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, next.Owner(), held.Holder.Owner)
		require.ErrorIs(t, after.ReleaseHandle(background, h), quorumlock.ErrLost)
		require.NoError(t, next.Err())
		require.NoError(t, next.Release(background))
		<-granted
	})
}

func TestAHandleIsOfNoUseAfterItsKeysHaveEnded(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		granted := grantTo(manager(t, c))
		began := time.Now()
		h, err := l.Detach(background, 2*time.Second)
		require.NoError(t, err)
		assert.InDelta(t, 2*time.Second, (<-granted).Sub(began), float64(time.Second), "nobody has resumed it")
		time.Sleep(time.Second)
		assert.Equal(t, 0, holders(t, c, "job"))
		_, err = m.Resume(background, h)
		require.ErrorIs(t, err, quorumlock.ErrLost, "another may have had it since")
		assert.Equal(t, 0, holders(t, c, "job"))

		l = acquire(t, m, "job")
		h, err = l.Detach(background, time.Minute)
		require.NoError(t, err)
		require.NoError(t, m.ReleaseHandle(background, h))
		synctest.Wait() // the third node's answer
		assert.Equal(t, 0, holders(t, c, "job"))
		_, err = m.Resume(background, h)
		require.ErrorIs(t, err, quorumlock.ErrLost)
	})
}

// A node that was down comes back with the key of the old owner; the other two are a majority.
func TestAHandleIsResumedWithOneNodeDown(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		h, err := l.Detach(background, time.Minute)
		require.NoError(t, err)
		c.Hang(2)
		next, err := m.Resume(background, h)
		require.NoError(t, err)
		c.Resume(2)
		time.Sleep(ttl)
		require.NoError(t, next.Verify(background))
		_, err = m.Resume(background, h)
		require.ErrorIs(t, err, quorumlock.ErrLost)
		require.NoError(t, next.Err())
	})
}

// Copies of one handle are resumed at once. Whatever the order of their requests, exactly one caller gets the lease.
func TestOfManyThatResumeOneHandleOneGetsIt(t *testing.T) {
	rounds := testkit.Count(20, 5)
	for _, nodes := range []int{1, 3, 5} {
		run(t, nodes, func(t *testing.T, c *quorumlocktest.Cluster) {
			managers := make([]*quorumlock.Manager, 3)
			for i := range managers {
				client := string(rune('a' + i))
				managers[i] = managerFor(t, c, client)
				for k := range nodes {
					c.Distance(client, time.Duration(10*((i+k)%3))*time.Millisecond, k) // each is the first somewhere
				}
			}
			won := 0
			for range rounds {
				l := acquire(t, managers[0], "job")
				h, err := l.Detach(background, 20*time.Second)
				require.NoError(t, err)
				var all sync.WaitGroup
				got := make(chan *quorumlock.Lease, 17*len(managers))
				for _, m := range managers {
					for range 17 {
						all.Go(func() {
							l, err := m.Resume(background, h)
							if err == nil {
								got <- l
							} else {
								assert.ErrorIs(t, err, quorumlock.ErrLost)
							}
						})
					}
				}
				all.Wait()
				assert.LessOrEqual(t, len(got), 1)
				if len(got) == 1 {
					won++
					next := <-got
					assert.Greater(t, next.Token(), l.Token())
					require.NoError(t, next.Release(background))
				}
				time.Sleep(25 * time.Second)
			}
			assert.Equal(t, rounds, won, "with %d nodes", nodes)
		})
	}
}

func TestARevokedHandleIsNotResumed(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, operator := manager(t, c), manager(t, c)
		h, err := acquire(t, m, "job").Detach(background, time.Minute)
		require.NoError(t, err)
		r, err := operator.Revoke(background, "job", "")
		require.NoError(t, err)
		assert.Equal(t, 3, r.Marked)
		_, err = m.Resume(background, h)
		require.ErrorIs(t, err, quorumlock.ErrLost)
		assert.Equal(t, 3, holders(t, c, "job"), "its keys stay until then")
	})
}

// The callers of the process do not get the detached lock, and wait for it like others.
func TestACallerThatWaitsInTheProcessDoesNotGetADetachedLock(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		granted := grantTo(m)
		h, err := l.Detach(background, time.Minute)
		require.NoError(t, err)
		time.Sleep(30 * time.Second)
		assert.Empty(t, granted)
		next, err := m.Resume(background, h)
		require.NoError(t, err)
		require.NoError(t, next.Release(background))
		<-granted
	})
}

// Earlier requests of the holder must not shorten or end the detached lock.
func TestALateHealOfADetachedLeaseDeletesNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := managerFor(t, c, "holder")
		l := acquire(t, m, "job")
		do(t, c.Nodes()[2], "DEL", config.DefaultPrefix+"job")
		c.Distance("holder", 200*time.Millisecond, 2)
		renewed := make(chan error, 1)
		go func() { renewed <- l.Renew(background) }()
		time.Sleep(410 * time.Millisecond) // the heal of the third node is on its way
		h, err := l.Detach(background, time.Minute)
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.NoError(t, <-renewed, "two nodes have confirmed it")
		assert.Equal(t, 2, holders(t, c, "job"), "the third got the request to keep it too late, and has deleted what the heal has made")
		next, err := m.Resume(background, h)
		require.NoError(t, err)
		require.NoError(t, next.Release(background))
	})
}

func TestADetachThatNobodyConfirmsReleasesTheLock(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := managerFor(t, c, "holder")
		l := acquire(t, m, "job")
		c.Partition("holder", 0, 1)
		h, err := l.Detach(background, time.Minute)
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Empty(t, h)
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		c.Rejoin("holder")
		time.Sleep(2 * ttl)
		assert.Equal(t, 0, holders(t, c, "job"))
		_, err = l.Detach(background, time.Minute)
		require.ErrorIs(t, err, quorumlock.ErrReleased)
	})
}

func TestHandlesAreRefusedWithTheFix(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c, quorumlock.WithPrefix("other:"))
		guarded := manager(t, c, quorumlock.WithPrefix("guarded:"), quorumlock.WithRestartGuard(10*time.Second), quorumlock.WithTrustEmptyNodes())
		var invalid *quorumlock.InvalidError
		l := acquire(t, m, "job")
		for _, keep := range []time.Duration{-1, 0, 99 * time.Millisecond, 25 * time.Hour} {
			_, err := l.Detach(background, keep)
			require.ErrorAs(t, err, &invalid)
		}
		_, err := l.Detach(nil, time.Second) //nolint:staticcheck // that is the point
		require.ErrorAs(t, err, &invalid)
		require.NoError(t, l.Err(), "nothing has ended")
		_, err = acquire(t, guarded, "job").Detach(background, 11*time.Second)
		require.ErrorAs(t, err, &invalid)
		assert.Contains(t, invalid.Bound, "10s")
		h, err := l.Detach(background, time.Minute)
		require.NoError(t, err)
		for _, bad := range []quorumlock.Handle{"", "job", h[:len(h)-2], h + "A"} {
			_, err = m.Resume(background, bad)
			require.ErrorAs(t, err, &invalid)
			assert.NotContains(t, err.Error(), string(h[5:20]), "it is a secret")
		}
		_, err = other.Resume(background, h)
		require.ErrorAs(t, err, &invalid)
		require.ErrorAs(t, other.ReleaseHandle(background, h), &invalid)
		_, err = m.Resume(background, h, quorumlock.WithWait(time.Second))
		require.ErrorAs(t, err, &invalid)
		ended, cancel := context.WithCancel(background)
		cancel()
		_, err = m.Resume(ended, h)
		require.EqualError(t, err, `quorumlock: resume "job": context canceled`)
		require.ErrorIs(t, err, context.Canceled)
		require.EqualError(t, m.ReleaseHandle(ended, h), `quorumlock: release "job": context canceled`)
		next, err := m.Resume(background, h)
		require.NoError(t, err)
		require.NoError(t, next.Release(background))
		require.NoError(t, m.Close(background))
		_, err = m.Resume(background, h)
		require.ErrorIs(t, err, quorumlock.ErrClosed)
		require.ErrorIs(t, m.ReleaseHandle(background, h), quorumlock.ErrClosed)
	})
}

// If a function of Do has detached its lease, the function has ended it, and not Close.
func TestDoReturnsNothingForALeaseThatItsFunctionHasDetached(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		detached, goOn := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- m.Do(background, "job", func(_ context.Context, l *quorumlock.Lease) error {
				_, err := l.Detach(background, time.Minute)
				close(detached)
				<-goOn
				return err
			})
		}()
		<-detached
		closed := make(chan error, 1)
		go func() { closed <- m.Close(background) }()
		synctest.Wait()
		close(goOn)
		require.NoError(t, <-done)
		require.NoError(t, <-closed)
		assert.GreaterOrEqual(t, holders(t, c, "job"), 2, "where the acquisition had been run")
	})
}

// shows returns how many nodes show the lease's own lock.
func shows(t *testing.T, c *quorumlocktest.Cluster, l *quorumlock.Lease) (n int) {
	t.Helper()
	for _, node := range c.Nodes() {
		if value, ok := do(t, node, "GET", config.DefaultPrefix+l.Name()).(string); ok && strings.HasPrefix(value, l.Owner()+" ") {
			n++
		}
	}
	return n
}

// A node misses the request that resumes a lease, and shows the detached lock until the next renewal takes it. Then the
// same happens to another node. A third fault then has no effect.
func TestANodeThatMissesAResumeHasTheLeaseAfterTheNextRenewal(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			l := acquire(t, manager(t, c), "job")
			for missing := range 2 {
				h, err := l.Detach(background, time.Hour)
				require.NoError(t, err)
				client := string(rune('a' + missing))
				m := managerFor(t, c, client)
				c.Partition(client, missing)
				l, err = m.Resume(background, h)
				require.NoError(t, err)
				if crashes { // its requests to that node never arrive, and another client gets the name in its place
					c.Partition(client)
					time.Sleep(valid)
					require.Error(t, l.Err())
					l = acquire(t, manager(t, c), "job")
				} else {
					c.Rejoin(client)
				}
				time.Sleep(interval + interval/10 + time.Second)
				synctest.Wait()
				assert.Equal(t, 3, shows(t, c, l), "after hand-over %d", missing)
				c.Rejoin(client)
			}
			c.Hang(2)
			time.Sleep(3 * ttl)
			require.NoError(t, l.Verify(background))
			require.NoError(t, l.Release(background))
			began := time.Now()
			next := acquire(t, manager(t, c, quorumlock.WithStartupWait(time.Second)), "job")
			assert.Less(t, time.Since(began), 2*time.Second)
			require.NoError(t, next.Release(background))
			c.Resume(2)
		})
	}
}

// The lock that a node kept for a handle ends with the lease that has resumed it.
func TestALeaseThatIsResumedAndReleasedLeavesNothingWhereItWasMissed(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		h, err := acquire(t, m, "job").Detach(background, time.Hour)
		require.NoError(t, err)
		c.Hang(2)
		l, err := m.Resume(background, h)
		require.NoError(t, err)
		require.NoError(t, l.Release(background))
		time.Sleep(time.Second)
		c.Resume(2)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 0, holders(t, c, "job"))
	})
}

// A node that has not answered when the caller gives up would keep the lock after the handle was used.
func TestADetachThatIsCutShortLeavesNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Distance("far", 100*time.Millisecond, 2)
		m, other := managerFor(t, c, "far"), manager(t, c)
		for _, cut := range []time.Duration{0, 10 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond} {
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(background, cut)
			h, err := l.Detach(ctx, 10*time.Minute)
			cancel()
			if err == nil {
				require.NoError(t, other.ReleaseHandle(background, h))
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			time.Sleep(time.Second)
			assert.Zero(t, holders(t, c, "job"), "cut after %v", cut)
		}
	})
}

// The operator's revocation reaches the nodes before the holder has learnt of it.
func TestADetachOfARevokedLeaseSaysSo(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, operator := manager(t, c), manager(t, c)
		l := acquire(t, m, "job")
		_, err := operator.Revoke(background, "job", "")
		require.NoError(t, err)
		_, err = l.Detach(background, time.Minute)
		var lost *quorumlock.LostError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
		assert.ErrorContains(t, err, "lease was revoked")
		assert.NotContains(t, err.Error(), "key is missing")
	})
}
