package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/bus"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Manager acquires and renews leases on a fixed set of Redis masters. Make one for each set
// of nodes and share it: all methods are safe for concurrent use. It runs a few goroutines
// for each node and two more (18 with NewCluster), however many leases it holds; Close ends them all.
type Manager struct {
	cfg       *settings
	clock     *clock.Clock
	nodes     []*node.Node  // of all shards
	cluster   *node.Cluster // of NewCluster; nil from New
	shards    []*shard      // one, of all names; from NewCluster, one for each bucket
	prefixed  int           // length of the keys' prefix, which all shards have
	greeted   chan struct{} // capacity 1: a node's state has changed; never closed
	events    *bus.Bus[Event]
	telemetry *telemetry
	reporter  *report.Reporter
	said      said
	nodeLog   nodeLog
	life      life
}

type life struct {
	work   context.Context         // ends when Close begins, with ErrClosed; the contexts of functions end with it
	end    context.CancelCauseFunc // of work
	closed chan struct{}           // closed when Close has ended

	running sync.WaitGroup // the goroutines, apart from the reporter's
	calls   sync.WaitGroup // calls that may still produce a lease or post a release, and functions that run under leases
	mu      sync.Mutex
	shut    bool // Close has begun
	used    bool // there may be locks to release
}

// New connects to the nodes: 1, 3 or 5 (at most 15) independent Redis masters, one option each.
// Addrs makes plain ones, Sentinel and ClusterSlot failover groups. ctx bounds New alone.
//
// New returns when every node has answered or failed, or a little after a majority has answered;
// nodes that are down join when they come back. It returns ErrNoQuorum (a *QuorumError) when it
// reaches no majority, at once or at the end of WithStartupWait. It returns ErrInvalid (an
// *InvalidError) at once for an option that cannot work, a wrong list of nodes, or when so many
// nodes need an operator (password, rights) that the others are not a majority. When ctx ends
// first, it returns ctx.Err() and ctx's cause.
func New(ctx context.Context, nodes []rueidis.ClientOption, opts ...Option) (*Manager, error) {
	return newOn(ctx, clock.New(), nodes, opts)
}

// newOn is New with the clock of a test.
func newOn(ctx context.Context, by *clock.Clock, nodes []rueidis.ClientOption, opts []Option) (*Manager, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	cfg, err := newSettings(nodes, opts)
	if err != nil {
		return nil, err
	}
	m, err := build(by, cfg, []list{{cfg.Prefix, nodes}}, nil)
	if err != nil {
		return nil, err
	}
	if len(nodes)%2 == 0 {
		m.reporter.Warn("an even number of nodes survives no more failures than one node fewer would: add or remove a node", "nodes", len(nodes))
	}
	return opened(ctx, m)
}

// list has the nodes of a shard, and the prefix of its keys.
type list struct {
	prefix string
	nodes  []rueidis.ClientOption
}

// build returns a Manager whose goroutines do not run. The prefixes of all lists have one length.
func build(by *clock.Clock, cfg *settings, lists []list, cluster *node.Cluster) (*Manager, error) {
	m := &Manager{
		cfg: cfg, clock: by, cluster: cluster, events: bus.New(weight), reporter: report.New(cfg.Log),
		prefixed: len(lists[0].prefix), greeted: make(chan struct{}, 1), life: life{closed: make(chan struct{})},
	}
	m.life.work, m.life.end = context.WithCancelCause(context.Background())
	for _, l := range lists {
		sh := newShard(m, l.prefix, len(m.nodes), l.nodes)
		m.shards, m.nodes = append(m.shards, sh), append(m.nodes, sh.ensemble.Nodes()...)
	}
	m.nodeLog.states = make([]nodeState, len(m.nodes))
	var err error
	m.telemetry, err = newTelemetry(cfg, m.nodes, m.shards[0].ensemble.Size(), by, m.reporter)
	return m, err
}

// opened starts a Manager, and closes it if New cannot succeed.
func opened(ctx context.Context, m *Manager) (*Manager, error) {
	m.start()
	first := startup{m: m, began: m.clock.Steady(), wait: m.cfg.StartupWait}
	if err := first.await(ctx); err != nil {
		_ = m.Close(ctx)
		return nil, err
	}
	return m, nil
}

// start starts all goroutines of a Manager, for Close to join.
func (m *Manager) start() {
	go m.reporter.Run(m.telemetry.meters) // not in running: it ends last, because the others report to it
	if m.cluster != nil {
		m.life.running.Go(m.cluster.Run)
	}
	for _, sh := range m.shards {
		sh.run(&m.life.running)
	}
}

// newPatience is how much longer New waits for slow nodes once a quorum has answered.
const newPatience = 250 * time.Millisecond

// startup waits for New.
type startup struct {
	m     *Manager
	began clock.Steady  // on the steady clock
	wait  time.Duration // of WithStartupWait
}

// waited returns how long New has waited.
func (s *startup) waited() time.Duration { return s.m.clock.Steady().Sub(s.began) }

