package quorumlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// closeGrace is how long each wait of Close lasts when its context has ended. Usually a signal
// has cancelled the context, and Close should still release the locks.
const closeGrace = 100 * time.Millisecond

// Close refuses new calls, ends waiting ones with ErrClosed, ends and releases all leases, ends
// the connections and waits for every goroutine of the Manager. Each lease gets its last
// event before the subscriptions end; in a Subscription that is not read, these replace earlier
// events that are no losses.
//
// All leases end first: their contexts end, and no call gets a lease afterwards. A lease held
// outside of Do and Lead is released at once, as by its own Release: stop the work under
// it before Close. While Do or Lead runs its function, the lease's keys stay until the
// function has returned, for at most 2 % of the TTL (at least 50 ms, at most a fifth of the TTL),
// so that no successor works at the same time.
//
// Close goes on while a node answers releases, until ctx ends. It gives up an unreachable
// node at once, and a silent one after a second. It waits until log handlers, span
// processors and instruments return. When ctx ends, Close stops waiting for all of them, and
// returns within 0.4 s, whatever hangs. If ctx had ended before the call, it waits 100 ms for
// functions and 100 ms for nodes. Everything else is still done. Close returns ctx's cause if
// the end of ctx left something undone: keys that remain on a node keep a name taken there
// until they expire, and a warning in the log counts them. Close is idempotent: later and
// concurrent calls wait for the first and return nil, or ctx's cause. A nil ctx is ErrInvalid,
// and closes nothing.
func (m *Manager) Close(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	m.mu.Lock()
	first := !m.shut
	m.shut = true
	m.mu.Unlock()
	if !first {
		return before(ctx, m.closed)
	}
	defer close(m.closed)
	close(m.closing)
	m.dog.End()
	m.calls.leave()
	inTime := await(ctx, m.calls.zero)
	m.dog.Stop() // it calls no code of a user, and nothing that waits
	m.locals.stop()
	inTime = m.closeNodes(ctx) && inTime
	m.bus.close()
	m.reporter.Stop() // last: what still reports belongs to calls that hang
	inTime = await(ctx, m.reporter.Done()) && inTime
	if !inTime && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// closeNodes releases what is left, and ends the connections and all goroutines but the
// reporter's. It reports whether every node has answered, and every goroutine has ended.
func (m *Manager) closeNodes(ctx context.Context) bool {
	last := m.dog.ReleaseAll()
	limit, end := graceful(ctx)
	defer end()
	patience, giveUp := context.WithCancel(limit)
	defer giveUp()
	m.mu.Lock()
	used := m.used
	m.mu.Unlock()
	if !used {
		giveUp() // New has failed: there is nothing to release
	}
	var cut atomic.Bool
	for _, n := range m.ensemble.Nodes() {
		m.running.run(func() {
			if !n.Close(patience, last, &m.left) && used {
				cut.Store(true)
			}
		})
	}
	m.running.leave()
	inTime := await(limit, m.running.zero)
	if leases, nodes := m.left.count(); leases > 0 || cut.Load() {
		m.reporter.Warn("closed without an answer from every node; the keys that are left expire by themselves", "leases", leases, "nodes", nodes)
	}
	return inTime && !cut.Load()
}

// graceful returns ctx, or a context of closeGrace if ctx has ended.
func graceful(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
}

// await waits until done is closed, until ctx ends, and for closeGrace if it has ended. It
// reports whether done is closed.
func await(ctx context.Context, done <-chan struct{}) bool {
	if before(ctx, done) == nil {
		return true
	}
	grace, cancel := graceful(ctx)
	defer cancel()
	return before(grace, done) == nil
}

// before waits until done is closed, and returns nil if that was before ctx ended.
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

// tally counts what Close waits for. It is a sync.WaitGroup whose wait can end early. It begins
// at one, which Close takes off.
type tally struct {
	n atomic.Int64
	// zero is closed when nothing is left.
	zero chan struct{}
}

// begin makes a tally ready.
func (t *tally) begin() {
	t.n.Store(1)
	t.zero = make(chan struct{})
}

// add counts one more, while there is another.
func (t *tally) add() { t.n.Add(1) }

// leave takes one off.
func (t *tally) leave() {
	if t.n.Add(-1) == 0 {
		close(t.zero)
	}
}

// change is add or leave.
func (t *tally) change(by int) {
	if by > 0 {
		t.add()
	} else {
		t.leave()
	}
}

// run counts a goroutine until it ends.
func (t *tally) run(f func()) {
	t.add()
	go func() {
		defer t.leave()
		f()
	}()
}

// unreleased receives the answers to the releases of Close, and records the locks that
// may remain on a node.
type unreleased struct {
	m *Manager

	mu    sync.Mutex
	locks map[string]struct{} // lock keys
	nodes quorum.Set
}

// Receive implements node.Receiver.
func (u *unreleased) Receive(i int, req *wire.Request, reply *wire.Reply) {
	u.m.ensemble.Answered(i, req, reply)
	if reply.Status == wire.Done {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.locks == nil {
		u.locks = map[string]struct{}{}
	}
	for j := range req.Locks() {
		u.locks[req.Lock(j)] = struct{}{}
	}
	u.nodes = u.nodes.With(i)
}

// count returns how many locks may remain, and on how many nodes.
func (u *unreleased) count() (locks, nodes int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.locks), u.nodes.Len()
}
