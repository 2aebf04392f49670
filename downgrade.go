package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Downgrade replaces an exclusive lease by a shared one, and no writer gets the name in
// between. l ends as released before the nodes are asked, so stop the work under it first. The
// new lease has the same options and a larger token.
//
// It asks once, until work under l must stop. After an error the name is released: ErrNoQuorum (a
// *QuorumError) when too few answered, joined with ctx.Err() and ctx's cause when ctx ended first
// (these alone if before the call); ErrHeld joined with ErrLost when another holder has the name. It
// returns ErrLost or ErrReleased when l has ended, and ErrInvalid for a shared lease, a permit or a
// nil ctx, which end nothing.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	if l.mode != otel.Exclusive {
		return nil, &InvalidError{What: "Downgrade", Value: "a shared lease or a permit of " + strconv.Quote(l.Name()), Bound: "needs an exclusive lease", Fix: "use the lease as it is"}
	}
	m := l.m
	if !m.enter() {
		return nil, cmp.Or(l.Err(), ErrClosed) // a function may still have the lease
	}
	defer m.life.calls.Done()
	ctx, cancel := pastRelease(ctx)
	defer cancel()
	left := hold.Ending{What: hold.Released, Keys: hold.Left}
	_, until := m.clock.Both()
	until = until.Add(l.Remaining())
	if _, err := l.end(left); err != nil {
		return nil, err
	}
	var reader *Lease
	defer func() {
		if reader == nil { // an error, or a panic of a user's function
			l.lock.DeleteKeys(left)
		}
	}()
	var err error
	if ctx.Err() != nil { // an answer may be faster than the watcher of ctx
		err = errs.Ended(ctx, nil, "quorumlock: acquire "+strconv.Quote(l.Name()))
	} else {
		reader, err = l.askShared(ctx, until)
	}
	if err != nil {
		reader = nil
		if errors.Is(err, ErrHeld) { // l was lost before
			err = errs.Several(err.Error(), m.lostNow(l.Name(), l.token, heldReason(err)), err)
		}
		return nil, errs.Several("quorumlock: downgrade "+strconv.Quote(l.Name())+": the lease is released; "+withoutPrefix(err), err)
	}
	return reader, nil
}

// askShared asks for a shared lease with the owner of l, which has ended and whose keys are left. The nodes answer by the
// end of work under l, or do nothing.
func (l *Lease) askShared(ctx context.Context, until clock.Steady) (*Lease, error) {
	m, value := l.m, l.lock.Value()
	value = wire.Compose(wire.OwnerOf(value), 0, wire.MetadataOf(value))
	c := &call{ctx: ctx, name: l.Name(), span: m.telemetry.startAcquire(ctx, l.Name(), otel.Shared, false)}
	return ask(ctx, m, c, campaign.Downgraded(value, until), l.lock.Terms(), config.Call{Wait: config.Wait{Set: true}, Kind: config.Kind{Shared: true}})
}

// pastRelease returns a context that ends with ctx, but not with the release of the lease to which ctx
// belongs, which follows.
func pastRelease(ctx context.Context) (context.Context, context.CancelFunc) {
	past, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() {
		if cause := context.Cause(ctx); !errors.Is(cause, ErrReleased) {
			cancel(cause)
		}
	}
	stop := context.AfterFunc(ctx, end)
	if ctx.Err() != nil { // AfterFunc ends it in a goroutine, and not if another lease's release has ended ctx
		cancel(context.Cause(ctx))
	}
	return after{past, ctx}, func() {
		stop()
		cancel(nil)
	}
}

// after is a context that another one has ended.
type after struct {
	context.Context
	first context.Context
}

// Err returns the other one's error.
func (a after) Err() error {
	if err := a.Context.Err(); err == nil || a.first.Err() == nil {
		return err
	}
	return a.first.Err()
}
