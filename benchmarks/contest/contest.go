// Package contest has the lock libraries that the benchmarks compare, behind
// one small interface.
package contest

import (
	"context"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock"
)

// A Client is what one process uses of a library: its connections to the nodes and what else it keeps. Its methods may
// be called concurrently unless the contestant says otherwise.
type Client interface {
	// Lock acquires name and waits for it until ctx ends.
	Lock(ctx context.Context, name string) (Held, error)
}

// A Held is a lock that was acquired. The libraries' own types are used where
// they have this method, so that the harness allocates nothing for them.
type Held interface {
	// Release gives the lock back.
	Release(ctx context.Context) error
}

// A Keeper is a Client that keeps a lock renewed until the process ends.
type Keeper interface {
	// Keep acquires name and keeps it renewed.
	Keep(ctx context.Context, name string) (Kept, error)
}

// A Kept is a lock that is renewed in the background.
type Kept interface {
	// Lost reports whether another client may have the lock by now.
	Lost() bool
}

// A Renewals counts the extensions that the nodes have confirmed.
type Renewals interface {
	// CountRenewals calls add for each confirmed extension of a lease from now on.
	CountRenewals(add func())
}

// A Closer is a Client that gives back everything it holds.
type Closer interface {
	// Close releases every lock and returns when that is done, or when ctx ends.
	Close(ctx context.Context) error
	// LockKey returns the key of the lock called name on each node.
	LockKey(name string) string
}

// A Saturator is a Client that runs a crowd of callers by itself.
type Saturator interface {
	// Saturate acquires and releases all names again and again until ctx ends,
	// and calls add with the number of pairs that were completed.
	Saturate(ctx context.Context, names []string, add func(pairs int64)) error
}

// Settings is what a workload wants of a client.
type Settings struct {
	TTL time.Duration // how long a lock lives unless it is renewed
	// Poll is how long a client that polls waits between two attempts; 0 leaves
	// that to the library's default. A library with a queue ignores it.
	Poll time.Duration
}

// A Contestant is a library with the settings that suit it best.
type Contestant struct {
	Name     string
	Peer     bool // another library
	MaxNodes int  // the most nodes that it can use; 0 for any number
	ByName   bool // it takes part only where a workload names it
	// Connect returns a client of the nodes at addrs.
	Connect func(ctx context.Context, addrs []string, s Settings) (Client, error)
}

// The names of the contestants.
const (
	Fenced         = "quorumlock"
	Unfenced       = "quorumlock, no fencing"
	Unpassed       = "quorumlock, one by one" // the nodes make each grant, none is passed on in the process
	Readers        = "quorumlock, readers of one name"
	Permits        = "quorumlock, 4 permits"
	NewCluster     = "quorumlock, NewCluster"  // of a Redis Cluster, like the next one
	ClusterSlot    = "quorumlock, ClusterSlot" // one of its slots
	RedsyncGoredis = "redsync/goredis"
	RedsyncRueidis = "redsync/rueidis"
	Redislock      = "redislock"
	Rueidislock    = "rueidislock"
	Sockets        = "raw sockets"
)

// All returns the contestants in the order of the tables.
func All() []Contestant {
	return []Contestant{
		{Name: Fenced, Connect: connectQuorumlock()},
		{Name: Unfenced, Connect: connectQuorumlock(quorumlock.WithoutFencing())},
		// A lease with a maximum age is never passed on: the next holder would inherit it.
		{Name: Unpassed, ByName: true, Connect: connectQuorumlock(quorumlock.WithMaxHold(time.Hour))},
		{Name: Permits, ByName: true, Connect: connectPermits},
		{Name: Readers, ByName: true, Connect: connectReaders},
		{Name: NewCluster, ByName: true, Connect: connectNewCluster},
		{Name: ClusterSlot, ByName: true, Connect: connectClusterSlot},
		{Name: RedsyncGoredis, Peer: true, Connect: connectRedsyncGoredis},
		{Name: RedsyncRueidis, Peer: true, Connect: connectRedsyncRueidis},
		{Name: Redislock, Peer: true, MaxNodes: 1, Connect: connectRedislock},
		{Name: Rueidislock, Peer: true, MaxNodes: 1, Connect: connectRueidislock},
		{Name: Sockets, Connect: connectSockets},
	}
}

// Named returns the contestant with this name.
func Named(name string) (Contestant, bool) {
	all := All()
	i := slices.IndexFunc(all, func(c Contestant) bool { return c.Name == name })
	if i < 0 {
		return Contestant{}, false
	}
	return all[i], true
}

// ForNodes returns the names of the contestants that can use n nodes, without those
// that take part by name only.
func ForNodes(nodes int) []string {
	var names []string
	for _, c := range All() {
		if !c.ByName && (c.MaxNodes == 0 || nodes <= c.MaxNodes) {
			names = append(names, c.Name)
		}
	}
	return names
}

// PeersForNodes is ForNodes without this library and without the limit.
func PeersForNodes(nodes int) []string {
	return slices.DeleteFunc(ForNodes(nodes), func(name string) bool {
		c, _ := Named(name)
		return !c.Peer
	})
}
