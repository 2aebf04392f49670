package virtual

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func permit(t *testing.T, m *quorumlock.Manager, limit int, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(background, "job", append(opts, quorumlock.Permits(limit))...)
	require.NoError(t, err)
	synctest.Wait()
	return l
}

// permits takes all permits, one caller after the other.
func permits(t *testing.T, m *quorumlock.Manager, limit int) (leases []*quorumlock.Lease) {
	t.Helper()
	for range limit {
		leases = append(leases, permit(t, m, limit))
	}
	return leases
}

// permitTo is grantTo for a permit.
func permitTo(m *quorumlock.Manager, limit int) <-chan time.Time { return permitFor(m, limit, 0) }

// permitFor keeps the permit for a while: a call that begins at the instant of the grant meets it.
func permitFor(m *quorumlock.Manager, limit int, while time.Duration) <-chan time.Time {
	granted := make(chan time.Time, 1)
	go func() {
		if l, err := m.Acquire(background, "job", quorumlock.Permits(limit)); err == nil {
			granted <- time.Now()
			time.Sleep(while)
			_ = l.Release(background)
		}
	}()
	synctest.Wait()
	return granted
}

func TestPermitsAreSlotsOfAName(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			m, other := manager(t, c), manager(t, c)
			leases := permits(t, m, 3)
			slots := map[int]bool{}
			for _, l := range leases {
				assert.Equal(t, "job", l.Name())
				assert.False(t, l.Shared())
				slots[l.Slot()] = true
			}
			assert.Equal(t, map[int]bool{0: true, 1: true, 2: true}, slots)
			_, err := other.TryAcquire(background, "job", quorumlock.Permits(3))
			var held *quorumlock.HeldError
			require.ErrorAs(t, err, &held)
			assert.Positive(t, held.RetryAfter)
			more, err := other.TryAcquire(background, "job", quorumlock.Permits(4))
			require.NoError(t, err, "with a larger limit there is one more")
			assert.Equal(t, 3, more.Slot())
			lock := acquire(t, other, "job")
			assert.Equal(t, -1, lock.Slot())
			require.NoError(t, lock.Release(background), "the lock of that name is another one")

			synctest.Wait()
			status, err := m.Inspect(background, "job", quorumlock.Permits(5))
			require.NoError(t, err)
			assert.True(t, status.Held)
			states := status.Slots
			assert.Len(t, states, 5)
			for i := range states {
				assert.Equal(t, i < 4, states[i].Held)
			}
			assert.Equal(t, leases[0].Owner(), states[leases[0].Slot()].Holder.Owner)

			time.Sleep(time.Minute) // all are renewed
			slot, token := leases[1].Slot(), leases[1].Token()
			require.NoError(t, leases[1].Verify(background))
			require.NoError(t, leases[1].Release(background))
			synctest.Wait()
			again := permit(t, other, 3)
			assert.Equal(t, slot, again.Slot(), "the only one that is free")
			assert.Greater(t, again.Token(), token, "tokens of a slot grow")
		})
	}
}

func TestAWaiterGetsTheSlotThatIsReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		leases := permits(t, m, 2)
		first := permitFor(manager(t, c), 2, time.Millisecond)
		time.Sleep(time.Millisecond) // calls of one instant may be served in any order
		second := permitFor(manager(t, c), 2, time.Millisecond)
		newcomer := manager(t, c)
		time.Sleep(5 * time.Second)
		assert.Empty(t, first)
		states := func() int {
			status, err := m.Inspect(background, "job", quorumlock.Permits(2))
			require.NoError(t, err)
			assert.Equal(t, status.Waiters, status.Slots[0].Waiters)
			return status.Waiters
		}
		assert.Equal(t, 2, states())
		released := time.Now()
		require.NoError(t, leases[1].Release(background))
		_, err := newcomer.TryAcquire(background, "job", quorumlock.Permits(2))
		require.ErrorIs(t, err, quorumlock.ErrHeld, "others wait")
		assert.NotContains(t, err.Error(), "another program", "a slot that is kept has no key")
		assert.Less(t, (<-first).Sub(released), time.Millisecond)
		assert.Less(t, (<-second).Sub(released), 50*time.Millisecond, "the first has given it back")
		time.Sleep(2 * time.Millisecond) // and so has the second
		assert.Zero(t, states())
		require.NoError(t, leases[0].Err())
	})
}

// Many callers in many processes: never more than the limit work, no two share a slot, and all get their turn.
func TestNoMoreThanTheLimitWorkAtOnce(t *testing.T) {
	for _, limit := range []int{1, 2, 10} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			var inside atomic.Int32
			slots := make([]atomic.Int32, limit)
			var callers sync.WaitGroup
			for i := range 6 {
				m := manager(t, c)
				for range 3 {
					callers.Go(func() {
						for turn := range 5 {
							err := m.Do(background, "job", func(_ context.Context, l *quorumlock.Lease) error {
								assert.LessOrEqual(t, inside.Add(1), int32(limit))
								assert.EqualValues(t, 1, slots[l.Slot()].Add(1))
								time.Sleep(time.Duration(1+(i+turn)%7) * time.Millisecond)
								slots[l.Slot()].Add(-1)
								inside.Add(-1)
								return nil
							}, quorumlock.Permits(limit))
							assert.NoError(t, err)
						}
					})
				}
			}
			callers.Wait()
			time.Sleep(time.Second)
			for _, node := range c.Nodes() {
				known, err := node.Do("ZRANGE", wire.SlotsKey(config.DefaultPrefix+"job"), "0", "-1")
				require.NoError(t, err)
				assert.Len(t, known, limit, "the slots, and no waiter that was let in")
			}
		})
	}
}

