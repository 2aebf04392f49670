package quorumlock

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Nodes returns the state of each node from memory, for a health endpoint for example. It
// sends no request and never blocks.
func (m *Manager) Nodes() []NodeStatus {
	all := make([]NodeStatus, m.ensemble.Size())
	for i := range all {
		all[i] = m.nodeStatus(i)
	}
	return all
}

// Ready returns nil while a majority of the nodes votes, so that names can be acquired: for a
// readiness probe. It reads memory, sends no request and never blocks.
//
// It returns ErrNoQuorum (a *QuorumError with each node that does not vote, and RetryAfter if
// quarantines are the only reason), and ErrClosed after Close has begun. A lease that is held
// may be valid all the same: do not restart a program because it is not ready. With
// WithRestartGuard, nodes that are new are in quarantine, and a Manager is not ready, for the
// time of the guard.
func (m *Manager) Ready() error {
	if m.ending() {
		return ErrClosed
	}
	votes, errs := 0, make([]error, m.ensemble.Size())
	for i := range m.ensemble.Nodes() {
		if s := m.nodeStatus(i); s.Voting {
			votes++
		} else {
			errs[i] = s.Err
		}
	}
	if votes >= m.ensemble.Quorum() {
		return nil
	}
	return &QuorumError{
		Op: "ready", Need: m.ensemble.Quorum(), Got: votes, of: m.ensemble.Size(), Nodes: m.nodeErrors(errs), RetryAfter: m.ensemble.Quarantined(),
	}
}

// MarshalJSON returns the status for a health endpoint or a log: the keys addr, master,
// version, voting, quarantined_ms, error, warning, round_trip_ms and clock_offset_ms, and in
// Inspect's answer holder, ttl_ms and fence. Durations are numbers of milliseconds with their
// fractions, and errors are texts, "" for none. master, holder, ttl_ms and fence are left out
// where there is none. The keys stay as they are; new ones may come.
func (s NodeStatus) MarshalJSON() ([]byte, error) {
	out := struct {
		Addr        string   `json:"addr"`
		Master      string   `json:"master,omitempty"`
		Version     string   `json:"version"`
		Voting      bool     `json:"voting"`
		Quarantined float64  `json:"quarantined_ms"`
		Error       string   `json:"error"`
		Warning     string   `json:"warning"`
		RoundTrip   float64  `json:"round_trip_ms"`
		ClockOffset float64  `json:"clock_offset_ms"`
		Holder      *Holder  `json:"holder,omitempty"`
		TTL         *float64 `json:"ttl_ms,omitempty"`
		Fence       int64    `json:"fence,omitempty"`
	}{
		Addr: s.Addr, Master: s.Master, Version: s.Version, Voting: s.Voting, Quarantined: milliseconds(s.QuarantinedFor),
		Error: textOf(s.Err), Warning: textOf(s.Warning),
		RoundTrip: milliseconds(s.RoundTrip), ClockOffset: milliseconds(s.ClockOffset), Fence: s.Fence,
	}
	if s.Holder != (Holder{}) {
		out.Holder = &s.Holder
		if ttl := milliseconds(s.TTL); ttl >= 0 {
			out.TTL = &ttl
		}
	}
	return json.Marshal(out)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// textOf returns the text of an error, "" for none.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// NodeChanged reports a change of a node: it votes, stops voting, or has a warning.
func (m events) NodeChanged(i int, h node.Health) {
	select {
	case m.greeted <- struct{}{}:
	default:
	}
	e := NodeChanged{Node: i, Addr: m.ensemble.Nodes()[i].Addr(), Err: h.Err, QuarantinedFor: h.QuarantineLeft(), Warning: h.Warning, Master: h.Master}
	if h.Err == nil {
		e.Err = h.Reason
	}
	state := stateOf(h) // not under the mutex: a dial function's error has methods of its own
	m.mu.Lock()
	same := m.logged[i] == state
	m.logged[i] = state
	m.mu.Unlock()
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
