package virtual

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// oneWay is half of a round trip on one host, batching included.
const oneWay = 150 * time.Microsecond

// crowd has callers that want one lock continuously.
type crowd struct {
	t       *testing.T
	hold    time.Duration // how long they hold it
	slow    bool          // answers to releases may come after the node timeout
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	counts  atomic.Bool
	scripts atomic.Int64 // run by the nodes
	callers []*caller
}

// caller is one of a crowd. Its fields are read after run.
type caller struct {
	grants  int
	longest time.Duration // wait
}

func newCrowd(t *testing.T, c *quorumlocktest.Cluster) *crowd {
	t.Helper()
	w := &crowd{t: t, hold: time.Millisecond}
	w.ctx, w.end = context.WithCancel(background)
	for _, n := range c.Nodes() {
		n.Delay(oneWay)
		n.Fail(func(args []string) bool {
			if args[0] == "EVALSHA" && w.counts.Load() {
				w.scripts.Add(1)
			}
			return false
		}, "")
	}
	return w
}

// join adds callers of a Manager.
func (w *crowd) join(m *quorumlock.Manager, callers int) {
	for range callers {
		c := &caller{}
		w.callers = append(w.callers, c)
		w.running.Go(func() {
			for {
				called := time.Now()
				l, err := m.Acquire(w.ctx, "job")
				if err != nil {
					assert.ErrorIs(w.t, err, context.Canceled)
					return
				}
				if w.counts.Load() {
					c.grants++
					c.longest = max(c.longest, time.Since(called))
				}
				time.Sleep(w.hold + rand.N(100*time.Microsecond))
				if err := l.Release(background); !w.slow || !errors.Is(err, quorumlock.ErrNoQuorum) {
					assert.NoError(w.t, err)
				}
			}
		})
	}
}

// run counts for this long, after a while in which the queues form, and ends the crowd.
func (w *crowd) run(d time.Duration) {
	time.Sleep(100 * time.Millisecond)
	w.counts.Store(true)
	time.Sleep(d)
	w.counts.Store(false)
	w.end()
	w.running.Wait()
}

// equal asserts that the callers have equal shares, and returns all their grants.
func (w *crowd) equal() (total int) {
	w.t.Helper()
	least, most := math.MaxInt, 0
	for _, c := range w.callers {
		total += c.grants
		least, most = min(least, c.grants), max(most, c.grants)
	}
	assert.LessOrEqual(w.t, float64(most), 1.2*float64(least)+1)
	return total
}

func TestProcessesThatShareALockGetEqualSharesForFewScripts(t *testing.T) {
	for _, c := range []struct {
		nodes, processes, callers int
		rate, scripts             float64 // grants in a second; scripts for each grant and node
	}{
		{3, 8, 1, 600, 3.5},
		{5, 4, 4, 800, 1},
		{1, 8, 2, 700, 2},
	} {
		t.Run(fmt.Sprintf("N=%d/%dx%d", c.nodes, c.processes, c.callers), func(t *testing.T) {
			run(t, c.nodes, func(t *testing.T, cluster *quorumlocktest.Cluster) {
				w := newCrowd(t, cluster)
				for range c.processes {
					w.join(manager(t, cluster), c.callers)
				}
				const d = 200 * time.Millisecond
				w.run(d)
				total := float64(w.equal())
				assert.GreaterOrEqual(t, total/d.Seconds(), c.rate)
				assert.LessOrEqual(t, float64(w.scripts.Load())/total/float64(c.nodes), c.scripts)
			})
		})
	}
}

// The order is the order of the calls, whatever process they come from.
func TestASingleCallerIsGrantedAsOftenAsEachOfManyInOneProcess(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		w := newCrowd(t, c)
		w.join(manager(t, c), 64)
		w.join(manager(t, c), 1)
		w.run(400 * time.Millisecond)
		assert.Greater(t, w.equal(), 320)
		assert.Less(t, w.callers[64].longest, 100*time.Millisecond, "65 callers, a little more than 1 ms each")
	})
}

// stranger adds a client without queue support, and returns its number of grants.
func (w *crowd) stranger(c *quorumlocktest.Cluster) *int {
	grants := new(int)
	w.running.Go(func() {
		for w.ctx.Err() == nil {
			if w.visit(c) && w.counts.Load() {
				*grants++
			}
			time.Sleep(rand.N(2 * time.Millisecond)) // without a rhythm
		}
	})
	return grants
}

// visit asks for a lock as a stranger, holds it for a millisecond if a majority grants it,
// and releases it.
func (w *crowd) visit(c *quorumlocktest.Cluster) (won bool) {
	const key = config.DefaultPrefix + "job"
	time.Sleep(oneWay)
	var votes []*quorumlocktest.Node
	for _, n := range c.Nodes() {
		if do(w.t, n, "SET", key, "stranger", "NX", "PX", "9000") == "OK" {
			votes = append(votes, n)
		}
	}
	time.Sleep(2 * oneWay)
	if won = len(votes) > len(c.Nodes())/2; won {
		time.Sleep(time.Millisecond)
	}
	for _, n := range votes {
		do(w.t, n, "DEL", key)
	}
	time.Sleep(oneWay)
	return won
}

func TestAStrangerGetsAThirdOfAFairShareAndLeavesTheOthersEqualShares(t *testing.T) {
	const processes = 4
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		w := newCrowd(t, c)
		for range processes {
			w.join(manager(t, c), 1)
		}
		grants := w.stranger(c)
		w.run(500 * time.Millisecond)
		assert.Greater(t, float64(*grants)/float64(w.equal()+*grants), 1.0/3/(processes+1))
	})
}

// Each process leaves the lock free after 48 releases of its own. If all counted in step, the first 1,100 grants,
// almost 2 s of them, would stay among the processes. Four strangers ask, because one alone missed every free moment in
// 2 runs of 100. They had at least 128 grants in each of 56 runs.
func TestAStrangerNeedNotWaitUntilEachProcessHasCountedItsReleases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		w := newCrowd(t, c)
		for range 24 {
			w.join(manager(t, c), 1)
		}
		time.Sleep(100 * time.Millisecond) // it has no chance before the queues form
		strangers := []*int{w.stranger(c), w.stranger(c), w.stranger(c), w.stranger(c)}
		w.run(1200 * time.Millisecond)
		grants := 0
		for _, n := range strangers {
			grants += *n
		}
		t.Log(grants, "grants beside", w.equal())
		assert.Greater(t, grants, 30)
	})
}

// The queues do not show a client without queue support.
func TestCallersThatPassTheLeaseOnLeaveItToAStranger(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		w := newCrowd(t, c)
		w.join(manager(t, c), 2)
		grants := w.stranger(c)
		w.run(1500 * time.Millisecond)
		assert.GreaterOrEqual(t, *grants, 3, "it meets most of the 6 moments")
		assert.Greater(t, w.equal(), 1100)
	})
}

// Nor do they show a client that no node may wake.
func TestCallersThatPassTheLeaseOnLeaveItToThoseWhomNoNodeMayWake(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		w := newCrowd(t, c)
		for _, n := range c.Nodes() {
			n.Fail(func(args []string) bool { return args[0] == "SUBSCRIBE" }, "NOPERM this user has no permissions to run the 'subscribe' command")
		}
		for range 2 {
			w.join(manager(t, c, quorumlock.WithLogger(slog.New(slog.DiscardHandler)),
				quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(3 * time.Millisecond) })), 2)
		}
		w.run(900 * time.Millisecond)
		for _, c := range w.callers {
			assert.Greater(t, c.grants, 50)
		}
	})
}
