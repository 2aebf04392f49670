package virtual

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestAFreshLeaseIsValidForExactlyItsWindow(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			l := acquire(t, manager(t, c), "job")
			assert.Equal(t, valid, l.Remaining())
			assert.True(t, l.Valid())
			time.Sleep(time.Second)
			assert.Equal(t, valid-time.Second, l.Remaining())
		})
	}
}

func TestValidityCountsFromBeforeTheSend(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestALeaseKeepsTheValuesOfItsContextAndNotItsEnd(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

func TestALockDelayKeepsSuccessorsOutAndDoesNotLengthenTheLease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job", quorumlock.WithLockDelay(4*time.Second))
		assert.Equal(t, valid, l.Remaining())
		for _, node := range c.Nodes() {
			node.CutReplies()
		}
		<-l.Lost()
		for _, node := range c.Nodes() {
			node.Heal()
		}
	})
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

// The process that lost the lease lives, and so does its watchdog, which releases the remains of a loss.
func TestALockDelayHoldsAfterALossInALivingProcess(t *testing.T) {
	const delay = 40 * time.Second
	for claim, after := range map[string]func(*testing.T, *quorumlock.Manager){
		"that goes on": func(*testing.T, *quorumlock.Manager) {},
		"that closes":  func(t *testing.T, m *quorumlock.Manager) { require.NoError(t, m.Close(background)) },
	} {
		t.Run(claim, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m, other := manager(t, c), manager(t, c)
				l := acquire(t, m, "job", quorumlock.WithLockDelay(delay), quorumlock.WithMaxHold(time.Minute))
				began := time.Now()
				lost := <-l.Lost()
				require.Equal(t, quorumlock.LostMaxHold, lost.Reason)
				after(t, m)
				next, err := other.Acquire(background, "job")
				require.NoError(t, err)
				assert.GreaterOrEqual(t, time.Since(began), time.Minute+delay)
				assert.Less(t, time.Since(began), time.Minute+delay+ttl+time.Second, "the keys end by themselves at the latest")
				assert.Greater(t, next.Token(), l.Token())
			})
		})
	}
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job", quorumlock.WithLockDelay(delay))
		require.NoError(t, l.Release(background))
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"), "a release is not delayed")
	})
}

func TestAShortMaxHoldIsGrantedAndEnds(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job", quorumlock.WithMaxHold(500*time.Millisecond))
		began := time.Now()
		<-l.Done()
		assert.Equal(t, 500*time.Millisecond, time.Since(began))
	})
}
