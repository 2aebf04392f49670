package quorumlock

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/node"
)

// NewCluster connects to a whole Redis Cluster and returns a Manager that spreads the names over
// its masters: for more leases than one server carries. o is the option for rueidis.NewClient:
// seeds, password, TLS, dial function. List five nodes of the cluster, at least three, and the same
// ones on every client. For names that need no more than one server, ClusterSlot is lighter.
//
// A name is in one of 16 buckets: by its hash, or the hash of its {tag}. Each bucket has one hash
// slot and is a failover group, so NewCluster needs WithRestartGuard and WithFailover. After a
// bucket's master has changed, its names are not granted for the time of the guard; a lease
// continues if the failover plus about 3 s is shorter than its TTL. AcquireAll needs names of one
// bucket, so give them one {tag}. docs/cluster.md says how to start and grow.
//
// Manager.Nodes, events and errors have one node for each bucket. NewCluster and Manager.Ready
// succeed while more than half of the buckets are usable.
//
// NewCluster returns the errors of New, and ErrInvalid (an *InvalidError that lists nodes of the
// cluster) for fewer than three seeds. ctx bounds NewCluster alone.
func NewCluster(ctx context.Context, o rueidis.ClientOption, opts ...Option) (*Manager, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	lists := make([]list, master.Buckets)
	for b := range lists {
		one := o
		one.InitAddress = master.SlotOption(master.BucketTag(b), o.InitAddress).InitAddress
		lists[b].nodes = []rueidis.ClientOption{one}
	}
	cfg := withOptions(1, opts)
	err := invalid(cfg.CompleteCluster(&lists[0].nodes[0]))
	if err == nil && len(o.InitAddress) < leastSeeds {
		err = fewSeeds(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	for b := range lists {
		lists[b].prefix = master.BucketTag(b) + cfg.Prefix
	}
	m, err := build(clock.New(), cfg, lists, node.NewCluster(&lists[0].nodes[0], len(lists)))
	if err != nil {
		return nil, err
	}
	return opened(ctx, m)
}

// leastSeeds is the smallest number of seeds: with fewer, a single node that is cut off has a majority or a veto.
const leastSeeds = 3

// fewSeeds returns the error of a list of seeds that is too short.
func fewSeeds(ctx context.Context, o rueidis.ClientOption) error {
	e := &InvalidError{What: "InitAddress", Value: strconv.Itoa(len(o.InitAddress)) + " addresses",
		Bound: "must list at least 3 nodes of the cluster: a majority of them names the master of a bucket"}
	addrs, err := node.ClusterMembers(ctx, o)
	switch {
	case err != nil:
		e.Fix, e.Err = "list five nodes of the cluster; "+strings.Join(o.InitAddress, ", ")+" did not name them: "+oneLine(err.Error()), err
	case len(addrs) < leastSeeds:
		e.Fix = "use a cluster of 3 masters or more; this one has " + strconv.Itoa(len(addrs)) + " nodes"
	default:
		e.Fix = "list the same ones on every client, such as " + oneLine(strings.Join(addrs[:min(len(addrs), 5)], ", "))
	}
	return e
}

// sameBucket returns an error unless all names are of one shard.
func (m *Manager) sameBucket(names []string) error {
	for _, name := range names[1:] {
		if m.of(name) != m.of(names[0]) {
			return &InvalidError{What: "names", Value: quoted([]string{names[0], name}),
				Bound: "are in different buckets of the cluster, " + strconv.Itoa(m.of(names[0]).first) + " and " + strconv.Itoa(m.of(name).first),
				Fix:   "give them one {tag}, as in {order/7}/stock and {order/7}/invoice"}
		}
	}
	return nil
}
