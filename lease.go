package quorumlock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/queue"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Lease is a lock that is held, for as long as it is renewed. The Manager renews it in
// the background until it is released or lost.
//
// All methods are safe for concurrent use.
type Lease struct {
	m        *Manager
	lock     *hold.Lock
	token    int64
	label    string          // of the name on metrics, "" for none
	values   context.Context // Acquire's context, for its values
	acquired *spanRef        // of the acquire span; nil without tracing

	// stop is when the lease stops being valid; 0 once it has ended. Valid reads it.
	// Only Report writes it.
	stop atomic.Int64
	// asked means that the program has checked the lease, so it is not forgotten.
	asked atomic.Bool
	risky bool // counted as at risk; only Report uses it
	mode  otel.Mode

	mu    sync.Mutex // taken after the lock's
	err   error      // why it ended
	watch *watch     // nil until the first request for a channel or the context
}

// watch has the channels and the context of a lease. It is made at the first request,
// because most leases are never watched and have to stay small.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done has capacity 0, carries nothing, and is closed at the end.
	done chan struct{}
	// lost has capacity 1: exactly one value on a loss, then closed; closed without a
	// value on release. Nothing is dropped.
	lost chan Lost
	// renewed and atRisk have capacity 1: a new value replaces one that was not read.
	// Closed at the end, before everything else.
	renewed chan Renewed
	atRisk  chan AtRisk
	// wanted is the same; nil before the first request for it.
	wanted chan Wanted
	// rounds are the channels of Renew calls that wait for the end of the round: capacity
	// 1, one value, never closed.
	rounds []chan error
}

// Name returns the name of the lease.
func (l *Lease) Name() string {
	lock, _, _ := wire.SlotOf(l.lock.Key())
	return lock[len(l.m.cfg.Prefix):]
}

// Owner returns the random value that marks the keys on the nodes. Leases that were
// passed on inside this process, without asking the nodes again, share it; their tokens
// differ.
func (l *Lease) Owner() string { return wire.OwnerOf(l.lock.Value()) }

// Token returns the fencing token: unique for the name, and larger than that of every grant
// that was over when this attempt began. Pass it along with every write; the resource must
// refuse a token below the highest that it has seen. The token of a shared lease is between those of the
// writers before and after it; readers between these two may have the same one. 0 with WithoutFencing.
func (l *Lease) Token() int64 { return l.token }

// Shared reports whether the lease is a shared one, of AcquireShared or Downgrade.
func (l *Lease) Shared() bool { return l.mode == otel.Shared }

// Slot returns the number of the permit, from 0, and -1 for a lease that is not a permit.
func (l *Lease) Slot() int {
	_, slot, _ := wire.SlotOf(l.lock.Key())
	return slot
}

// Valid reports whether work under the lease may go on. It reads the clocks at the call: it
// is false at the first call after a suspend that was too long, even before Lost delivers.
func (l *Lease) Valid() bool { return l.Remaining() > 0 }

// Remaining returns how long work may go on unless the lease is renewed; 0 when the lease
// is not valid. A lease that is not renewed is reported as lost before Remaining is 0: 25
// ms before (half the guard, if that is less), and on a busy machine up to a tenth of the TTL
// earlier still.
func (l *Lease) Remaining() time.Duration {
	if !l.asked.Load() {
		l.asked.Store(true)
	}
	stop := time.Duration(l.stop.Load())
	if stop == 0 {
		return 0
	}
	if left := stop - l.m.ensemble.Clock.Now(); left > 0 {
		return left
	}
	l.lock.Tick() // whichever caller notices the loss reports it
	return 0
}

// Context returns a context that ends with the lease: context.Cause is then what Err
// returns. It has the values of the context given to Acquire, but neither its deadline nor
// its cancellation.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().ctx
}

