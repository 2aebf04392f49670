package node

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
)

// Cluster is a cluster of which several Nodes are slots. It asks the seeds for all of them.
type Cluster struct {
	cancel context.CancelFunc
	conns  conns
	seeds  *master.Cluster
}

// NewCluster returns the cluster of this many Nodes. option is that of one of them. Nothing is sent before Run.
func NewCluster(option *rueidis.ClientOption, nodes int) *Cluster {
	c := &Cluster{}
	life, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.conns.begin(life, func() {})
	c.seeds = master.NewCluster(life, option, nodes, func(o rueidis.ClientOption) rueidis.ClientOption {
		return asideOption(life, option, o, &c.conns)
	})
	return c
}

// of returns what the Nodes share, nil without a cluster.
func (c *Cluster) of() *master.Cluster {
	if c == nil {
		return nil
	}
	return c.seeds
}

// Run asks until Close. It must be called once.
func (c *Cluster) Run() { c.seeds.Run() }

// Close ends Run and the connections to the seeds. The Nodes must be closed before.
func (c *Cluster) Close() {
	c.cancel()
	c.conns.cut()
}

// asideOption returns the option of a connection that only asks who the master of the node with the option own is. The
// worker does not notice its end, and hangUp leaves it alone.
func asideOption(life context.Context, own *rueidis.ClientOption, o rueidis.ClientOption, c *conns) rueidis.ClientOption {
	o.AlwaysRESP2 = own.AlwaysRESP2
	o.DialFn, o.DialCtxFn = own.DialFn, own.DialCtxFn
	return requiredOptions(life, o, c.watchAside)
}

// ClusterMembers asks the addresses in an option, one after the other, for the nodes of their cluster, and returns the
// addresses of all that are known, masters first.
func ClusterMembers(ctx context.Context, own rueidis.ClientOption) (addrs []string, err error) {
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	var c conns
	c.begin(life, func() {})
	for _, addr := range own.InitAddress {
		o := own
		o.InitAddress = []string{addr}
		client, failed := rueidis.NewClient(asideOption(life, &own, o, &c))
		if failed == nil {
			addrs, failed = master.Members(ctx, client, own.TLSConfig != nil)
		}
		if client != nil {
			client.Close()
		}
		if failed == nil {
			return addrs, nil
		}
		err = failed
	}
	return nil, err
}
