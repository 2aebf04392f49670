package quorumlock

import (
	"context"
	"errors"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
)

// AcquireShared waits until it holds a shared lease of the name, or until ctx ends: a read lock. Any
// number of callers, in any processes, hold shared leases of a name together, and nobody holds it
// exclusively meanwhile. Acquire is the write lock of the same name. Options and errors are those of
// Acquire; a *HeldError says of a shared holder how many there are.
//
// Writers and readers get the name in the order in which they came: readers that come after a waiting
// writer wait for it, and the readers before it, or between two writers, get it together. So both wait
// only for the leases before them. A reader that holds its lease for hours keeps a writer out for hours:
// WithMaxHold ends it, and Lease.Wanted tells it that somebody waits.
//
// The fencing token of a shared lease is larger than that of every writer before it, and smaller than that
// of every writer after it. Readers between the same two writers have the same token, or the later ones a
// larger one, if an attempt to write failed in between.
//
// There is no upgrade: two readers that each wait for the other to leave would wait for ever. To read
// first and perhaps write, hold another name as well that all writers take, release the shared lease, and
// acquire the name. Inside Do, DoShared or Lead of the same name it returns ErrHeld at once, as Acquire
// does: the call might wait behind a writer that waits for its own caller. It is safe for concurrent use.
//
// Clients of other Redlock libraries, and of this one before it had shared leases, are kept out by
// readers, and keep them out. They do not queue with readers, or leave the queue, and then poll.
func (m *Manager) AcquireShared(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return acquire(ctx, m, &call{name: name, mode: otel.Shared}, opts, true)
}

// TryAcquireShared asks for a shared lease once, as TryAcquire does for an exclusive one. It returns
// ErrHeld (a *HeldError) also when a writer waits for the name.
func (m *Manager) TryAcquireShared(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return acquire(ctx, m, &call{name: name, mode: otel.Shared}, opts, false)
}

// DoShared acquires a shared lease as AcquireShared does, and runs fn under it as Do does.
func (m *Manager) DoShared(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	return do(ctx, m, m.AcquireShared, name, fn, opts)
}

// Downgrade gives an exclusive lease up for a shared one of the same name, without a moment in which another
// writer could get it: for a writer that goes on as a reader. l ends as released before the nodes are asked,
// so work under it has to stop before the call. The lease that is returned is a new one, with the same
// options and a larger token; readers that wait at the head of the queue join it.
//
// It asks the nodes once. After an error nothing is held, and the name is released: ErrNoQuorum (a
// *QuorumError) when too few nodes answered, joined with ctx.Err() and ctx's cause when ctx ended first, or
// ErrHeld when another holder has the name on too many of them. A context that the end of l itself ends, such
// as its own or that of Do, is no reason to stop. It returns ErrLost or ErrReleased when l has ended before,
// and ErrInvalid for a shared lease, a permit or a nil ctx, which end nothing.
func (l *Lease) Downgrade(ctx context.Context) (*Lease, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	if l.mode != otel.Exclusive {
		return nil, &InvalidError{What: "Downgrade", Value: "a shared lease or a permit of " + strconv.Quote(l.Name()), Bound: "needs an exclusive lease", Fix: "use the lease as it is"}
	}
	m := l.m
	if !enter(m) {
		<-l.Done()
		return nil, l.Err()
	}
	defer m.life.calls.Leave()
	value, ok := m.dog.Leave(l.lock, (*tenant)(l), hold.Released)
	if !ok {
		return nil, l.Err()
	}
	ctx, cancel := pastRelease(ctx)
	defer cancel()
	c := &call{ctx: ctx, name: l.Name(), mode: otel.Shared, span: m.telemetry.startAcquire(ctx, l.Name(), otel.Shared, false)}
	c.campaign.From = value
	reader, err := ask(ctx, m, c, l.lock.Terms(), config.Wait{Set: true})
	if err != nil {
		m.dog.Abandon(l.lock)
		return nil, errs.Several("quorumlock: downgrade "+strconv.Quote(l.Name())+": the lease is released; "+withoutPrefix(err), err)
	}
	return reader, nil
}

// pastRelease returns a context that ends with ctx, but not with the release of the lease to which ctx
// belongs.
func pastRelease(ctx context.Context) (context.Context, context.CancelFunc) {
	past, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() {
		if cause := context.Cause(ctx); !errors.Is(cause, ErrReleased) {
			cancel(cause)
		}
	}
	stop := context.AfterFunc(ctx, end)
	if ctx.Err() != nil { // AfterFunc ends it in a goroutine
		end()
	}
	return past, func() {
		stop()
		cancel(nil)
	}
}
