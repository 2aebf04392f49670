package quorumlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Do acquires the lease as Acquire does, runs fn, and releases the lease when fn has
// returned or panicked. fn's context ends with ctx or with the lease, whichever is first;
// context.Cause returns which. fn must return then: Do waits for it. If the lease has
// ended before, fn is not called.
//
// Close ends fn's context as well. It keeps the name taken until fn has returned, for at most
// 2 % of the TTL (at least 50 ms, at most a fifth of the TTL), and no longer than its own context
// and 0.1 s.
//
// It returns fn's error. When the lease did not last until fn returned, that error is
// joined with ErrLost (a *LostError), or with ErrClosed if Close ended the lease. A
// release that no majority of the nodes confirmed is logged and not returned: the work
// was done under the lease, and its keys expire by themselves. A nil fn is ErrInvalid.
//
// errors.Is of Do's error with an error of this package is about Do's own lease: ErrHeld and
// ErrNoQuorum mean that it was not acquired, and fn did not run. If fn's error is such an error
// of another call, Do returns a *FuncError, which has it in its field Err and does not show it
// to errors.Is and errors.As. Any other error of fn is returned as it is.
func (m *Manager) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return do(ctx, m, m.Acquire, name, fn, opts)
}

// do is Do with the call that acquires.
func do(ctx context.Context, m *Manager, acquire func(context.Context, string, ...AcquireOption) (*Lease, error), name string,
	fn func(ctx context.Context, l *Lease) error, opts []AcquireOption,
) error {
	if fn == nil {
		return errNilFunction()
	}
	l, err := acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	lost, err := term(ctx, m, l, func(ctx context.Context) error { return fn(ctx, l) })
	if lost != nil {
		return joinCause(err, lost)
	}
	return ofFunction(err)
}

// DoAll acquires the leases as AcquireAll does, runs fn, and releases them when fn has returned or
// panicked. It is Do for several names: fn's context ends with ctx or with the first of the leases
// that ends, and the errors are those of Do.
func (m *Manager) DoAll(ctx context.Context, names []string, fn func(ctx context.Context, all *Leases) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNilFunction()
	}
	all, err := m.AcquireAll(ctx, names, opts...)
	if err != nil {
		return err
	}
	lost, err := term(ctx, m, all, func(ctx context.Context) error { return fn(ctx, all) })
	if lost != nil {
		return joinCause(err, lost)
	}
	return ofFunction(err)
}

// Lead campaigns for the lease until ctx ends, and runs fn in each term, with a context
// that ends with ctx or with the lease. When the lease is lost, Lead waits for fn to
// return, whatever fn returns, and campaigns again. When fn returns while the lease is
// held, Lead releases the lease and returns fn's error, as Do does. WithWait bounds each campaign.
//
// When ctx ends, Lead releases, and returns ctx.Err() and context.Cause(ctx) joined with
// fn's error, or with the error that kept Lead from the lease. It also returns the errors
// that Acquire returns at once or at WithWait's bound, and ErrInvalid for a nil fn. After a
// loss, an error of fn is logged.
func (m *Manager) Lead(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNilFunction()
	}
	for {
		l, err := m.Acquire(ctx, name, opts...)
		if err != nil {
			return err
		}
		lost, err := term(ctx, m, l, func(ctx context.Context) error { return fn(ctx, l) })
		switch {
		case ctx.Err() != nil && err != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())):
			if own := ofFunction(err); own != err { //nolint:errorlint // whether it is the same value
				return errs.Several(err.Error(), ctx.Err(), context.Cause(ctx), own)
			}
			return err // it already includes the end of ctx
		case ctx.Err() != nil:
			return errs.Ended(ctx, ofFunction(err), "leadership of "+strconv.Quote(name)+" ended")
		case lost == nil:
			return ofFunction(err)
		case m.life.ending(): // Close ended the term, and the next Acquire says so
			continue
		case err != nil && !errors.Is(err, lost) && !errors.Is(err, context.Canceled): // that would repeat the loss, which is logged
			m.reporter.Warn("the function of Lead has failed after the loss of its lease", "name", name, "token", l.Token(), "error", err)
		}
	}
}