// WithContext returns a context for work under the lease that belongs to a request: it has the
// values and the deadline of ctx, and ends with ctx or with the lease, whichever is first;
// context.Cause then returns the cause of that one, which is Err for the lease. Call cancel when
// the work is done, or the lease keeps the context until it ends. Do and Lead make such a
// context themselves. A nil ctx panics, as it does in context.WithCancel.
func (l *Lease) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return either(ctx, l.Context())
}

// either returns a context that ends with ctx or with that of a lease.
func either(ctx, leaseCtx context.Context) (context.Context, context.CancelFunc) {
	either, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(leaseCtx, func() { cancel(context.Cause(leaseCtx)) })
	if leaseCtx.Err() != nil { // AfterFunc cancels in a goroutine, and a lease that is over allows no work
		cancel(context.Cause(leaseCtx))
	}
	return either, func() {
		stop()
		cancel(nil)
	}
}

// Done returns a channel that is closed when the lease has ended, lost or
// released, and Err and the context say so.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().done
}

// Err returns nil while the lease is held, then ErrReleased, ErrDetached or a *LostError.
func (l *Lease) Err() error {
	l.Remaining()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Lost returns a channel that delivers exactly one value if the lease is lost, at or before
// the instant at which another client could be granted it, and is then closed. A release
// closes it without a value. All callers get the same channel, so one of several readers
// gets the value; Err, Done and the context inform all of them.
func (l *Lease) Lost() <-chan Lost {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().lost
}

// Renewed returns a channel that delivers renewals. A value that was not read is replaced
// by the next. It is closed when the lease ends; a closed channel is always ready, so a loop
// over it needs a case for Done or Lost that returns, as in the package documentation.
func (l *Lease) Renewed() <-chan Renewed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().renewed
}

// AtRisk returns a channel that delivers warnings. A value that was not read is replaced by
// the next. It is closed when the lease ends, as that of Renewed is.
func (l *Lease) AtRisk() <-chan AtRisk {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched().atRisk
}

// Wanted returns a channel that reports how many wait for the lease, and who has asked for it with
// Manager.AskRelease; the holder may ignore both. It delivers a value now if somebody waits or has
// asked, and at each change, also when nobody wants the lease any more. A value that was not read is
// replaced by the next. It is closed when the lease ends, as that of Renewed is.
//
// The channel reports a caller of this process at once, and a change in other processes with the answers
// to the next renewal: after a third of the TTL, or with WithoutRenewal only when Renew is called. The
// holder of a shared lease learns of every caller with its next renewal. All callers get the same
// channel.
func (l *Lease) Wanted() <-chan Wanted {
	l.mu.Lock()
	w := l.watched()
	first := w.wanted == nil
	if first {
		w.wanted = make(chan Wanted, 1)
		if l.err != nil {
			close(w.wanted)
		}
	}
	l.mu.Unlock()
	if first {
		l.m.dog.Listen(l.lock, (*tenant)(l))
		l.m.queues.Tell(l.lock.Key())
	}
	return w.wanted
}

// watched returns l.watch, and makes it if necessary. l.mu is held.
func (l *Lease) watched() *watch {
	l.asked.Store(true)
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

// end closes everything, in the order that readers rely on: first Renewed, AtRisk and Wanted,
// then (Err was set before) the context, Done, Lost.
func (w *watch) end(err error) {
	close(w.renewed)
	close(w.atRisk)
	if w.wanted != nil {
		close(w.wanted)
	}
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

// Renew extends the lease on every node now and returns when a majority has confirmed. It
// is the way to keep a lease taken WithoutRenewal, and a way to be sure before a long step.
// It joins a round that is under way, by another call or in the background.
//
// It returns ErrNoQuorum (a *QuorumError) when the round missed its majority: the lease is
// then at risk and not lost. It returns ErrLost or ErrReleased when the lease has ended,
// ctx.Err() and ctx's cause when ctx ends first, while the round goes on, and ErrInvalid for
// a nil ctx.
func (l *Lease) Renew(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	if ctx.Err() != nil {
		return errs.Ended(ctx, nil, "quorumlock: renew "+strconv.Quote(l.Name()))
	}
	round := make(chan error, 1)
	if err := renew(l, round); err != nil {
		return err
	}
	select {
	case err := <-round:
		return err
	case <-ctx.Done():
		return errs.Ended(ctx, nil, "quorumlock: renew "+strconv.Quote(l.Name())+": stopped waiting for the nodes, while the round goes on")
	}
}

// renew begins a round, unless one is running, and adds the channel to those that receive
// its result.
func renew(l *Lease, round chan error) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.lock.Renew(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if w := l.watched(); l.err == nil {
			w.rounds = append(w.rounds, round)
		}
	})
	return l.Err()
}

