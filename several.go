package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Leases are the leases of several names that one call has acquired. Each is a lease as any other,
// with a token of its own. They end together: when one is released, the others are, too; when one
// is lost, the others end at once, and their names stay taken for as long as that of the lost one:
// for 2 % of the TTL (at least 50 ms, at most a fifth of the TTL) and the lock delay, so that work
// can stop. All methods are safe for concurrent use.
type Leases struct {
	m      *Manager
	all    []*Lease // in the order of the call
	ctx    context.Context
	cancel context.CancelCauseFunc
	// lost has capacity 1: one value if a lease is lost, then closed; closed without a value on a
	// release. Nothing is dropped.
	lost chan Lost

	mu        sync.Mutex
	releasing bool  // a call of Release decides how they end
	err       error // why they ended
}

// AcquireAll waits until it holds all the names, or until ctx ends: all of them or none. It takes
// 1 to 16 names, in any order; a name that is given twice counts once. Options and errors are those
// of Acquire, and WithWait bounds the whole call. A *HeldError names the name that is in the way.
//
// All callers take the names in one order, that of their bytes. A call asks for all names at once,
// which takes one round trip if they are free. If one is taken, it waits for that one as Acquire
// does, in its queue, and meanwhile holds only names before it. So calls of AcquireAll never wait for
// each other in a circle. A caller that already holds a name, and calls Acquire or AcquireAll for
// more, may: give all names to one call.
//
// With WithWait(0) a call asks a second time for a name that was refused, by the rule of TryAcquire,
// and gives up if that is refused. WithMaxHold and WithMinHold count from the grant of each name. It
// is safe for concurrent use.
func (m *Manager) AcquireAll(ctx context.Context, names []string, opts ...AcquireOption) (*Leases, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(sorted) == 0 || len(sorted) > MaxNames {
		return nil, &InvalidError{What: "names", Value: strconv.Itoa(len(sorted)), Bound: "have to be 1 to " + strconv.Itoa(MaxNames) + " different ones",
			Fix: "lock what they have in common, with one name"}
	}
	for _, name := range sorted {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	t, limit, err := m.cfg.lease(opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errs.Ended(ctx, nil, "quorumlock: acquire "+quoted(sorted))
	}
	for _, name := range sorted {
		if err := reentered(ctx, m, name); err != nil {
			return nil, err
		}
	}
	waitCtx, cancel := waiting(ctx, limit)
	defer cancel()
	s := &several{
		m: m, wait: waitCtx, names: sorted, terms: t, limit: limit, leases: make([]*Lease, len(sorted)),
		decides: quorum.NewSeveral(len(sorted)), began: m.ensemble.Clock.Now(),
	}
	s.span = m.telemetry.start(ctx, "quorumlock.acquire_all", otel.Exclusive, attrNames.StringSlice(sorted))
	s.ctx, s.parts = s.span.context(ctx), s.span.parts(sorted)
	err = errPanicked
	through := false
	defer func() {
		if !through || err != nil { // also when a user's function, such as the backoff, has panicked
			s.giveBack(quorum.All(len(s.names)))
		}
	}()
	defer func() {
		s.span.through(err)
		through = true
	}()
	if err = s.run(); err != nil {
		return nil, err
	}
	return s.together(ctx, names), nil
}

// several is one call of AcquireAll.
type several struct {
	m       *Manager
	ctx     context.Context //nolint:containedctx // of the caller, with the span; it lives as long as the call
	wait    context.Context //nolint:containedctx // ends the waiting
	names   []string        // sorted
	terms   *config.Terms
	limit   config.Wait
	span    *acquireSpan
	parts   []*acquireSpan // the telemetry of each name that is asked for with others
	waited  quorum.Set     // names whose wait has measured them
	leases  []*Lease       // by name; nil where there is none
	decides quorum.Several
	began   time.Duration
}

// run returns when the call holds all names, or the error for which it gives up.
func (s *several) run() error {
	for {
		for i, l := range s.leases {
			if l != nil && l.Remaining() < s.terms.MinUseful { // the call has waited for another name for so long
				s.giveBack(quorum.Set(0).With(i))
				s.decides.Lost(i)
			}
		}
		missing := s.decides.Missing()
		if missing == 0 {
			return nil
		}
		granted, problems, err := s.try(missing)
		if err != nil {
			return err
		}
		back, next := s.decides.Tried(granted)
		s.giveBack(back)
		if next < 0 {
			continue // unless one was lost meanwhile, the call is through
		}
		if s.wait.Err() != nil {
			return s.ended(next, problems[next])
		}
		l, err := ask(s.wait, s.m, &call{ctx: s.ctx, name: s.names[next], span: s.span.child(s.parts[next], s.names[next], s.limit.Once())}, s.terms, s.limit)
		if err != nil {
			return err
		}
		s.keep(next, l)
		s.waited = s.waited.With(next)
		s.decides.Granted(next)
	}
}

// try asks for several names at once. It returns those that were granted, and why the others were not.
func (s *several) try(missing quorum.Set) (granted quorum.Set, problems []error, err error) {
	problems = make([]error, len(s.names))
	if len(s.names) == 1 {
		return 0, problems, nil // it is asked for alone
	}
	m := s.m
	if !enter(m) {
		return 0, nil, ErrClosed
	}
	defer m.life.calls.Leave()
	terms, calls := m.cfg.At(m.ensemble.Trip(), s.terms), make([]*call, len(s.names))
	var asks []*campaign.Campaign
	for i, name := range s.names {
		if !missing.Has(i) {
			continue
		}
		c := &call{m: m, ctx: s.ctx, name: name, span: s.parts[i], failFast: s.limit.FailFast}
		m.campaigns.Begin(&c.campaign, campaign.Call{
			Wait: s.wait, Key: wire.LockKey(m.cfg.Prefix, name), Terms: terms, Once: true, TraceParent: c.span.traceParent(), Caller: c,
		})
		if _, problems[i] = c.stepBack(); problems[i] == nil {
			asks, calls[i] = append(asks, &c.campaign), c
		}
	}
	m.campaigns.Ask(asks...)
	for i, c := range calls {
		if c == nil {
			continue
		}
		failure := c.campaign.Await(s.ctx)
		if failure == nil {
			granted = granted.With(i)
			s.keep(i, c.lease)
			continue
		}
		c.failed(failure)
		problems[i] = c.last
		c.giveUp()
	}
	return granted, problems, nil
}

// keep takes a lease, which nobody sees before the call has all.
func (s *several) keep(i int, l *Lease) {
	s.m.dog.Unused(l.lock, true)
	s.leases[i] = l
}

// giveBack releases leases of the call that nobody has seen.
func (s *several) giveBack(names quorum.Set) {
	if names == 0 || !enter(s.m) {
		return // Close has released them
	}
	defer s.m.life.calls.Leave()
	for i, l := range s.leases {
		if l != nil && names.Has(i) {
			l.abandon()
			s.leases[i] = nil
		}
	}
}

// ended returns the error of a call whose wait is over. problem is why the next name was not granted,
// nil if that is not known.
func (s *several) ended(next int, problem error) (err error) {
	defer func() { s.parts[next].measure(err) }()
	if context.Cause(s.wait) != errWaitOver { //nolint:errorlint // this very value, not another call's error that wraps it
		return errs.Ended(s.wait, problem, "quorumlock: acquire "+quoted(s.names))
	}
	problem = cmp.Or[error](problem, &HeldError{Name: s.names[next]})
	return errs.Several(problem.Error()+"; waited "+errs.Readable(s.m.ensemble.Clock.Now()-s.began), problem)
}

// together returns the leases of the call.
func (s *several) together(ctx context.Context, names []string) *Leases {
	all := &Leases{m: s.m, lost: make(chan Lost, 1)}
	all.ctx, all.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, name := range names {
		i, _ := slices.BinarySearch(s.names, name)
		if l := s.leases[i]; !slices.Contains(all.all, l) {
			all.all = append(all.all, l)
		}
	}
	for i, l := range s.leases {
		s.m.dog.Unused(l.lock, false)
		if !s.waited.Has(i) {
			s.parts[i].measure(nil)
		}
	}
	for _, l := range all.all {
		leaseCtx := l.Context()
		context.AfterFunc(leaseCtx, func() { all.end(context.Cause(leaseCtx)) })
		l.asked.Store(false) // this call has looked at the lease, and not its caller
	}
	return all
}

// end ends the leases for the error of the first that has ended. After a loss the keys of the others stay
// for the guard and the lock delay, as its own do.
func (s *Leases) end(err error) {
	s.mu.Lock()
	first := s.err == nil && !s.releasing
	if first {
		s.err = err
	}
	s.mu.Unlock()
	if !first {
		return
	}
	if enter(s.m) { // otherwise Close ends them
		lost := errors.Is(err, ErrLost)
		for _, l := range s.all {
			if lost {
				s.m.dog.Halt(l.lock, (*tenant)(l))
			} else {
				l.abandon()
			}
		}
		s.m.life.calls.Leave()
	}
	s.tell(err)
}

// tell ends the context and the channel, when each lease has ended.
func (s *Leases) tell(err error) {
	s.cancel(err)
	var lost *LostError
	if errors.As(err, &lost) {
		s.lost <- lost.Lost
	}
	close(s.lost)
}

// All returns the leases in the order in which the names were given.
func (s *Leases) All() []*Lease { return slices.Clone(s.all) }

// Lease returns the lease of a name, nil if the call did not ask for it.
func (s *Leases) Lease(name string) *Lease {
	for _, l := range s.all {
		if l.Name() == name {
			return l
		}
	}
	return nil
}

// Valid reports whether work under the leases may go on: each is valid.
func (s *Leases) Valid() bool { return s.Remaining() > 0 }

// Remaining returns how long work may go on unless the leases are renewed: the least of all.
func (s *Leases) Remaining() time.Duration {
	least := s.all[0].Remaining()
	for _, l := range s.all[1:] {
		least = min(least, l.Remaining())
	}
	return least
}

// Context returns a context that ends when the first of the leases ends: context.Cause is then what
// Err returns. It has the values of the context given to AcquireAll, but neither its deadline nor
// its cancellation.
func (s *Leases) Context() context.Context {
	_ = s.Err() // a lease that is over allows no work
	return s.ctx
}

// WithContext returns a context that ends with ctx or with the leases, as Lease.WithContext does.
func (s *Leases) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return either(ctx, s.Context())
}

