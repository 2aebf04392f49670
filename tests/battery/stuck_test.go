package battery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

const (
	stuckLeases = 200
	callTimeout = 50 * time.Millisecond
)

// One node does not answer: SIGSTOP. Callers with a context of 50 ms must get their answer from the other nodes. If
// they wait for something else, they must return in time.
func TestAStoppedNodeHoldsUpNoCallOfTenThousand(t *testing.T) {
	forSizes(t, false, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("10,000 calls with a context of 50ms, one node stopped, N=%d", n))
		servers := redistest.Start(t, n)
		m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(2*time.Second))
		live := acquireMany(t, m, stuckLeases)
		c := &calls{m: m, live: live}
		c.run(count(2000, 100)) // memory and connections reach their largest size
		c.reset()

		victim := servers[rand.IntN(n)]
		victim.Stop()
		time.Sleep(300 * time.Millisecond) // the watchdog has noticed
		before := goroutines(slices.Max[[]int])
		mib, _ := memory(t)
		peak := c.run(count(10_000, 200))
		after := goroutines(slices.Min[[]int])
		victim.Continue()

		r.figure(fmt.Sprintf("slowest of %d returns after %v (p50 %v, p99 %v)", len(c.took), brief(at(1, c.took)), brief(at(.5, c.took)),
			brief(at(.99, c.took))), limit(75*time.Millisecond), at(1, c.took) <= limitOf(75*time.Millisecond))
		r.figure(fmt.Sprintf("calls that a quorum can answer: %d of %d answered", c.answered.Load(), c.answerable.Load()),
			"all, on a quiet machine", !full || c.answered.Load() == c.answerable.Load())
		if c.wrong.Load() > 0 {
			t.Errorf("%d calls with an outcome that cannot be, the first: %v", c.wrong.Load(), c.first.Load())
		}
		lost := lostOf(live)
		r.figure(fmt.Sprintf("leases lost %d/%d", lost, stuckLeases), "0", lost == 0)
		r.figure(fmt.Sprintf("goroutines %d before, %d after, %d at most beside the callers", before, after, peak),
			"after: not above before by more than one for each node; most: neither, in full", after <= before+n && (!full || peak <= before+n))
		r.grown(mib)
		back := recovered(victim, live, 10*time.Second)
		r.figure("node has all keys of live leases, and no other, again: "+fmt.Sprint(back), "true", back)
		releaseMany(t, live)
	})
}

// A minority, chosen anew each time, is stopped for longer than a lease lives.
func TestAMinorityThatStopsAgainAndAgainCostsNoLease(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		ttl, stop := time.Second, 5*time.Second
		if !full { // all keys of the minority expire in that time too, and other work on the machine ends no lease
			ttl, stop = 3*time.Second, 3300*time.Millisecond
		}
		stops := count(100, 2)
		r := newRow(t, fmt.Sprintf("a minority stopped for %v %d times, N=%d", stop, stops, n))
		servers := redistest.Start(t, n)
		m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl))
		live := acquireMany(t, m, stuckLeases)
		c := &calls{m: m, live: live, pause: 20 * time.Millisecond}
		c.run(count(1000, 100))
		c.reset()
		mib, _ := memory(t)

		over := make(chan struct{})
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
						c.one()
					}
				}
			})
		}
		back := 0
		for range stops {
			victims := minority(servers)
			for _, s := range victims {
				s.Stop()
			}
			time.Sleep(stop)
			for _, s := range victims {
				s.Continue()
			}
			healed := true
			for _, s := range victims {
				healed = within(5*time.Second, func() bool { return has(s, live) == len(live) }) && healed
			}
			if healed {
				back++
			}
		}
		close(over)
		callers.Wait()

		lost := lostOf(live)
		r.figure(fmt.Sprintf("leases lost %d/%d", lost, stuckLeases), "0", lost == 0)
		r.figure(fmt.Sprintf("slowest of %d returns %v behind its context", len(c.took), brief(at(1, c.took)-callTimeout)),
			limit(50*time.Millisecond)+" behind", at(1, c.took)-callTimeout <= limitOf(50*time.Millisecond))
		if c.wrong.Load() > 0 {
			t.Errorf("%d calls with an outcome that cannot be, the first: %v", c.wrong.Load(), c.first.Load())
		}
		r.figure(fmt.Sprintf("keys healed after %d/%d stops", back, stops), "all", back == stops)
		r.grown(mib)
		releaseMany(t, live)
	})
}

