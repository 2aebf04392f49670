package quorumlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
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
	// settled means that err is final: after a release, the nodes have answered, or Release waits no longer. Guarded by
	// mu; it is up here because it costs no memory here.
	settled bool

	mu    sync.Mutex // taken after the lock's
	err   error      // why it ended
	watch *watch     // nil until the first request for a channel or the context
}

// Name returns the name of the lease.
func (l *Lease) Name() string {
	lock, _, _ := wire.SlotOf(l.lock.Key())
	return lock[l.m.prefixed:]
}

// Owner returns the random value that marks the keys on the nodes. Leases that were
// passed on inside this process, without asking the nodes again, share it; their tokens
// differ.
func (l *Lease) Owner() string { return wire.OwnerOf(l.lock.Value()) }

// Token returns the fencing token: unique for the name (of a permit: for the slot), and larger
// than every token of a lease that had ended when this attempt began. Pass it along with every
// write; the resource must refuse a token below the highest that it has seen. The token of a
// shared lease is between the tokens of the writers before and after it; readers between these
// two may have the same one. 0 with WithoutFencing.
func (l *Lease) Token() int64 { return l.token }

// Shared reports whether the lease is a shared one, of the option Shared or of Downgrade.
func (l *Lease) Shared() bool { return l.mode == otel.Shared }

// Slot returns the number of the permit, from 0, and -1 for a lease that is not a permit.
func (l *Lease) Slot() int {
	_, slot, _ := wire.SlotOf(l.lock.Key())
	return slot
}

// Valid reports whether work under the lease may continue. It reads the clocks at the call: it
// is false at the first call after a suspend that was too long, even before Lost delivers.
func (l *Lease) Valid() bool { return l.Remaining() > 0 }

// Remaining returns how long work may continue unless the lease is renewed; 0 when the lease
// is not valid. A lease that is not renewed is reported as lost before Remaining is 0: 25
// ms before (half the safety margin, if that is less), and on a busy machine up to a tenth of the TTL
// earlier still.
func (l *Lease) Remaining() time.Duration {
	if !l.asked.Load() {
		l.asked.Store(true)
	}
	stop := clock.Validity(l.stop.Load())
	if stop == 0 {
		return 0
	}
	if left := stop.Sub(l.m.clock.Now()); left > 0 {
		return left
	}
	l.lock.Tick() // whichever caller notices the loss reports it
	return 0
}

// Context returns a context that ends with the lease: context.Cause is then what Err
// returns. It has the values of the context given to Acquire, but neither its deadline nor
// its cancellation.
func (l *Lease) Context() context.Context { return l.watching().ctx }

// WithContext returns a context for a request's work under the lease. It has the values and the
// deadline of ctx, and ends with ctx or with the lease, whichever ends first. context.Cause
// then returns ctx's cause, or Err of the lease. Call cancel when the work is done, or the
// lease keeps the context until it ends. Do and Lead make such a context themselves. A nil ctx
// panics, as it does in context.WithCancel.
func (l *Lease) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return either(ctx, l.Context())
}

// either returns a context that ends with ctx or with the context of a lease.
func either(ctx, leaseCtx context.Context) (context.Context, context.CancelFunc) {
	either, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(leaseCtx, func() { cancel(context.Cause(leaseCtx)) })
	if leaseCtx.Err() != nil { // AfterFunc cancels in a goroutine, and a lease that has ended allows no work
		cancel(context.Cause(leaseCtx))
	}
	return either, func() {
		stop()
		cancel(nil)
	}
}

// Done returns a channel that is closed when the lease has ended, lost or
// released, and Err and the context say so.
func (l *Lease) Done() <-chan struct{} { return l.watching().done }

// Err returns nil while the lease is held, then ErrReleased, ErrDetached or a *LostError. After a release, the
// answers of the nodes may turn ErrReleased into a *LostError, see Release.
func (l *Lease) Err() error {
	l.Remaining()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Lost returns a channel that delivers exactly one value if the lease is lost: before another client
// can be granted it, unless nodes lost its keys. Then the channel is closed. A release closes it
// without a value when the nodes have answered, unless they show that the lease was lost before. All
// callers get the same channel, so one of several readers gets the value; Err, Done and the context
// inform all of them.
func (l *Lease) Lost() <-chan Lost { return l.watching().lost }

// Renewed returns a channel that delivers renewals. A value that was not read is replaced by the
// next. The channel is closed when the lease ends. A closed channel is always ready, so a loop over
// it needs a case for Done or Lost that returns, as in the example of Lost.
func (l *Lease) Renewed() <-chan Renewed { return l.watching().renewed }

// AtRisk returns a channel that delivers warnings. A value that was not read is replaced by the
// next. The channel is closed when the lease ends.
func (l *Lease) AtRisk() <-chan AtRisk { return l.watching().atRisk }

// Wanted returns a channel that reports how many callers wait for the lease, and who has asked for
// it with Manager.AskRelease; the holder may ignore both. It delivers a value now if another caller
// waits or has asked, and at each change. A value that was not read is replaced by the next. The
// channel is closed when the lease ends. All callers get the same channel.
//
// It reports a caller of this process that wants an exclusive lease at once, and other changes with
// the answers to the next renewal: after a third of the TTL, or with WithoutRenewal only when Renew
// is called. For a shared lease or a permit, all changes come with the next renewal.
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
		l.lock.Listen((*tenant)(l))
		l.shard().queues.Tell(l.lock.Key())
	}
	return w.wanted
}

