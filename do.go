package quorumlock

import (
	"context"
	"errors"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/errs"
)

// Do acquires the lease as Acquire does, runs fn, and releases the lease when fn has returned or
// panicked. fn's context ends with ctx or with the lease, whichever is first; context.Cause returns
// which. fn must return then: Do waits for it. Close ends fn's context as well, with the cause
// ErrClosed.
//
// Do returns fn's error. If the lease did not last until fn returned, that error is joined with
// ErrLost (a *LostError); and with ErrClosed if Close began before fn returned, unless fn detached the
// lease. A release that no majority confirmed is only logged, because the work was done under the lease.
//
// errors.Is of Do's error with an error of this package is about Do's own lease: after ErrHeld and
// ErrNoQuorum, fn did not run. If fn returns such an error of another call, Do returns it as a
// *FuncError, which hides it from errors.Is and errors.As. Any other error of fn is returned as it
// is.
func (m *Manager) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNilFunction()
	}
	l, err := m.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	return joinCause(m.term(ctx, l, func(ctx context.Context) error { return fn(ctx, l) }))
}

// DoAll acquires the leases as AcquireAll does, runs fn, and releases them when fn has returned or
// panicked. It is Do for several names: fn's context ends with ctx or with the first of the leases
// that ends, and the errors are as for Do.
func (m *Manager) DoAll(ctx context.Context, names []string, fn func(ctx context.Context, all *Leases) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNilFunction()
	}
	all, err := m.AcquireAll(ctx, names, opts...)
	if err != nil {
		return err
	}
	return joinCause(m.term(ctx, all, func(ctx context.Context) error { return fn(ctx, all) }))
}

// Lead campaigns for the lease until ctx ends, and runs fn in each term, with a context that ends
// with ctx or with the lease. When the lease is lost, Lead waits for fn to return, and campaigns
// again. When fn returns while the lease is held, Lead releases the lease and returns fn's error,
// as Do does; the next candidate then runs its fn.
//
// With Permits(n), up to n candidates lead at the same time, each in a slot of its own
// (Lease.Slot), which may change after a loss. Shared is ErrInvalid.
//
// When ctx ends, Lead releases, and returns ctx.Err() and context.Cause(ctx) joined with fn's
// error, or with the reason why it did not get the lease. It also returns the errors that Acquire
// returns at once or at the bound of WithWait, which limits each campaign. After a loss, an error
// of fn is logged.
func (m *Manager) Lead(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNilFunction()
	}
	if _, limit, err := m.cfg.lease(opts); err == nil && limit.Kind.Shared {
		return &InvalidError{What: "Shared", Bound: "has no use in Lead, because all readers would lead", Fix: "leave it out, or give Permits for several leaders"}
	}
	for {
		l, err := m.Acquire(ctx, name, opts...)
		if err != nil {
			return err
		}
		lost, err := m.term(ctx, l, func(ctx context.Context) error { return fn(ctx, l) })
		switch {
		case ctx.Err() != nil:
			return ledUntil(ctx, name, err)
		case lost == nil:
			return ofFunction(err)
		case errors.Is(lost, ErrClosed):
			return joinCause(lost, err)
		case err != nil && !errors.Is(err, lost) && !errors.Is(err, context.Canceled): // that would repeat the loss, which is logged
			m.reporter.Warn("the function of Lead failed after the loss of its lease; Lead waits for the next one", "name", name, "token", l.Token(), "owner", l.Owner(), "error", err)
		}
	}
}

// ledUntil joins fn's error and the end of ctx, which has ended the leadership of a name.
func ledUntil(ctx context.Context, name string, err error) error {
	own, cause := ofFunction(err), context.Cause(ctx)
	switch {
	case errors.Is(own, ctx.Err()) && errors.Is(own, cause):
		return own
	case errors.Is(err, ctx.Err()) || errors.Is(err, cause): // its text includes the end of ctx
		return errs.Several(err.Error(), ctx.Err(), cause, own)
	}
	return errs.Ended(ctx, own, "quorumlock: leadership of "+strconv.Quote(name)+" ended")
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
func (m *Manager) reentered(ctx context.Context, name string) error {
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

// A tenure is the lease or the leases that a function runs under: a *Lease, or *Leases.
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
func (m *Manager) term(ctx context.Context, t tenure, fn func(context.Context) error) (lost, err error) {
	around, _ := ctx.Value(frameKey{}).(*frame)
	leases := t.leases()
	for i, l := range leases {
		if l.lock.Work((*tenant)(l)) {
			around = &frame{m: m, lease: l, outer: around}
			continue
		}
		err := t.Err()
		for _, l := range leases[:i] { // Close ends none under which a function runs
			_ = l.release(context.WithoutCancel(ctx))
		}
		rest(leases[:i])
		if m.life.ending() {
			return ErrClosed, nil
		}
		return err, nil
	}
	m.life.calls.Add(1) // for fn, which may end its leases; not too late, because these count until it begins
	defer m.life.calls.Done()
	unlessClosed, stop := either(context.WithValue(ctx, frameKey{}, around), m.life.work)
	fnCtx, cancel := t.WithContext(unlessClosed)
	defer func() {
		defer rest(leases) // also if a user's span panics
		closed := m.life.ending()
		cancel()
		stop()
		// Not with ctx: usually ctx has ended at this point.
		err := t.Release(context.WithoutCancel(ctx))
		switch {
		case errors.Is(err, ErrLost):
			if lost = err; closed {
				lost = errs.Join(err, ErrClosed)
			}
		case errors.Is(err, ErrDetached): // by fn
		case closed:
			lost = ErrClosed // Close has ended its context, and perhaps its lease
		case errors.Is(err, ErrNoQuorum):
			attrs := []any{"name", leases[0].Name(), "token", leases[0].Token(), "owner", leases[0].Owner(), "error", err}
			if len(leases) > 1 {
				attrs = []any{"error", err} // it has the names
			}
			m.reporter.Warn("a release was not confirmed by a majority of the nodes: the lock expires by itself", attrs...)
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

// joinCause joins fn's error and the reason why the lease ended before fn returned, which is nil if it lasted.
func joinCause(cause, err error) error {
	switch {
	case cause == nil:
		return ofFunction(err)
	case err == nil, err == cause: //nolint:errorlint // this very value
		return cause
	case errors.Is(err, cause): // its text includes the text of cause
		return errs.Several(err.Error(), cause, ofFunction(err))
	default:
		return errs.Join(cause, ofFunction(err))
	}
}
