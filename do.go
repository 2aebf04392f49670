package quorumlock

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/errs"
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
// errors.Is of Do's error with an error of this package speaks of Do's own lease: ErrHeld and
// ErrNoQuorum mean that it was not acquired, and fn did not run. If fn's error is such an error
// of another call, Do returns a *FuncError, which has it in its field Err and does not show it
// to errors.Is and errors.As. Any other error of fn is returned as it is.
func (m *Manager) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	if fn == nil {
		return errNilFunction()
	}
	l, err := m.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	lost, err := m.term(ctx, l, fn)
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
		lost, err := m.term(ctx, l, fn)
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
		case m.ending(): // Close ended the term, and the next Acquire says so
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
func (m *Manager) reentered(ctx context.Context, name string) error {
	f, _ := ctx.Value(frameKey{}).(*frame)
	for ; f != nil; f = f.outer {
		if f.m != m || f.lease.Name() != name || f.lease.Err() != nil {
			continue
		}
		lock := f.lease.lock
		held := &HeldError{Name: name, Holder: holder(lock.Value()), RetryAfter: lock.Left(), Self: true}
		return errs.Several(held.Error()+"; this call runs under that very lease, which is not reentrant", held)
	}
	return nil
}

// term runs fn under the lease and releases it. lost is why the lease ended before the
// release, nil if it lasted; err is fn's error.
func (m *Manager) term(ctx context.Context, l *Lease, fn func(context.Context, *Lease) error) (lost, err error) {
	outer, _ := ctx.Value(frameKey{}).(*frame)
	if !l.lock.Work((*tenant)(l)) {
		if m.ending() {
			return ErrClosed, nil
		}
		return l.Err(), nil
	}
	fnCtx, cancel := l.WithContext(context.WithValue(ctx, frameKey{}, &frame{m: m, lease: l, outer: outer}))
	defer func() {
		cancel()
		l.lock.Rest((*tenant)(l))
		// Not with ctx: usually ctx has ended at this point.
		switch err := l.Release(context.WithoutCancel(ctx)); {
		case errors.Is(err, ErrLost):
			lost = err
		case errors.Is(err, ErrReleased) && m.ending():
			lost = ErrClosed // Close ended it, and not fn
		case errors.Is(err, ErrNoQuorum):
			m.reporter.Warn("no majority of the nodes confirmed a release; the keys expire by themselves",
				"name", l.Name(), "token", l.Token(), "error", err)
		}
	}()
	return nil, fn(fnCtx, l)
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

// FuncError is the error of a function that Do or Lead has run, if that error is one of this
// package's, such as the HeldError of another name. errors.Is and errors.As do not find those
// in it: they would seem to speak of the lease of Do or Lead. They find everything else that
// fn's error wraps.
type FuncError struct{ Err error }

// ofFunction returns an error of a user's function as Do and Lead return it.
func ofFunction(err error) error {
	if err == nil || !slices.ContainsFunc(sentinels, func(own error) bool { return errors.Is(err, own) }) {
		return err
	}
	return &FuncError{Err: err}
}

var sentinels = []error{ErrHeld, ErrNoQuorum, ErrLost, ErrReleased, ErrClosed, ErrInvalid}

// Error returns the text of the function's error.
func (e *FuncError) Error() string { return e.Err.Error() }

// Is reports whether the function's error is target, and target is no error of this package.
func (e *FuncError) Is(target error) bool {
	return !slices.Contains(sentinels, target) && errors.Is(e.Err, target)
}

// As is errors.As of the function's error, for targets that are no errors of this package.
func (e *FuncError) As(target any) bool {
	switch target.(type) {
	case **HeldError, **QuorumError, **NodeError, **LostError, **InvalidError:
		return false
	}
	return errors.As(e.Err, target)
}
