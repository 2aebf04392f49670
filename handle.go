package quorumlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Handle is a lease that was detached, as text that goes to another process: by a pipe, a file, an
// environment variable. It is a secret: a process that has it and may use the nodes can take the
// lock.
type Handle string

// Detach ends the lease here and keeps its lock for another process, which calls Manager.Resume
// with the handle within keep. No other client gets the name in between. Stop the work under the
// lease first.
//
// keep is 100 ms to 24 h, and with WithRestartGuard at most the time of the guard less the window
// of WithFailover. If no process resumes, the lock is free after keep. Detach waits for every node,
// for a node timeout at most. Err is ErrDetached afterwards, which is an ErrReleased.
//
// It returns ErrLost or ErrReleased when the lease has ended before. It releases the lock and
// returns ctx.Err() and ctx's cause when ctx ended before every node had confirmed, or
// ErrNoQuorum when too few nodes confirmed, joined with ErrLost when another client may have
// had the lock. A bad keep, a shared lease, a permit or a nil ctx is ErrInvalid and ends
// nothing.
func (l *Lease) Detach(ctx context.Context, keep time.Duration) (Handle, error) {
	if ctx == nil {
		return "", errNilContext()
	}
	if err := invalid(l.m.cfg.CheckKeep(keep)); err != nil {
		return "", err
	}
	if l.mode != otel.Exclusive {
		return "", &InvalidError{What: "Detach", Value: "a shared lease or a permit of " + strconv.Quote(l.Name()), Bound: "needs an exclusive lease", Fix: "let the other process acquire its own, then release this one"}
	}
	if !l.m.mayEnd(l) {
		<-l.Done()
		return "", l.Err()
	}
	defer l.m.life.calls.Done()
	left := hold.Ending{What: hold.Released | hold.Detached, Keys: hold.Left, Keep: keep}
	earlier := ctx.Err() != nil
	pending, err := l.end(left)
	if err != nil {
		return "", err
	}
	pending.WaitEnding(ctx, earlier, l.lock.Terms().Timeout)
	err = enough(ctx, l.shard().ensemble, "detach", l.Name(), pending)
	if err == nil && pending.Got < l.shard().ensemble.Size() && pending.EndedBy(ctx) {
		err = errs.Ended(ctx, nil, "quorumlock: detach "+strconv.Quote(l.Name())) // a node may mark the lock after the handle has been used
	}
	if err != nil {
		l.lock.DeleteKeys(left)
		return "", l.deniedDetach(pending, err)
	}
	h := wire.Handle{Prefix: l.m.cfg.Prefix, Name: l.Name(), Owner: l.Owner(), Token: l.token, TraceParent: l.acquired.traceParent()}
	return Handle(h.Text()), nil
}

// deniedDetach adds a LostError to the error of Detach, if another client may have had the lock.
func (l *Lease) deniedDetach(pending *ensemble.Answers, err error) error {
	e := l.shard().ensemble
	problems, kept, why := make([]error, e.Size()), e.Size(), LostMissing
	for i := range problems {
		problems[i] = pending.Err(i)
		revoked := errors.Is(problems[i], hold.ErrRevoked)
		if revoked {
			why = LostRevoked
		}
		if revoked || errors.Is(problems[i], hold.ErrMissing) {
			kept--
		}
	}
	if quorum.Margin(e.Size(), kept) >= 0 {
		return err
	}
	return errs.Several(err.Error(), l.m.lostNow(l.Name(), l.token, why, nodeErrors(e, problems)...), err)
}

