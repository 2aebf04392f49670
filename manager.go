package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Manager acquires and renews leases on a fixed set of Redis masters. Make one for each
// set of nodes and share it: all methods are safe for concurrent use. It runs a few
// goroutines for each node and two more, whatever the number of leases; Close ends them
// all.
type Manager struct {
	cfg       *config
	clock     *clock.Clock
	nodes     []*node.Node
	steps     clockSteps
	dog       *watchdog
	bus       bus
	telemetry *telemetry
	reporter  *reporter
	timers    sync.Pool
	signals   signals
	attempts  sync.Pool // of *attempt

	greeted chan struct{} // capacity 1: a node's state has changed; never closed
	closing chan struct{} // closed when Close begins
	closed  chan struct{} // closed when Close has ended
	running sync.WaitGroup

	id      string // 16 hex digits; part of every ticket
	waiters waiters
	locals  locals
	own     ownLocks

	selfWarned, forgottenWarned atomic.Bool // see remind.go

	mu       sync.Mutex
	shut     bool           // Close has begun
	used     bool           // there may be locks to release
	inflight sync.WaitGroup // calls that may still produce a lease; Add with mu held and not shut
	ids      []node.Identity
	runs     []string    // the run_id that each node had last
	logged   []nodeState // what the log says of each node
	groups   []string    // kind of failover group of each node, "" for one server; never changes
}

// newPatience is how much longer New waits for slow nodes once a quorum has answered.
const newPatience = 250 * time.Millisecond

// closeGrace is how long Close waits for nodes when its context has ended before the
// call. Usually a signal has cancelled the context, and Close should still release the
// locks.
const closeGrace = 100 * time.Millisecond

// New connects to the nodes: 1, 3 or 5 independent Redis masters, one option each (Addrs
// makes plain ones; Sentinel and ClusterSlot make failover groups). Of the options it uses addresses, TLS, credentials, database, names
// and dial functions; it sets the connection and retry options as the protocol needs
// them. Four nodes work, survive no more failures than three, and a warning says so.
//
// New returns when every node has answered or failed, or a little after a majority has
// answered; nodes that are down join when they come back. It returns ErrNoQuorum (a
// *QuorumError) when it reaches fewer than a majority, ErrInvalid (an *InvalidError) when
// an option cannot work or a node cannot vote (a replica, a cluster, the same server
// twice, missing rights), and ctx's cause when ctx ends first. After an error, only the
// markers of WithRestartGuard remain on the nodes. ctx bounds New alone.
func New(ctx context.Context, nodes []rueidis.ClientOption, opts ...Option) (*Manager, error) {
	return newOn(ctx, clock.New(), nodes, opts)
}

// newOn is New with the clock of a test.
func newOn(ctx context.Context, by *clock.Clock, nodes []rueidis.ClientOption, opts []Option) (*Manager, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	cfg, err := newConfig(nodes, opts)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		cfg: cfg, clock: by, ids: make([]node.Identity, len(nodes)),
		runs: make([]string, len(nodes)), logged: make([]nodeState, len(nodes)), groups: make([]string, len(nodes)),
		reporter: newReporter(),
		greeted:  make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
		id: randomHex(node.ManagerLen),
	}
	m.dog = newWatchdog(m)
	if len(nodes)%2 == 0 {
		cfg.log.Warn("quorumlock: an even number of nodes tolerates no more failures than one node less",
			"nodes", len(nodes))
	}
	for i := range nodes {
		m.groups[i], _ = node.Group(&nodes[i])
		n := node.New(node.Config{
			Index: i, Option: nodes[i], Prefix: cfg.prefix, Clock: m.clock.Both, Drift: cfg.drift,
			Cap: cfg.registerCap(), Only: len(nodes) == 1,
			Guard: cfg.guard, Window: cfg.failover, Trust: cfg.trust, StepQuarantine: max(cfg.guard, cfg.terms.ttl+cfg.terms.lockDelay),
			Admit: m.admit, OnHealth: m.onHealth, OwnStep: m.ownClockStepped, OnClockStep: m.onClockStep,
			Manager: m.id, OnWake: m.onWake, OnSubscribed: m.onSubscribed,
		})
		m.nodes = append(m.nodes, n)
	}
	if m.telemetry, err = newTelemetry(cfg, m.nodes); err != nil {
		return nil, err
	}
	go m.reporter.run(cfg.log)  // not in m.running: it ends last, because the others report to it
	for _, n := range m.nodes { // only now: the handlers of their reports use all nodes
		m.running.Go(n.Run)
		m.running.Go(n.RunSubscriber)
		m.running.Go(n.RunGroup)
	}
	m.running.Go(m.dog.run)
	if err := m.await(ctx); err != nil {
		_ = m.Close(ctx)
		return nil, err
	}
	return m, nil
}

