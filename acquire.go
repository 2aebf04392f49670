package quorumlock

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Acquire waits until it holds the named lease, or until ctx ends. WithWait bounds the
// wait independently of ctx.
//
// Callers get a taken name in the order in which they came, whichever client of the same
// prefix they use: a release reserves the lock for the next waiter, and the node wakes
// it. Waiters that have died are skipped. A process that is 5 ms or more away from the nodes
// has a share of the time and not of the turns: after a lease it asks again a little later.
// One whose round trip is longer than 400 ms, or 40 % of a WithNodeTimeout, may get next to
// nothing. A waiter also polls, because a holder may die, a
// client may release without a wake-up, and nodes may be missing: by jittered exponential
// backoff, and at the latest when the holder's keys end (see WithRetryBackoff). The order
// follows the nodes' clocks; faults may disturb it, and it is not guaranteed. A lease may pass
// to a few more callers of the same process first, for some milliseconds while others wait.
//
// When ctx ends, the error is the last obstacle, ErrHeld (a *HeldError) or ErrNoQuorum (a
// *QuorumError), joined with ctx.Err() and context.Cause(ctx). When the time of WithWait
// is over, the error is the last obstacle. Acquire returns at once: ErrInvalid (an
// *InvalidError) for a bad name, option or context; ErrNoQuorum when too many nodes are
// misconfigured for waiting to help; ErrClosed; and ErrHeld inside Do or Lead of the same
// name, with their context. Failed attempts are released on every node, even after ctx
// has ended.
//
// A name is 1 to 512 bytes of valid UTF-8. The lease does not end with ctx. It is not
// reentrant: a caller that asks for a name which it holds waits for itself, and a warning
// in the log says so.
func (m *Manager) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return m.acquire(ctx, name, opts, true)
}

// TryAcquire does not wait for a holder. If several callers ask at the same instant and none
// gets a majority, chance chooses one of those with votes: it asks again until the others have
// released theirs, for two node timeouts at most, and the others get ErrHeld. TryAcquire
// returns ErrHeld (a *HeldError) when another holder has the name, or other callers ask or
// wait for it; ErrNoQuorum (a *QuorumError) when too few nodes gave an answer that counts
// within the node timeout; and otherwise what Acquire returns.
func (m *Manager) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return m.acquire(ctx, name, opts, false)
}

// errWaitOver is the cause with which the context of a wait ends at WithWait's bound.
var errWaitOver = errors.New("quorumlock: waited as long as WithWait allows")

func (m *Manager) acquire(ctx context.Context, name string, opts []AcquireOption, wait bool) (*Lease, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	t, limit, err := m.cfg.lease(opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errs.Ended(ctx, nil, "quorumlock: acquire "+strconv.Quote(name))
	}
	if err := m.reentered(ctx, name); err != nil {
		return nil, err
	}
	waitCtx := ctx
	switch {
	case limit.Set && limit.Most == 0:
		wait = false
	case limit.Set && !wait:
		return nil, &InvalidError{What: "WithWait", Value: limit.Most.String(), Bound: "has no use in TryAcquire, which asks once", Fix: "call Acquire"}
	case limit.Set:
		var cancel context.CancelFunc
		waitCtx, cancel = context.WithTimeoutCause(ctx, limit.Most, errWaitOver)
		defer cancel()
	}
	call := m.telemetry.startAcquire(ctx, name, wait, m.ensemble.Quorum(), m.ensemble.Size())
	l, err := (*Lease)(nil), errPanicked
	through := false
	defer func() {
		if !through && l != nil && m.enter() { // the span has panicked, so nobody gets the lease
			l.abandon()
			m.calls.leave()
		}
	}()
	defer func() { call.end(l, err); through = true }()
	l, err = m.campaign(ctx, waitCtx, name, t, wait, limit.FailFast, call)
	return l, err
}

// errPanicked is the outcome that telemetry shows when a user's function, such as the
// backoff, panics during the call.
var errPanicked = errors.New("quorumlock: a function of the caller has panicked")

