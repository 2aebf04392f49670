package battery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// silence keeps a node from answering.
type silence struct {
	name  string
	begin func(*redistest.Server, *redistest.Proxy)
}

var silences = []silence{
	{"hung", func(s *redistest.Server, _ *redistest.Proxy) { s.Stop() }},
	{"killed", func(s *redistest.Server, _ *redistest.Proxy) { s.Kill() }},
	{"cut", func(_ *redistest.Server, p *redistest.Proxy) { p.Swallow() }},
}

// One of three nodes does not answer. After the first calls that meet it, no call takes longer because of it, whether
// the call finds a free name, a taken one, or one that other callers want too.
func TestANodeThatDoesNotAnswerDelaysNoCall(t *testing.T) {
	eachNight(t)
	for _, s := range silences {
		t.Run(s.name, func(t *testing.T) {
			r := newRow(t, "calls with one of three nodes "+s.name)
			servers := redistest.Start(t, 3)
			proxies, addrs := testkit.Proxied(t, servers)
			w := &timedCalls{t: t, managers: make([]*quorumlock.Manager, 3)}
			for i := range w.managers {
				w.managers[i] = testkit.Connect(t, addrs)
			}
			held, err := w.managers[0].Acquire(t.Context(), "held")
			require.NoError(t, err)
			w.run(count(300, 20)) // until all Managers are subscribed
			healthy := w.run(count(2000, 60))
			s.begin(servers[1], proxies[1])
			time.Sleep(time.Second)
			w.run(len(w.managers)) // a hanging node costs one node timeout, once: a busy process tests an idle connection later
			w.outcomes = [6]outcomes{}
			down := w.run(count(2000, 60))
			servers[1].Continue()
			for kind, name := range timedKinds {
				limit := at(.99, healthy[kind])*3/2 + 5*time.Millisecond
				bar := "p99 at most 1.5 × healthy + 5ms"
				if kind == ties { // the other two nodes must agree, and new callers come continuously
					limit, bar = 50*time.Millisecond, "p99 at most 50ms"
				}
				if !full {
					limit, bar = timeoutOfNodes/2, atLeastInFull(bar)+"; half a node timeout"
				}
				r.figure(fmt.Sprintf("%s: %s; all up: %s", name, spread(down[kind]), spread(healthy[kind])), bar, at(.99, down[kind]) <= limit)
			}
			// A machine that stands still for a node timeout prevents a quorum.
			for kind, got := range w.outcomes {
				calls := got.granted + got.held + got.short
				r.figure(fmt.Sprintf("%s: %d granted or answered, %d taken, %d without a majority", timedKinds[kind], got.granted, got.held, got.short),
					"as wanted, but for one of a hundred", got.granted+got.held > 0 && got.short <= calls/100+1 && (kind != ties || got.granted > 0))
			}
			require.NoError(t, held.Release(t.Context()))
		})
	}
}

// timeoutOfNodes is the node timeout of the default TTL.
const timeoutOfNodes = 500 * time.Millisecond

// ties is the kind of call that may end in a tie.
const ties = 4

var timedKinds = []string{"TryAcquire, free", "TryAcquire, taken", "Acquire, free", "Acquire, three Managers want it", "TryAcquire, three Managers want it", "Inspect"}

// timedCalls makes calls of each kind and measures them.
type timedCalls struct {
	t        *testing.T
	managers []*quorumlock.Manager
	names    int

	mu       sync.Mutex
	outcomes [6]outcomes // by kind
}

// outcomes counts the results of calls.
type outcomes struct{ granted, held, short int }

// run makes this number of calls of each kind, and returns how long they took.
func (w *timedCalls) run(rounds int) [][]time.Duration {
	w.t.Helper()
	took := make([][]time.Duration, len(timedKinds))
	ctx, m := w.t.Context(), w.managers[1]
	timed := func(kind int, call func()) {
		began := time.Now()
		call()
		took[kind] = append(took[kind], time.Since(began))
	}
	for range rounds {
		w.names++
		name := fmt.Sprint("free-", w.names)
		var l *quorumlock.Lease
		var err error
		timed(0, func() { l, err = m.TryAcquire(ctx, name) })
		w.done(0, l, err, nil)
		timed(1, func() { l, err = m.TryAcquire(ctx, "held") })
		w.done(1, l, err, quorumlock.ErrHeld)
		timed(2, func() { l, err = m.Acquire(ctx, name+"-2") })
		w.done(2, l, err, nil)
		timed(5, func() { _, err = m.Inspect(ctx, "held") })
		w.done(5, nil, err, nil)
	}
	took[3] = w.contend(3, rounds, func(m *quorumlock.Manager) (*quorumlock.Lease, error) { return m.Acquire(ctx, "wanted") })
	took[4] = w.contend(ties, rounds, func(m *quorumlock.Manager) (*quorumlock.Lease, error) { return m.TryAcquire(ctx, "wanted") })
	return took
}

// done counts and checks the outcome of a call, and releases its lease. A machine that stands still for a node timeout
// prevents a quorum, and shows in the time of the call.
func (w *timedCalls) done(kind int, l *quorumlock.Lease, err, want error) {
	w.t.Helper()
	w.mu.Lock()
	got := &w.outcomes[kind]
	switch {
	case err == nil:
		got.granted++
	case errors.Is(err, quorumlock.ErrHeld):
		got.held++
	default:
		got.short++
	}
	w.mu.Unlock()
	if !errors.Is(err, want) && !errors.Is(err, quorumlock.ErrNoQuorum) || l != nil && want != nil {
		w.t.Errorf("%s: %v, want %v", timedKinds[kind], err, want)
	}
	if l != nil {
		_ = l.Release(context.Background())
	}
}

// contend has all Managers ask for one name again and again.
func (w *timedCalls) contend(kind, rounds int, ask func(*quorumlock.Manager) (*quorumlock.Lease, error)) (took []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range w.managers {
		all.Go(func() {
			for range rounds / len(w.managers) {
				began := time.Now()
				l, err := ask(m)
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
				time.Sleep(500 * time.Microsecond)
				want := err
				if kind != ties || !errors.Is(err, quorumlock.ErrHeld) {
					want = nil
				}
				w.done(kind, l, err, want)
			}
		})
	}
	all.Wait()
	return took
}
