package quorumlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// ending reports whether Close has begun.
func (l *life) ending() bool { return l.work.Err() != nil }

// Close refuses new calls, ends waiting calls with ErrClosed, releases every lease under which no
// function runs, and ends the connections. Stop the work under such leases first.
//
// Close waits for the functions of Do, Lead and DoAll, so give ctx a deadline if one may still run.
// Their contexts end at once, with the cause ErrClosed, and their leases are renewed until they
// return. When ctx ends first, their locks expire. A function that calls Close waits for itself
// until then.
//
// Close returns ctx's cause if the end of ctx left something undone, and a warning counts the locks
// left. Later and concurrent calls wait for the first and return nil, or ctx's cause. A nil ctx is
// ErrInvalid.
func (m *Manager) Close(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	m.life.mu.Lock()
	first, used := !m.life.shut, m.life.used
	m.life.shut = true
	m.life.mu.Unlock()
	if !first {
		return before(ctx, m.life.closed)
	}
	defer close(m.life.closed)
	m.life.end(ErrClosed)
	for _, sh := range m.shards {
		sh.dog.End()
	}
	inTime := await(ctx, drained(&m.life.calls)) // only now: earlier, a function could still begin under a lease
	deserted := 0
	for _, sh := range m.shards {
		deserted += sh.dog.Desert()
	}
	if deserted > 0 {
		m.reporter.Warn("Manager closed while functions ran under leases: their locks stay held until they expire; return when the context ends, or give Close more time", "leases", deserted)
	}
	for _, sh := range m.shards {
		sh.dog.Stop() // it calls no user's code, and nothing that waits
		sh.queues.Stop()
		sh.observers.Close()
	}
	inTime = m.closeNodes(ctx, used) && inTime
	m.events.Close()
	m.reporter.Stop() // last: only calls that hang still report
	inTime = await(ctx, m.reporter.Done()) && inTime
	if !inTime && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// closeNodes releases what is left, and ends the connections and all goroutines but the
// reporter's. It reports whether every node has answered, and every goroutine has ended. used
// means that there may be locks to release.
func (m *Manager) closeNodes(ctx context.Context, used bool) bool {
	limit, end := atLeast(ctx)
	defer end()
	patience, giveUp := context.WithCancel(limit)
	defer giveUp()
	if !used {
		giveUp() // New has failed
	}
	var cut atomic.Bool
	var closing sync.WaitGroup
	for _, sh := range m.shards {
		last := sh.dog.ReleaseAll()
		for _, n := range sh.ensemble.Nodes() {
			closing.Add(1)
			m.life.running.Go(func() {
				defer closing.Done()
				if !n.Close(patience, last, sh.dog.Last()) && used {
					cut.Store(true)
				}
			})
		}
	}
	if m.cluster != nil {
		m.life.running.Go(func() {
			closing.Wait() // a node may dial the master of its slot for a release
			m.cluster.Close()
		})
	}
	inTime := await(limit, drained(&m.life.running))
	leases, nodes := 0, 0
	for _, sh := range m.shards {
		left, on := sh.dog.Unreleased()
		leases, nodes = leases+left, nodes+on
	}
	if leases > 0 || cut.Load() {
		m.reporter.Warn("Manager closed without an answer from every node: locks that are left expire by themselves", "leases", leases, "nodes", nodes)
	}
	return inTime && !cut.Load()
}

// minCloseWait is how long each wait of Close lasts when its context has ended. Usually a signal has
// cancelled the context, and Close should still release the locks.
const minCloseWait = 100 * time.Millisecond

// drained returns a channel that is closed when nothing in the group is left, for a wait that can end early. The
// waiting goroutine stays until then.
func drained(group *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	return done
}

// atLeast returns ctx, or a context of minCloseWait if ctx has ended.
func atLeast(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), minCloseWait)
}

// await waits until done is closed, until ctx ends, and for minCloseWait if it has ended. It reports
// whether done is closed.
func await(ctx context.Context, done <-chan struct{}) bool {
	if before(ctx, done) == nil {
		return true
	}
	longer, cancel := atLeast(ctx)
	defer cancel()
	return before(longer, done) == nil
}

// before waits until done is closed, and returns nil if that was before ctx ended. Otherwise it
// returns the cause of ctx's end.
func before(ctx context.Context, done <-chan struct{}) error {
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
