package quorumlock

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/queue"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// shard is one list of nodes with its state. Two shards have no key, marker, register or majority in common. A Manager
// from New has one.
type shard struct {
	m         *Manager
	prefix    string              // of its keys
	first     int                 // index of its first node among all nodes of the Manager
	ensemble  *ensemble.Ensemble  // the nodes
	campaigns *campaign.Campaigns // calls that ask the nodes
	queues    *queue.Queues       // calls that wait behind each other
	dog       *hold.Watchdog      // the locks of this process, and what renews them
	observers *observe.Observers  // what this process learns of names that it does not hold
}

// of returns the shard of a name.
func (m *Manager) of(name string) *shard {
	if len(m.shards) == 1 {
		return m.shards[0]
	}
	return m.shards[master.Bucket(name)]
}

// key returns the key of a name.
func (sh *shard) key(name string) string { return wire.LockKey(sh.prefix, name) }

// newShard returns a shard whose goroutines do not run.
func newShard(m *Manager, prefix string, first int, nodes []rueidis.ClientOption) *shard {
	sh, cfg := &shard{m: m, prefix: prefix, first: first}, m.cfg
	id := make([]byte, wire.ManagerLen/2)
	_, _ = rand.Read(id) // never fails since Go 1.24
	manager := hex.EncodeToString(id)
	sh.ensemble = ensemble.New(&ensemble.Config{
		Nodes: nodes, First: first, Timeout: cfg.Terms.Timeout, Clock: m.clock, Report: m.reporter, Closing: m.life.ending, Events: sh,
		Node: node.Config{
			Prefix: prefix, Drift: cfg.Drift, Cap: cfg.RegisterCap(), Manager: manager,
			Cluster: m.cluster, Guard: cfg.Guard, Window: cfg.Failover, Trust: cfg.Trust, StepQuarantine: max(cfg.Guard, cfg.Terms.TTL+cfg.Terms.LockDelay),
			Rollout: cfg.Rollout,
		},
	})
	sh.dog = hold.NewWatchdog(&hold.Config{Ensemble: sh.ensemble, Unfenced: cfg.Unfenced, Calls: &m.life.calls})
	sh.campaigns = campaign.New(&campaign.Config{
		Ensemble: sh.ensemble, Locks: sh.dog.Locks, Prefix: prefix, Unfenced: cfg.Unfenced, Manager: manager, Closing: m.life.work,
	})
	sh.queues = queue.New(&queue.Config{
		Clock: m.clock, Locks: sh.dog.Locks, Closing: m.life.work, Turn: sh.campaigns.Turn, Woken: sh.campaigns.Woken,
		WaitsForItself: func(key string) { m.said.warnOfSelf(m.reporter, key[len(prefix):]) },
	})
	sh.observers = observe.New(sh.ensemble, cfg.ObserveEvery, sh.timeout)
	return sh
}

// run starts the goroutines of a shard.
func (sh *shard) run(running *sync.WaitGroup) {
	for _, n := range sh.ensemble.Nodes() { // only now: the handlers of their reports use all nodes
		running.Go(n.Run)
		running.Go(n.RunSubscriber)
		running.Go(n.RunGroup)
	}
	running.Go(sh.dog.Run)
}

// terms returns the terms of a lease, with the node timeout of this moment.
func (sh *shard) terms(t *config.Terms) *config.Terms { return sh.m.cfg.At(sh.ensemble.Trip(), t) }

// timeout returns how long a node may take to answer a call that concerns no lease of this process.
func (sh *shard) timeout() time.Duration { return sh.terms(&sh.m.cfg.Terms).Timeout }

// read asks every node for the holder of a key, with a request such as wire.NewRead.
func (sh *shard) read(request func(key string, expires clock.Steady) *wire.Request, key string, timeout time.Duration) *ensemble.Answers {
	return sh.ensemble.AskAll(request(key, sh.m.clock.Steady().Add(timeout)), sh.ensemble.Size(), nil)
}

// Answered counts a node's answer in the metrics.
func (sh *shard) Answered(i int, req *wire.Request, reply *wire.Reply) {
	sh.m.telemetry.meters.Node(sh.first+i, req.Kind, reply, sh.m.clock.Now)
}

// HandedOn has the callers of this process stand back for a waiter of another one.
func (sh *shard) HandedOn(lock string) { sh.queues.HandedOn(lock) }

// ClockStepped shortens the leases by a step of a node's clock.
func (sh *shard) ClockStepped(step *ensemble.Step) (apply func()) { return sh.dog.ClockStepped(step) }

// Woken handles a message about a ticket.
func (sh *shard) Woken(i int, kind wire.WakeKind, ticket, lock string) {
	sh.campaigns.Wake(i, kind, ticket, lock)
}

// Subscribed handles the start of a node's messages.
func (sh *shard) Subscribed(i int) { sh.campaigns.Subscribed(i) }

// NodeChanged reports a change of a node: it votes, stops voting, or has a warning.
func (sh *shard) NodeChanged(i int, h node.Health) {
	select {
	case sh.m.greeted <- struct{}{}:
	default:
	}
	e := NodeChanged{Node: sh.first + i, Addr: sh.ensemble.Nodes()[i].Addr(), Err: h.Err, QuarantinedFor: h.QuarantineLeft(), Warning: h.Warning, Master: h.Master}
	if h.Err == nil {
		e.Err = h.Reason
	}
	state := nodeState{text: stateOf(h), votes: h.Err == nil && h.Reason == nil}
	if sh.m.cluster != nil {
		state.server = h.Master
	}
	line, ok := sh.m.nodeLog.changed(e.Node, state)
	if h.Err == nil {
		sh.dog.NodeBack(i)
	}
	if ok {
		sh.m.reporter.Add(func() { sh.m.logNode(&e, h, line) })
	}
	sh.m.events.Send(e)
}

// logNode writes a line about a node to the log.
func (m *Manager) logNode(e *NodeChanged, h node.Health, line nodeLine) {
	log := m.cfg.Log.With("node", e.Node, "addr", e.Addr)
	if h.Master != "" {
		log = log.With("master", h.Master)
	}
	switch {
	case h.Err != nil && m.cluster != nil:
		log.Warn("quorumlock: node grants no locks; the names in its buckets wait for it", "error", h.Err)
	case h.Err != nil:
		log.Warn("quorumlock: node grants no locks; "+line.effect(len(m.nodes)), "error", h.Err)
	case h.Reason != nil:
		log.Warn("quorumlock: node is in quarantine: it grants no locks until that ends", "for", e.QuarantinedFor.Round(time.Millisecond), "error", h.Reason)
	case line.again:
		log.Info("quorumlock: node grants locks again", "version", h.Identity.Version)
	default:
		log.Debug("quorumlock: node grants locks", "version", h.Identity.Version)
	}
	if h.Warning != nil {
		log.Warn("quorumlock: node has a warning", "error", h.Warning)
	}
}

// stateOf returns the state of a node on which a line of the log depends.
func stateOf(h node.Health) string {
	problem, master := "", ""
	var config *wire.ConfigError
	switch {
	case h.Err == nil:
		master = h.Master
	case errors.As(h.Err, &config): // a node that is down has many errors of one outage
		problem = config.Error()
	}
	return fmt.Sprintf("votes %t %q, master %q, reason %v, warning %v", h.Err == nil, problem, master, h.Reason, h.Warning)
}
