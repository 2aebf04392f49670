package cli

import (
	"cmp"
	"slices"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/master"
)

// server is one server of a node, for a command that connects to it directly.
type server struct {
	group  string // the node's name, if it is a failover group
	addr   string // of the server; "" if the group's master is not known
	why    error  // why it is not known
	option rueidis.ClientOption
}

// String returns how the server is named to people.
func (s server) String() string {
	if s.group == "" {
		return s.addr
	}
	return s.group + " (" + cmp.Or(s.addr, "no known master") + ")"
}

// servers returns the server of each node; of a failover group it is the present master, as the Manager knows it. A whole
// cluster has a node for each bucket.
func (c *connection) servers(m *quorumlock.Manager) (all []server) {
	for i, n := range m.Nodes() {
		at := min(i, len(c.options)-1) // all buckets have one option
		option, s := c.options[at], server{addr: c.addr(at)}
		if kind, _ := master.Name(&option); kind != "" || c.cluster {
			s.group, s.addr, s.why = n.Addr, n.Master, n.Err
			option.InitAddress, option.Sentinel = []string{n.Master}, rueidis.SentinelOption{}
		}
		s.option = option
		all = append(all, s)
	}
	return all
}

// serversOf returns the servers that may have keys of a name, and the prefix of its keys there.
func (c *connection) serversOf(m *quorumlock.Manager, name string) (all []server, prefix string) {
	all, prefix = c.servers(m), c.prefix
	if c.cluster { // a name is in one bucket
		bucket := master.Bucket(name)
		all, prefix = all[bucket:bucket+1], master.BucketTag(bucket)+prefix
	}
	return all, prefix
}

// distinct returns each server once, without its group: a master of a cluster has several buckets.
func (c *connection) distinct(all []server) (once []server) {
	if !c.cluster {
		return all
	}
	for _, s := range all {
		if !reaches(once, s.addr) {
			s.group = ""
			once = append(once, s)
		}
	}
	return once
}

// reaches reports whether an address is one of these servers'.
func reaches(all []server, addr string) bool {
	return slices.ContainsFunc(all, func(s server) bool { return s.addr == addr })
}
