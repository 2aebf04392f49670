package integration

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

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
		testkit.Queued(t, servers, i+1)
		time.Sleep(10 * time.Millisecond) // longer than the error of the measured clocks
	}
	return func() []int { done.Wait(); return order }
}

func TestWaitersAreGrantedInTheOrderOfTheirCalls(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			m, servers := testkit.Manager(t, n)
			managers := testkit.Crowd(t, servers, 6)
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
			testkit.Queued(t, servers, 0)
		})
	}
}

func TestAWaiterThatGivesUpLeavesNothingBehind(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	managers := testkit.Crowd(t, servers, 2)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error, 1)
	go func() { _, err := managers[0].Acquire(ctx, "job"); gone <- err }()
	testkit.Queued(t, servers, 1)
	cancel()
	assert.ErrorIs(t, <-gone, context.Canceled)
	testkit.Queued(t, servers, 0)
	come := line(t, managers[1:], servers)
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0}, come())
	testkit.Eventually(t, "registers, the hint, the marker and the lists alone are left", func() bool {
		return len(keysBut(t, servers, registersKey, hintKey, markerKey, listsKey, "contended")) == 0
	})
}

// A frozen process is still connected, so the servers count it as a subscriber.
func TestAWaiterThatIsFrozenCostsItsGraceAndNoMore(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	frozen := testkit.Connect(t, addrs, testkit.Lazily())
	testkit.Subscribe(t, frozen, servers)
	managers := append([]*quorumlock.Manager{frozen}, testkit.Crowd(t, servers, 1)...)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error, 1)
	go func() { _, err := frozen.Acquire(ctx, "job"); gone <- err }()
	testkit.Queued(t, servers, 1)
	came := make(chan time.Time, 1)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		l, err := managers[1].Acquire(background, "job")
		came <- time.Now()
		if assert.NoError(t, err) {
			assert.NoError(t, l.Release(background))
		}
	})
	testkit.Queued(t, servers, 2)
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
	waiter.Wait() // before Close releases its lease
}

func TestAWaiterThatLosesItsSubscriptionIsGrantedTheLockAnyway(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	managers := testkit.Crowd(t, servers, 3)
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

// A waiter has the lease from a majority when the last node wakes it. The wake-up is one more vote, so the lock must
// not stay reserved.
func TestANodeThatWakesLateVotesToo(t *testing.T) {
	servers := testkit.Start(t, 3)
	proxy := redistest.NewProxy(t, servers[2].Addr())
	holder := testkit.Connect(t, []string{servers[0].Addr(), servers[1].Addr(), proxy.Addr()}, quorumlock.WithTTL(5*time.Minute))
	managers := testkit.Crowd(t, servers, 1, quorumlock.WithTTL(5*time.Minute))
	l, err := holder.Acquire(background, "job")
	require.NoError(t, err)
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	got := make(chan *quorumlock.Lease, 1)
	go func() {
		l, err := managers[0].Acquire(background, "job")
		assert.NoError(t, err)
		got <- l
	}()
	testkit.Queued(t, servers, 1)
	proxy.Swallow()
	require.NoError(t, l.Release(background), "a quorum has confirmed")
	next := <-got
	state, err := managers[0].Inspect(background, "job")
	require.NoError(t, err)
	assert.Equal(t, 2, state.Votes)
	proxy.Heal()
	testkit.Eventually(t, "the third vote, long before the renewal at a third of the TTL", func() bool {
		state, err := managers[0].Inspect(background, "job")
		return err == nil && state.Votes == 3
	})
	require.NoError(t, next.Release(background))
	testkit.Queued(t, servers, 0)
}

// A waiter behind others polls rarely, so that many waiters cost the nodes little.
func TestAQueueOfWaitersHardlyPolls(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	asked := &counting{}
	managers := testkit.Crowd(t, servers, 8, quorumlock.WithRetryBackoff(asked.retry))
	l, err := m.Acquire(background, "job", quorumlock.WithTTL(30*time.Second))
	require.NoError(t, err)
	come := line(t, managers, servers)
	before := asked.Load()
	for _, s := range servers {
		s.MustDo("CONFIG", "RESETSTAT")
	}
	time.Sleep(time.Second)
	// The first waiter polls after 50 ms at the earliest, the second after 100 ms, and so on: 54 polls in all. Without
	// queues, restarting backoffs would poll 8 × 20 times.
	n := asked.Load() - before
	assert.Less(t, n, int64(100))
	for _, s := range servers {
		// Counted are the attempt, its release if the caller did not wait for the answer, and the requests in flight at
		// both ends.
		assert.LessOrEqual(t, int64(testkit.ScriptCalls(t, s)), 2*n+2*int64(len(managers)))
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
	m, servers := testkit.Manager(t, 1)
	for range 10 {
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		require.NoError(t, l.Release(background))
	}
	assert.Equal(t, []int{0}, testkit.Subscribers(servers))
}

// Queues need no tokens: without fencing there are no registers, and waiters are woken
// anyway.
func TestWithoutFencingThereAreQueuesAndNoRegisters(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3, quorumlock.WithoutFencing())
	managers := testkit.Crowd(t, servers, 4, quorumlock.WithoutFencing())
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	assert.Zero(t, l.Token())
	come := line(t, managers, servers)
	begun := time.Now()
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0, 1, 2, 3}, come())
	assert.Less(t, time.Since(begun), 5*time.Second, "long before they would have polled")
	testkit.Eventually(t, "the hint, the marker and the lists alone are left", func() bool { return len(keysBut(t, servers, hintKey, markerKey, listsKey, "contended")) == 0 })
}