// watching returns l.watch, in which only wanted and rounds change later.
func (l *Lease) watching() *watch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched()
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
		if l.settled {
			var lost *LostError
			_ = errors.As(l.err, &lost)
			w.settle(lost)
		}
	}
	return l.watch
}

// Renew extends the lease on every node and returns when a majority has confirmed: for a lease
// taken WithoutRenewal, or before a long step. It joins a round that is under way.
//
// WithTTL(d) gives the lease another TTL, from this round on. A shorter TTL counts at once,
// whatever the nodes answer. A longer one counts when a majority has confirmed it; each later round
// asks for it, also after an error.
//
// It returns ErrNoQuorum (a *QuorumError) when no majority confirmed: the lease is then at risk and
// not lost. It returns ErrLost or ErrReleased when the lease has ended, ctx.Err() and ctx's cause
// when ctx ends first, and ErrInvalid for a nil ctx or a bad TTL.
func (l *Lease) Renew(ctx context.Context, opts ...RenewOption) error {
	if ctx == nil {
		return errNilContext()
	}
	terms, err := l.m.cfg.renewed(l.lock.Terms(), opts)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errs.Ended(ctx, nil, "quorumlock: renew "+strconv.Quote(l.Name()))
	}
	round := make(chan error, 1)
	if err := l.renew(terms, round); err != nil {
		return err
	}
	select {
	case err := <-round:
		return err
	case <-ctx.Done():
		return errs.Ended(ctx, nil, "quorumlock: renew "+strconv.Quote(l.Name())+": stopped waiting for the nodes; the renewal continues")
	}
}

// renew begins a round, unless one is running that asks for the same TTL, and adds the channel to those that receive
// its result. terms are nil to leave the TTL as it is.
func (l *Lease) renew(terms *config.Terms, round chan error) error {
	if err := l.Err(); err != nil {
		return err
	}
	l.lock.Renew((*tenant)(l), terms, func() {
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
	return enough(ctx, l.shard().ensemble, "verify", l.Name(), answers)
}

// Release ends the lease and gives its name to the next waiter; WithMinHold may keep the name
// taken. It returns when a majority of the nodes has confirmed, or at once if a caller of this
// process waits: only Err and Lost show a loss that is found then. A nil ctx is ErrInvalid.
//
// ErrReleased means that the lease was released before; ErrLost (a *LostError) that it was lost
// before, or that the nodes show that another client may have had the lock, as Err and Lost say;
// ErrNoQuorum (a *QuorumError) that too few nodes confirmed within the node timeout, or before ctx
// ended (joined with ctx.Err() and its cause): it continues in the background, and the other keys
// expire.
func (l *Lease) Release(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	clock := l.m.clock
	began := clock.Now()
	err := l.release(ctx)
	l.m.telemetry.released(ctx, l.span(l.Owner()), began, clock.Now(), err)
	return err
}

// mayEnd admits a call that ends leases: before Close has begun, and afterwards while a function runs under
// one of them. The call ends with calls.Done.
func (m *Manager) mayEnd(leases ...*Lease) bool {
	return m.enter() || slices.ContainsFunc(leases, func(l *Lease) bool { return l.lock.Enter((*tenant)(l)) })
}

func (l *Lease) release(ctx context.Context) error {
	earlier := ctx.Err() != nil
	if !l.m.mayEnd(l) { // Close ends it
		<-l.Done()
		return l.Err()
	}
	pending, err := l.end(hold.Ending{What: hold.Released, Keys: hold.Deleted})
	l.m.life.calls.Done() // Close waits until the release is posted, and then for its answers
	if pending == nil {
		return err
	}
	return l.returned(ctx, earlier, pending)
}

// returned waits for the answers to a release. earlier means that ctx had ended while the lease was held.
func (l *Lease) returned(ctx context.Context, earlier bool, pending *ensemble.Answers) error {
	pending.WaitEnding(ctx, earlier, l.lock.Terms().Timeout)
	if err := l.Err(); errors.Is(err, ErrLost) {
		return err
	}
	return enough(ctx, l.shard().ensemble, "release", l.Name(), pending)
}

func (l *Lease) shard() *shard { return l.m.of(l.Name()) }

// span returns the data of a lease for spans.
func (l *Lease) span(owner string) leaseSpan {
	return leaseSpan{name: l.Name(), token: l.token, owner: owner, mode: l.mode, acquired: l.acquired}
}

// end ends the lease in the way of e. With hold.Deleted the lock goes to the next caller of this process, or
// back to the nodes, whose answers are pending then. If the lease has ended already, end returns the error
// that Release must return.
func (l *Lease) end(e hold.Ending) (pending *ensemble.Answers, err error) {
	pending, ok := l.lock.End((*tenant)(l), e)
	if !ok {
		return nil, l.Err()
	}
	return pending, nil
}

// abandon releases a lease that no caller has seen.
func (l *Lease) abandon() {
	if pending, _ := l.end(hold.Ending{What: hold.Released, Keys: hold.Unseen}); pending != nil {
		pending.Abandon()
	}
}
