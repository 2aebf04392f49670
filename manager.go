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
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Manager acquires and renews leases on a fixed set of Redis masters. Make one for each
// set of nodes and share it: all methods are safe for concurrent use. It runs a few
// goroutines for each node and two more, whatever the number of leases; Close ends them
// all.
type Manager struct {
	cfg       *settings
	clock     *clock.Clock
	ensemble  *ensemble.Ensemble
	dog       *hold.Watchdog
	bus       bus
	telemetry *telemetry
	reporter  *report.Reporter
	attempts  sync.Pool // of *attempt

	greeted chan struct{} // capacity 1: a node's state has changed; never closed
	closing chan struct{} // closed when Close begins
	closed  chan struct{} // closed when Close has ended
	running tally         // the goroutines, apart from the reporter's

	id      string // 16 hex digits; part of every ticket
	waiters waiters
	locals  locals

	selfWarned, forgottenWarned atomic.Bool // see remind.go

	calls tally      // calls that may still produce a lease or post a release; and leases that end with Close, until their releases are posted
	left  unreleased // the locks that Close could not release

	mu     sync.Mutex
	shut   bool        // Close has begun: no more calls
	used   bool        // there may be locks to release
	logged []nodeState // what the log says of each node
}

// newPatience is how much longer New waits for slow nodes once a quorum has answered.
const newPatience = 250 * time.Millisecond

// New connects to the nodes: 1, 3 or 5 independent Redis masters, one option each (Addrs
// makes plain ones; Sentinel and ClusterSlot make failover groups). Of the options it uses addresses, TLS, credentials, database, names
// and dial functions; it sets the connection and retry options as the protocol needs
// them. Four nodes work, survive no more failures than three, and a warning says so.
//
// New returns when every node has answered or failed, or a little after a majority has
// answered; nodes that are down join when they come back. It returns ErrNoQuorum (a
// *QuorumError) when it reaches fewer than a majority: at once, or at the end of
// WithStartupWait. It returns ErrInvalid (an *InvalidError) at once when an option cannot
// work or a node cannot vote (a replica, a cluster, the same server twice, missing rights),
// and when ctx ends first, ctx.Err() and ctx's cause, joined with ErrNoQuorum if a majority
// is missing. After an error, only the markers of WithRestartGuard remain on the nodes. ctx
// bounds New alone.
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
	m := &Manager{
		cfg: cfg, clock: by, logged: make([]nodeState, len(nodes)),
		reporter: report.New(cfg.Log),
		greeted:  make(chan struct{}, 1), closing: make(chan struct{}), closed: make(chan struct{}),
		id: randomHex(wire.ManagerLen),
	}
	m.left.m = m
	m.running.begin()
	m.calls.begin()
	if len(nodes)%2 == 0 {
		cfg.Log.Warn("quorumlock: an even number of nodes tolerates no more failures than one node less",
			"nodes", len(nodes))
	}
	m.ensemble = ensemble.New(&ensemble.Config{
		Nodes: nodes, Timeout: cfg.Terms.Timeout, Clock: by, Report: m.reporter, Closing: m.ending, Events: events{m},
		Node: node.Config{
			Prefix: cfg.Prefix, Drift: cfg.Drift, Cap: cfg.RegisterCap(), Manager: m.id,
			Guard: cfg.Guard, Window: cfg.Failover, Trust: cfg.Trust, StepQuarantine: max(cfg.Guard, cfg.Terms.TTL+cfg.Terms.LockDelay),
			Rollout: cfg.Rollout,
		},
	})
	m.dog = hold.NewWatchdog(&hold.Config{Ensemble: m.ensemble, Unfenced: cfg.Unfenced, Stays: m.calls.change, Last: &m.left})
	if m.telemetry, err = newTelemetry(cfg, m.ensemble.Nodes()); err != nil {
		return nil, err
	}
	go m.reporter.Run(m.telemetry.meters)  // not in m.running: it ends last, because the others report to it
	for _, n := range m.ensemble.Nodes() { // only now: the handlers of their reports use all nodes
		m.running.run(n.Run)
		m.running.run(n.RunSubscriber)
		m.running.run(n.RunGroup)
	}
	m.running.run(m.dog.Run)
	if err := m.await(ctx); err != nil {
		_ = m.Close(ctx)
		return nil, err
	}
	return m, nil
}

