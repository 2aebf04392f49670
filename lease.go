package quorumlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Lease is a lock that is held, for as long as it is renewed. The Manager
// renews it in the background until it is released or lost.
//
// All methods are safe for concurrent use.
type Lease struct {
	m        *Manager
	terms    *terms
	keys     lockKeys
	ticket   string // with which it waited, if it may still be in a queue
	owner    string
	tail     string // of the lock's value, for healing
	token    int64
	granted  time.Duration
	values   context.Context // Acquire's, for its values
	acquired *spanRef        // of the acquire span; nil without tracing

	// stop is when the lease stops being valid; 0 once it has ended. It is
	// what Valid reads: written with mu held, read without.
	stop atomic.Int64

	mu      sync.Mutex
	machine quorum.Machine
	window  [5]time.Duration // the machine's, for up to 5 nodes: saves an allocation
	jumped  time.Duration    // of the clock, at the last look
	err     error            // why it ended
	watch   *watch           // nil until somebody asks for a channel or the context
	retry   backoff.BackOff
	nodes   []error       // latest error of each node; nil until there is one
	buried  time.Duration // when the remnants of a lost lease are released

	// The watchdog's, guarded by its mutex.
	wake  time.Duration
	index int // in the watchdog's heap; −1 when not there
}

// watch is what a lease has for those who watch it: made when first asked for,
// because most leases are never watched and have to stay small.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done has capacity 0, carries nothing, and is closed at the end.
	done chan struct{}
	// lost has capacity 1: exactly one value on a loss, then closed; closed
	// without a value on release. Nothing is dropped.
	lost chan Lost
	// renewed and atRisk have capacity 1: a new value replaces one that was
	// not read. Closed at the end, before anything else.
	renewed chan Renewed
	atRisk  chan AtRisk
	// rounds are callers of Renew that wait for the round to end: capacity 1,
	// one value, never closed.
	rounds []chan error
}

// Name returns the name of the lease.
func (l *Lease) Name() string { return l.keys[0][len(l.m.cfg.prefix):] }

// Owner returns the random value that marks the keys of this grant.
func (l *Lease) Owner() string { return l.owner }

// Token returns the fencing token: unique for the name, and larger than every
// token granted before. Pass it along with every write; the resource must
// refuse a token below one that it has seen. 0 with WithoutFencing.
func (l *Lease) Token() int64 { return l.token }

// Valid reports whether work under the lease may go on, by the clocks and not
// by a flag: it is false at the first call after a suspend that was too long,
// even before any loss was told.
func (l *Lease) Valid() bool { return l.Remaining() > 0 }

// Remaining returns how long work may go on unless the lease is renewed; 0 when
// the lease is not valid. The loss of one that is not renewed is told before
// that is 0: 25 ms and, on a busy machine, up to a tenth of the TTL.
func (l *Lease) Remaining() time.Duration {
	stop := time.Duration(l.stop.Load())
	now := l.m.clock.Now()
	if left := stop - now; left > 0 {
		return left
	}
	if stop > 0 {
		l.step(quorum.Input{Kind: quorum.Tick}, nil) // whoever finds it tells it
	}
	return 0
}

// Context returns a context that ends with the lease: context.Cause is then
// Err. It has the values of the context given to Acquire, but not its deadline
// and not its cancellation.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().ctx
}

// Done returns a channel that is closed when the lease has ended, lost or
// released, and Err and the context say so.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().done
}

// Err returns nil while the lease is held, then ErrReleased or a *LostError.
func (l *Lease) Err() error {
	l.Remaining()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Lost returns a channel that delivers exactly one value if the lease is lost,
// at or before the instant at which somebody else could be granted it, and is
// closed then. It is closed without a value when the lease is released. It is one
// channel for all callers, so of several readers one gets the value: Err and
// Done tell everybody.
func (l *Lease) Lost() <-chan Lost {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().lost
}

// Renewed returns a channel that delivers renewals. A value that was not read
// is replaced by the next. It is closed when the lease ends.
func (l *Lease) Renewed() <-chan Renewed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().renewed
}

// AtRisk returns a channel that delivers warnings. A value that was not read
// is replaced by the next. It is closed when the lease ends.
func (l *Lease) AtRisk() <-chan AtRisk {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().atRisk
}

// watched returns l.watch, made if necessary. l.mu is held.
func (l *Lease) watched() *watch {
	if l.watch == nil {
		w := &watch{
			done: make(chan struct{}), lost: make(chan Lost, 1),
			renewed: make(chan Renewed, 1), atRisk: make(chan AtRisk, 1),
		}
		w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(l.values))
		l.watch = w
		if l.err != nil {
			w.end(l.err)
		}
	}
	return l.watch
}

// end closes everything, in the order that readers may rely on: nothing more
// on Renewed and AtRisk, then (Err was set before) the context, Done, Lost.
func (w *watch) end(err error) {
	close(w.renewed)
	close(w.atRisk)
	w.cancel(err)
	close(w.done)
	for _, round := range w.rounds {
		round <- err
	}
	w.rounds = nil
	var lost *LostError
	if errors.As(err, &lost) {
		w.lost <- lost.Lost
	}
	close(w.lost)
}

