package election

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock"
)

// Config configures an Elector.
type Config struct {
	// Name is the name of the lease. Candidates with the same name, prefix and nodes compete. With Preference or
	// Health, it has at most 507 bytes, and NAME/next is used as well.
	Name string
	// Lead is the leader's work. It runs under the lease, with a context that ends with it, and must
	// return then. When it returns while the lease is held, Run ends, unless the leader yields: see
	// [Elector.Yielding].
	Lead func(ctx context.Context, l *quorumlock.Lease) error
	// NewLeader is called with each holder, and when no one holds the name, in the order in
	// which they were observed; nil means no calls. It is also called when no majority of the
	// nodes has said who leads for an interval (Known is false). While it runs, changes in
	// between are skipped.
	NewLeader func(quorumlock.Status)
	// Acquire are options of the lease. With Permits(n), up to n candidates lead at the same time, and a Status has
	// all of them (Slots); Preference and Health then are ErrInvalid. With these, WithWait bounds the wait for each of the two
	// leases, and WithoutRenewal has no use: NAME/next would be lost and taken again in each TTL.
	Acquire []quorumlock.AcquireOption

	// Preference says how much this candidate should lead: the largest value leads. It is called 2 s after its last
	// return, one call at a time, and must be fast: while it does not return, its last value counts for a minute, and then
	// this candidate neither asks nor yields. The same holds for nil. A panic ends the process. Run waits for its
	// return.
	Preference func() int
	// Margin is how much larger than the leader's a Preference must be. Default 1, at least 1.
	Margin int
	// MinReign is how long a leader leads before it yields to a larger Preference, and how long a candidate does not
	// campaign after it was unhealthy, unless no one leads. Default 10 min, at least 3 TTL.
	MinReign time.Duration
	// Health says whether this candidate can lead. The first result decides, and later three errors in a row, or three
	// nil. A leader that is unhealthy yields, and an unhealthy candidate does not campaign. It is called
	// HealthEvery after its last return, one call at a time, with a context that ends after HealthEvery; if it has
	// not returned by then, that is an error, and another one for each HealthEvery until it does. nil: always healthy. A panic ends the process.
	// Run waits for its return.
	Health func(ctx context.Context) error
	// HealthEvery is the pause between two calls of Health, and the deadline of one. Default 5 s; a negative one is
	// ErrInvalid.
	HealthEvery time.Duration
	// LeadAnyway is for work that an unhealthy leader does better than none. Unhealthy, a leader continues while no one
	// waits, and a candidate campaigns after this long without a leader. Default 0: never.
	LeadAnyway time.Duration
	// YieldWithin is the time from the close of Yielding to the end of Lead's context. Default 0: at once.
	YieldWithin time.Duration
	// TTL is the TTL of both leases with Preference or Health, in place of [quorumlock.WithTTL], which this package
	// cannot read. Default 10 s, 100 ms … 24 h, the same for all candidates. Without Preference and Health it is
	// ErrInvalid.
	TTL time.Duration
	// Log gets an error of Lead that Run does not return, because Lead's context had ended by a yield or a loss, at
	// Warn. Default slog.Default(). It is used with Preference or Health; without them, the Manager logs.
	Log *slog.Logger
}

// Elector is a candidate. It is safe for concurrent use.
type Elector struct {
	m        *quorumlock.Manager
	cfg      Config
	lease    atomic.Pointer[quorumlock.Lease] // the last; nil before the first
	leader   atomic.Pointer[quorumlock.Status]
	yielding atomic.Pointer[chan struct{}] // of the last reign; see Yielding
}

// New returns a candidate, which does nothing before Run.
func New(m *quorumlock.Manager, cfg Config) *Elector {
	e := &Elector{m: m, cfg: cfg}
	e.leader.Store(&quorumlock.Status{Name: cfg.Name})
	never := make(chan struct{})
	e.yielding.Store(&never)
	return e
}

// Run campaigns, leads and observes until ctx ends or Lead returns while its lease is held, and the leader does not
// yield. It returns what [quorumlock.Manager.Lead] returns, after Lead, NewLeader, Preference and Health have
// returned. After a lost lease, and after a yield, the candidate campaigns again. A Config that is out of bounds is
// ErrInvalid (a [quorumlock.InvalidError]) at once. Call it once at a time.
func (e *Elector) Run(ctx context.Context) error {
	if e.cfg.Lead == nil || ctx == nil {
		return e.m.Lead(ctx, e.cfg.Name, e.cfg.Lead) // which refuses it
	}
	settings, err := e.cfg.check()
	if err != nil {
		return err
	}
	observed, stop := context.WithCancel(ctx)
	statuses, err := e.m.Observe(observed, e.cfg.Name, e.cfg.kinds()...)
	if err != nil {
		stop()
		return err
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for s := range statuses {
			e.leader.Store(&s)
			if e.cfg.NewLeader != nil {
				e.cfg.NewLeader(s)
			}
		}
	})
	defer watching.Wait()
	defer stop()
	if settings.plain {
		return e.m.Lead(ctx, e.cfg.Name, func(ctx context.Context, l *quorumlock.Lease) error {
			e.lease.Store(l)
			return e.cfg.Lead(ctx, l)
		}, e.cfg.Acquire...)
	}
	return e.campaign(ctx, settings)
}

// IsLeader reports whether this candidate leads now: its lease is valid by the clocks at this call.
// It turns false before another candidate can lead, also while Lead still runs.
func (e *Elector) IsLeader() bool {
	l := e.lease.Load()
	return l != nil && l.Valid()
}

// Leader returns who led when the nodes were last asked. Known is false before the first answers.
// It may be out of date, also about this candidate: IsLeader is exact.
func (e *Elector) Leader() quorumlock.Status { return *e.leader.Load() }

// Yielding returns a channel of the present reign, or else of the last one. It is closed when this leader yields: Lead
// should finish its step and return nil, and Run campaigns again. YieldWithin later, Lead's context ends, with ErrYielded or
// ErrUnhealthy as its cause; from then on Run campaigns again whatever Lead returns, and before, another error than
// nil ends Run. The lease is kept until Lead returns: a leader that continues still leads alone.
//
// The channel carries nothing. It is not closed when the reign ends in another way, so wait for Lead's context as
// well. Before the first reign, and without Preference and Health, it is never closed. Call it in Lead, once in each reign.
func (e *Elector) Yielding() <-chan struct{} { return *e.yielding.Load() }
