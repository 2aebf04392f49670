package quorumlocktest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

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

// A node drops a queue that no waiter asks for in a minute.
func TestAWaiterThatRarelyPollsKeepsItsPlace(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

// On four of five nodes a frozen waiter is queued before ours. They reserve the lock for
// it for its grace of four round trips, and refuse all others until then.
func TestAWaiterWithTooFewReservationsGetsTheLockWhenTheOthersHaveLapsed(t *testing.T) {
	virtual(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		for _, n := range c.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		const grace = 80 * time.Millisecond
		holder := manager(t, c)
		m := patient(t, c, holder)
		l := acquire(t, holder, "job")
		frozen := strings.Repeat("f", node.ManagerLen)
		queue := node.QueueKey(node.LockKey(quorumlock.DefaultPrefix, "job"))
		for i, option := range c.Options()[1:] {
			client := connect(t, option)
			listening, stop := context.WithCancel(background)
			defer stop()
			go func() {
				channel := node.WakeChannel(quorumlock.DefaultPrefix, frozen)
				_ = client.Receive(listening, client.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
			}()
			admin(t, c.Nodes()[1+i], "ZADD", queue, "1", frozen+"000000000000000180")
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
			waiting, _ := admin(t, n, "ZRANGE", queue, "0", "-1").([]any)
			require.Len(t, waiting, min(1+i, 2))
			ticket := waiting[len(waiting)-1].(string)
			require.Equal(t, "80", ticket[node.TicketLen:], "ms that the nodes reserve a lock for it")
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
		// One way for the release, one for the message, the grace, and a round trip.
		assert.GreaterOrEqual(t, time.Since(began), 4*10*time.Millisecond+grace)
		assert.Less(t, time.Since(began), 4*10*time.Millisecond+grace+5*time.Millisecond)
		synctest.Wait()
		require.NoError(t, next.Release(background))
	})
}