// A frame is a call of Do or Lead that runs a function under a lease.
type frame struct {
	m     *Manager
	lease *Lease
	outer *frame
}

type frameKey struct{} // of a *frame in the context of a function that Do or Lead runs

// reentered returns an error if ctx comes from Do or Lead of the same name: the call would
// wait for itself.
func reentered(ctx context.Context, m *Manager, name string) error {
	f, _ := ctx.Value(frameKey{}).(*frame)
	for ; f != nil; f = f.outer {
		if f.m != m || f.lease.Name() != name || f.lease.Err() != nil {
			continue
		}
		lock := f.lease.lock
		held := &HeldError{Name: name, Holder: holder(lock.Value()), RetryAfter: lock.Left(), Self: true}
		if f.lease.Shared() {
			held.Readers = 1 // there may be more
		}
		return errs.Several(held.Error()+"; this call runs under that lease, which is not reentrant", held)
	}
	return nil
}

// A tenure is what a function runs under: a *Lease, or *Leases.
type tenure interface {
	leases() []*Lease
	WithContext(ctx context.Context) (context.Context, context.CancelFunc)
	Err() error
	Release(ctx context.Context) error
}

func (l *Lease) leases() []*Lease { return []*Lease{l} }

func (s *Leases) leases() []*Lease { return s.all }

// term runs fn under leases and releases them. lost is why one of them ended before the release,
// nil if all lasted; err is fn's error.
func term(ctx context.Context, m *Manager, t tenure, fn func(context.Context) error) (lost, err error) {
	around, _ := ctx.Value(frameKey{}).(*frame)
	leases := t.leases()
	for i, l := range leases {
		if l.lock.Work((*tenant)(l)) {
			around = &frame{m: m, lease: l, outer: around}
			continue
		}
		rest(leases[:i])
		if m.life.ending() {
			return ErrClosed, nil
		}
		return t.Err(), nil
	}
	fnCtx, cancel := t.WithContext(context.WithValue(ctx, frameKey{}, around))
	defer func() {
		cancel()
		rest(leases)
		// Not with ctx: usually ctx has ended at this point.
		switch err := t.Release(context.WithoutCancel(ctx)); {
		case errors.Is(err, ErrLost):
			lost = err
		case errors.Is(err, ErrDetached): // by fn
		case errors.Is(err, ErrReleased) && m.life.ending():
			lost = ErrClosed // Close ended it, and not fn
		case errors.Is(err, ErrNoQuorum):
			attrs := []any{"name", leases[0].Name(), "token", leases[0].Token(), "error", err}
			if len(leases) > 1 {
				attrs = []any{"error", err} // it has the names
			}
			m.reporter.Warn("no majority of the nodes confirmed a release; the keys expire by themselves", attrs...)
		}
	}()
	return nil, fn(fnCtx)
}

// rest ends the work under leases.
func rest(leases []*Lease) {
	for _, l := range leases {
		l.lock.Rest((*tenant)(l))
	}
}

// joinCause joins fn's error and the reason why the lease ended before fn returned.
func joinCause(err, cause error) error {
	switch {
	case err == nil, err == cause: //nolint:errorlint // this very value
		return cause
	case errors.Is(err, cause): // its text includes that of cause
		return errs.Several(err.Error(), cause, ofFunction(err))
	default:
		return errs.Join(cause, ofFunction(err))
	}
}

// Holding is what a majority of the nodes says about a name, see Manager.Observe.
type Holding struct {
	Name string
	// Known means that the answers decide it: a majority of the nodes names one holder, or no holder
	// can have a majority. While it is false, only Name, AsOf and Err, which says why, are
	// set.
	Known  bool
	Held   bool   // a lease has the name
	Holder Holder // of the lease; zero unless Held
	// Readers is how many hold the name together, each with a shared lease, and Holder is one of them;
	// 0 if Holder has it alone. They count as one holder: a reader that comes or goes is no change.
	Readers int
	// Token is at or above the fencing token of the lease that is held, and below that of the
	// lease of any later holder. The nodes show the last token of a block, whose tokens one
	// process uses one after the other: so compare with "at most". 0 if they show none:
	// without fencing, and for another program's lock.
	Token int64
	// Until is when the holder's keys end on the nodes unless it renews or releases. It is on the
	// wall clock, for people. Zero unless Held, and for keys that never end.
	Until   time.Time
	Waiters int       // how many processes wait, as in Status
	AsOf    time.Time // just before the nodes were asked
	Err     error     // ErrNoQuorum (a *QuorumError); nil if Known
}

