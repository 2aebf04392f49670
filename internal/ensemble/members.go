package ensemble

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/node"
)

// maxSkew is how far a node's clock may be from the others' without a warning. Leases
// do not depend on it; tokens and positions in queues do.
const maxSkew = time.Second

// members is what is known of the servers behind the nodes.
type members struct {
	nodes   []*node.Node
	clocks  *clocks
	groups  []string // kind of failover group of each node, "" for one server; never changes
	guarded bool     // whether nodes have the restart guard; never changes

	mu   sync.Mutex
	ids  []node.Identity
	runs []string // the run_id that each node had last
}

// newMembers returns the members before any server has been reached.
func newMembers(clocks *clocks, options []rueidis.ClientOption, guarded bool) *members {
	n := len(options)
	m := &members{
		nodes: clocks.nodes, clocks: clocks, groups: make([]string, n), guarded: guarded,
		ids: make([]node.Identity, n), runs: make([]string, n),
	}
	for i := range options {
		m.groups[i], _ = master.Name(&options[i])
	}
	return m
}

// forget makes the next server at the address of a node be judged anew.
func (m *members) forget(i int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids[i] = node.Identity{}
}

// admit refuses a node that is not independent of the others. It warns about a node that
// may not be independent, or that may lose locks.
func (m *members) admit(i int, id node.Identity) (warning, err error) {
	var warnings []error
	if id.Unchecked != nil {
		warnings = append(warnings, fmt.Errorf("node cannot be checked: allow INFO to the user: %w", id.Unchecked))
	}
	if id.Evicts() {
		warnings = append(warnings, fmt.Errorf("node may evict locks (maxmemory-policy %s): set noeviction", id.Eviction))
	}
	if off := m.clocks.skew(i); off.Abs() > maxSkew {
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
func (m *members) failoverWarnings(i int, id node.Identity) (warnings []error) {
	m.mu.Lock()
	before := m.runs[i]
	m.mu.Unlock()
	group := m.groups[i]
	if before != "" && id.RunID != "" && before != id.RunID && !m.guarded {
		warnings = append(warnings, errors.New("node was restarted or failed over, and may have forgotten locks: "+
			"without WithRestartGuard another client may be granted a lock that is held"))
	}
	if group == "" && id.Replicas > 0 && !m.guarded {
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
