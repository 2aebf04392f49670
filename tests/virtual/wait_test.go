package virtual

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestWithWaitBoundsTheWaitAndNotTheWork(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, other, "job")
		for range 2 { // alone, and then in the queue of the process
			began := time.Now()
			_, err := m.Acquire(background, "job", quorumlock.WithWait(3*time.Second))
			require.ErrorIs(t, err, quorumlock.ErrHeld)
			var held *quorumlock.HeldError
			require.ErrorAs(t, err, &held)
			assert.Equal(t, l.Owner(), held.Holder.Owner)
			assert.NotErrorIs(t, err, context.DeadlineExceeded, "no context has ended")
			assert.Regexp(t, `; waited 3(\.\d+)?s$`, err.Error())
			assert.InDelta(t, 3*time.Second, time.Since(began), float64(100*time.Millisecond))
		}
		began := time.Now()
		_, err := m.Acquire(background, "job", quorumlock.WithWait(0))
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.Less(t, time.Since(began), 10*time.Millisecond, "WithWait(0) asks once")

		_, err = m.Acquire(background, "job", quorumlock.WithWait(-time.Second))
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		_, err = m.TryAcquire(background, "job", quorumlock.WithWait(time.Second))
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		require.NoError(t, l.Release(background))

		require.NoError(t, m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			time.Sleep(time.Minute)
			_, bounded := ctx.Deadline()
			assert.False(t, bounded)
			return ctx.Err()
		}, quorumlock.WithWait(time.Second)))

		for _, n := range c.Nodes()[:2] {
			n.Kill()
		}
		_, err = m.Acquire(background, "job", quorumlock.WithWait(time.Second))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	})
}

// patient returns a Manager that polls once an hour. It has met contention once, so it is
// subscribed.
func patient(t *testing.T, c *quorumlocktest.Cluster, holder *quorumlock.Manager) *quorumlock.Manager {
	t.Helper()
	m := manager(t, c, quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }))
	other := acquire(t, holder, "contended")
	ctx, cancel := context.WithTimeout(background, time.Second)
	defer cancel()
	_, err := m.Acquire(ctx, "contended")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, other.Release(background))
	return m
}

// A node drops a queue that no waiter has asked about for a minute.
func TestAWaiterThatRarelyPollsKeepsItsPlace(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder := manager(t, c)
		m := patient(t, c, holder)
		l := acquire(t, holder, "job", quorumlock.WithTTL(2*time.Hour), quorumlock.WithoutRenewal())
		got := make(chan time.Time, 1)
		go func() {
			l, err := m.Acquire(background, "job")
			assert.NoError(t, err)
			got <- time.Now()
			assert.NoError(t, l.Release(background))
		}()
		time.Sleep(10 * time.Minute)
		released := time.Now()
		require.NoError(t, l.Release(background))
		assert.Less(t, (<-got).Sub(released), 5*time.Millisecond)
		synctest.Wait()
	})
}

// On four of five nodes a frozen waiter is queued before ours. They reserve the lock for it for its grace of four round
// trips, and refuse all others until then.
func TestAWaiterWithTooFewReservationsGetsTheLockWhenTheOthersHaveLapsed(t *testing.T) {
	run(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		for _, n := range c.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		c.Nodes()[0].Delay(9 * time.Millisecond) // so that its refusal is among the first, on which an attempt ends
		const grace = 80 * time.Millisecond
		holder := manager(t, c)
		m := patient(t, c, holder)
		l := acquire(t, holder, "job")
		frozen := strings.Repeat("f", wire.ManagerLen)
		queue := wire.QueueKey(wire.LockKey(config.DefaultPrefix, "job"))
		for i, option := range c.Options()[1:] {
			client, err := rueidis.NewClient(option)
			require.NoError(t, err)
			t.Cleanup(client.Close)
			listening, stop := context.WithCancel(background)
			defer stop()
			go func() {
				channel := wire.WakeChannel(config.DefaultPrefix, frozen)
				_ = client.Receive(listening, client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
			}()
			do(t, c.Nodes()[1+i], "ZADD", queue, "1", frozen+"000000000000000180")
		}

		got := make(chan *quorumlock.Lease, 1)
		go func() {
			l, err := m.Acquire(background, "job")
			assert.NoError(t, err)
			got <- l
		}()
		time.Sleep(100 * time.Millisecond)
		asked := make([]int, 5)
		for i, n := range c.Nodes() {
			waiting, _ := do(t, n, "ZRANGE", queue, "0", "-1").([]any)
			require.Len(t, waiting, min(1+i, 2))
			ticket := waiting[len(waiting)-1].(string)
			require.Equal(t, "80", ticket[wire.TicketLen:], "ms that the nodes reserve a lock for it")
			n.Fail(func(args []string) bool {
				if args[0] == "EVALSHA" && slices.Contains(args, "wait") && slices.Contains(args, ticket) {
					asked[i]++
				}
				return false
			}, "")
		}
		began := time.Now()
		require.NoError(t, l.Release(background))
		next := <-got
		for _, n := range c.Nodes() {
			n.Fail(nil, "") // from here on asked is no longer written
		}
		assert.Equal(t, []int{2, 2, 2, 2, 2}, asked, "once with its one reservation, and once when the others have lapsed")
		// One delay for the release, one for the message, the grace, and a round trip.
		assert.GreaterOrEqual(t, time.Since(began), 4*10*time.Millisecond+grace)
		assert.Less(t, time.Since(began), 4*10*time.Millisecond+grace+5*time.Millisecond)
		synctest.Wait()
		require.NoError(t, next.Release(background))
	})
}

