package ensemble

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// lists compares the Manager's list of nodes with the lists of other clients, which the nodes
// remember. Nodes are known by the identities that they keep in their databases, because
// clients may use different addresses for one node. It implements node.Lists.
type lists struct {
	clock *clock.Clock
	nodes []*node.Node

	mu      sync.Mutex
	rule    *quorum.Lists
	ids     []string            // the identity that each node had last; "" before the first, and after another node has shown it
	shows   quorum.Set          // nodes that show it now
	refusal []*wire.ConfigError // of each node, while the rule says that it refuses
	copied  []error             // why a node isn't a node of its own, nil if it is
	rivals  []quorum.Rivals
	guarded bool // this client has the guard; never changes
	// bound is why a client without the guard does not vote until boundUntil: others have the guard. boundBy is the
	// node that has shown it.
	bound      *wire.ConfigError
	boundBy    int
	boundUntil clock.Steady
}

// order returns the nodes by their identities.
func (l *lists) order() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]int, len(l.ids))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return strings.Compare(l.ids[a], l.ids[b]) })
	return all
}

func newLists(c *clock.Clock, nodes []*node.Node, guarded bool) *lists {
	n := len(nodes)
	return &lists{
		clock: c, nodes: nodes, rule: quorum.NewLists(n, node.ListAge), ids: make([]string, n), refusal: make([]*wire.ConfigError, n), copied: make([]error, n),
		rivals: make([]quorum.Rivals, n), guarded: guarded,
	}
}

// Entry implements node.Lists.
func (l *lists) Entry(i int) wire.ListEntry {
	_, now := l.clock.Both()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.rule.Entry(i, now)
	entry := wire.ListEntry{Nodes: len(l.ids), Members: uint32(e.Members), Known: l.ids[i], Adds: e.Adds, Keeps: e.Keeps}
	for j := range e.Members.All() {
		entry.IDs = append(entry.IDs, l.ids[j])
	}
	return entry
}

// Listed implements node.Lists.
func (l *lists) Listed(i int, e wire.ListEntry, sent clock.Steady, a wire.ListAnswer) error {
	_, now := l.clock.Both()
	l.mu.Lock()
	err := l.record(i, e, sent, now, a)
	l.mu.Unlock()
	l.wake(i)
	return err
}

// record is Listed with the mutex held. A node with the identity of another one takes no
// part: together they would be fewer nodes than they seem.
func (l *lists) record(i int, e wire.ListEntry, sent, now clock.Steady, a wire.ListAnswer) error {
	for j, id := range l.ids {
		switch {
		case j == i || a.ID == "" || a.ID != id:
		case l.shows.Has(j):
			l.rule.Gone(i)
			l.copied[i] = &wire.ConfigError{
				Problem: fmt.Sprintf("this node and node %d (%s) have one identity: one of them was started with the other's data", j, l.nodes[j].Addr()),
				Fix:     "start that one empty: it may show locks and tokens that it never granted",
			}
			return l.copied[i]
		default: // node j is not connected: its server may be at this address now
			l.ids[j] = ""
			l.rule.Record(j, quorum.Enlisting{}, sent, now, quorum.Listed{Renamed: true})
			l.rule.Gone(j)
		}
	}
	l.copied[i], l.shows = nil, l.shows.With(i)
	answer := quorum.Listed{Known: a.ID != "", Renamed: l.ids[i] != "" && a.ID != "" && a.ID != l.ids[i], Refused: a.Refused, Stands: a.Stands}
	if a.ID != "" {
		l.ids[i] = a.ID
	}
	if a.Refused > 0 {
		answer.Lacks = l.lacks(&a)
		l.refusal[i] = wire.OtherList(a.Other, len(l.ids), a.Refused)
	}
	l.rule.Record(i, quorum.Enlisting{Members: quorum.Set(e.Members).Without(i), Adds: e.Adds, Keeps: e.Keeps}, sent, now, answer)
	if a.Refused > 0 {
		return l.refusal[i]
	}
	return nil
}

// lacks returns the nodes that a list in the way does not have, no nodes if it is of another version of the protocol.
func (l *lists) lacks(a *wire.ListAnswer) (s quorum.Set) {
	theirs, ok := a.OtherNodes()
	for i, id := range l.ids {
		if ok && id != "" && !slices.Contains(theirs, id) {
			s = s.With(i)
		}
	}
	return s
}