func TestASlotOfADeadHolderIsFreeWhenItsLeaseEnds(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		alive, dead := manager(t, c), managerFor(t, c, "dead")
		keeps := permit(t, alive, 2)
		lost := permit(t, dead, 2, quorumlock.WithoutRenewal())
		began := time.Now()
		c.Partition("dead")
		m := manager(t, c, quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }))
		time.Sleep(time.Second)
		l := permit(t, m, 2)
		assert.Equal(t, lost.Slot(), l.Slot())
		assert.GreaterOrEqual(t, time.Since(began), ttl-drift, "not before")
		assert.LessOrEqual(t, time.Since(began), ttl+5*time.Millisecond)
		require.ErrorIs(t, lost.Err(), quorumlock.ErrLost)
		require.NoError(t, keeps.Err())
		c.Rejoin("dead")
	})
}

// Usually that costs the grace of its right. An attempt that is under way when the right ends costs a poll.
func TestADeadWaiterForAPermitIsPassedOver(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		leases := permits(t, m, 2)
		dead := managerFor(t, c, "dead")
		first := permitTo(dead, 2)
		time.Sleep(time.Second)
		second := permitTo(manager(t, c), 2)
		time.Sleep(time.Second)
		c.Partition("dead") // it does not answer, and its connections look open
		released := time.Now()
		require.NoError(t, leases[0].Release(background))
		assert.Less(t, (<-second).Sub(released), time.Second)
		assert.Empty(t, first)
		c.Rejoin("dead")
		<-first
	})
}

func TestClientsWithDifferentLimits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		before, after := manager(t, c), manager(t, c)
		old := permits(t, before, 2)
		grown := []*quorumlock.Lease{permit(t, after, 4), permit(t, after, 4)}
		waits := permitTo(before, 2)
		require.NoError(t, grown[0].Release(background))
		time.Sleep(3 * time.Second)
		assert.Empty(t, waits, "a client stays below its own limit")
		require.NoError(t, old[1].Release(background))
		<-waits
		require.NoError(t, grown[1].Release(background))
	})
}

func TestAPermitIsALeaseLikeAnyOther(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		for limit, bad := range map[int]bool{-1: true, 0: true, 1: false, config.MaxPermits: false, config.MaxPermits + 1: true} {
			l, err := m.TryAcquire(background, "limits", quorumlock.Permits(limit))
			_, inspected := m.Inspect(background, "limits", quorumlock.Permits(limit))
			_, observed := m.Observe(t.Context(), "limits", quorumlock.Permits(limit))
			if bad {
				require.ErrorIs(t, err, quorumlock.ErrInvalid)
				require.ErrorIs(t, inspected, quorumlock.ErrInvalid)
				require.ErrorIs(t, observed, quorumlock.ErrInvalid)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, inspected)
			require.NoError(t, observed)
			require.NoError(t, l.Release(background))
			synctest.Wait()
		}
		l := permit(t, m, 1)
		_, err := l.Detach(background, time.Minute)
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		_, err = l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		require.NoError(t, l.Err(), "neither ends it")
		wanted := l.Wanted()
		granted := permitTo(other, 1)
		time.Sleep(interval * 2)
		assert.Equal(t, 1, (<-wanted).Waiters)
		require.NoError(t, l.Release(background))
		<-granted

		require.NoError(t, m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			err := m.Do(ctx, "job", func(context.Context, *quorumlock.Lease) error { return nil }, quorumlock.Permits(2))
			assert.ErrorIs(t, err, quorumlock.ErrHeld)
			return nil
		}, quorumlock.Permits(2)))
		ages := permit(t, m, 1, quorumlock.WithMaxHold(2*time.Second))
		granted = permitTo(other, 1)
		began := time.Now()
		lost := <-ages.Lost()
		assert.Equal(t, quorumlock.LostMaxHold, lost.Reason)
		assert.Less(t, (<-granted).Sub(began), 3*time.Second)

		kept := permit(t, m, 1, quorumlock.WithMinHold(3*time.Second))
		began = time.Now()
		require.NoError(t, kept.Release(background))
		assert.InDelta(t, 3*time.Second, (<-permitTo(other, 1)).Sub(began), float64(100*time.Millisecond))

		last := permit(t, m, 2)
		require.NoError(t, m.Close(background))
		require.ErrorIs(t, last.Err(), quorumlock.ErrReleased)
		assert.Equal(t, 0, holders(t, c, "job\xffp0")+holders(t, c, "job\xffp1"))
	})
}

func TestALostPermitIsReportedBeforeAnotherClientGetsTheSlot(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, other := managerFor(t, c, "holder"), manager(t, c)
		l := permit(t, holder, 1)
		granted := permitTo(other, 1)
		c.Partition("holder", 0, 1)
		lost := <-l.Lost()
		at := time.Now()
		assert.Equal(t, quorumlock.LostExpired, lost.Reason)
		assert.Empty(t, granted)
		assert.False(t, (<-granted).Before(at))
		c.Rejoin("holder")
	})
}
