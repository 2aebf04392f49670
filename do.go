package quorumlock

import (
	"context"
	"errors"
	"strconv"
)

// Do acquires the lease as Acquire does, runs fn, and releases the lease when fn has
// returned or panicked. fn's context ends with ctx or with the lease, whichever is first;
// context.Cause returns which. fn must return then: Do waits for it.
//
// It returns fn's error. When the lease did not last until fn returned, that error is
// joined with ErrLost (a *LostError), or with ErrClosed if Close ended the lease. A
// release that no majority of the nodes confirmed is logged and not returned: the work
// was done under the lease, and its keys expire by themselves. A nil fn is ErrInvalid.
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
	return err
}

// Lead campaigns for the lease until ctx ends, and runs fn in each term, with a context
// that ends with ctx or with the lease. When the lease is lost, Lead waits for fn to
// return, whatever fn returns, and campaigns again. When fn returns while the lease is
// held, Lead releases the lease and returns fn's error. WithWait bounds each campaign.
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
			return err // err already includes the end of ctx
		case ctx.Err() != nil:
			return ended(ctx, err, "leadership of "+strconv.Quote(name)+" ended")
		case lost == nil:
			return err
		case m.ending(): // Close ended the term, and the next Acquire says so
			continue
		}
		m.warn("the lease was lost during a term", "name", name, "token", l.Token(), "loss", lost, "error", err)
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
		h := f.lease.hold
		h.mu.Lock()
		held := &HeldError{Name: name, Holder: holder(h.value), RetryAfter: max(h.machine.Deadline()-m.clock.Now(), 0), Self: true}
		h.mu.Unlock()
		return &joined{text: held.Error() + "; this call runs under that very lease, which is not reentrant", errs: []error{held}}
	}
	return nil
}

// term runs fn under the lease and releases it. lost is why the lease ended before the
// release, nil if it lasted; err is fn's error.
func (m *Manager) term(ctx context.Context, l *Lease, fn func(context.Context, *Lease) error) (lost, err error) {
	outer, _ := ctx.Value(frameKey{}).(*frame)
	fnCtx, cancel := context.WithCancelCause(context.WithValue(ctx, frameKey{}, &frame{m: m, lease: l, outer: outer}))
	leaseCtx := l.Context()
	stop := context.AfterFunc(leaseCtx, func() { cancel(context.Cause(leaseCtx)) })
	defer func() {
		stop()
		cancel(nil)
		// Not with ctx: usually ctx has ended at this point.
		switch err := l.Release(context.WithoutCancel(ctx)); {
		case errors.Is(err, ErrLost):
			lost = err
		case errors.Is(err, ErrReleased) && m.ending():
			lost = ErrClosed // Close ended it, and not fn
		case errors.Is(err, ErrNoQuorum):
			m.warn("no majority of the nodes confirmed a release; the keys expire by themselves",
				"name", l.Name(), "token", l.Token(), "error", err)
		}
	}()
	return nil, fn(fnCtx, l)
}

// joinCause joins err and cause, unless err already includes cause.
func joinCause(err, cause error) error {
	switch {
	case err == nil:
		return cause
	case errors.Is(err, cause):
		return err
	default:
		return join(cause, err)
	}
}