// Gone implements node.Lists.
func (l *lists) Gone(i int) {
	l.mu.Lock()
	was := l.rule.Gone(i)
	l.shows = l.shows.Without(i)
	l.mu.Unlock()
	if was {
		l.wake(i)
	}
}

// wake makes the other nodes look at what has changed.
func (l *lists) wake(i int) {
	for j, n := range l.nodes {
		if j != i {
			n.Relist()
		}
	}
}

// Bind implements node.Lists. What one node shows binds the client on all nodes: another node may have come back empty,
// and have forgotten a lease that is valid on the rest.
func (l *lists) Bind(i int, until clock.Steady, err *wire.ConfigError) {
	l.mu.Lock()
	if until >= l.boundUntil {
		l.bound, l.boundBy, l.boundUntil = err, i, until
	}
	l.mu.Unlock()
	l.wake(i)
}

// unbound returns why a client without the guard does not vote on node i, nil if it does.
func (l *lists) unbound(i int, now clock.Steady) error {
	if now >= l.boundUntil {
		return nil
	}
	return l.elsewhere(i, l.boundBy, l.bound)
}

// elsewhere returns the error of node j for node i.
func (l *lists) elsewhere(i, j int, err *wire.ConfigError) error {
	if i == j {
		return err
	}
	elsewhere := *err
	elsewhere.Problem = fmt.Sprintf("node %d (%s): %s", j, l.nodes[j].Addr(), err.Problem)
	return &elsewhere
}

// Votes implements node.Lists.
func (l *lists) Votes(i int) error {
	_, now := l.clock.Both()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.guarded {
		return l.unbound(i, now)
	}
	if l.copied[i] != nil {
		return l.copied[i]
	}
	if j, refused := l.rule.Refused(now); refused {
		return l.refusal[j]
	}
	if j, lacked := l.rule.Lacked(i, now); lacked && l.rule.Settled(now) {
		without := *l.refusal[j]
		without.List = false // the other nodes are enough
		return l.elsewhere(i, j, &without)
	}
	if !l.rule.Votes(i, now) {
		return wire.ErrConnecting
	}
	return nil
}

// Stale implements node.Lists.
func (l *lists) Stale(i int) bool {
	_, now := l.clock.Both()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rule.Stale(i, now)
}

// Announcement implements node.Lists. A client that has not asked for a lease holds none, so no other client needs to
// know which nodes it looks at.
func (l *lists) Announcement(i int, runID string) *wire.Announcement {
	l.mu.Lock()
	used := l.rule.Used()
	l.mu.Unlock()
	a := &wire.Announcement{Guarded: l.guarded, Nodes: len(l.nodes)}
	addrs := make([]string, len(l.nodes))
	for j, n := range l.nodes {
		addrs[j] = n.Addr()
		h := n.Health()
		if j == i {
			h = node.Health{Identity: node.Identity{RunID: runID}}
		}
		if id := h.Identity.RunID; id != "" && !strings.ContainsAny(id, " ,") && (h.Err == nil || h.Withheld) {
			a.IDs = append(a.IDs, id)
		}
	}
	if !used || len(a.IDs) == 0 {
		return nil
	}
	slices.Sort(a.IDs)
	slices.Sort(addrs)
	a.Addrs = strings.Join(addrs, ", ")
	return a
}

// Announced implements node.Lists. Between two clients with the guard the lists themselves are compared.
func (l *lists) Announced(i int, own *wire.Announcement, all map[string]clock.Steady) error {
	for text := range all {
		other, ok := wire.ParseAnnouncement(text)
		if !ok || own.Guarded && other.Guarded || !quorum.Apart(own.Nodes, own.IDs, other.Nodes, other.IDs) {
			delete(all, text)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := wire.ParseAnnouncement(l.rivals[i].Look(all)); ok {
		return wire.Apart(own.Addrs, other.Addrs)
	}
	return nil
}

// settled reports whether each connected node knows the others of the list.
func (l *lists) settled() bool {
	_, now := l.clock.Both()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rule.Settled(now)
}

// use records that the Manager asks for leases.
func (l *lists) use() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rule.Use()
}
