// Package closing has what Close waits for, and how long.
package closing

import (
	"context"
	"sync"
	"time"
)

// MinWait is how long each wait of Close lasts when its context has ended. Usually a signal has
// cancelled the context, and Close should still release the locks.
const MinWait = 100 * time.Millisecond

// Done returns a channel that is closed when nothing in the group is left, for a wait that can end early. The
// goroutine that waits stays until then.
func Done(group *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	return done
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
