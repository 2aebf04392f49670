package config

import (
	"cmp"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// checkNodes refuses a list of nodes that cannot form a quorum.
func checkNodes(nodes []rueidis.ClientOption) *Problem {
	if len(nodes) == 0 || len(nodes) > MaxNodes {
		return &Problem{
			What: "nodes", Value: strconv.Itoa(len(nodes)),
			Bound: fmt.Sprintf("must be 1 to %d", MaxNodes), Fix: "list 1, 3 or 5 independent Redis masters",
		}
	}
	seen := map[string]int{}
	for i := range nodes {
		if field, fix := node.Refuse(&nodes[i]); field != "" {
			return &Problem{
				What: "node", Value: fmt.Sprintf("%d: %s", i, field), Bound: "cannot be used here", Fix: fix,
			}
		}
		kind, name := master.Name(&nodes[i])
		key := normalise(name)
		if kind != "" { // two groups may have one name
			all := slices.Sorted(slices.Values(master.Addresses(&nodes[i])))
			key = name + " " + strings.ToLower(strings.Join(all, " "))
		}
		if j, dup := seen[key]; dup {
			return &Problem{
				What: "node", Value: fmt.Sprintf("%d (%s)", i, name),
				Bound: fmt.Sprintf("is the same as node %d", j), Fix: "list each server once: listed twice, it would count twice",
			}
		}
		if p := checkAddresses(i, &nodes[i]); p != nil {
			return p
		}
		seen[key] = i
	}
	return nil
}

// checkAddresses refuses addresses that do not name one server each.
func checkAddresses(i int, o *rueidis.ClientOption) *Problem {
	seen := map[string]bool{}
	for _, addr := range master.Addresses(o) {
		if p := checkAddress(i, addr, o.DialCtxFn != nil || o.DialFn != nil); p != nil {
			return p
		}
		if normal := normalise(addr); seen[normal] {
			return &Problem{What: "node", Value: fmt.Sprintf("%d (%q)", i, addr),
				Bound: "is named twice", Fix: "list each of them once: a majority of them decides"}
		} else {
			seen[normal] = true
		}
	}
	return nil
}

// checkAddress refuses an address that does not name one server.
func checkAddress(i int, addr string, dialled bool) *Problem {
	bad := &Problem{What: "node", Value: fmt.Sprintf("%d (%q)", i, addr)}
	_, port, err := net.SplitHostPort(addr)
	socket := node.IsSocket(addr)
	switch {
	case !socket && (strings.Contains(addr, "://") || strings.Contains(addr, "@")):
		bad.Value = fmt.Sprintf("%d: InitAddress", i) // without the address: it may hold a password
		bad.Bound, bad.Fix = "must be host:port, not a URL", "put credentials into Username and Password, or take rueidis.ParseURL"
	case strings.Contains(addr, ","):
		bad.Bound, bad.Fix = "is a list of addresses", `split it: Addrs(strings.Split(list, ",")...)`
	case strings.TrimSpace(addr) != addr:
		bad.Bound, bad.Fix = "has a space around the address", "trim it"
	case (err != nil || port == "") && !socket && !dialled: // a user's dial function may use other names
		bad.Bound, bad.Fix = "must be host:port", "add the port, 6379 as a rule; an IPv6 address needs brackets: [::1]:6379; a Unix socket is an absolute path"
	default:
		return nil
	}
	return bad
}

// normalise returns the same text for different spellings of one address.
func normalise(addr string) string {
	if node.IsSocket(addr) {
		return path.Clean(strings.TrimPrefix(addr, "unix://"))
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return net.JoinHostPort(strings.ToLower(strings.TrimSuffix(host, ".")), port)
}

// checkGroups refuses options with which a failover of one of the nodes could give a lock
// away twice. docs/lemmas.md has the proof that these are enough.
func (c *Config) checkGroups(nodes []rueidis.ClientOption) *Problem {
	if c.FailoverSet && (c.Failover < failover.LeastWindow || c.Failover > MaxTTL) {
		return &Problem{What: "WithFailover", Value: c.Failover.String(),
			Bound: fmt.Sprintf("must be within %v … %v", failover.LeastWindow, MaxTTL), Fix: unit(c.Failover) + failoverFix}
	}
	slot := -1
	for i := range nodes {
		kind, name := master.Name(&nodes[i])
		of := fmt.Sprintf("node %d (%s), which is a failover group", i, name)
		if c.Cluster {
			of = "a cluster"
		}
		switch {
		case kind == "":
			continue
		case !c.Guarded:
			window := cmp.Or(c.Failover, 5*time.Second)
			return &Problem{What: "WithRestartGuard", Bound: "is needed for " + of + ", and so is WithFailover: a promoted replica may lack locks that are held",
				Fix: fmt.Sprintf("give both on every client: WithFailover %v, and WithRestartGuard %v (TTL + lock delay + window)", window, c.Terms.TTL+c.Terms.LockDelay+window)}
		case c.Trust:
			return &Problem{What: "WithTrustEmptyNodes", Bound: "cannot be used with " + of + ": an empty replica may be promoted",
				Fix: "leave it out, and let the first quarantine pass"}
		case !c.FailoverSet:
			return &Problem{What: "WithFailover", Bound: "is needed for " + of, Fix: failoverFix}
		case c.Drift > maxGroupDrift:
			return &Problem{What: "WithDriftFactor", Value: fmt.Sprint(c.Drift),
				Bound: fmt.Sprintf("must be at most %v with %s: two clients must measure 1.5 s alike within 5 %%", maxGroupDrift, of),
				Fix:   "0.01 covers any clock that works"}
		case kind == "slot" && slot >= 0 && master.SlotTag(&nodes[i]) != master.SlotTag(&nodes[slot]):
			return &Problem{What: "node", Value: fmt.Sprintf("%d (%s)", i, name),
				Bound: fmt.Sprintf("has another hash tag than node %d (%s), and all keys have one prefix", slot, master.SlotTag(&nodes[slot])),
				Fix:   "use one tag, and a cluster of its own for each node: the slots of one cluster are not independent"}
		case c.Cluster:
			continue
		case kind == "slot" && master.IsBucket(master.SlotTag(&nodes[i])):
			return &Problem{What: "node", Value: fmt.Sprintf("%d (%s)", i, name), Bound: "has a hash tag that belongs to NewCluster",
				Fix: "choose another tag, or use NewCluster"}
		case kind == "slot" && wire.HashTag(c.Prefix) != master.SlotTag(&nodes[i]):
			return &Problem{What: "WithPrefix", Value: strconv.Quote(c.Prefix), Bound: "must begin with the hash tag of " + of,
				Fix: fmt.Sprintf("write %q, so that all keys lie in that slot", master.SlotTag(&nodes[i])+":")}
		}
		if kind == "slot" {
			slot = i
		}
	}
	if c.FailoverSet && !c.Guarded {
		return &Problem{What: "WithFailover", Bound: "needs WithRestartGuard",
			Fix: "add WithRestartGuard, or leave this option out"}
	}
	return nil
}

// maxGroupDrift is how far off the clock may be by which a client counts how long a master is confirmed: see
// failover.SettleFor.
const maxGroupDrift = 0.02

const failoverFix = "set how long leases continue while the Sentinels or seeds do not answer, such as 5s; see https://github.com/quorumlock/quorumlock/blob/main/docs/managed.md"
