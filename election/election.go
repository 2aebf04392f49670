// Package election elects a leader among processes, in the form that users of Kubernetes know: who
// runs the work, who leads now, and a call when that changes. It is [quorumlock.Manager.Lead] and
// [quorumlock.Manager.Observe] together, and adds nothing to what they promise.
package election

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/quorumlock/quorumlock"
)

// Config is what an Elector is made from.
type Config struct {
	// Name is the name of the lease. Candidates with the same name, prefix and nodes compete.
	Name string
	// Lead is the leader's work. It runs under the lease, with a context that ends with it, and has
	// to return then. When it returns while the lease is held, Run ends.
	Lead func(ctx context.Context, l *quorumlock.Lease) error
	// NewLeader is called with each holder, and when nobody holds the name, in the order in
	// which they were observed; nil means no calls. It is also called when no majority of the
	// nodes has said who leads for an interval (Known is false). While it runs, changes in
	// between are skipped.
	NewLeader func(quorumlock.Status)
	// Acquire are options of the lease. With Permits(n), up to n candidates lead at the same time, and a Status has
	// all of them (Slots).
	Acquire []quorumlock.AcquireOption
}

// Elector is a candidate. It is safe for concurrent use.
type Elector struct {
	m      *quorumlock.Manager
	cfg    Config
	lease  atomic.Pointer[quorumlock.Lease] // the last; nil before the first
	leader atomic.Pointer[quorumlock.Status]
}

// New returns a candidate, which does nothing before Run.
func New(m *quorumlock.Manager, cfg Config) *Elector {
	e := &Elector{m: m, cfg: cfg}
	e.leader.Store(&quorumlock.Status{Name: cfg.Name})
	return e
}

// Run campaigns, leads and observes until ctx ends or Lead returns while its lease is held. It
// returns what [quorumlock.Manager.Lead] returns, after Lead and NewLeader have returned. After
// a lost lease the candidate campaigns again. Call it once at a time.
func (e *Elector) Run(ctx context.Context) error {
	if e.cfg.Lead == nil {
		return e.m.Lead(ctx, e.cfg.Name, nil) // which refuses it
	}
	observed, stop := context.WithCancel(ctx)
	statuses, err := e.m.Observe(observed, e.cfg.Name, e.kinds()...)
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
	return e.m.Lead(ctx, e.cfg.Name, func(ctx context.Context, l *quorumlock.Lease) error {
		e.lease.Store(l)
		return e.cfg.Lead(ctx, l)
	}, e.cfg.Acquire...)
}

// kinds returns what the observation looks at: what the candidates acquire.
func (e *Elector) kinds() (kinds []quorumlock.Kind) {
	for _, o := range e.cfg.Acquire {
		if kind, ok := o.(quorumlock.Kind); ok {
			kinds = append(kinds, kind)
		}
	}
	return kinds
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