// A majority does not answer. Every holder loses its lease in time, and requests sent during the stop must not take
// effect when the nodes continue.
func TestAStoppedMajorityEndsEveryLeaseInTimeAndLeavesNoOrphans(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		const ttl = time.Second
		rounds := count(30, 1)
		r := newRow(t, fmt.Sprintf("a majority stopped for 1.2 to 2.5 TTL %d times, N=%d", rounds, n))
		servers := redistest.Start(t, n)
		m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl))
		timeout := ttl / 10 // the default: an attempt is void this long after it began
		var late, back []time.Duration
		reported, leases, attempts, orphans := 0, 0, 0, 0
		for round := range rounds {
			// After they continue, all nodes of the majority must vote again.
			patiently(t, "all nodes vote", func() bool { return everybodyVotes(m, n) })
			live := acquireMany(t, m, stuckLeases)
			tellings := make([]time.Time, len(live))
			var watchers sync.WaitGroup
			for i, l := range live {
				watchers.Go(func() {
					<-l.Done()
					tellings[i] = time.Now()
				})
			}
			victims := slices.Clone(servers)
			rand.Shuffle(n, func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
			victims = victims[:quorum.Size(n)]
			for _, s := range victims {
				s.Stop()
			}
			stopped := time.Now()
			time.Sleep(20 * time.Millisecond) // earlier answers have been handled
			stops := make([]time.Time, len(live))
			readStops := func() {
				for i, l := range live {
					now := time.Now()
					if left := l.Remaining(); left > 0 {
						stops[i] = now.Add(left)
					}
				}
			}
			readStops()
			time.Sleep(50 * time.Millisecond)
			readStops() // an answer in flight may still have moved it
			// Attempts of all ages are in the sockets of the stopped nodes.
			end := stopped.Add(ttl*6/5 + time.Duration(rand.Int64N(int64(ttl*13/10))))
			var mu sync.Mutex
			var callers sync.WaitGroup
			for caller := range 8 {
				callers.Go(func() {
					for i := 0; time.Now().Before(end); i++ {
						l, err := m.TryAcquire(context.Background(), fmt.Sprintf("attempt-%d-%d-%d", round, caller, i))
						mu.Lock()
						attempts++
						if err == nil {
							t.Error("granted by a minority: ", l.Name())
						} else if !errors.Is(err, quorumlock.ErrNoQuorum) || errors.Is(err, quorumlock.ErrHeld) {
							t.Error("refused as ", err)
						}
						mu.Unlock()
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
			callers.Wait()
			watchers.Wait()
			resumed := time.Now()
			for _, s := range victims {
				s.Continue()
			}
			patiently(t, "a lease is granted", func() bool {
				l, err := m.TryAcquire(context.Background(), "probe")
				return err == nil && l.Release(context.Background()) == nil
			})
			back = append(back, time.Since(resumed))
			time.Sleep(time.Until(resumed.Add(timeout + limitOf(100*time.Millisecond))))
			for _, s := range servers {
				for _, key := range locksOn(s) {
					orphans++
					left, _ := s.Do("PTTL", key)
					t.Logf("on %s: %s, for %v ms, victim: %v, %v after SIGCONT", s.Addr(), key, left, slices.Contains(victims, s), time.Since(resumed))
				}
			}
			for i, l := range live {
				leases++
				late = append(late, tellings[i].Sub(stops[i]))
				if errors.Is(l.Err(), quorumlock.ErrLost) {
					reported++
				}
			}
		}
		r.figure(fmt.Sprintf("lost %d/%d; reported after S: %s", reported, leases, spread(late)),
			"all; "+atLeastInFull("at or before S"), reported == leases && (!full || at(1, late) <= 0))
		r.figure("first grant after SIGCONT: "+spread(back), atLeastInFull("max 1s"), !full || at(1, back) <= time.Second)
		r.figure(fmt.Sprintf("keys 100ms after the last attempt was void: %d, of %d attempts and %d leases", orphans, attempts, leases),
			"0", orphans == 0)
	})
}

// calls makes calls of every kind with a context of 50 ms. It records how long they took
// and whether their outcome is possible.
type calls struct {
	m     *quorumlock.Manager
	live  []*quorumlock.Lease
	pause time.Duration

	next, answerable, answered, wrong atomic.Int64
	first                             atomic.Value // string; the first unexpected error

	mu   sync.Mutex
	took []time.Duration
}

func (c *calls) reset() {
	c.took = nil
	c.answerable.Store(0)
	c.answered.Store(0)
}

// run makes this number of calls, 20 at a time, and returns the highest number of goroutines that are not callers.
func (c *calls) run(total int) (peak int) {
	const callers = 20
	var all sync.WaitGroup
	end := c.next.Load() + int64(total)
	for range callers {
		all.Go(func() {
			for c.next.Load() < end {
				c.one()
			}
		})
	}
	over := make(chan struct{})
	go func() {
		all.Wait()
		close(over)
	}()
	for {
		select {
		case <-over:
			return peak
		case <-time.After(5 * time.Millisecond):
			peak = max(peak, runtime.NumGoroutine()-callers-1)
		}
	}
}

// one makes one call, or two if it must release a lease.
func (c *calls) one() {
	i := int(c.next.Add(1))
	lease := c.live[i%len(c.live)]
	switch i % 6 {
	case 0: // waits for a lease that is not released
		c.time(false, func(ctx context.Context) error {
			_, err := c.m.Acquire(ctx, lease.Name())
			if errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("acquired what is held: %w", err)
		})
	case 1:
		c.time(false, func(ctx context.Context) error { // waits for the stopped node
			_, err := c.m.Inspect(ctx, lease.Name())
			if err == nil || errors.Is(err, context.DeadlineExceeded) {
				return nil
			}
			return err
		})
	case 2:
		c.time(true, func(ctx context.Context) error {
			_, err := c.m.TryAcquire(ctx, lease.Name())
			if errors.Is(err, quorumlock.ErrHeld) {
				return nil
			}
			return err
		})
	case 3:
		c.time(true, lease.Verify)
	case 4:
		c.time(true, func(ctx context.Context) error { return lease.Renew(ctx) })
	case 5:
		var l *quorumlock.Lease
		c.time(true, func(ctx context.Context) (err error) {
			l, err = c.m.Acquire(ctx, fmt.Sprintf("call-%d", i))
			return err
		})
		if l != nil {
			c.next.Add(1)
			c.time(true, l.Release)
		}
	}
	time.Sleep(c.pause)
}

// time makes a call and records it. An answerable call needs only a majority, so it may
// fail only if the machine was too slow.
func (c *calls) time(answerable bool, call func(ctx context.Context) error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	err := call(ctx)
	took := time.Since(began)
	c.mu.Lock()
	c.took = append(c.took, took)
	c.mu.Unlock()
	slow := errors.Is(err, context.DeadlineExceeded)
	if answerable {
		c.answerable.Add(1)
		if err == nil {
			c.answered.Add(1)
		}
	}
	// On a busy machine, as in CI, a node timeout can also expire on healthy nodes.
	busy := !full && errors.Is(err, quorumlock.ErrNoQuorum)
	if err != nil && !(answerable && slow) && !busy {
		c.wrong.Add(1)
		c.first.CompareAndSwap(nil, err.Error()) // as a string, because a Value requires one type
	}
}

// acquireMany returns leases that all nodes have granted.
func acquireMany(t *testing.T, m *quorumlock.Manager, leases int) []*quorumlock.Lease {
	t.Helper()
	many := make([]*quorumlock.Lease, leases)
	var all sync.WaitGroup
	round := rand.Uint32()
	for i := range many {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			many[i], _ = m.Acquire(ctx, fmt.Sprintf("live-%x-%d", round, i))
		})
	}
	all.Wait()
	require.NotContains(t, many, (*quorumlock.Lease)(nil), "not granted")
	return many
}

