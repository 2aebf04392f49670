package node

import (
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Identity is what a node reports about itself.
type Identity struct {
	RunID    string // of the server process; new on every start
	ReplID   string // of its data set: equal on a master and its replicas
	Former   string // master_replid2: of the data set that it replicated before its promotion
	Role     string
	Mode     string // standalone, cluster, sentinel
	Eviction string // maxmemory-policy
	Limited  bool   // maxmemory is set
	Replicas int    // connected_slaves
	Version  string
	// Unchecked is why INFO could not be read, such as an ACL without INFO.
	Unchecked error
}

// replica reports whether the server names a role other than master.
func (id Identity) replica() bool { return id.Role != "" && id.Role != "master" }

// Check returns why such a node cannot vote, nil if it can.
func (id Identity) Check() error {
	switch {
	case id.Unchecked != nil:
		return nil
	case id.Mode == "sentinel":
		return &wire.ConfigError{
			Problem: "server runs in sentinel mode",
			Fix:     "name the Sentinels with quorumlock.Sentinel, and masters alone with Addrs", List: true,
		}
	case id.Mode != "" && id.Mode != "standalone":
		return &wire.ConfigError{
			Problem: "server runs in " + id.Mode + " mode",
			Fix:     "list standalone masters, or one slot of the cluster with quorumlock.ClusterSlot: the servers of one cluster do not fail independently", List: true,
		}
	case id.replica():
		return &wire.ConfigError{
			Problem: "server is a replica (role " + id.Role + ")",
			Fix:     "list the master only: a replica does not count as a node",
		}
	}
	return wire.TooOld(id.Version)
}

// Evicts reports whether the server may drop locks to make room. Every lock has a TTL, so
// every policy except noeviction may evict locks.
func (id Identity) Evicts() bool {
	return id.Limited && id.Eviction != "" && id.Eviction != "noeviction"
}

// Copied reports whether one of two nodes was a replica of the other in the past. They
// are independent now, unless an operator makes one a replica again.
func Copied(a, b Identity) bool {
	return a.Former != "" && a.Former == b.ReplID || b.Former != "" && b.Former == a.ReplID
}

// Same returns why two nodes are not independent, nil if they are.
func Same(a, b Identity) error {
	switch {
	case a.RunID != "" && a.RunID == b.RunID:
		return &wire.ConfigError{
			Problem: "both addresses lead to the same server (run_id " + a.RunID + ")",
			Fix:     "list each server once: listed twice, it would count twice", List: true,
		}
	case a.ReplID != "" && a.ReplID == b.ReplID:
		return &wire.ConfigError{
			Problem: "one is a replica of the other (master_replid " + a.ReplID + ")",
			Fix:     "list independent masters: a master and its replicas count as one node",
		}
	}
	return nil
}

// identify reads INFO server, replication and memory.
func identify(infos []rueidis.RedisResult) (id Identity, err error) {
	for _, info := range infos {
		text, err := info.ToString()
		if err != nil {
			if status, err := classify(err); status != wire.Misconfigured {
				return Identity{}, err
			}
			return Identity{Unchecked: err}, nil
		}
		text = strings.TrimPrefix(text, "txt:") // of a verbatim string, in RESP3
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch key {
			case "run_id":
				id.RunID = value
			case "redis_version":
				id.Version = value
			case "redis_mode", "server_mode": // the latter is Valkey's
				id.Mode = value
			case "connected_slaves":
				id.Replicas, _ = strconv.Atoi(value)
			case "role":
				id.Role = value
			case "master_replid":
				id.ReplID = value
			case "master_replid2":
				if strings.Trim(value, "0") != "" {
					id.Former = value
				}
			case "maxmemory_policy":
				id.Eviction = value
			case "maxmemory":
				id.Limited = value != "0"
			}
		}
	}
	return id, nil
}