// latest puts v into a channel of capacity 1, in place of what was not read.
// The caller is the only sender.
func latest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

// Renew extends the lease on every node now and returns when a quorum has
// confirmed. It is the way to keep a lease taken WithoutRenewal, and a way to
// be sure before a long step. It joins a round that waits for its quorum, by
// another call or in the background.
//
// It returns ErrNoQuorum (a *QuorumError) when the round missed its quorum:
// the lease is then at risk, not lost. It returns ErrLost or ErrReleased when
// the lease has ended, and ctx's cause when ctx ends first; the round goes on.
func (l *Lease) Renew(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	round := make(chan error, 1)
	if err := l.renew(round); err != nil {
		return err
	}
	select {
	case err := <-round:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// renew begins a round, unless one waits for its quorum, and files its waiter.
func (l *Lease) renew(round chan error) error {
	out := l.step(quorum.Input{Kind: quorum.Begin}, func() {
		w := l.watched()
		w.rounds = append(w.rounds, round)
	})
	if out.Begin {
		l.m.dog.extend(out.now, []*Lease{l})
	}
	return l.Err()
}

// Verify asks the nodes whether a quorum of them still holds the lease, for
// the step that must not be wrong. It extends nothing.
//
// It returns nil when a quorum confirmed and the lease is still valid
// afterwards; ErrLost or ErrReleased when it has ended, found by this call or
// before; and ErrNoQuorum (a *QuorumError) when too few nodes confirmed, joined
// with ctx's cause when ctx ended first.
func (l *Lease) Verify(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	answers := l.m.collect(ctx, &node.Request{
		Kind: node.Read, Keys: l.keys[:1], Expires: l.m.clock.Now() + l.terms.Timeout,
	}, l.terms.Timeout, l.m.quorum(), l.owns)
	var heal healing
	for i := range answers.replies {
		in := quorum.Input{Kind: quorum.Foreign, Node: i, At: answers.replies[i].Sent}
		switch err := answers.err(i); {
		case errors.Is(err, errGone):
			in.Kind = quorum.Gone
			fallthrough
		case errors.Is(err, errForeign):
			heal.add(l, l.step(in, func() { l.note(i, err) }).Heal)
		}
	}
	l.m.dog.heal(heal)
	if err := l.Err(); err != nil {
		return err
	}
	return l.m.enough(ctx, "verify", l.Name(), answers)
}

// owns returns what a node says of the key, nil when it is ours.
func (l *Lease) owns(reply *node.Reply) error {
	switch {
	case strings.HasPrefix(reply.Value, l.owner+" "):
		return nil
	case reply.TTL == absent, node.ParseValue(reply.Value).Kept:
		return errGone
	default:
		return errForeign
	}
}

// What PTTL answers for a key that has no end, and for one that does not exist.
const (
	endless = -1 * time.Millisecond
	absent  = -2 * time.Millisecond
)

// Release gives the lease back: it ends at once, its context and channels say
// so, and its keys are deleted on every node. Release returns when a quorum of
// nodes has confirmed.
//
// It returns ErrLost (a *LostError) when the lease was lost before, at once;
// ErrReleased when it was released before, at once; and ErrNoQuorum (a
// *QuorumError) when too few nodes confirmed within the node timeout, joined
// with ctx's cause when ctx ended first. In that case the deletion goes on in
// the background, and what it misses expires with the TTL. The lease is
// over in all these cases. Concurrent calls: one releases, the others return
// ErrReleased. When Close is releasing everything, Release waits for it to end
// this lease and returns ErrReleased as well, or ErrClosed joined with ctx's
// cause when ctx ends before that.
func (l *Lease) Release(ctx context.Context) error {
	ctx, span := l.m.telemetry.startRelease(ctx, l)
	err := l.release(ctx)
	span.end(err)
	return err
}

func (l *Lease) release(ctx context.Context) error {
	if !l.m.enter() { // Close releases everything that has not ended
		select {
		case <-l.Done():
			return l.Err()
		case <-ctx.Done():
			return errors.Join(ErrClosed, context.Cause(ctx))
		}
	}
	var pending *answers
	if l.step(quorum.Input{Kind: quorum.Release}, nil).ended && !l.lost() {
		pending = l.m.ask(l.releaseRequest(), l.m.quorum(), nil)
	}
	l.m.inflight.Done() // Close waits until the release is posted, and gets it answered
	if pending == nil {
		return l.Err()
	}
	pending.wait(ctx, l.terms.Timeout)
	return l.m.enough(ctx, "release", l.Name(), pending)
}

// releaseRequest deletes the keys of the lease, which has ended, wherever they are.
func (l *Lease) releaseRequest() *node.Request {
	var w wait
	if l.ticket != "" && l.m.waiters.remove(l.ticket, 0) {
		w.ticket = l.ticket // not every node has granted, and taken it out
	}
	return l.m.releaseRequest(l.terms, l.keys, l.owner, l.token, w)
}