func releaseMany(t *testing.T, leases []*quorumlock.Lease) {
	t.Helper()
	for _, l := range leases {
		if err := l.Release(context.Background()); err != nil && !errors.Is(err, quorumlock.ErrLost) {
			t.Errorf("release %s: %v", l.Name(), err)
		}
	}
}

// lostOf counts the leases that have ended.
func lostOf(leases []*quorumlock.Lease) (lost int) {
	for _, l := range leases {
		if l.Err() != nil {
			lost++
		}
	}
	return lost
}

// everybodyVotes reports whether all n nodes vote.
func everybodyVotes(m *quorumlock.Manager, n int) bool {
	s, err := m.Inspect(context.Background(), "anything")
	if err != nil || len(s.Nodes) != n {
		return false
	}
	for _, node := range s.Nodes {
		if node.Err != nil || node.QuarantinedFor > 0 {
			return false
		}
	}
	return true
}

// minority returns some servers that a majority does not need.
func minority(servers []*redistest.Server) []*redistest.Server {
	shuffled := slices.Clone(servers)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return shuffled[:1+rand.IntN(len(servers)-quorum.Size(len(servers)))]
}

// locksOn returns the keys of locks on a server, and no companion keys.
func locksOn(s *redistest.Server) (keys []string) {
	reply, err := s.Do("KEYS", config.DefaultPrefix+"*")
	if err != nil {
		return []string{err.Error()}
	}
	for _, key := range reply.([]any) {
		if !strings.Contains(key.(string), "\xff") { // the tag of all other keys
			keys = append(keys, key.(string))
		}
	}
	return keys
}

// has counts the leases whose keys are on the server.
func has(s *redistest.Server, leases []*quorumlock.Lease) (n int) {
	keys := locksOn(s)
	slices.Sort(keys)
	for _, l := range leases {
		if _, found := slices.BinarySearch(keys, lockKey(l.Name())); found {
			n++
		}
	}
	return n
}

// recovered waits until a server has the keys of these leases and no other.
func recovered(s *redistest.Server, leases []*quorumlock.Lease, patience time.Duration) bool {
	return within(patience, func() bool { return len(locksOn(s)) == len(leases) && has(s, leases) == len(leases) })
}

// goroutines counts the goroutines for a while, because reconnecting needs some at times,
// and returns the result of choose.
func goroutines(choose func([]int) int) int {
	var counts []int
	for range 30 {
		counts = append(counts, runtime.NumGoroutine())
		time.Sleep(20 * time.Millisecond)
	}
	return choose(counts)
}

// limitOf is a bar on durations. On a quiet machine it is the table's. In CI it is ten times as much, at least two
// seconds, because a loaded machine may stop the process for a second.
func limitOf(quiet time.Duration) time.Duration {
	if full {
		return quiet
	}
	return max(10*quiet, 2*time.Second)
}

func limit(quiet time.Duration) string {
	if full {
		return fmt.Sprintf("max %v", quiet)
	}
	return fmt.Sprintf("max %v (%v in full)", limitOf(quiet), quiet)
}
