package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// pairs judges whether the votes are independent.
func (j *judge) pairs() {
	for i, b := range j.nodes {
		for k, a := range j.nodes[:i] {
			if !a.Answers() || !b.Answers() {
				continue
			}
			with := fmt.Sprintf("node %d (%s)", k, a.Addr)
			switch {
			case a.RunID != "" && a.RunID == b.RunID:
				j.add(Fail, i, CodeSameServer, "the nodes are not independent: this address and "+with+" lead to the same server", "list each server once")
			case a.ReplID != "" && a.ReplID == b.ReplID:
				j.add(Fail, i, CodeReplicaOf, "the nodes are not independent: this node and "+with+" share one data set, "+relation(a, b),
					"list independent masters")
			case a.Former != "" && a.Former == b.ReplID, b.Former != "" && b.Former == a.ReplID:
				j.add(Warn, i, CodeFormerReplica, "this node and "+with+" were once master and replica", "make sure that neither ever replicates the other again")
			}
		}
	}
}

func relation(a, b Node) string {
	switch {
	case a.Role == "master" && b.Role != "master":
		return "as its replica"
	case a.Role != "master" && b.Role == "master":
		return "as its master"
	}
	return "as replicas of one master"
}

// lists judges the lists of nodes that other clients of a node announce.
func (j *judge) lists(i int, n Node) {
	var addrs []string
	for _, other := range j.nodes {
		addrs = append(addrs, other.Addr)
	}
	for _, text := range slices.Sorted(maps.Keys(n.InUse)) {
		if other, ok := wire.ParseAnnouncement(text); ok && j.apart(other, n.InUse[text]) {
			apart := wire.Apart(strings.Join(addrs, ", "), other.Addrs)
			j.add(Warn, i, CodeOtherList, fmt.Sprintf("%s. The others last connected %v ago", apart.Problem, n.InUse[text].Round(time.Second)), apart.Fix)
			return
		}
	}
}

// apart reports whether clients of these nodes and the clients that announced a list this long ago may hold one lock.
// If a node was started after the announcement, the list has the run_id of its earlier process.
func (j *judge) apart(other wire.Announcement, ago time.Duration) bool {
	var ids []string
	restarted := 0
	for _, n := range j.nodes {
		if n.RunID == "" {
			continue
		}
		ids = append(ids, n.RunID)
		if n.Uptime < ago+restartSlack && !slices.Contains(other.IDs, n.RunID) {
			restarted++
		}
	}
	others := slices.DeleteFunc(slices.Clone(other.IDs), func(id string) bool {
		earlier := restarted > 0 && !slices.Contains(ids, id)
		if earlier {
			restarted--
		}
		return earlier
	})
	return quorum.Apart(len(j.nodes), ids, other.Nodes, others)
}

// restartSlack is how long a client may still announce an earlier process of a server; it also covers the unit of the
// uptime.
const restartSlack = 2 * time.Second

// clocks compares the clocks of the nodes. The clock of this machine affects only the output of inspect.
func (j *judge) clocks() {
	var all []time.Duration
	for _, n := range j.nodes {
		if n.Answers() && n.RoundTrip > 0 {
			all = append(all, n.Clock)
		}
	}
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	median := all[(len(all)-1)/2] // as the library does
	if len(all) > 1 {
		for i, n := range j.nodes {
			if off := n.Clock - median; n.Answers() && n.RoundTrip > 0 && off.Abs() > MaxSkew+n.RoundTrip {
				j.add(Warn, i, CodeClock, fmt.Sprintf("the clock of the node is %v off the median of the nodes", off.Round(10*time.Millisecond)),
					"synchronise it with a time service that slews, see https://github.com/quorumlock/quorumlock/blob/main/docs/setup.md#clocks")
			}
		}
	}
	if median.Abs() > MaxSkew {
		j.add(Note, -1, CodeLocalClock, fmt.Sprintf("the clock of this machine is %v off the nodes; locks do not depend on it", (-median).Round(10*time.Millisecond)),
			"synchronise this machine, so that the times in logs agree")
	}
}

// number judges how many nodes there are, and how many are usable: they grant locks now, or wait for a first client.
func (j *judge) number(r Report, usable int) {
	switch n := len(j.nodes); {
	case n == 1:
		j.add(Note, -1, CodeSingle, "there is one node: its failure stops every lock", "list 3 or 5 independent masters")
	case n%2 == 0:
		j.add(Warn, -1, CodeEven, fmt.Sprintf("%d nodes survive as many failures as %d: %d", n, n-1, (n-1)/2), fmt.Sprintf("list %d nodes", n+1))
	}
	if usable < r.Quorum {
		j.add(Fail, -1, CodeNoQuorum, fmt.Sprintf("%d of %d nodes can grant locks, and a lock needs %d", r.Voting, len(j.nodes), r.Quorum),
			"see the nodes below")
	}
}