// A Manager that meets contention for the first time notices late that the lock is taken, and is not subscribed yet. It
// enters the queues after another Manager's callers that called later. Its place still follows from the instant of its
// call.
func TestThePlaceInTheQueueIsTheInstantOfTheCall(t *testing.T) {
	const late = 500 * time.Millisecond
	holder, servers := testkit.Manager(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	second := testkit.Crowd(t, servers, 1)[0]
	for _, p := range proxies {
		p.DelayCommand(func(cmd []string) bool { return cmd[0] == "SUBSCRIBE" }, late)
		p.Delay(30 * time.Millisecond)
	}
	first := testkit.Connect(t, addrs, testkit.Lazily())
	l := testkit.Acquired(t, holder, "job")
	came := make(chan string, 2)
	call := func(name string, m *quorumlock.Manager) {
		l, err := m.Acquire(background, "job")
		came <- name
		if assert.NoError(t, err) {
			assert.NoError(t, l.Release(background))
		}
	}
	go call("first", first)
	time.Sleep(25 * time.Millisecond)
	go call("second", second)
	testkit.Queued(t, servers, 1)
	tickets, _ := servers[0].MustDo("ZRANGE", testkit.QueueKey("job"), "0", "-1").([]any)
	require.Len(t, tickets, 1, "the second caller's")
	testkit.Queued(t, servers, 2)
	behind, _ := servers[0].MustDo("ZRANGE", testkit.QueueKey("job"), "0", "-1").([]any)
	assert.Equal(t, tickets[0], behind[1], "the first caller's ticket is before it")
	require.NoError(t, l.Release(background))
	assert.Equal(t, "first", <-came)
	assert.Equal(t, "second", <-came)
}

// Frozen processes that are still connected, and clients that subscribe to every channel, make the dead tickets ahead
// seem in use. The process that releases the lock may end at once, as a short job does.
func TestDeadTicketsAheadCostThreeGracesAtTheMost(t *testing.T) {
	const grace = 200 * time.Millisecond
	counts := []int{1, 300, 10, 50}
	for _, dead := range counts[:testkit.Count(len(counts), 2)] {
		for _, c := range []struct{ hidden, closes bool }{{true, false}, {true, true}, {false, true}} {
			t.Run(fmt.Sprintf("dead=%d,hidden=%v,closes=%v", dead, c.hidden, c.closes), func(t *testing.T) {
				m, servers := testkit.Manager(t, 3)
				waiter := testkit.Crowd(t, servers, 1)[0]
				if c.hidden {
					for _, s := range servers {
						listenToAll(t, s)
					}
				}
				l := testkit.Acquired(t, m, "job")
				now := time.Now().UnixMicro()
				for _, s := range servers {
					add := []string{"ZADD", testkit.QueueKey("job")}
					for i := range dead {
						add = append(add, fmt.Sprint(now-int64(i)-1_000_000), fmt.Sprintf("%016x%016x%d", i+1, i+1, grace.Milliseconds()))
					}
					s.MustDo(add...)
				}
				came := make(chan time.Time, 1)
				go func() {
					l, err := waiter.Acquire(background, "job")
					at := time.Now()
					if assert.NoError(t, err) {
						assert.NoError(t, l.Release(background))
					}
					came <- at
				}()
				testkit.Queued(t, servers, dead+1)
				released := time.Now()
				require.NoError(t, l.Release(background))
				if c.closes {
					require.NoError(t, m.Close(background))
				}
				took := (<-came).Sub(released)
				t.Logf("%v behind %d dead tickets", took, dead)
				assert.LessOrEqual(t, took, 3*grace)
			})
		}
	}
}

// listenToAll subscribes a client to every channel of a server, until the test ends.
func listenToAll(t *testing.T, s *redistest.Server) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("PSUBSCRIBE *\r\n"))
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 256)) // confirmed
	require.NoError(t, err)
	go func() { // unread messages fill the server's buffers; ends with the connection
		buffer := make([]byte, 1<<16)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
		}
	}()
}