// campaign makes attempts until one succeeds or another would be useless. Between
// attempts it waits until waitCtx ends. Close waits for campaign, but not for the span
// processors before and after it.
func (m *Manager) campaign(ctx, waitCtx context.Context, name string, t *config.Terms, wait, failFast bool, call *acquireSpan) (l *Lease, err error) {
	if !m.enter() {
		call.measure(ErrClosed)
		return nil, ErrClosed
	}
	defer m.calls.leave()
	err = errPanicked
	defer func() { call.measure(err) }()
	w := m.newWaiter(waitCtx, wire.LockKey(m.cfg.Prefix, name), m.cfg.At(m.ensemble.Trip(), t), !wait)
	w.call, w.failFast = call, failFast
	defer func() {
		if l == nil { // also when a user's function, such as the backoff, has panicked
			w.done()
			w.quit()
		}
	}()
	if m.waiters.subscribing.Load() {
		if wait {
			l, err = w.queueUp(nil)
		} else if err = m.locals.refusal(w.lock); err != nil {
			w.call.waits(err)
		}
		if l != nil || err != nil {
			return l, err
		}
		err = errPanicked
	}
	return w.contend(ctx)
}

// queueUp waits behind the other callers of this process. last is the error of the
// previous attempt.
func (w *waiter) queueUp(last error) (*Lease, error) {
	w.m.locals.enter(w)
	if w.call != nil && len(w.turn) == 0 {
		w.call.waits(w.obstacle(last))
	}
	l, err := w.await()
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, ErrNoQuorum): // of the caller that asks for all: this one is not to wait for the nodes
		return nil, err
	case w.ctx.Err() == nil:
		return nil, ErrClosed
	}
	return nil, w.endError(w.obstacle(last))
}

// obstacle returns what the caller waits for in the local queue. last is the error of the
// previous attempt.
func (w *waiter) obstacle(last error) error {
	w.local.mu.Lock()
	obstacle := w.local.obstacle()
	w.local.mu.Unlock()
	if obstacle == nil {
		obstacle = last
	}
	if obstacle == nil {
		obstacle = &HeldError{Name: w.name()} // other callers wait for it
	}
	return obstacle
}

// contend makes attempts at the nodes when the waiter's machine asks for one. An attempt
// ends with ctx, the wait between two attempts ends with w.ctx.
func (w *waiter) contend(ctx context.Context) (*Lease, error) {
	m := w.m
	var retry *delays // nil before the first wait
	var last error    // of the last completed attempt
	var open *attempt // may hold locks and is not released yet
	defer func() {
		if open != nil { // the wait ended with votes that were kept, or a user's function has panicked
			open.release(wire.TicketUpdate{})
		}
	}()
	for {
		if !w.sleep() {
			return nil, w.endError(last)
		}
		a := m.newAttempt(w, w.begin(), open)
		if open != nil {
			open.leave()
		}
		open = a
		l, err := a.run(ctx)
		if err == nil {
			open = nil
			w.granted(a, l)
			return l, nil
		}
		if errors.Is(err, errCutShort) {
			err = last // the last completed attempt names the obstacle
		} else {
			last = err
			w.refused(err, a.unanswered())
		}
		var short *QuorumError
		hopeless := errors.As(err, &short) && short.permanent(m.ensemble.Size()) || w.failFast && a.unanswered()
		delay, stop := w.poll(&retry)
		over := w.ctx.Err() != nil || m.ending() || err == nil || hopeless || stop
		refused, keeps := len(a.refusals) > 0, false
		if w.local != nil {
			w.local.met(a)
		}
		if over {
			// The machine does not learn of this attempt: nodes that have not answered
			// are not late. Its Done names every queue that may contain the ticket.
			a.release(wire.TicketUpdate{})
		} else {
			next := w.ended(a, delay)
			over, keeps = next.At == quorum.Never, next.Keep
		}
		if !keeps {
			a.leave()
			open = nil
		}
		if over {
			return nil, w.endError(err)
		}
		if l, err := w.joinQueue(refused, last); l != nil || err != nil {
			return l, err
		}
	}
}

// joinQueue has a caller whose first attempt has failed wait behind the others of this process.
func (w *waiter) joinQueue(refused bool, last error) (*Lease, error) {
	if w.local != nil || w.once {
		return nil, nil
	}
	if refused {
		w.m.subscribe()
	}
	return w.queueUp(last)
}

