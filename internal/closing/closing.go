// Package closing has what Close waits for, and how long.
package closing

import (
	"context"
	"sync/atomic"
	"time"
)

// Grace is how long each wait of Close lasts when its context has ended. Usually a signal has
// cancelled the context, and Close should still release the locks.
const Grace = 100 * time.Millisecond

// Tally counts what Close waits for. It is a sync.WaitGroup whose wait can end early. It begins at
// one, which Close takes off.
type Tally struct {
	n atomic.Int64
	// zero is closed when nothing is left.
	zero chan struct{}
}

// Begin makes a tally ready.
func (t *Tally) Begin() {
	t.n.Store(1)
	t.zero = make(chan struct{})
}

// Zero is closed when nothing is left.
func (t *Tally) Zero() <-chan struct{} { return t.zero }

// Enter counts one more, while there is another.
func (t *Tally) Enter() { t.n.Add(1) }

// Leave takes one off.
func (t *Tally) Leave() {
	if t.n.Add(-1) == 0 {
		close(t.zero)
	}
}

// Run counts a goroutine until it ends.
func (t *Tally) Run(f func()) {
	t.Enter()
	go func() {
		defer t.Leave()
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

// Graceful returns ctx, or a context of Grace if ctx has ended.
func Graceful(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), Grace)
}

// Await waits until done is closed, until ctx ends, and for Grace if it has ended. It reports
// whether done is closed.
func Await(ctx context.Context, done <-chan struct{}) bool {
	if Before(ctx, done) == nil {
		return true
	}
	grace, cancel := Graceful(ctx)
	defer cancel()
	return Before(grace, done) == nil
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