func TestAWaiterComesNoLaterThanTheHoldersKeysEnd(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

// One node refuses, one hangs, one grants: the result is neither contention nor a missing majority. Only the refusing
// node's key has a known end.
func TestAWaiterOfASplitComesNoLaterThanTheKnownKeysEnd(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

// Its first attempt meets no holder, because no node answers it. A later attempt is refused.
func TestAWaiterThatFoundNoNodeAtFirstIsWokenAllTheSame(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder := manager(t, c)
		held := acquire(t, holder, "job")
		options := c.OptionsFor("late")
		m, err := quorumlock.New(background, options, quorumlock.WithTTL(ttl),
			quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(3 * time.Second) }))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close(background)) })
		c.Partition("late")
		got := make(chan time.Time, 1)
		go func() {
			l, err := m.Acquire(background, "job")
			assert.NoError(t, err)
			got <- time.Now()
			assert.NoError(t, l.Release(background))
		}()
		time.Sleep(2 * time.Second)
		c.Rejoin("late")
		time.Sleep(3 * time.Second) // it has asked again, and was refused
		released := time.Now()
		require.NoError(t, held.Release(background))
		assert.Less(t, (<-got).Sub(released), 100*time.Millisecond, "woken, and not by its poll")
	})
}

// The grant removed the caller's queue, because it had no waiters.
func TestACallerBehindALeaseThatNobodyContestedGetsItFromTheHolder(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		other := manager(t, c)
		m := patient(t, c, other) // it has met contention
		var asked atomic.Int32    // each node counts in a goroutine of its own
		for _, n := range c.Nodes() {
			n.Fail(func(args []string) bool {
				if args[0] == "EVALSHA" && (slices.Contains(args, "wait") || slices.Contains(args, "acquire")) {
					asked.Add(1)
				}
				return false
			}, "")
		}
		for range 3 { // the second time, the queue has existed before
			first := acquire(t, m, "job")
			asked.Store(0)
			got := make(chan *quorumlock.Lease, 1)
			go func() {
				l, err := m.Acquire(background, "job")
				assert.NoError(t, err)
				got <- l
			}()
			time.Sleep(100 * time.Millisecond) // a lease is passed on within 250 ms of its grant
			synctest.Wait()
			require.Empty(t, got)
			began := time.Now()
			require.NoError(t, first.Release(background))
			second := <-got
			assert.Less(t, time.Since(began), time.Millisecond)
			assert.Greater(t, second.Token(), first.Token())
			assert.Zero(t, asked.Load(), "it waits behind the lease, and gets it from there")
			require.NoError(t, second.Release(background))
			time.Sleep(time.Minute)
		}
	})
}

// A node without the keys grants each waiter, and the others refuse it. The waiter gives the lock back, and the node
// then reserves it for the head of its queue. That must not be a reason to ask again. (It was one: in these 10 s each
// node ran 3,700 scripts for 8 waiters, 9,400 for 8 readers and 11,500 for 8 waiters for four permits.)
func TestWaitersLeaveANodeAloneThatTheLeaseDoesNotNeed(t *testing.T) {
	exclusive, shared, permit := quorumlock.Kind{}, quorumlock.Shared(), quorumlock.Permits
	for _, kind := range []struct {
		holders    int
		hold, wait quorumlock.Kind
	}{{1, exclusive, exclusive}, {1, exclusive, shared}, {1, permit(1), permit(1)}, {4, permit(4), permit(4)}} {
		for _, waiters := range []int{1, 8} {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				for range kind.holders {
					l, err := manager(t, c).Acquire(background, "job", kind.hold, quorumlock.WithTTL(time.Minute), quorumlock.WithoutRenewal())
					require.NoError(t, err)
					defer release(t, l)
				}
				c.Nodes()[2].FlushAll()
				ctx, stop := context.WithCancel(background)
				var gone sync.WaitGroup
				for range waiters {
					m := manager(t, c)
					gone.Go(func() {
						_, err := m.Acquire(ctx, "job", kind.wait)
						assert.ErrorIs(t, err, context.Canceled)
					})
				}
				time.Sleep(5 * time.Second)
				var asked atomic.Int32 // each node counts in a goroutine of its own
				for _, n := range c.Nodes() {
					n.Fail(func(args []string) bool {
						if args[0] == "EVALSHA" {
							asked.Add(1)
						}
						return false
					}, "")
				}
				time.Sleep(10 * time.Second)
				assert.Less(t, asked.Load()/3, int32(100+10*waiters), "scripts a node in 10 s")
				stop()
				gone.Wait()
			})
		}
	}
}
