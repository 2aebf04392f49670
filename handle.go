package quorumlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Handle is a lease that was detached, as text that goes to another process: by a pipe, a file, an
// environment variable. It is a secret: a process that has it and may use the nodes can take the
// lock.
type Handle string

// Detach ends the lease here and keeps its lock for another process, which calls Manager.Resume with the
// handle within keep: nobody else gets the name in between. The lease is over before Detach returns: stop
// the work under it first. keep is 100 ms to 24 h, and with WithRestartGuard at most the time of the guard
// (less the window of WithFailover). If nobody resumes, the lock is free after keep, also with WithMinHold.
//
// It returns ErrLost or ErrReleased when the lease has ended before; ErrNoQuorum when too few nodes have
// confirmed within the node timeout, and the lock is then released; and ErrInvalid for keep out of bounds,
// a shared lease or a permit, and a nil ctx, which end nothing. Err is ErrDetached afterwards, which is an ErrReleased.
func (l *Lease) Detach(ctx context.Context, keep time.Duration) (Handle, error) {
	if ctx == nil {
		return "", errNilContext()
	}
	if err := invalid(l.m.cfg.CheckKeep(keep)); err != nil {
		return "", err
	}
	if l.mode != otel.Exclusive {
		return "", &InvalidError{What: "Detach", Value: "a shared lease or a permit", Bound: "needs an exclusive lease", Fix: "let the other process acquire one as well, and then release"}
	}
	if !enter(l.m) {
		<-l.Done()
		return "", l.Err()
	}
	defer l.m.life.calls.Leave()
	pending, ok := l.m.dog.Detach(l.lock, (*tenant)(l), keep)
	if !ok {
		return "", l.Err()
	}
	pending.Wait(ctx, l.lock.Terms().Timeout)
	if err := enough(ctx, l.m.ensemble, "detach", l.Name(), pending); err != nil {
		l.m.dog.Drop(l.lock, keep)
		return "", err
	}
	h := wire.Handle{Prefix: l.m.cfg.Prefix, Name: l.Name(), Owner: l.Owner(), Token: l.token, TraceParent: l.acquired.traceParent()}
	return Handle(h.Text()), nil
}

// Resume takes over a lease that was detached (Lease.Detach), usually in another process. The lease that
// it returns is a new one, with a larger token: nobody else has had the name in between. Options are
// those of Acquire; WithWait is refused, because Resume asks once.
//
// Of several calls with copies of one handle at most one gets the lease. The others get ErrLost (a
// *LostError, joined with a *HeldError), as does a call after the keys have ended or were revoked. It
// returns ErrNoQuorum (a *QuorumError) when too few nodes answered. A call that fails gives back the keys
// that it got, so repeat it only while a majority still has the keys; of several calls at one instant all
// may fail. ErrInvalid is for a text that is no handle, and for a handle of another prefix. It is safe
// for concurrent use.
func (m *Manager) Resume(ctx context.Context, h Handle, opts ...AcquireOption) (*Lease, error) {
	held, err := parseHandle(ctx, m, h)
	if err != nil {
		return nil, err
	}
	t, limit, err := m.cfg.lease(opts)
	if err == nil && limit.Most > 0 {
		err = &InvalidError{What: "WithWait", Value: limit.Most.String(), Bound: "has no use in Resume, which asks once", Fix: "call Resume again after ErrNoQuorum"}
	}
	if err != nil {
		return nil, err
	}
	limit.Set = true
	span := m.telemetry.startAcquire(ctx, held.Name, otel.Exclusive, false)
	span.resumes(held.TraceParent)
	c := &call{ctx: ctx, name: held.Name, span: span}
	c.campaign.From = held.Owner
	l, err := ask(ctx, m, c, t, limit)
	if errors.Is(err, ErrHeld) {
		err = errs.Several("quorumlock: resume "+strconv.Quote(held.Name)+": the handle no longer works; "+withoutPrefix(err), handleLost(m, &held), err)
	}
	return l, err
}

// ReleaseHandle gives the lock of a detached lease back, if nobody is to resume it. It returns ErrLost
// when another process has resumed it, or its keys have ended; and otherwise what Resume returns.
func (m *Manager) ReleaseHandle(ctx context.Context, h Handle) error {
	held, err := parseHandle(ctx, m, h)
	if err != nil {
		return err
	}
	if !enter(m) {
		return ErrClosed
	}
	defer m.life.calls.Leave()
	timeout := m.cfg.At(m.ensemble.Trip(), &m.cfg.Terms).Timeout
	_, now := m.ensemble.Clock.Both()
	req := wire.NewDrop(wire.LockKey(m.cfg.Prefix, held.Name), held.Owner, now+m.cfg.Terms.TTL)
	missing := 0
	answers := m.ensemble.Collect(ctx, req, timeout, m.ensemble.Quorum(), func(reply *wire.Reply) error { // one after the other
		if reply.N >= wire.Ours {
			return nil
		}
		missing++
		return hold.ErrMissing
	})
	if err = enough(ctx, m.ensemble, "release", held.Name, answers); err != nil && missing >= m.ensemble.Quorum() {
		return handleLost(m, &held)
	}
	return err
}

// parseHandle reads a handle of this Manager's prefix.
func parseHandle(ctx context.Context, m *Manager, h Handle) (wire.Handle, error) {
	held, ok := wire.ParseHandle(string(h))
	switch {
	case ctx == nil:
		return held, errNilContext()
	case !ok || checkName(held.Name) != nil:
		return held, &InvalidError{What: "handle", Value: strconv.Itoa(len(h)) + " bytes", Bound: "has to be the text that Detach returned", Fix: "pass the whole text on"}
	case held.Prefix != m.cfg.Prefix:
		return held, &InvalidError{What: "handle", Value: "of the prefix " + strconv.Quote(held.Prefix), Bound: "has to be of " + strconv.Quote(m.cfg.Prefix), Fix: "give both programs one WithPrefix"}
	case ctx.Err() != nil:
		return held, errs.Ended(ctx, nil, "quorumlock: resume "+strconv.Quote(held.Name))
	}
	return held, nil
}

// handleLost returns the error of a handle that no longer works.
func handleLost(m *Manager, h *wire.Handle) error {
	now := m.ensemble.Clock.Time(m.ensemble.Clock.Now())
	return &LostError{Lost{Name: h.Name, Token: h.Token, Reason: LostRevoked, At: now, ValidUntil: now}}
}