// Resume takes over a lease that was detached (Lease.Detach), usually in another process. It
// returns a new lease with a larger token, and no other client has had the name in between. Options
// are as for Acquire, but WithWait above 0 is refused, because Resume asks once.
//
// If several calls use copies of one handle, one gets the lease. The others get ErrLost (a
// *LostError, joined with a *HeldError), as does a call after the keys have expired or were
// revoked. It returns ErrNoQuorum (a *QuorumError) when too few nodes answered, and ctx.Err() when
// ctx ended first; both may be repeated within a TTL. It returns ErrInvalid for a text that is not
// a handle, and for a handle of another prefix.
func (m *Manager) Resume(ctx context.Context, h Handle, opts ...AcquireOption) (*Lease, error) {
	held, err := m.parseHandle(ctx, "resume", h)
	if err != nil {
		return nil, err
	}
	t, limit, err := m.cfg.lease(opts)
	if err == nil {
		err = exclusiveOnly(limit.Kind, "Resume", "leave it out")
	}
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
	l, err := ask(ctx, m, c, campaign.Resumed(held.Owner), t, limit)
	if errors.Is(err, ErrHeld) {
		why := "; " + withoutPrefix(err)
		if other := (*HeldError)(nil); errors.As(err, &other) && other.Holder == (Holder{}) {
			why = ": its lock has ended" // and may be reserved for a waiter
		}
		err = errs.Several("quorumlock: resume "+strconv.Quote(held.Name)+": the handle no longer works"+why, m.lostNow(held.Name, held.Token, heldReason(err)), err)
	}
	return l, err
}

// ReleaseHandle gives the lock of a detached lease back, if no process is to resume it. It returns ErrLost
// when another process has resumed it, or its keys have ended; and otherwise what Resume returns.
func (m *Manager) ReleaseHandle(ctx context.Context, h Handle) error {
	held, err := m.parseHandle(ctx, "release", h)
	if err != nil {
		return err
	}
	if !m.enter() {
		return ErrClosed
	}
	defer m.life.calls.Done()
	sh := m.of(held.Name)
	req := wire.NewDrop(sh.key(held.Name), held.Owner, m.clock.Steady().Add(m.cfg.Terms.TTL))
	missing, why := 0, LostMissing
	answers := sh.ensemble.Collect(ctx, req, sh.timeout(), sh.ensemble.Quorum(), func(reply *wire.Reply) error { // one after the other
		if reply.N >= wire.Ours || reply.Again { // an earlier copy may have given it back
			return nil
		}
		if missing++; reply.N == wire.Another {
			why = LostTaken
		}
		return hold.ErrMissing
	})
	if err = enough(ctx, sh.ensemble, "release", held.Name, answers); err != nil && missing >= sh.ensemble.Quorum() {
		return m.lostNow(held.Name, held.Token, why)
	}
	return err
}

// parseHandle reads a handle of this Manager's prefix.
func (m *Manager) parseHandle(ctx context.Context, op string, h Handle) (wire.Handle, error) {
	held, ok := wire.ParseHandle(string(h))
	switch {
	case ctx == nil:
		return held, errNilContext()
	case !ok || checkName(held.Name) != nil:
		return held, &InvalidError{What: "handle", Value: strconv.Itoa(len(h)) + " bytes", Bound: "must be the text that Detach returned", Fix: "pass it on unchanged"}
	case held.Prefix != m.cfg.Prefix:
		return held, &InvalidError{What: "handle", Value: "of the prefix " + strconv.Quote(held.Prefix), Bound: "must be " + strconv.Quote(m.cfg.Prefix), Fix: "give both programs the same WithPrefix"}
	case ctx.Err() != nil:
		return held, errs.Ended(ctx, nil, "quorumlock: "+op+" "+strconv.Quote(held.Name))
	}
	return held, nil
}

// lostNow returns the error of a lease, or of a handle, that is found lost now.
func (m *Manager) lostNow(name string, token int64, why LostReason, nodes ...*NodeError) error {
	now := m.clock.Time(m.clock.Now())
	return &LostError{Lost{Name: name, Token: token, Reason: why, At: now, ValidUntil: now, AnotherFrom: now, Nodes: nodes}}
}

// heldReason returns why a handle no longer works, from the refusal of the call that resumes it.
func heldReason(err error) LostReason {
	var held *HeldError
	switch {
	case !errors.As(err, &held) || held.Holder == Holder{}:
		return LostMissing
	case held.Holder.Revoked != "":
		return LostRevoked
	}
	return LostTaken
}
