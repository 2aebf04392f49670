package quorumlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// lazily returns an option with which waiters poll so seldom that only a wake-up lets
// them finish in time.
func lazily() quorumlock.Option {
	return quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(30 * time.Second) })
}

// subscribe has a Manager meet contention once, and returns when all nodes can wake it.
func subscribe(t *testing.T, m *quorumlock.Manager, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		s.MustDo("SET", "quorumlock:contended", "somebody else", "PX", "60000")
	}
	before := subscribers(servers)
	ctx, cancel := context.WithCancel(background)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := m.Acquire(ctx, "contended")
		assert.ErrorIs(t, err, context.Canceled)
	}()
	eventually(t, "it is subscribed", func() bool {
		for i, n := range subscribers(servers) {
			if n <= before[i] {
				return false
			}
		}
		return true
	})
	cancel()
	<-done
}

// subscribers returns how many Managers are subscribed on each server.
func subscribers(servers []*redistest.Server) (n []int) {
	for _, s := range servers {
		channels, _ := s.MustDo("PUBSUB", "CHANNELS", "quorumlock:\xffw*").([]any)
		n = append(n, len(channels))
	}
	return n
}

// queues returns the number of waiters for the job on each server.
func queues(servers []*redistest.Server) (n []int64) {
	for _, s := range servers {
		waiting, _ := s.MustDo("ZCARD", queueKey("job")).(int64)
		n = append(n, waiting)
	}
	return n
}

// queued waits until every server has that number of waiters for the job.
func queued(t *testing.T, servers []*redistest.Server, want int) {
	t.Helper()
	var last []int64
	require.Eventually(t, func() bool {
		last = queues(servers)
		return !slices.ContainsFunc(last, func(n int64) bool { return n != int64(want) })
	}, 20*time.Second, time.Millisecond, "%d in the queue of each server", want)
}

// line has each of these Managers wait for the job, one behind the other, and hold it for
// a moment. The returned function waits for all of them, and returns the order of their
// leases.
func line(t *testing.T, managers []*quorumlock.Manager, servers []*redistest.Server) (come func() []int) {
	t.Helper()
	var mu sync.Mutex
	var order []int
	var done sync.WaitGroup
	for i, m := range managers {
		done.Go(func() {
			l, err := m.Acquire(background, "job")
			if !assert.NoError(t, err) {
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			assert.NoError(t, l.Release(background))
		})
		queued(t, servers, i+1)
		time.Sleep(10 * time.Millisecond) // longer than the error of the measured clocks
	}
	return func() []int { done.Wait(); return order }
}

// crowd returns Managers that are subscribed on the servers. They poll seldom, unless the
// options say otherwise.
func crowd(t *testing.T, servers []*redistest.Server, n int, opts ...quorumlock.Option) (all []*quorumlock.Manager) {
	t.Helper()
	for range n {
		m := connect(t, redistest.Addrs(servers), append([]quorumlock.Option{lazily()}, opts...)...)
		subscribe(t, m, servers)
		all = append(all, m)
	}
	return all
}

// An attempt without an answer when its caller gives up is not late: it may have queued.
func TestACallerThatGivesUpInAnAttemptLeavesTheQueues(t *testing.T) {
	for _, end := range []string{"context", "Close"} {
		t.Run(end, func(t *testing.T) {
			holder, servers := newManager(t, 3)
			_ = acquired(t, holder, "job")
			m := connect(t, redistest.Addrs(servers), quorumlock.WithNodeTimeout(5*time.Second), quorumlock.WithTTL(60*time.Second),
				quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(time.Millisecond) }))
			subscribe(t, m, servers)
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			gone := make(chan error)
			go func() { _, err := m.Acquire(ctx, "job"); gone <- err }()
			queued(t, servers, 1)
			for _, s := range servers {
				s.Stop()
			}
			time.Sleep(50 * time.Millisecond) // time for another attempt; the test also passes without one
			if end == "context" {
				cancel()
				require.ErrorIs(t, <-gone, context.Canceled)
			}
			time.AfterFunc(100*time.Millisecond, func() {
				for _, s := range servers {
					s.Continue()
				}
			})
			if end == "Close" {
				require.NoError(t, m.Close(background))
				require.ErrorIs(t, <-gone, quorumlock.ErrClosed)
			}
			queued(t, servers, 0)
		})
	}
}

func TestWaitersAreGrantedInTheOrderOfTheirCalls(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			m, servers := newManager(t, n)
			managers := crowd(t, servers, 6)
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			come := line(t, managers, servers)
			state, err := managers[0].Inspect(background, "job")
			require.NoError(t, err)
			assert.Equal(t, 6, state.Waiters)
			begun := time.Now()
			require.NoError(t, l.Release(background))
			assert.Equal(t, []int{0, 1, 2, 3, 4, 5}, come())
			assert.Less(t, time.Since(begun), 5*time.Second, "long before they would have polled, at the end of the TTL")
			queued(t, servers, 0)
		})
	}
}

