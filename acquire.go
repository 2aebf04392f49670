package quorumlock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Acquire waits until it holds the named lease, or until ctx ends.
//
// A taken name is waited for in the order in which the calls came, of all clients
// with the same prefix: whoever releases hands the lease on, and the nodes tell the
// next one. Who dies while it waits is skipped. A waiter also looks by itself, for
// holders that die and clients that release without a word; that, and the wait for
// too few nodes, go by jittered exponential backoff, never longer than the
// holder's keys live (see WithRetryBackoff).
// When ctx ends the error joins what stood in the way, ErrHeld (a *HeldError)
// or ErrNoQuorum (a *QuorumError), with context.Cause(ctx). It returns at once:
// ErrInvalid for a bad name or option, ErrNoQuorum when so many nodes need
// mending that waiting cannot help, and ErrClosed.
//
// Whatever the outcome, an attempt that came to nothing is taken back on every
// node, apart from ctx. The lease does not end with ctx.
//
// A name is 1 to 512 bytes of valid UTF-8. The order is by the nodes' clocks and
// is no promise: with WithoutFencing there is none, and faults may disturb it. A
// lease is not reentrant: whoever asks again for a name that it holds waits for
// itself.
func (m *Manager) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return m.acquire(ctx, name, opts, true)
}

// TryAcquire asks once. It returns ErrHeld (a *HeldError) when the name is
// taken or others wait for it, ErrNoQuorum (a *QuorumError) when too few nodes
// gave an answer that counts within the node timeout, and otherwise what Acquire
// does.
func (m *Manager) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return m.acquire(ctx, name, opts, false)
}

func (m *Manager) acquire(ctx context.Context, name string, opts []AcquireOption, wait bool) (*Lease, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	t, err := m.cfg.termsFor(opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, cancelled(name, nil, context.Cause(ctx))
	}
	span := m.telemetry.startAcquire(ctx, name, m.quorum(), len(m.nodes))
	l, err := m.campaign(ctx, name, t, wait, &span)
	span.end(l, err)
	return l, err
}

// campaign makes attempts until one succeeds or there is no use in another. Close waits
// for it, and not for the span processors before and after it.
func (m *Manager) campaign(ctx context.Context, name string, t *terms, wait bool, span *acquireSpan) (l *Lease, err error) {
	if !m.enter() {
		return nil, ErrClosed
	}
	defer m.inflight.Done()
	w := m.newWaiter(ctx, node.LockKey(m.cfg.prefix, name), t, !wait)
	w.span = span.ref()
	defer func() {
		if l == nil { // also when a function of the user's, the backoff's say, has panicked
			w.done()
			w.quit()
		}
	}()
	if m.waiters.subscribing.Load() {
		if wait {
			l, err = w.queueUp(nil)
		} else {
			err = m.locals.refusal(w.lock)
		}
		if l != nil || err != nil {
			return l, err
		}
	}
	return w.contend(span)
}

// queueUp waits behind the other callers of this process. last is what stood in the way
// before.
func (w *waiter) queueUp(last error) (*Lease, error) {
	w.m.locals.enter(w)
	l, err := w.await(w.ctx)
	switch {
	case err == nil:
		return l, nil
	case w.ctx.Err() == nil:
		return nil, ErrClosed
	}
	w.local.mu.Lock()
	obstacle := w.local.obstacle()
	w.local.mu.Unlock()
	if obstacle == nil {
		obstacle = last
	}
	if obstacle == nil {
		obstacle = &HeldError{Name: w.name()} // others wait for it
	}
	return nil, cancelled(w.name(), obstacle, err)
}

// contend makes attempts at the nodes, when the waiter's machine says so.
func (w *waiter) contend(span *acquireSpan) (*Lease, error) {
	m, ctx := w.m, w.ctx
	var retry backoff.BackOff
	var last error    // of an attempt that came to an end
	var open *attempt // that may have locked something, and was not released yet
	defer func() {
		if open != nil { // a function of the user's has panicked
			open.release(node.TicketUpdate{})
		}
	}()
	for {
		if !w.sleep(ctx) {
			return nil, w.endError(last)
		}
		a := m.newAttempt(w, w.begin(), span)
		open = a
		l, err := a.run(ctx)
		if err == nil {
			open = nil
			w.granted(a, l)
			return l, nil
		}
		if errors.Is(err, errCutShort) {
			err = last // that one says what stood in the way
		} else {
			last = err
			if w.local != nil {
				w.local.refused(err)
			}
			span.refused(err)
		}
		var short *QuorumError
		hopeless := errors.As(err, &short) && short.permanent(len(m.nodes))
		delay, stop := w.poll(&retry)
		over := ctx.Err() != nil || m.ending() || err == nil || w.once || hopeless || stop
		refused := len(a.refusals) > 0
		if w.local != nil {
			w.local.met(a)
		}
		if over {
			// The machine hears nothing of it: what is not answered yet is not late, and its
			// Done names every queue that the ticket may be in.
			a.release(node.TicketUpdate{})
		} else {
			w.ended(a, delay)
		}
		a.leave()
		open = nil
		if over {
			return nil, w.endError(err)
		}
		if w.local == nil {
			if refused {
				m.subscribe()
			}
			if l, err := w.queueUp(last); l != nil || err != nil {
				return l, err
			}
		}
	}
}

// granted takes that an attempt got the lease.
func (w *waiter) granted(a *attempt, l *Lease) {
	if w.m.waiters.left.Load() {
		w.m.waiters.left.Store(false)
	}
	a.leave()
	if w.local != nil {
		w.local.granted(w, l.hold)
	}
}

