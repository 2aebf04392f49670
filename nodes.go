package quorumlock

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// maxSkew is how far a node's clock may be from the others' without a warning. Leases
// do not depend on it; tokens and positions in queues do.
const maxSkew = time.Second

// If the steps of several nodes' clocks are found within stallWindow of each other, one
// stall of our own clock may explain them all.
const stallWindow = 30 * time.Second

// clockStep is a forward step of a node's clock.
type clockStep struct {
	node int
	by   time.Duration
	at   time.Duration // when it was found, on the steady clock
}

// Error returns the step as evidence of a loss.
func (s *clockStep) Error() string {
	return fmt.Sprintf("the node's clock was stepped forward by %v", s.by.Round(time.Millisecond))
}

// clockSteps keeps the recent steps of nodes' clocks, as long as an attempt or
// ownClockStepped may need them.
type clockSteps struct {
	mu     sync.Mutex
	recent []*clockStep
}

// add adds a step, and drops those that are too old to be needed. c.mu is held.
func (c *clockSteps) add(step *clockStep) {
	c.recent = slices.DeleteFunc(c.recent, func(old *clockStep) bool { return old.at < step.at-time.Minute })
	c.recent = append(c.recent, step)
}

// last returns the newest step of a node, nil for none.
func (c *clockSteps) last(node int) *clockStep {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, step := range slices.Backward(c.recent) {
		if step.node == node {
			return step
		}
	}
	return nil
}

// admit refuses a node that is not independent of the others. It warns about a node that
// may not be independent, or that may lose locks.
func (m *Manager) admit(i int, id node.Identity) (warning, err error) {
	var warnings []error
	if id.Unchecked != nil {
		warnings = append(warnings, fmt.Errorf("node cannot be checked: allow INFO to the user: %w", id.Unchecked))
	}
	if id.Evicts() {
		warnings = append(warnings, fmt.Errorf("node may evict locks (maxmemory-policy %s): set noeviction", id.Eviction))
	}
	if off := m.skew(i); off.Abs() > maxSkew {
		warnings = append(warnings, fmt.Errorf("clock is %v off the other nodes' median: synchronise it", off.Round(time.Second)))
	}
	warnings = append(warnings, m.failoverWarnings(i, id)...)
	m.mu.Lock()
	defer m.mu.Unlock()
	for j, other := range m.ids {
		if j == i {
			continue
		}
		if err := node.Same(other, id); err != nil {
			return nil, fmt.Errorf("with node %d (%s): %w", j, m.nodes[j].Addr(), err)
		}
		if node.Copied(other, id) {
			warnings = append(warnings, fmt.Errorf("node and node %d (%s) were master and replica: make sure that they are never made master and replica again",
				j, m.nodes[j].Addr()))
		}
	}
	m.ids[i], m.runs[i] = id, id.RunID
	if len(warnings) == 0 {
		return nil, nil
	}
	return errs.Join(warnings...), nil
}

// failoverWarnings returns what a failover of a node, or a restart, could cost with these
// settings.
func (m *Manager) failoverWarnings(i int, id node.Identity) (warnings []error) {
	m.mu.Lock()
	before := m.runs[i]
	m.mu.Unlock()
	group := m.groups[i]
	if before != "" && id.RunID != "" && before != id.RunID && m.cfg.guard == 0 {
		warnings = append(warnings, errors.New("node was restarted or failed over, and may have forgotten locks: "+
			"without WithRestartGuard another client may be granted a lock that is held"))
	}
	if group == "" && id.Replicas > 0 && m.cfg.guard == 0 {
		warnings = append(warnings, fmt.Errorf("node has replicas (connected_slaves %d): if one takes its place, locks are forgotten; set WithRestartGuard, see docs/managed.md", id.Replicas))
	}
	known, listed := m.nodes[i].Voters()
	if group == "slot" && listed < min(known, 3) {
		warnings = append(warnings, fmt.Errorf("the cluster has %d nodes and %d of them are listed: list three or more on every client, masters or replicas, "+
			"and no address that leads to changing nodes, such as a configuration endpoint", known, listed))
	}
	if group == "sentinel" && known > listed {
		warnings = append(warnings, fmt.Errorf("the group has %d Sentinels and %d are listed: clients with other lists may find a majority for another master; "+
			"list all of them on every client (SENTINEL RESET forgets those that are gone)", known, listed))
	}
	return append(warnings, m.nodes[i].VoterFaults()...)
}

// silent returns the nodes that have owed an answer for a node timeout. A call that waited
// for them too would take as long again. now is of the steady clock.
func (m *Manager) silent(now time.Duration) (silent quorum.Set) {
	for i, n := range m.nodes {
		if n.Silence(now) >= m.cfg.terms.Timeout {
			silent = silent.With(i)
		}
	}
	return quorum.Dispensable(len(m.nodes), silent)
}

