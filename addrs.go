package quorumlock

import (
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
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