// await waits for the first greeting of each node and returns an error if New cannot
// succeed.
func (m *Manager) await(ctx context.Context) error {
	late := time.NewTimer(time.Hour) // greetings are bounded by themselves
	defer late.Stop()
	for waiting := true; waiting; {
		up, silent := m.census()
		if silent == 0 {
			break
		}
		if up >= m.quorum() {
			late.Reset(newPatience)
		}
		select {
		case <-m.greeted:
		case <-late.C:
			waiting = false
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	errs := make([]error, len(m.nodes))
	for i, n := range m.nodes {
		errs[i] = n.Health().Err
		var config *node.ConfigError
		if errors.As(errs[i], &config) {
			return &InvalidError{
				What: "node", Value: fmt.Sprintf("%d (%s)", i, n.Addr()),
				Bound: strings.TrimSuffix(errs[i].Error(), ": "+config.Fix), Fix: config.Fix, // and with which other node
				Err: &NodeError{Node: i, Addr: n.Addr(), Err: errs[i]},
			}
		}
	}
	if up, _ := m.census(); up < m.quorum() {
		return &QuorumError{Op: "connect", Need: m.quorum(), Got: up, of: len(m.nodes), Nodes: m.nodeErrors(errs)}
	}
	return nil
}

// census counts the nodes that may vote, and those without a greeting so far.
func (m *Manager) census() (up, silent int) {
	for _, n := range m.nodes {
		switch err := n.Health().Err; {
		case err == nil:
			up++
		case errors.Is(err, node.ErrConnecting):
			silent++
		}
	}
	return up, silent
}

// enter admits a call that may produce a lease. The call ends with inflight.Done.
func (m *Manager) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shut {
		return false
	}
	m.used = true
	m.inflight.Add(1)
	return true
}

// Subscribe returns a subscription to the events of all leases and nodes. Its buffer
// holds that many events (at least 1); Subscription says what happens when it is full.
func (m *Manager) Subscribe(buffer int) *Subscription { return m.bus.add(buffer) }

// Close refuses new calls, ends waiting ones with ErrClosed, releases all leases, ends
// the connections and waits for every goroutine of the Manager. Each lease gets its last
// event before the subscriptions end; in a Subscription that is not read, the last events
// replace earlier ones.
//
// Close goes on while a node answers releases, until ctx ends. It gives up an unreachable
// node at once, and a silent one after a second. It waits until log handlers and span
// processors return. When ctx ends, Close stops waiting for all of them; if ctx had ended
// before the call, it waits 100 ms. Everything else is still done. Close returns ctx's cause if the end of ctx left something undone: keys that
// remain on a node keep a name taken there until they expire, and a warning in the log
// counts them. Close is idempotent: later and concurrent calls wait for the first and
// return nil, or ctx's cause. A nil ctx is ErrInvalid, and closes nothing.
func (m *Manager) Close(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	m.mu.Lock()
	first, used := !m.shut, m.used
	m.shut = true
	m.mu.Unlock()
	if !first {
		return before(ctx, m.closed)
	}
	close(m.closing)
	m.inflight.Wait() // closing has ended their waits, so no call waits for a node
	m.dog.stop()      // from now on, every live hold is in the watchdog's heap
	end := ctx
	if ctx.Err() != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		end = grace
	}
	last := m.endAll()
	left := unreleased{m: m}
	var cut atomic.Bool
	limit, cancel := context.WithCancel(end)
	defer cancel()
	if !used {
		cancel() // New has failed: there is nothing to release
	}
	for _, n := range m.nodes {
		m.running.Go(func() {
			if !n.Close(limit, last, &left) && used {
				cut.Store(true)
			}
		})
	}
	m.running.Wait()
	var err error
	if leases, nodes := left.count(); leases > 0 || cut.Load() {
		m.warn("closed without an answer from every node; the keys that are left expire by themselves", "leases", leases, "nodes", nodes)
	}
	if cut.Load() && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	m.telemetry.meters.close()
	m.bus.close()
	// Last: everything that may report has ended.
	m.reporter.stop()
	if before(end, m.reporter.done) != nil { // a handler of the user's hangs
		err = context.Cause(ctx)
	}
	close(m.closed)
	return err
}

// before waits until done is closed, and returns nil if that was before ctx ended.
func before(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done: // both
		return nil
	default:
		return context.Cause(ctx)
	}
}

// answered counts a node's answer in the metrics.
func (m *Manager) answered(i int, req *node.Request, reply *node.Reply) {
	if m.telemetry.meters != nil {
		m.telemetry.meters.node(i, req.Kind, reply, m.clock.Now)
	}
}

// endAll ends every live hold. It returns the releases of these holds, and of lost holds
// that still have keys on the nodes. Attempts that were cut short have posted their
// releases.
func (m *Manager) endAll() []*node.Request {
	holds := m.dog.live()
	for _, h := range holds {
		h.step(quorum.Input{Kind: quorum.InputRelease}, nil)
	}
	return m.releaseAll(holds)
}

// ending reports whether Close has begun.
func (m *Manager) ending() bool {
	select {
	case <-m.closing:
		return true
	default:
		return false
	}
}

// quorum returns the size of a majority.
func (m *Manager) quorum() int { return quorum.Size(m.cfg.nodes) }

// post queues a request for node i. If the node refuses it, to receives the error at
// once.
func (m *Manager) post(i int, req *node.Request, to node.Receiver) {
	if !m.nodes[i].Post(req, to) {
		err := errOverloaded
		if m.ending() {
			err = node.ErrClosed
		}
		to.Receive(i, req, &node.Reply{Status: node.NotApplied, Err: err})
	}
}

// nodeErrors lists the errors of the nodes that have one.
func (m *Manager) nodeErrors(errs []error) []*NodeError {
	var list []*NodeError
	for i, err := range errs {
		if err != nil {
			list = append(list, m.nodeError(i, err))
		}
	}
	return list
}

func (m *Manager) nodeError(i int, err error) *NodeError {
	return &NodeError{Node: i, Addr: m.nodes[i].Addr(), Err: err}
}