func TestAWaiterThatGivesUpLeavesNothingBehind(t *testing.T) {
	m, servers := newManager(t, 3)
	managers := crowd(t, servers, 2)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error, 1)
	go func() { _, err := managers[0].Acquire(ctx, "job"); gone <- err }()
	queued(t, servers, 1)
	cancel()
	assert.ErrorIs(t, <-gone, context.Canceled)
	queued(t, servers, 0)
	come := line(t, managers[1:], servers)
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0}, come())
	eventually(t, "registers and the hint alone are left", func() bool { return len(keysBut(t, servers, registersKey, hintKey, "contended")) == 0 })
}

// keysBut returns the keys of the servers that have none of these texts.
func keysBut(t *testing.T, servers []*redistest.Server, texts ...string) []string {
	t.Helper()
	return slices.DeleteFunc(keys(t, servers), func(key string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(key, text) })
	})
}

func TestTryAcquireDoesNotOvertakeWaiters(t *testing.T) {
	m, servers := newManager(t, 1)
	servers[0].MustDo("ZADD", queueKey("job"), "1", strings.Repeat("a", 32)+"200")
	servers[0].MustDo("SET", hintKey, "1")
	l, err := m.TryAcquire(background, "job")
	require.NoError(t, err, "no client is subscribed for that ticket")
	require.NoError(t, l.Release(background))

	managers := crowd(t, servers, 1)
	l, err = m.Acquire(background, "job")
	require.NoError(t, err)
	come := line(t, managers, servers)
	released := make(chan error, 1)
	go func() { released <- l.Release(background) }()
	for ended := false; !ended; { // an attempt in between does not get the lock before the waiter
		select {
		case err := <-released:
			require.NoError(t, err)
			ended = true
		default:
		}
		if l, err := m.TryAcquire(background, "job"); err == nil {
			assert.Equal(t, []int{0}, come(), "only behind the waiter")
			require.NoError(t, l.Release(background))
		} else {
			require.ErrorIs(t, err, quorumlock.ErrHeld)
		}
	}
	come()
}

// A frozen process is still connected, so the servers count it as a subscriber.
func TestAWaiterThatIsFrozenCostsItsGraceAndNoMore(t *testing.T) {
	m, servers := newManager(t, 3)
	proxies, addrs := proxied(t, servers)
	frozen := connect(t, addrs, lazily())
	subscribe(t, frozen, servers)
	managers := append([]*quorumlock.Manager{frozen}, crowd(t, servers, 1)...)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error, 1)
	go func() { _, err := frozen.Acquire(ctx, "job"); gone <- err }()
	queued(t, servers, 1)
	came := make(chan time.Time, 1)
	go func() {
		l, err := managers[1].Acquire(background, "job")
		assert.NoError(t, err)
		came <- time.Now()
		assert.NoError(t, l.Release(background))
	}()
	queued(t, servers, 2)
	for _, p := range proxies {
		p.Swallow()
	}
	released := time.Now()
	require.NoError(t, l.Release(background))
	assert.Less(t, (<-came).Sub(released), 2*time.Second, "far less than the next poll")
	for _, p := range proxies {
		p.Heal()
	}
	cancel()
	assert.ErrorIs(t, <-gone, context.Canceled)
}

func TestAWaiterThatLosesItsSubscriptionIsGrantedTheLockAnyway(t *testing.T) {
	m, servers := newManager(t, 3)
	managers := crowd(t, servers, 3)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	come := line(t, managers, servers)
	for _, s := range servers {
		s.MustDo("CLIENT", "KILL", "TYPE", "pubsub")
	}
	begun := time.Now()
	require.NoError(t, l.Release(background))
	assert.Len(t, come(), 3)
	assert.Less(t, time.Since(begun), 5*time.Second, "long before they would have polled")
}

