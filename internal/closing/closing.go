// Package closing has what Close waits for, and how long.
package closing

import (
	"context"
	"sync/atomic"
	"time"
)

// MinWait is how long each wait of Close lasts when its context has ended. Usually a signal has
// cancelled the context, and Close should still release the locks.
const MinWait = 100 * time.Millisecond

// Counter counts what Close waits for. It is a sync.WaitGroup whose wait can end early. It begins at
// one, which Close takes off.
type Counter struct {
	n atomic.Int64
	// zero is closed when nothing is left.
	zero chan struct{}
}

// Start makes a counter ready.
func (c *Counter) Start() {
	c.n.Store(1)
	c.zero = make(chan struct{})
}

// Zero is closed when nothing is left.
func (c *Counter) Zero() <-chan struct{} { return c.zero }

// Enter adds one. The count must not have reached zero.
func (c *Counter) Enter() { c.n.Add(1) }

// Leave takes one off.
func (c *Counter) Leave() {
	if c.n.Add(-1) == 0 {
		close(c.zero)
	}
}

// Run counts a goroutine until it ends.
func (c *Counter) Run(f func()) {
	c.Enter()
	go func() {
		defer c.Leave()
		f()
	}()
}

// Begun reports whether Close has begun, which closes the channel.
func Begun(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// AtLeast returns ctx, or a context of MinWait if ctx has ended.
func AtLeast(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), MinWait)
}

// Await waits until done is closed, until ctx ends, and for MinWait if it has ended. It reports
// whether done is closed.
func Await(ctx context.Context, done <-chan struct{}) bool {
	if Before(ctx, done) == nil {
		return true
	}
	longer, cancel := AtLeast(ctx)
	defer cancel()
	return Before(longer, done) == nil
}

// Before waits until done is closed, and returns nil if that was before ctx ended. Otherwise it
// returns the cause of ctx's end.
func Before(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done: // both
		return nil
	default:
		return context.Cause(ctx)
	}
}