// quarantined returns how long it takes until a majority of the nodes votes, 0 if that does
// not depend on quarantines alone.
func (m *Manager) quarantined() time.Duration {
	left := make(quorum.Window, len(m.nodes))
	for i, n := range m.nodes {
		switch h := n.Health(); {
		case h.QuarantineLeft() > 0:
			left[i] = h.QuarantineLeft()
		case h.Err != nil:
			left[i] = quorum.Never
		}
	}
	if d := left.Free(); d != quorum.Never {
		return d
	}
	return 0
}

// skew returns how far a node's clock is from the median of all known clocks; 0 with
// fewer than three, because two clocks do not show which one is off.
func (m *Manager) skew(i int) time.Duration {
	own, ok := m.nodes[i].Reading()
	median, known := m.medianOffset()
	if !ok || known < 3 {
		return 0
	}
	return own.Offset - median
}

// onHealth reports a change of a node: it votes, stops voting, or has a warning.
func (m *Manager) onHealth(i int, h node.Health) {
	select {
	case m.greeted <- struct{}{}:
	default:
	}
	e := NodeChanged{Node: i, Addr: m.nodes[i].Addr(), Err: h.Err, QuarantinedFor: h.QuarantineLeft(), Warning: h.Warning, Master: h.Master}
	switch {
	case h.Withheld: // it is connected and its answers count, so its identity stays on record
	case h.Err != nil:
		m.mu.Lock()
		m.ids[i] = node.Identity{} // the next server at this address is judged anew
		m.mu.Unlock()
	case h.Reason != nil:
		e.Err = h.Reason
	}
	state := stateOf(h) // not under the mutex: a dial function's error has methods of its own
	m.mu.Lock()
	same := m.logged[i] == state
	m.logged[i] = state
	m.mu.Unlock()
	if h.Err == nil {
		m.dog.renewAtRisk(i)
	}
	m.reporter.Add(func() {
		log := m.cfg.log.With("node", i, "addr", e.Addr)
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

// onClockStep handles a step of a node's clock. After a step forward, the node's keys
// expire that much earlier than the leases assume.
func (m *Manager) onClockStep(i int, by time.Duration) {
	m.reporter.Warn("a node's clock was stepped: let it slew", "node", i, "addr", m.nodes[i].Addr(), "by", by.Round(time.Millisecond))
	if by <= 0 {
		return
	}
	_, at := m.clock.Both()
	step := &clockStep{node: i, by: by, at: at}
	m.steps.mu.Lock()
	m.steps.add(step)
	holds := m.dog.live() // with the mutex held: each grant is either among these or finds the step
	m.steps.mu.Unlock()
	for _, h := range holds {
		h.applyClockStep(step)
	}
	for j, n := range m.nodes {
		if reading, _ := n.Reading(); j != i && reading.At < at {
			n.Check() // for ownClockStepped
		}
	}
}

// ownClockStepped reports whether the clock of node i made the step that was found at since.
// Otherwise it was the clock of this process, and then all nodes seem to be stepped. So the
// clock is the node's own if a quorum of the other nodes has answered since without a step.
// sure means that this answer will not change.
func (m *Manager) ownClockStepped(i int, since time.Duration) (own, sure bool) {
	steady, stepped := 0, 1
	for j, n := range m.nodes {
		reading, _ := n.Reading()
		switch step := m.steps.last(j); {
		case j == i:
		case step != nil && step.at > since-stallWindow:
			stepped++
		case reading.At >= since:
			steady++
		}
	}
	own = steady >= m.quorum()
	return own, own || len(m.nodes)-stepped < m.quorum()
}

// clusterTime returns the nodes' time at an instant of our steady clock: the median of
// the known node clocks. So all clients agree on it, whatever this machine's wall clock
// shows.
func (m *Manager) clusterTime(at time.Duration) time.Duration {
	if median, known := m.medianOffset(); known > 0 {
		return at + median
	}
	return time.Duration(m.clock.Time(m.clock.Now()).UnixNano())
}

// medianOffset returns the lower median of the nodes' clocks minus our steady clock, and
// how many clocks are known.
func (m *Manager) medianOffset() (median time.Duration, known int) {
	var offsets [MaxNodes]time.Duration
	for _, n := range m.nodes {
		reading, ok := n.Reading()
		if !ok {
			continue
		}
		i := known
		for ; i > 0 && offsets[i-1] > reading.Offset; i-- {
			offsets[i] = offsets[i-1]
		}
		offsets[i] = reading.Offset
		known++
	}
	if known == 0 {
		return 0, 0
	}
	return offsets[(known-1)/2], known
}
