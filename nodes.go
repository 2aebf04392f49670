package quorumlock

import (
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/queue"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// events are the reports of the ensemble. (They are no methods of Manager, which is public.)
type events struct{ *Manager }

// Answered counts a node's answer in the metrics.
func (m events) Answered(i int, req *wire.Request, reply *wire.Reply) {
	if m.telemetry.meters != nil {
		m.telemetry.meters.node(i, req.Kind, reply, m.ensemble.Clock.Now)
	}
	if req.Kind == wire.Release && reply.N == wire.HandedOn {
		m.queues.HandedOn(req.Lock(0))
	}
}

// ClockStepped shortens the leases by a step of a node's clock.
func (m events) ClockStepped(step *ensemble.Step) (apply func()) { return m.dog.ClockStepped(step) }

// Woken handles a message about a ticket.
func (m events) Woken(i int, kind wire.WakeKind, ticket, lock string) {
	m.campaigns.Wake(i, kind, ticket, lock)
}

// Subscribed handles the start of a node's messages.
func (m events) Subscribed(i int) {
	var waiting []*campaign.Campaign
	m.queues.Each(func(c queue.Caller) { waiting = append(waiting, &c.(*call).campaign) })
	m.campaigns.Subscribed(i, waiting)
}

// NodeChanged reports a change of a node: it votes, stops voting, or has a warning.
func (m events) NodeChanged(i int, h node.Health) {
	select {
	case m.said.greeted <- struct{}{}:
	default:
	}
	e := NodeChanged{Node: i, Addr: m.ensemble.Nodes()[i].Addr(), Err: h.Err, QuarantinedFor: h.QuarantineLeft(), Warning: h.Warning, Master: h.Master}
	if h.Err == nil {
		e.Err = h.Reason
	}
	state := stateOf(h) // not under the mutex: a dial function's error has methods of its own
	m.said.mu.Lock()
	same := m.said.nodes[i] == state
	m.said.nodes[i] = state
	m.said.mu.Unlock()
	if h.Err == nil {
		m.dog.NodeBack(i)
	}
	m.reporter.Add(func() {
		log := m.cfg.Log.With("node", i, "addr", e.Addr)
		if h.Master != "" {
			log = log.With("master", h.Master)
		}
		switch {
		case same: // another error of the same outage is an event, and no second line
		case h.Err != nil:
			log.Warn("quorumlock: node does not vote", "error", h.Err)
		case h.Reason != nil:
			log.Warn("quorumlock: node in quarantine: it votes when that ends", "for", e.QuarantinedFor.Round(time.Millisecond), "error", h.Reason)
		default:
			log.Info("quorumlock: node votes", "version", h.Identity.Version)
		}
		if h.Warning != nil && !same {
			log.Warn("quorumlock: node has a warning", "error", h.Warning)
		}
	})
	m.bus.send(e)
}

// nodeState is what a log line about a node depends on.
type nodeState struct {
	greeted, votes                   bool
	problem, reason, master, warning string
}

func stateOf(h node.Health) nodeState {
	s := nodeState{greeted: true, votes: h.Err == nil}
	var config *wire.ConfigError
	if errors.As(h.Err, &config) { // a node that is down has many errors of one outage
		s.problem = config.Error()
	}
	if s.votes {
		s.master = h.Master
	}
	if h.Reason != nil {
		s.reason = h.Reason.Error()
	}
	if h.Warning != nil {
		s.warning = h.Warning.Error()
	}
	return s
}
