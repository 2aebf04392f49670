package quorumlock

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Status is the answer of Inspect: the state of a name on the nodes.
type Status struct {
	Name   string
	Held   bool          // a majority of the nodes names the same owner
	Holder Holder        // the holder that most nodes name, even without a majority
	Votes  int           // how many nodes name Holder
	TTL    time.Duration // how long a majority keeps Holder's key; negative for no end, 0 unless Held
	Fence  int64         // the highest fencing register of the nodes that answered; with a majority of answers, no token is above it
	// Waiters is how many processes wait in the queue, this one included: the largest number
	// on any node. Of the callers of one process only the first is in it. A call that was not
	// refused yet may be missing, and one that ended a moment ago may be counted.
	Waiters int
	Nodes   []NodeStatus
}

// NodeStatus is the state of one node; Inspect adds the node's answer about a name.
type NodeStatus struct {
	Addr    string // or the name of a failover group, such as "sentinel:mymaster"
	Master  string // of a failover group: the server that was last its master; "" for a node that is one server
	Version string // of the server; "" before the first connection, or if INFO is not allowed
	Voting  bool   // its votes count now
	// QuarantinedFor is how long the node does not vote because it may have lost locks:
	// it was restarted or flushed or could evict (WithRestartGuard), or its clock was
	// stepped forward.
	QuarantinedFor time.Duration
	Err            error // why it does not vote; in Inspect's answer, why it did not answer
	Warning        error // a problem that needs attention, as in NodeChanged; in Inspect's answer, also why a node that answers does not vote
	// RoundTrip is about how long the node takes to answer, and ClockOffset is the node's
	// clock minus this machine's. Both are 0 before the first answer.
	RoundTrip, ClockOffset time.Duration

	// The node's answer about the name; zero from Manager.Nodes.
	Holder Holder        // zero when the node has no lock
	TTL    time.Duration // of the lock; negative if there is none or it has no end, 0 with Err
	Fence  int64         // fencing register, or the base that it counts from
}

func (m *Manager) nodeStatus(i int) NodeStatus {
	h := m.ensemble.Nodes()[i].Health()
	s := NodeStatus{
		Addr: m.ensemble.Nodes()[i].Addr(), Master: m.ensemble.Nodes()[i].Master(), Version: h.Identity.Version, QuarantinedFor: h.QuarantineLeft(), Err: h.Err, Warning: h.Warning,
	}
	s.Voting = s.Err == nil && s.QuarantinedFor == 0
	if s.Err == nil && s.QuarantinedFor > 0 {
		s.Err = h.Reason
	}
	if reading, ok := m.ensemble.Nodes()[i].Reading(); ok {
		now, steady := m.ensemble.Clock.Both()
		s.RoundTrip = reading.RoundTrip
		s.ClockOffset = steady + reading.Offset - time.Duration(m.ensemble.Clock.Time(now).UnixNano())
	}
	return s
}

// Inspect asks every node for the holder of a name, and changes nothing. It waits for all
// nodes, one node timeout at most, and returns their answers. It does not wait for a node that
// has been silent for a node timeout already, unless too few others are left. When fewer than a majority
// answered, it also returns ErrNoQuorum (a *QuorumError), joined with ctx.Err() and ctx's
// cause when ctx ended first.
func (m *Manager) Inspect(ctx context.Context, name string) (Status, error) {
	if ctx == nil {
		return Status{}, errNilContext()
	}
	if err := checkName(name); err != nil {
		return Status{}, err
	}
	if m.ending() {
		return Status{}, ErrClosed
	}
	_, now := m.ensemble.Clock.Both()
	timeout := m.cfg.At(m.ensemble.Trip(), &m.cfg.Terms).Timeout
	req := wire.NewRead(wire.LockKey(m.cfg.Prefix, name), now+timeout)
	answers := m.ensemble.Collect(ctx, req, timeout, m.ensemble.Size(), nil)
	return m.status(name, answers), m.enough(ctx, "inspect", name, answers)
}

func (m *Manager) status(name string, answers *ensemble.Answers) Status {
	s := Status{Name: name, Nodes: make([]NodeStatus, m.ensemble.Size())}
	votes := map[string]int{}
	for i := range answers.Replies {
		r, n := &answers.Replies[i], &s.Nodes[i]
		*n = m.nodeStatus(i)
		n.TTL, n.Fence, n.Err = r.TTL, r.Register, nil
		health := m.ensemble.Nodes()[i].Health()
		s.Fence = max(s.Fence, r.Register)
		if health.Withheld {
			if n.Warning = health.Err; health.Warning != nil {
				n.Warning = errs.Join(health.Err, health.Warning)
			}
		}
		if r.Status != wire.Done {
			n.Err = answers.Err(i)
			continue
		}
		s.Waiters = max(s.Waiters, int(r.Waiters))
		if r.TTL == wire.Absent || wire.ParseValue(r.Held).Reserved {
			n.TTL = wire.Absent // a reservation is no lease
			continue
		}
		n.Holder = holder(r.Held)
		if votes[n.Holder.Owner]++; votes[n.Holder.Owner] > s.Votes {
			s.Votes, s.Holder = votes[n.Holder.Owner], n.Holder
		}
	}
	if s.Held = s.Votes >= m.ensemble.Quorum(); s.Held {
		left := make(quorum.Window, m.ensemble.Size())
		for i, n := range s.Nodes {
			if n.Holder.Owner == s.Holder.Owner {
				if left[i] = n.TTL; n.TTL < 0 {
					left[i] = quorum.Never
				}
			}
		}
		if s.TTL = left.Deadline(); s.TTL == quorum.Never {
			s.TTL = wire.Endless
		}
	}
	return s
}

// enough returns nil when a quorum gave good answers, and the error otherwise.
func (m *Manager) enough(ctx context.Context, op, name string, a *ensemble.Answers) error {
	if a.Got >= m.ensemble.Quorum() {
		return nil
	}
	err := &QuorumError{Op: op, Name: name, Need: m.ensemble.Quorum(), Got: a.Got, of: m.ensemble.Size()}
	for i := range m.ensemble.Nodes() {
		if bad := a.Err(i); bad != nil {
			err.Nodes = append(err.Nodes, m.nodeError(i, bad))
		}
	}
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrReleased) {
		return err
	}
	what := "stopped waiting for answers"
	if op == "release" {
		what += ", while the deletion goes on"
	}
	return errs.Ended(ctx, err, what)
}

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

// said is what a Manager has said, and does not say again.
type said struct {
	greeted         chan struct{} // capacity 1: a node's state has changed; never closed
	self, forgotten atomic.Bool   // hints about mistakes of the program, each given once

	mu    sync.Mutex
	nodes []nodeState // what the log says of each node
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