// A waiter has the lease from a majority when the last node wakes it. That wake-up is one
// more vote; the lock must not stay reserved.
func TestANodeThatWakesLateVotesToo(t *testing.T) {
	servers := redistest.Start(t, 3)
	proxy := redistest.NewProxy(t, servers[2].Addr())
	holder := connect(t, []string{servers[0].Addr(), servers[1].Addr(), proxy.Addr()}, quorumlock.WithTTL(5*time.Minute))
	managers := crowd(t, servers, 1, quorumlock.WithTTL(5*time.Minute))
	l, err := holder.Acquire(background, "job")
	require.NoError(t, err)
	eventually(t, "all votes are in", func() bool { return locks(t, servers, "job") == 3 })
	got := make(chan *quorumlock.Lease, 1)
	go func() {
		l, err := managers[0].Acquire(background, "job")
		assert.NoError(t, err)
		got <- l
	}()
	queued(t, servers, 1)
	proxy.Swallow()
	require.NoError(t, l.Release(background), "a quorum has confirmed")
	next := <-got
	state, err := managers[0].Inspect(background, "job")
	require.NoError(t, err)
	assert.Equal(t, 2, state.Votes)
	proxy.Heal()
	eventually(t, "the third vote, long before the renewal at a third of the TTL", func() bool {
		state, err := managers[0].Inspect(background, "job")
		return err == nil && state.Votes == 3
	})
	require.NoError(t, next.Release(background))
	queued(t, servers, 0)
}

func TestAHolderGetsALostNodeBackAlthoughOthersWait(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(3*time.Second))
	managers := crowd(t, servers, 3, quorumlock.WithTTL(3*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	eventually(t, "all votes are in", func() bool { return locks(t, servers, "job") == 3 })
	come := line(t, managers, servers)
	servers[2].MustDo("DEL", "quorumlock:job")
	eventually(t, "healed", func() bool {
		value, _ := servers[2].MustDo("GET", "quorumlock:job").(string)
		return strings.HasPrefix(value, l.Owner()+" ")
	})
	require.NoError(t, l.Err())
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0, 1, 2}, come())
}

// A waiter behind others polls rarely, so that many waiters cost the nodes little.
func TestAQueueOfWaitersHardlyPolls(t *testing.T) {
	m, servers := newManager(t, 3)
	asked := &counting{}
	managers := crowd(t, servers, 8, quorumlock.WithRetryBackoff(asked.retry))
	l, err := m.Acquire(background, "job", quorumlock.WithTTL(30*time.Second))
	require.NoError(t, err)
	come := line(t, managers, servers)
	before := asked.Load()
	for _, s := range servers {
		s.MustDo("CONFIG", "RESETSTAT")
	}
	time.Sleep(time.Second)
	// The first waiter polls after 50 ms at the earliest, the second after 100 ms, and so
	// on: 54 polls in all. Without queues, backoffs that start anew poll 8 × 20 times.
	n := asked.Load() - before
	assert.Less(t, n, int64(100))
	for _, s := range servers {
		// The attempt, its release if the caller did not wait for the answer, and the
		// requests in flight at both ends.
		assert.LessOrEqual(t, int64(scriptCalls(t, s)), 2*n+2*int64(len(managers)))
	}
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, come())
}

// counting counts failed attempts. Its backoff starts at 10 ms and ends at 500 ms.
type counting struct{ atomic.Int64 }

func (c *counting) retry() backoff.BackOff {
	return counted{backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0)), c}
}

type counted struct {
	backoff.BackOff
	by *counting
}

func (c counted) NextBackOff() time.Duration {
	c.by.Add(1)
	return c.BackOff.NextBackOff()
}

func TestAManagerThatNeverMeetsContentionNeedsOneConnection(t *testing.T) {
	m, servers := newManager(t, 1)
	for range 10 {
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		require.NoError(t, l.Release(background))
	}
	assert.Equal(t, []int{0}, subscribers(servers))
}

// Queues need no tokens: without fencing there are no registers, and waiters are woken
// anyway.
func TestWithoutFencingThereAreQueuesAndNoRegisters(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithoutFencing())
	managers := crowd(t, servers, 4, quorumlock.WithoutFencing())
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	assert.Zero(t, l.Token())
	come := line(t, managers, servers)
	begun := time.Now()
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0, 1, 2, 3}, come())
	assert.Less(t, time.Since(begun), 5*time.Second, "long before they would have polled")
	eventually(t, "the hint alone is left", func() bool { return len(keysBut(t, servers, hintKey, "contended")) == 0 })
}

func TestCloseEndsWaitersAndRemovesTheirTickets(t *testing.T) {
	m, servers := newManager(t, 3)
	other, err := quorumlock.New(background, quorumlock.Addrs(redistest.Addrs(servers)...), lazily())
	require.NoError(t, err)
	subscribe(t, other, servers)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	gone := make(chan error, 1)
	go func() { _, err := other.Acquire(background, "job"); gone <- err }()
	queued(t, servers, 1)
	require.NoError(t, other.Close(background))
	assert.ErrorIs(t, <-gone, quorumlock.ErrClosed)
	assert.Equal(t, []int64{0, 0, 0}, queues(servers))
	require.NoError(t, l.Release(background))
}