// await waits for the first greeting of each node, and with WithStartupWait for a majority.
// It returns an error if New cannot succeed.
func (m *Manager) await(ctx context.Context) error {
	began, wait := m.clock.Steady(), m.cfg.StartupWait
	late := time.NewTimer(time.Hour) // greetings are bounded by themselves
	defer late.Stop()
	for waiting, said := true, false; waiting; {
		up, silent := m.census()
		enough := up >= m.ensemble.Quorum()
		if silent == 0 && (enough || wait == 0 || m.misconfigured() != nil) {
			break
		}
		switch {
		case enough:
			late.Reset(newPatience)
		case wait > 0:
			late.Reset(wait - (m.clock.Steady() - began))
		}
		if silent == 0 && !said {
			said = true
			m.reporter.Warn("waiting for a majority of the nodes to start", "up", up, "need", m.ensemble.Quorum(), "for", wait)
		}
		select {
		case <-m.greeted:
		case <-late.C:
			waiting = false
		case <-ctx.Done():
			return errs.Ended(ctx, m.unreached(m.clock.Steady()-began), "quorumlock: connect")
		}
	}
	if err := m.misconfigured(); err != nil {
		return err
	}
	err := m.unreached(m.clock.Steady() - began)
	if err != nil && wait > 0 {
		return errs.Several(err.Error()+"; waited "+errs.Readable(m.clock.Steady()-began), err)
	}
	return err
}

// misconfigured returns the error of the first node that somebody has to mend, nil for none.
func (m *Manager) misconfigured() error {
	for i, n := range m.ensemble.Nodes() {
		var config *wire.ConfigError
		if err := n.Health().Err; errors.As(err, &config) && !errors.Is(err, wire.ErrUnguarded) { // without votes, the nodes can be read all the same
			return &InvalidError{
				What: "node", Value: fmt.Sprintf("%d (%s)", i, n.Addr()),
				Bound: strings.TrimSuffix(err.Error(), ": "+config.Fix), Fix: config.Fix, // and with which other node
				Err: &NodeError{Node: i, Addr: n.Addr(), Err: err},
			}
		}
	}
	return nil
}

// unreached returns a QuorumError after New has waited, nil if a majority is up.
func (m *Manager) unreached(waited time.Duration) error {
	up, errs := 0, make([]error, m.ensemble.Size())
	for i, n := range m.ensemble.Nodes() {
		switch errs[i] = n.Health().Err; {
		case errs[i] == nil, errors.Is(errs[i], wire.ErrUnguarded):
			up++
		case errors.Is(errs[i], wire.ErrConnecting):
			errs[i] = ensemble.Silence(waited)
		}
	}
	if up >= m.ensemble.Quorum() {
		return nil
	}
	return &QuorumError{Op: "connect", Need: m.ensemble.Quorum(), Got: up, of: m.ensemble.Size(), Nodes: m.nodeErrors(errs)}
}

// census counts the nodes that may vote, or be read by a client that lacks the guard of
// the others, and those without a greeting so far.
func (m *Manager) census() (up, silent int) {
	for _, n := range m.ensemble.Nodes() {
		switch err := n.Health().Err; {
		case err == nil, errors.Is(err, wire.ErrUnguarded):
			up++
		case errors.Is(err, wire.ErrConnecting):
			silent++
		}
	}
	return up, silent
}

// enter admits a call that may produce a lease. The call ends with calls.leave.
func (m *Manager) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shut {
		return false
	}
	if !m.used {
		m.ensemble.Used()
	}
	m.used = true
	m.calls.add()
	return true
}

// events are the reports of the ensemble. (They are no methods of Manager, which is public.)
type events struct{ *Manager }

// Answered counts a node's answer in the metrics.
func (m events) Answered(i int, req *wire.Request, reply *wire.Reply) {
	if m.telemetry.meters != nil {
		m.telemetry.meters.node(i, req.Kind, reply, m.clock.Now)
	}
	if req.Kind == wire.Release && reply.N == wire.HandedOn {
		m.locals.handedOn(m.Manager, req.Lock(0))
	}
}

// ClockStepped shortens the leases by a step of a node's clock.
func (m events) ClockStepped(step *ensemble.Step) (apply func()) {
	return m.dog.ClockStepped(step)
}

// Woken handles a message about a ticket.
func (m events) Woken(i int, kind wire.WakeKind, ticket, lock string) {
	m.onWake(i, kind, ticket, lock)
}

// Subscribed handles the start of a node's messages.
func (m events) Subscribed(i int) { m.onSubscribed(i) }

// ending reports whether Close has begun.
func (m *Manager) ending() bool {
	select {
	case <-m.closing:
		return true
	default:
		return false
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
	return &NodeError{Node: i, Addr: m.ensemble.Nodes()[i].Addr(), Err: err}
}