// endError returns what the call returns after its last attempt. err is what stood in the
// way; nil if no attempt came to an end.
func (w *waiter) endError(err error) error {
	switch {
	case w.ctx.Err() != nil:
		return cancelled(w.name(), err, context.Cause(w.ctx))
	case err == nil || w.m.ending():
		return ErrClosed
	}
	return err
}

// poll returns how long a waiter waits that no wake-up reaches, and whether the user's
// backoff has stopped.
func (w *waiter) poll(retry *backoff.BackOff) (delay time.Duration, stop bool) {
	if w.once {
		return 0, false
	}
	if *retry == nil {
		if *retry = w.m.cfg.retry(); *retry == nil {
			*retry = defaultRetry()
		}
	}
	delay = (*retry).NextBackOff()
	return delay, delay == backoff.Stop
}

// ended takes an attempt that came to nothing and is not the last: it releases what the
// attempt may have locked, and does with the ticket what the machine says.
func (w *waiter) ended(a *attempt, delay time.Duration) {
	a.mu.Lock()
	result := a.result(a.ballot.Outcome())
	a.mu.Unlock()
	w.mu.Lock()
	next := w.machine.Ended(w.m.clock.Now(), result, max(delay, 0), mathrand.Float64())
	w.m.waiters.left.Store(w.machine.Left())
	w.mu.Unlock()
	var update node.TicketUpdate
	switch {
	case w.ticket == "":
	case next.Ticket == quorum.TicketKeep:
		update = node.TicketUpdate{Ticket: w.ticket, Place: w.place}
	case next.Ticket == quorum.TicketYield:
		update = node.TicketUpdate{Ticket: w.ticket, Place: w.place, Yields: true}
	case next.Ticket == quorum.TicketLeave:
		update = node.TicketUpdate{Ticket: w.ticket}
	}
	a.release(update)
	w.leaveQueues(next.Leave | next.PassOn)
}

// sleep waits until the machine wants an attempt. It reports false when ctx or the
// Manager ended first.
func (w *waiter) sleep(ctx context.Context) bool {
	w.mu.Lock()
	at := w.machine.At()
	w.mu.Unlock()
	delay := at - w.m.clock.Now()
	if delay <= 0 {
		return ctx.Err() == nil && !w.m.ending()
	}
	timer := w.m.timer(delay)
	defer w.m.putTimer(timer)
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

// cancelled joins what stood in the way with why the wait ended.
func cancelled(name string, err, cause error) error {
	if err == nil {
		return fmt.Errorf("quorumlock: acquire %q: %w", name, cause)
	}
	return errors.Join(err, cause)
}

// Do acquires the lease as Acquire does, runs fn, and releases the lease when
// fn has returned, or panicked. The context that fn gets ends with ctx or with
// the lease, whichever is first; context.Cause tells which. fn must return
// then: Do waits for it.
//
// It returns fn's error; when the lease did not last until fn returned, that
// is joined with ErrLost (a *LostError), or with ErrClosed if Close took the
// lease away. A release that no quorum confirmed is
// logged, not returned: the work was done under the lease, and its keys expire
// by themselves.
func (m *Manager) Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
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

// Lead campaigns for the lease until ctx ends, and runs fn in each term, with
// a context that ends with ctx or with the lease. When the lease is lost, Lead
// waits for fn to return, whatever it returns, and campaigns again. When fn
// returns while the lease is held, Lead releases it and returns fn's error.
//
// When ctx ends, Lead releases, and returns context.Cause(ctx) joined with
// fn's error, or with what stood in the way of the lease, as Acquire does.
// Errors that Acquire returns at once are returned.
func (m *Manager) Lead(ctx context.Context, name string, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	for {
		l, err := m.Acquire(ctx, name, opts...)
		if err != nil {
			return err
		}
		lost, err := m.term(ctx, l, fn)
		switch {
		case ctx.Err() != nil:
			return joinCause(err, context.Cause(ctx))
		case lost == nil:
			return err
		}
		m.warn("term ended by a loss", "name", name, "token", l.Token(), "loss", lost, "error", err)
	}
}

// term runs fn under the lease and releases it. It returns why the lease did
// not last, if so, and fn's error.
func (m *Manager) term(ctx context.Context, l *Lease, fn func(context.Context, *Lease) error) (lost, err error) {
	fnCtx, cancel := context.WithCancelCause(ctx)
	leaseCtx := l.Context()
	stop := context.AfterFunc(leaseCtx, func() { cancel(context.Cause(leaseCtx)) })
	defer func() {
		stop()
		cancel(nil)
		// Apart from ctx: the usual reason to be here is that it has ended.
		switch ended := l.Release(context.WithoutCancel(ctx)); {
		case errors.Is(ended, ErrLost):
			lost = ended
		case errors.Is(ended, ErrReleased) && m.ending():
			lost = ErrClosed // taken away by Close, not given back by fn
		case errors.Is(ended, ErrNoQuorum):
			m.warn("release not confirmed; the keys expire by themselves",
				"name", l.Name(), "token", l.Token(), "error", ended)
		}
	}()
	return nil, fn(fnCtx, l)
}

// joinCause joins err and cause, unless err says it already.
func joinCause(err, cause error) error {
	switch {
	case err == nil:
		return cause
	case errors.Is(err, cause):
		return err
	default:
		return errors.Join(cause, err)
	}
}
