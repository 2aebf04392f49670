package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// AcquireAll waits until it holds all the names, or until ctx ends: all of them or none. It takes 1
// to 16 names, in any order. Options and errors are as for Acquire, and WithWait bounds the whole
// call. A *HeldError names the name that blocks the call.
//
// Calls of AcquireAll never deadlock with each other: all take the names in one order, the order of
// their bytes. While a call waits for a name, it holds only names before it. A caller that already
// holds a name and asks for more may deadlock, so give all names to one call.
//
// While many callers want the same names, a call for k names waits more than k times as long as a
// call for one. With WithWait(0) a call asks a second time for a name that was refused, then gives
// up. WithMaxHold and WithMinHold count from the grant of each name.
func (m *Manager) AcquireAll(ctx context.Context, names []string, opts ...AcquireOption) (*Leases, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(sorted) == 0 || len(sorted) > quorum.MaxSeveral {
		return nil, &InvalidError{What: "names", Value: "(" + strconv.Itoa(len(sorted)) + " different)", Bound: "must be 1 to " + strconv.Itoa(quorum.MaxSeveral),
			Fix: "lock what they share under one name"}
	}
	for _, name := range sorted {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	if err := m.sameBucket(sorted); err != nil {
		return nil, err
	}
	t, limit, err := m.cfg.lease(opts)
	if err == nil {
		err = exclusiveOnly(limit.Kind, "AcquireAll", "leave it out, or acquire one name after the other, in one order everywhere")
	}
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errs.Ended(ctx, nil, "quorumlock: acquire "+quoted(sorted))
	}
	for _, name := range sorted {
		if err := m.reentered(ctx, name); err != nil {
			return nil, err
		}
	}
	waitCtx, cancel := waiting(ctx, limit.Wait)
	defer cancel()
	s := &several{
		m: m, shard: m.of(sorted[0]), wait: waitCtx, names: sorted, terms: t, limit: limit, leases: make([]*Lease, len(sorted)),
		decides: quorum.NewSeveral(len(sorted)), began: m.clock.Now(),
	}
	labels := m.telemetry.labels(sorted) // before the span starts: a user's function may panic
	s.span = m.telemetry.start(ctx, "quorumlock.acquire_all", otel.Exclusive, attrNames.StringSlice(sorted))
	s.ctx, s.parts = s.span.context(ctx), s.span.parts(labels)
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
	shard   *shard          // of the names
	ctx     context.Context // of the caller, with the span; it lives as long as the call
	wait    context.Context // ends the waiting
	names   []string        // sorted
	terms   *config.Terms
	limit   config.Call
	span    *acquireSpan
	parts   []*acquireSpan // the telemetry of each name that is asked for with others
	waited  quorum.Set     // names whose wait has measured them
	leases  []*Lease       // by name; nil where there is none
	decides quorum.Several
	began   clock.Validity
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
			continue // the call has all names, unless one was lost
		}
		if s.wait.Err() != nil {
			return s.ended(next, problems[next])
		}
		c := &call{ctx: s.ctx, name: s.names[next], span: s.span.child(s.parts[next], s.names[next], s.limit.Once())}
		l, err := ask(s.wait, s.m, c, campaign.Exclusive, s.terms, s.limit)
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
	if !m.enter() {
		return 0, nil, ErrClosed
	}
	defer m.life.calls.Done()
	terms, calls := s.shard.terms(s.terms), make([]*call, len(s.names))
	var asks []*campaign.Campaign
	for i := range missing.All() {
		c := &call{m: m, shard: s.shard, ctx: s.ctx, name: s.names[i], span: s.parts[i], failFast: s.limit.FailFast}
		s.shard.campaigns.Begin(&c.campaign, campaign.Call{
			Wait: s.wait, Key: c.shard.key(c.name), Terms: terms, Once: true, Kind: campaign.Exclusive, TraceParent: c.span.traceParent(), Caller: c,
		})
		if _, problems[i] = c.stepBack(); problems[i] == nil {
			asks, calls[i] = append(asks, &c.campaign), c
		}
	}
	s.shard.campaigns.Ask(asks...)
	for i, c := range calls {
		if c == nil {
			continue
		}
		failure := c.campaign.Await(s.ctx)
		lease := c.lease
		if failure != nil {
			c.failed(failure)
			lease = nil
			if first := (missing &^ granted).First() == i; first && s.limit.Once() && c.goesOn(failure) {
				lease, _ = c.contend() // it has split the nodes with others, and they give way
			}
		}
		if lease != nil {
			granted = granted.With(i)
			s.keep(i, lease)
			continue
		}
		problems[i] = c.last
		c.giveUp()
	}
	return granted, problems, nil
}

// keep stores a lease that the caller does not see before the call has all.
func (s *several) keep(i int, l *Lease) {
	l.lock.OnClose(hold.Unseen)
	s.leases[i] = l
}

// giveBack releases leases of the call that the caller has not seen.
func (s *several) giveBack(names quorum.Set) {
	if names == 0 || !s.m.enter() {
		return // Close has released them
	}
	defer s.m.life.calls.Done()
	for i, l := range s.leases {
		if l != nil && names.Has(i) {
			l.abandon()
			s.leases[i] = nil
		}
	}
}

// errPanicked is the outcome that telemetry shows when a user's function, such as the
// backoff, panics during the call.
var errPanicked = errors.New("quorumlock: a function of the caller has panicked")

// errWaitOver is the cause with which the context of a wait ends at WithWait's bound.
var errWaitOver = errors.New("quorumlock: waited as long as WithWait allows")

// waiting returns the context of a wait.
func waiting(ctx context.Context, limit config.Wait) (context.Context, context.CancelFunc) {
	if limit.Most == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit.Most, errWaitOver)
}

// ended returns the error of a call whose wait has ended. problem is why the next name was not granted,
// nil if that is not known.
func (s *several) ended(next int, problem error) (err error) {
	defer func() { s.parts[next].measure(err) }()
	if context.Cause(s.wait) != errWaitOver { //nolint:errorlint // this very value, not another call's error that wraps it
		return errs.Waited(s.wait, problem, "quorumlock: acquire "+quoted(s.names))
	}
	problem = cmp.Or[error](problem, &HeldError{Name: s.names[next]})
	return errs.Several(problem.Error()+"; waited "+errs.Readable(s.m.clock.Now().Sub(s.began)), problem)
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
		l.lock.OnClose(hold.Deleted)
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
