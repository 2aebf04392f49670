package quorumlock

import (
	"cmp"
	"fmt"
	"net"
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

// Addrs returns the options of nodes that need nothing but an address. Each is one server, or
// the endpoint of a managed service; one that fails over must not be the only node, see
// docs/managed.md.
func Addrs(hostport ...string) []rueidis.ClientOption {
	nodes := make([]rueidis.ClientOption, len(hostport))
	for i, addr := range hostport {
		nodes[i] = rueidis.ClientOption{InitAddress: []string{addr}}
	}
	return nodes
}

// Sentinel returns the option of one node that is a failover group: the master of the
// master set, whichever server that is now, as a majority of these Sentinels says. List
// all Sentinels of the group, and the same ones on every client. The result's Username,
// Password and TLSConfig are for the master, and the fields of the same names in its field
// Sentinel are for the Sentinels.
//
// Such a node needs WithRestartGuard and WithFailover, and Redis 7.0 or newer.
// docs/managed.md says what keeps a lock safe through a failover, and what it costs.
//
// New returns an InvalidError for an empty master set, for no address, one that is not
// host:port or is there twice, and for two addresses of one Sentinel. It also does so if no
// majority is left without the Sentinels that do not know the set, that refuse the user, or
// that are of another group, and without servers that are no Sentinels. Beside a majority, these
// are a warning in NodeStatus. New returns a QuorumError if no majority answers.
//
// The Sentinels' user needs +sentinel|master, +sentinel|myid and +sentinel|sentinels. Without
// the last two, a warning says that a Sentinel which is listed twice would not be noticed.
func Sentinel(masterSet string, sentinels ...string) rueidis.ClientOption {
	if masterSet == "" { // or else this would be the option of a plain server
		masterSet = master.NoMasterSet
	}
	return rueidis.ClientOption{InitAddress: sentinels, Sentinel: rueidis.SentinelOption{MasterSet: masterSet}}
}

// ClusterSlot returns the option of one node that is a failover group: the master that
// owns the hash slot of tag in a Redis Cluster, whichever server that is now. The tag has
// its braces, as in "{locks}", and WithPrefix has to begin with it, so that all keys lie
// in that slot. The seeds are nodes of the cluster; a majority of them has to name the same
// owner, so list three or more, and the same ones on every client. A cluster
// is one failure domain: its slots are no independent nodes. An address that leads to
// changing nodes of the cluster, such as a configuration endpoint, is no seed: two of its
// answers are not one voter's.
//
// Such a node needs WithRestartGuard and WithFailover, and Redis 7.0 or newer.
//
// New returns an InvalidError for a tag without its braces, a prefix with another tag, no
// seed, one that is not host:port or is there twice, and for two addresses of one seed. It
// also does so if no majority is left without the seeds that refuse the user, that are in no
// cluster, or in another one. Beside a majority, these are a warning in NodeStatus. New returns
// a QuorumError if no majority of the seeds answers.
func ClusterSlot(tag string, seeds ...string) rueidis.ClientOption {
	return master.SlotOption(tag, seeds)
}

// checkNodes refuses a list of nodes that cannot form a quorum.
func checkNodes(nodes []rueidis.ClientOption) error {
	if len(nodes) == 0 || len(nodes) > MaxNodes {
		return &InvalidError{
			What: "nodes", Value: strconv.Itoa(len(nodes)),
			Bound: fmt.Sprintf("has to be 1 to %d", MaxNodes), Fix: "list 1, 3 or 5 independent Redis masters",
		}
	}
	seen := map[string]int{}
	for i := range nodes {
		if field, fix := node.Refuse(&nodes[i]); field != "" {
			return &InvalidError{
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
			return &InvalidError{
				What: "node", Value: fmt.Sprintf("%d (%s)", i, name),
				Bound: fmt.Sprintf("is node %d again", j), Fix: "list each server once: one server with two votes is no quorum",
			}
		}
		if err := checkAddresses(i, &nodes[i]); err != nil {
			return err
		}
		seen[key] = i
	}
	return nil
}

// checkAddresses refuses addresses that do not name one server each.
func checkAddresses(i int, o *rueidis.ClientOption) error {
	seen := map[string]bool{}
	for _, addr := range master.Addresses(o) {
		if err := checkAddress(i, addr, o.DialCtxFn != nil || o.DialFn != nil); err != nil {
			return err
		}
		if normal := normalise(addr); seen[normal] {
			return &InvalidError{What: "node", Value: fmt.Sprintf("%d (%q)", i, addr),
				Bound: "is named twice", Fix: "list each once: a majority of them decides"}
		} else {
			seen[normal] = true
		}
	}
	return nil
}

// checkAddress refuses an address that does not name one server.
func checkAddress(i int, addr string, dialled bool) error {
	bad := &InvalidError{What: "node", Value: fmt.Sprintf("%d (%q)", i, addr)}
	_, port, err := net.SplitHostPort(addr)
	switch {
	case strings.Contains(addr, "://") || strings.Contains(addr, "@"):
		bad.Value = fmt.Sprintf("%d: InitAddress", i) // without the address: it may hold a password
		bad.Bound, bad.Fix = "has to be host:port and no URL", "put credentials into Username and Password, or take rueidis.ParseURL"
	case strings.Contains(addr, ","):
		bad.Bound, bad.Fix = "is a list of addresses", `split it: Addrs(strings.Split(list, ",")...)`
	case strings.TrimSpace(addr) != addr:
		bad.Bound, bad.Fix = "has a space around the address", "trim it"
	case (err != nil || port == "") && !dialled: // a user's dial function may use other names
		bad.Bound, bad.Fix = "has to be host:port", "add the port, 6379 as a rule; an IPv6 address stands in brackets: [::1]:6379"
	default:
		return nil
	}
	return bad
}

// normalise returns the same text for different spellings of one address.
func normalise(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return net.JoinHostPort(strings.ToLower(strings.TrimSuffix(host, ".")), port)
}

// checkGroups refuses options with which a failover of one of the nodes could give a lock
// away twice. docs/safety.md has the proof that these are enough.
func (c *config) checkGroups(nodes []rueidis.ClientOption) error {
	if c.failoverSet && (c.failover < failover.LeastWindow || c.failover > MaxTTL) {
		return &InvalidError{What: "WithFailover", Value: c.failover.String(),
			Bound: fmt.Sprintf("has to be within %v … %v", failover.LeastWindow, MaxTTL), Fix: unit(c.failover) + failoverFix}
	}
	slot := -1
	for i := range nodes {
		kind, name := master.Name(&nodes[i])
		of := fmt.Sprintf("node %d (%s), which is a failover group", i, name)
		switch {
		case kind == "":
			continue
		case !c.guarded:
			window := cmp.Or(c.failover, 5*time.Second)
			return &InvalidError{What: "WithRestartGuard", Bound: "is needed for " + of + ", and so is WithFailover: a promoted replica may lack locks that are held",
				Fix: fmt.Sprintf("give both on every client: %v for WithFailover, and TTL + lock delay + that, %v, for WithRestartGuard", window, c.terms.ttl+c.terms.lockDelay+window)}
		case c.trust:
			return &InvalidError{What: "WithTrustEmptyNodes", Bound: "cannot be used with " + of + ": an empty replica may be promoted",
				Fix: "leave it out, and let the first quarantine pass"}
		case !c.failoverSet:
			return &InvalidError{What: "WithFailover", Bound: "is needed for " + of, Fix: failoverFix}
		case c.drift > maxGroupDrift:
			return &InvalidError{What: "WithDriftFactor", Value: fmt.Sprint(c.drift),
				Bound: fmt.Sprintf("has to be at most %v with %s: two clients have to agree on 1.5 s within 5 %%", maxGroupDrift, of),
				Fix:   "0.01 covers any clock that works"}
		case kind == "slot" && slot >= 0 && master.SlotTag(&nodes[i]) != master.SlotTag(&nodes[slot]):
			return &InvalidError{What: "node", Value: fmt.Sprintf("%d (%s)", i, name),
				Bound: fmt.Sprintf("has another hash tag than node %d (%s), and all keys have one prefix", slot, master.SlotTag(&nodes[slot])),
				Fix:   "use one tag, and a cluster of its own for each node: the slots of one cluster are not independent"}
		case kind == "slot" && wire.HashTag(c.prefix) != master.SlotTag(&nodes[i]):
			return &InvalidError{What: "WithPrefix", Value: strconv.Quote(c.prefix), Bound: "has to begin with the hash tag of " + of,
				Fix: fmt.Sprintf("write %q, so that all keys lie in that slot", master.SlotTag(&nodes[i])+":")}
		}
		if kind == "slot" {
			slot = i
		}
	}
	if c.failoverSet && !c.guarded {
		return &InvalidError{What: "WithFailover", Bound: "says something about the restart guard, which is off",
			Fix: "add WithRestartGuard, or leave it out"}
	}
	return nil
}

// maxGroupDrift is how far a clock may be off with which a client counts how long a master
// is confirmed: see failover.SettleFor.
const maxGroupDrift = 0.02

const failoverFix = "give how long leases are to go on while the Sentinels or seeds cannot be asked, such as 5s; see docs/managed.md"