// refused records why an attempt was refused, and whether too few nodes have answered it.
func (w *waiter) refused(err error, unanswered bool) {
	if w.local != nil {
		w.local.refused(err, unanswered)
	}
	w.call.refused(err)
	if held := (*HeldError)(nil); errors.As(err, &held) {
		w.selfish(held)
	}
}

// granted records that an attempt got the lease.
func (w *waiter) granted(a *attempt, l *Lease) {
	if w.m.waiters.left.Load() {
		w.m.waiters.left.Store(false)
	}
	a.leave()
	if w.local != nil {
		w.local.granted(w, l.lock)
		w.m.locals.detach(w.local, l.lock)
	}
}

// endError returns the error of a call after its last attempt. err is the last obstacle;
// nil if no attempt was completed.
func (w *waiter) endError(err error) error {
	switch {
	case w.ctx.Err() != nil && context.Cause(w.ctx) == errWaitOver: //nolint:errorlint // this very value, not another call's error that wraps it
		if err == nil {
			err = &HeldError{Name: w.name()} // no attempt was made, so the lock is reserved for another waiter
		}
		return errs.Several(err.Error()+"; waited "+errs.Readable(w.m.clock.Now()-w.arrived), err)
	case w.ctx.Err() != nil && err == nil:
		return errs.Ended(w.ctx, nil, "quorumlock: acquire "+strconv.Quote(w.name()))
	case w.ctx.Err() != nil:
		return errs.Ended(w.ctx, err, "stopped waiting")
	case err == nil || w.m.ending():
		return ErrClosed
	}
	return err
}

// poll returns how long a waiter waits when no wake-up arrives, and whether the user's
// backoff has stopped. For a caller that asks once, and comes first in a tie, it is about a
// round trip.
func (w *waiter) poll(retry **delays) (delay time.Duration, stop bool) {
	if w.once {
		return max(w.m.ensemble.Trip(), quorum.MinGrace/4), false
	}
	if *retry == nil {
		*retry = w.m.newDelays()
	}
	return (*retry).next()
}

// ended ends a failed attempt. It releases the locks that the attempt may have created,
// unless the machine keeps them, and updates the ticket as the machine decides.
func (w *waiter) ended(a *attempt, delay time.Duration) quorum.Next {
	a.mu.Lock()
	result := a.result(a.ballot.Outcome())
	a.mu.Unlock()
	w.mu.Lock()
	next := w.machine.Ended(w.m.clock.Now(), result, max(delay, 0), mathrand.Float64())
	if !w.once {
		w.m.waiters.left.Store(w.machine.Left())
	}
	w.mu.Unlock()
	if next.Keep {
		return next
	}
	var update wire.TicketUpdate
	switch {
	case w.ticket == "":
	case next.Ticket == quorum.TicketKeep:
		update = wire.TicketUpdate{Ticket: w.ticket, EnqueuedAt: w.enqueuedAt}
	case next.Ticket == quorum.TicketYield:
		update = wire.TicketUpdate{Ticket: w.ticket, EnqueuedAt: w.enqueuedAt, Yields: true}
	case next.Ticket == quorum.TicketLeave:
		update = wire.TicketUpdate{Ticket: w.ticket}
	}
	a.release(update)
	w.leaveQueues(next.Leave | next.PassOn)
	if next.Missed {
		w.startOver(next.At)
	}
	return next
}

// sleep waits until the machine wants an attempt. It returns false when the caller's
// wait or the Manager ended first.
func (w *waiter) sleep() bool {
	ctx := w.ctx
	w.mu.Lock()
	at := w.machine.At()
	w.mu.Unlock()
	delay := at - w.m.clock.Now()
	if delay <= 0 {
		return ctx.Err() == nil && !w.m.ending()
	}
	timer := w.m.ensemble.Timer(delay)
	defer w.m.ensemble.PutTimer(timer)
	for {
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case <-w.m.closing:
			return false
		case <-w.bell:
		}
		w.mu.Lock()
		at = w.machine.At()
		w.mu.Unlock()
		if delay = at - w.m.clock.Now(); delay <= 0 {
			return true
		}
		timer.Reset(delay)
	}
}