// Done returns a channel that is closed when the leases have ended.
func (s *Leases) Done() <-chan struct{} { return s.Context().Done() }

// Err returns nil while the leases are held, then ErrReleased, or the *LostError of the lease that
// was lost first.
func (s *Leases) Err() error {
	if err := s.firstEnd(); err != nil {
		s.end(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// firstEnd returns why a lease has ended, nil if none has: a loss if there is one.
func (s *Leases) firstEnd() (first error) {
	for _, l := range s.all {
		if err := l.Err(); first == nil || errors.Is(err, ErrLost) {
			first = cmp.Or(err, first)
		}
	}
	return first
}

// Lost returns a channel that delivers one value when a lease is lost. A release closes it without one.
func (s *Leases) Lost() <-chan Lost { return s.lost }

// Release gives all leases back, as Lease.Release does for one, at the same time. It returns what
// that returns: ErrLost if one of the leases was lost before, and ErrReleased if they were released
// before; ErrNoQuorum, a *QuorumError for each name of which too few nodes have confirmed the release.
func (s *Leases) Release(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	began := s.m.ensemble.Clock.Now()
	if !enter(s.m) { // Close ends every lease before it waits for anything
		<-s.all[0].Done()
		<-s.Done()
		return s.Err()
	}
	s.mu.Lock()
	first := s.err == nil && !s.releasing
	s.releasing = s.releasing || first
	s.mu.Unlock()
	if !first {
		s.m.life.calls.Leave()
		<-s.ctx.Done() // the call that releases them is on its way
		return s.Err()
	}
	pending, failures := make([]*ensemble.Answers, len(s.all)), make([]error, len(s.all))
	for i, l := range s.all {
		pending[i], failures[i] = l.give()
	}
	why := s.firstEnd()
	s.m.life.calls.Leave()
	s.mu.Lock()
	s.err = why
	s.mu.Unlock()
	s.tell(why)
	for i, l := range s.all {
		if pending[i] != nil {
			pending[i].Wait(ctx, l.lock.Terms().Timeout)
			failures[i] = enough(ctx, s.m.ensemble, "release", l.Name(), pending[i])
		}
		s.m.telemetry.released(ctx, spanOf(l), began, s.m.ensemble.Clock.Now(), failures[i])
	}
	if errors.Is(why, ErrLost) {
		return why
	}
	if failures = slices.DeleteFunc(failures, func(err error) bool { return err == nil }); len(failures) > 0 {
		return errs.Join(failures...)
	}
	return nil
}
