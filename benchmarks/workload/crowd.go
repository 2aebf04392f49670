//go:build unix

package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// afterFailure is how long a caller rests after an error, so that a contestant
// that fails at once does not win.
const afterFailure = time.Millisecond

// A counter has a cache line for itself: callers must not slow each other.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

// A crowd is many callers that each take turn after turn until it is ended.
type crowd struct {
	stop   context.CancelFunc
	done   sync.WaitGroup
	turns  []counter // completed, for each caller
	failed atomic.Int64

	mu    sync.Mutex
	first error // guarded by mu: the first failure
}

// startCrowd starts n callers. The context of a turn ends with the crowd.
func (b *Bench) startCrowd(n int, turn func(ctx context.Context, caller int) error) *crowd {
	ctx, stop := context.WithCancel(b.Context)
	c := &crowd{stop: stop, turns: make([]counter, n)}
	for i := range n {
		c.done.Go(func() {
			for ctx.Err() == nil {
				if err := turn(ctx, i); err == nil {
					c.turns[i].n.Add(1)
				} else if ctx.Err() == nil {
					c.fail(err)
					time.Sleep(afterFailure)
				}
			}
		})
	}
	return c
}

func (c *crowd) fail(err error) {
	c.failed.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		c.first = err
	}
}

// end ends the crowd and waits for all callers.
func (c *crowd) end() {
	c.stop()
	c.done.Wait()
}

// counts returns how many turns each caller has completed.
func (c *crowd) counts() []int64 {
	counts := make([]int64, len(c.turns))
	for i := range c.turns {
		counts[i] = c.turns[i].n.Load()
	}
	return counts
}

// A span is what a crowd did while it was measured.
type span struct {
	usage
	counts []int64 // turns for each caller
	turns  float64 // of all
	failed float64
}

// measureCrowd lets the crowd warm up, and measures it for d. Both readings take
// the counters in the same order, so that their own time cancels out.
func (b *Bench) measureCrowd(c *crowd, d time.Duration) (s span, err error) {
	if err := b.sleep(b.warmUp()); err != nil {
		return s, err
	}
	before, err := b.usage()
	counts, failed := c.counts(), c.failed.Load()
	if err == nil {
		err = b.sleep(d)
	}
	if err != nil {
		return s, err
	}
	after, err := b.usage()
	if err != nil {
		return s, err
	}
	s.usage, s.counts, s.failed = after.since(before), c.counts(), float64(c.failed.Load()-failed)
	for i := range counts {
		s.counts[i] -= counts[i]
		s.turns += float64(s.counts[i])
	}
	if s.turns == 0 {
		return s, c.idle(d)
	}
	return s, nil
}

var errIdle = errors.New("no caller completed a turn")

// idle returns why nothing happened in d.
func (c *crowd) idle(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(fmt.Errorf("%w in %v", errIdle, d), c.first)
}