// await waits for the first connection to each node, and with WithStartupWait for a majority.
// It returns an error if New cannot succeed.
func (s *startup) await(ctx context.Context) error {
	m := s.m
	late := time.NewTimer(time.Hour) // connecting is bounded by itself
	defer late.Stop()
	for waiting, said := true, false; waiting; {
		up, silent, _ := s.census()
		enough := up >= quorum.Size(len(m.nodes))
		if silent == 0 && (enough || s.wait == 0 || s.misconfigured() != nil) {
			break
		}
		switch {
		case enough:
			late.Reset(newPatience)
		case s.wait > 0:
			late.Reset(s.wait - s.waited())
		}
		if silent == 0 && !said {
			said = true
			m.reporter.Warn("New waits for a majority of the nodes: each node's line in this log says why", "up", up, "need", quorum.Size(len(m.nodes)), "for", s.wait)
		}
		select {
		case <-m.greeted:
		case <-late.C:
			waiting = false
		case <-ctx.Done():
			return errs.Waited(ctx, s.unreached(), "quorumlock: connect")
		}
	}
	if err := s.misconfigured(); err != nil {
		return err
	}
	err := s.unreached()
	if err != nil && s.wait > 0 {
		return errs.Several(err.Error()+"; waited "+errs.Readable(s.waited()), err)
	}
	if err == nil {
		s.settle(ctx)
	}
	return err
}

// settle waits until each node knows the others of the list, which takes a round trip: before that their votes do not
// count. A caller that asks once would fail.
func (s *startup) settle(ctx context.Context) {
	tick := time.NewTimer(time.Millisecond)
	defer tick.Stop()
	unsettled := func(sh *shard) bool { return !sh.ensemble.Settled() }
	for began := s.m.clock.Steady(); slices.ContainsFunc(s.m.shards, unsettled) && s.m.clock.Steady().Sub(began) < newPatience; tick.Reset(time.Millisecond) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// misconfigured returns the error of the first node that an operator must correct, if the list of nodes
// is wrong or no majority is left without such nodes; otherwise nil.
func (s *startup) misconfigured() (first error) {
	broken := 0
	for i, n := range s.m.nodes {
		var config *wire.ConfigError
		if err := n.Health().Err; errors.As(err, &config) && !errors.Is(err, wire.ErrUnguarded) { // without votes, the nodes can be read all the same
			broken++
			if first != nil && !config.List {
				continue
			}
			first = &InvalidError{
				What: "node", Value: fmt.Sprintf("%d (%s)", i, n.Addr()),
				Bound: strings.TrimSuffix(err.Error(), ": "+config.Fix), Fix: config.Fix, // the text also names the other node
				Err: nodeError(i, n.Addr(), err),
			}
			if config.List {
				return first
			}
		}
	}
	if len(s.m.nodes)-broken >= quorum.Size(len(s.m.nodes)) {
		return nil
	}
	return first
}

// unreached returns a QuorumError after New has waited, nil if a majority is up.
func (s *startup) unreached() error {
	up, _, problems := s.census()
	if up >= quorum.Size(len(s.m.nodes)) {
		return nil
	}
	return s.m.noQuorum("connect", up, problems)
}

// census counts the nodes that may vote, or be read by a client that lacks the guard of
// the others, and those that have not connected or failed so far. problems has the errors of the nodes that have one.
func (s *startup) census() (up, silent int, problems []error) {
	problems = make([]error, len(s.m.nodes))
	for i, n := range s.m.nodes {
		switch problems[i] = n.Health().Err; {
		case problems[i] == nil, errors.Is(problems[i], wire.ErrUnguarded):
			up++
		case errors.Is(problems[i], wire.ErrConnecting):
			problems[i] = ensemble.Silence(s.waited())
			silent++
		}
	}
	return up, silent, problems
}

// noQuorum is the error of an operation that concerns all nodes.
func (m *Manager) noQuorum(op string, got int, problems []error) *QuorumError {
	err := &QuorumError{Op: op, Need: quorum.Size(len(m.nodes)), Got: got, of: len(m.nodes)}
	for i, problem := range problems {
		if problem != nil {
			err.Nodes = append(err.Nodes, nodeError(i, m.nodes[i].Addr(), problem))
		}
	}
	return err
}

// enter admits a call that may produce a lease. The call ends with calls.Done.
func (m *Manager) enter() bool {
	m.life.mu.Lock()
	defer m.life.mu.Unlock()
	if m.life.shut {
		return false
	}
	if !m.life.used {
		for _, sh := range m.shards {
			sh.ensemble.Used()
		}
	}
	m.life.used = true
	m.life.calls.Add(1)
	return true
}

// Subscribe returns a subscription to the events of all leases and nodes, or to events of the
// types given, as in Subscribe(8, Lost{}, Released{}). Its buffer holds that many events (at
// least 1); Subscription says what happens when it is full. nil, and other types than the events
// listed at Event, select nothing.
func (m *Manager) Subscribe(buffer int, types ...Event) *Subscription {
	return &Subscription{m.events.Add(buffer, ofTypes(types))}
}

// said has the hints that a Manager has logged and does not repeat.
type said struct {
	self, forgotten atomic.Bool // hints about mistakes of the program, each given once

	mu     sync.Mutex
	repair clock.Steady // before this instant on the steady clock, warnOfRepair is silent
}

// warnOfRepair warns, at most once a minute, that calls wait for an operator.
func (s *said) warnOfRepair(m *Manager, why error) {
	now := m.clock.Steady()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now >= s.repair {
		s.repair = now.Add(time.Minute)
		m.reporter.Warn("a call waits for nodes that an operator must repair", "error", why)
	}
}

// warnOfSelf warns, once, that a caller waits for a name which its own Manager holds.
func (s *said) warnOfSelf(r *report.Reporter, name string) {
	if !s.self.Swap(true) {
		r.Warn("a caller waits for a lease that this Manager itself holds; if the caller is the holder, it waits forever: "+
			"pass the lease on, because it is not reentrant", "name", name)
	}
}