// Verify asks the nodes whether a majority of them still holds the lease, for the step that
// must not be wrong. It extends nothing.
//
// It returns nil when a majority confirmed and the lease is still valid afterwards; ErrLost
// or ErrReleased when the lease has ended, found by this call or before; ErrNoQuorum (a
// *QuorumError) when too few nodes confirmed, joined with ctx.Err() and ctx's cause when
// ctx ended first; and ErrInvalid for a nil ctx.
func (l *Lease) Verify(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	if err := l.Err(); err != nil {
		return err
	}
	answers := l.lock.Verify(ctx)
	if err := l.Err(); err != nil {
		return err
	}
	return enough(ctx, l.m.ensemble, "verify", l.Name(), answers)
}

// Release gives the lease back: it ends at once, and its context and channels say so. Its
// keys are deleted on every node, and the next waiter gets the lock; WithMinHold may keep
// the name taken. Release returns when a majority of the nodes has confirmed. Where a caller
// in this process waits for the same name, the lock may be passed on to it, perhaps after a
// request to the nodes; Release then returns at once.
//
// It returns ErrLost (a *LostError) when the lease was lost before, and ErrReleased when it
// was released before, both at once. It returns ErrNoQuorum (a *QuorumError) when too few
// nodes confirmed within the node timeout, joined with ctx.Err() and ctx's cause when ctx
// ended first; the deletion then goes on in the background, and keys that it does not reach
// expire with the TTL. A context that the release itself ends, such as the lease's own or
// that of Do, is no reason to stop. The lease is over in all these cases. A nil ctx is
// ErrInvalid, and releases nothing.
//
// Of concurrent calls one releases, and the others return ErrReleased, as all do once Close has
// begun.
func (l *Lease) Release(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	clock := l.m.ensemble.Clock
	began := clock.Now()
	err := l.release(ctx)
	l.m.telemetry.released(ctx, spanOf(l), began, clock.Now(), err)
	return err
}

func (l *Lease) release(ctx context.Context) error {
	if !enter(l.m) { // Close ends every lease before it waits for anything
		<-l.Done()
		return l.Err()
	}
	pending, err := l.give()
	l.m.life.calls.Leave() // Close waits until the release is posted, and then for its answers
	if pending == nil {
		return err
	}
	pending.Wait(ctx, l.lock.Terms().Timeout)
	return enough(ctx, l.m.ensemble, "release", l.Name(), pending)
}

// span returns what spans say of the lease.
func spanOf(l *Lease) leaseSpan {
	return leaseSpan{name: l.Name(), token: l.token, mode: l.mode, acquired: l.acquired}
}

// give ends the lease. The lock goes to the next caller of this process, or back to the nodes,
// whose answers are pending then. If the lease has ended already, give returns the error that
// Release has to return.
func (l *Lease) give() (*ensemble.Answers, error) {
	owner, state, ok := l.lock.Vacate((*tenant)(l))
	switch q, queued := owner.(*queue.Queue); {
	case !ok:
		return nil, l.Err()
	case queued:
		return q.Finish(l.lock, state), nil
	default:
		return l.lock.Free(wire.TicketUpdate{}), nil
	}
}

// abandon releases a lease whose caller has given up.
func (l *Lease) abandon() { _, _ = l.give() }
