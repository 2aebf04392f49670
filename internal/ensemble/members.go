package ensemble

import (
	"errors"
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/node"
)

// maxSkew is how far a node's clock may be from the others' without a warning. Leases
// do not depend on it; tokens and positions in queues do.
const maxSkew = time.Second

// forget makes the next server at the address of a node be judged anew.
func (e *Ensemble) forget(i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ids[i] = node.Identity{}
}

// admit refuses a node that is not independent of the others. It warns about a node that
// may not be independent, or that may lose locks.
func (e *Ensemble) admit(i int, id node.Identity) (warning, err error) {
	var warnings []error
	if id.Unchecked != nil {
		warnings = append(warnings, fmt.Errorf("node cannot be checked: allow INFO to the user: %w", id.Unchecked))
	}
	if id.Evicts() {
		warnings = append(warnings, fmt.Errorf("node may evict locks (maxmemory-policy %s): set noeviction", id.Eviction))
	}
	if off := e.skew(i); off.Abs() > maxSkew {
		warnings = append(warnings, fmt.Errorf("clock is %v off the other nodes' median: synchronise it", off.Round(time.Second)))
	}
	warnings = append(warnings, e.failoverWarnings(i, id)...)
	e.mu.Lock()
	defer e.mu.Unlock()
	for j, other := range e.ids {
		if j == i {
			continue
		}
		if err := node.Same(other, id); err != nil {
			return nil, fmt.Errorf("compared with node %d (%s): %w", j, e.nodes[j].Addr(), err)
		}
		if node.Copied(other, id) {
			warnings = append(warnings, fmt.Errorf("this node and node %d (%s) were once master and replica: make sure that neither ever replicates the other again",
				j, e.nodes[j].Addr()))
		}
	}
	e.ids[i], e.runs[i] = id, id.RunID
	if len(warnings) == 0 {
		return nil, nil
	}
	return errs.Join(warnings...), nil
}

// failoverWarnings returns what a failover of a node, or a restart, could cost with these
// settings.
func (e *Ensemble) failoverWarnings(i int, id node.Identity) (warnings []error) {
	e.mu.Lock()
	before := e.runs[i]
	e.mu.Unlock()
	group, known, listed := e.nodes[i].Voters()
	if before != "" && id.RunID != "" && before != id.RunID && !e.lists.guarded {
		warnings = append(warnings, errors.New("node was restarted or failed over, and may have forgotten locks: "+
			"without WithRestartGuard another client can be granted a lock that is held"))
	}
	if group == "" && id.Replicas > 0 && !e.lists.guarded {
		warnings = append(warnings, fmt.Errorf("node has replicas (connected_slaves %d): locks are lost when one is promoted; set WithRestartGuard, see https://github.com/quorumlock/quorumlock/blob/main/docs/managed.md", id.Replicas))
	}
	if group == "slot" && listed < min(known, 3) {
		warnings = append(warnings, fmt.Errorf("the cluster has %d nodes and %d of them are listed: list three or more on every client, masters or replicas, "+
			"and no address that leads to changing nodes, such as a configuration endpoint", known, listed))
	}
	if group == "sentinel" && known > listed {
		warnings = append(warnings, fmt.Errorf("the group has %d Sentinels and %d are listed: clients with other lists may find a majority for another master; "+
			"list all of them on every client (SENTINEL RESET forgets those that are gone)", known, listed))
	}
	return append(warnings, e.nodes[i].VoterFaults()...)
}