// The bounds and the default of ObserveEvery.
const (
	DefaultObserveEvery = time.Second
	minObserveEvery     = 50 * time.Millisecond
	maxObserveEvery     = time.Minute
)

// ObserveOption is an option of Observe.
type ObserveOption func(*observing)

type observing struct{ every time.Duration }

// ObserveEvery sets how often the nodes are asked: from 50 ms to 1 min, 1 s by default. Observers of
// one name share the shortest interval.
func ObserveEvery(d time.Duration) ObserveOption { return func(o *observing) { o.every = d } }

// Observe delivers who holds a name, now and at each change: a holder, nobody, or that the holder is
// unknown because the answers of an interval did not decide it. It asks every node once in
// an interval (ObserveEvery), and when the holder's keys end; all observers of a name in this
// Manager share these questions. Each costs a node about a microsecond.
//
// The channel has capacity 1: a Holding that is not read is replaced by the next one. It is closed
// when ctx or the Manager ends. The first Holding comes with the first answers, and another one
// when the holder or its token changes, or becomes known or unknown. While a majority answers,
// that is within an interval and a node timeout of the change. Holders in between may be missed. A
// holder is never followed by one with a smaller token, whose keys have come back: the holder is
// unknown then. "Nobody" means that no holder has a
// majority of the nodes: a new holder may be about to get one.
//
// A Holding is not a lease: it may be untrue by the time you read it. A process that must be the
// only one acquires; a process that must not follow a former leader compares tokens. An observer
// that starts again compares the first Token with the last one that it has seen.
//
// It returns ErrInvalid (a name, or an interval out of bounds) and ErrClosed. It is safe for
// concurrent use.
func (m *Manager) Observe(ctx context.Context, name string, opts ...ObserveOption) (<-chan Holding, error) {
	if err := inspectable(ctx, m, name); err != nil {
		return nil, err
	}
	o := observing{every: DefaultObserveEvery}
	for _, opt := range opts {
		opt(&o)
	}
	if o.every < minObserveEvery || o.every > maxObserveEvery {
		return nil, &InvalidError{What: "ObserveEvery", Value: o.every.String(), Bound: "from 50ms to 1m0s", Fix: "choose an interval between them"}
	}
	holdings := make(chan Holding, 1)
	key := wire.LockKey(m.cfg.Prefix, name)
	one := &observe.Observer{
		Every: o.every,
		Deliver: func(r *observe.Report) {
			select {
			case <-holdings: // nobody has read it
			default:
			}
			holdings <- holdingOf(m, name, r)
		},
	}
	leave := func() {
		if m.out.observers.Remove(key, one) {
			close(holdings)
		}
	}
	stop := context.AfterFunc(ctx, leave)
	one.End = func() { stop(); close(holdings) }
	if !m.out.observers.Add(key, one) {
		stop()
		return nil, ErrClosed
	}
	if ctx.Err() != nil {
		leave() // the first call may have come before Add
	}
	return holdings, nil
}

// holdingOf returns a report for users.
func holdingOf(m *Manager, name string, r *observe.Report) Holding {
	h := Holding{Name: name, Known: r.Known, Held: r.Held, AsOf: m.ensemble.Clock.Time(r.Began)}
	if !r.Known {
		h.Err = noQuorum(m.ensemble, "observe", name, r.Agree, r.Errors)
		return h
	}
	h.Waiters = r.Waiters
	if r.Held {
		h.Holder, h.Readers, h.Token = holder(r.Value), r.Readers, r.Token
		if r.Until != quorum.Never {
			h.Until = m.ensemble.Clock.Time(r.Until)
		}
	}
	return h
}
