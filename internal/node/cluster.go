package node

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Cluster is a Redis cluster; several Nodes are slots of it. It asks the seeds on behalf of all these Nodes, and has
// the connections to the masters, which the Nodes share.
type Cluster struct {
	cancel   context.CancelFunc
	conns    conns // to the seeds
	seeds    *master.Cluster
	requests trunks
	wakeUps  trunks
	builder  rueidis.Client // builds commands; it is never dialled
}

// NewCluster returns a cluster for this many Nodes. option is the option of one of them. Nothing is sent before Run.
func NewCluster(option *rueidis.ClientOption, nodes int) *Cluster {
	c := &Cluster{}
	life, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.conns.begin(life, func() {})
	c.seeds = master.NewCluster(life, option, nodes, func(o rueidis.ClientOption) rueidis.ClientOption {
		return asideOption(life, option, o, &c.conns)
	})
	c.wakeUps.begin(life, func(life context.Context, addr string, watched func(net.Conn) net.Conn) rueidis.ClientOption {
		return requiredOptions(life, serverOption(option, addr), watched)
	})
	c.requests.begin(life, func(life context.Context, addr string, watched func(net.Conn) net.Conn) rueidis.ClientOption {
		return forTrunk(requiredOptions(life, serverOption(option, addr), watched))
	})
	c.requests.prepare = loadScripts
	c.builder, _ = rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"none"}, ForceSingleClient: true, DisableCache: true,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, errTrunkEnded },
	})
	return c
}

// serverOption returns the option of a connection to one server of the cluster. own is the option of a node.
func serverOption(own *rueidis.ClientOption, addr string) rueidis.ClientOption {
	o := *own
	o.InitAddress = []string{addr}
	return o
}

// client returns the client of a node, which dials the master of its group and shares the connection. worker tells
// whether its dials set the term.
func (c *Cluster) client(life context.Context, of *trunks, group *master.Group, worker bool, watch func(net.Conn) net.Conn) rueidis.Client {
	return &trunkClient{Client: c.builder, life: life, dial: group.Dial(of.dial, worker), watch: watch}
}

// loadScripts loads the scripts for all nodes that share the trunk.
func loadScripts(t *trunk) error {
	ctx, cancel := context.WithTimeout(t.life, maxDial)
	defer cancel()
	b := t.client.B()
	t.scripts = t.client.DoMulti(ctx, b.ScriptLoad().Script(wire.Apply).Build(), b.ScriptLoad().Script(wire.Lean).Build())
	return t.scripts[0].NonRedisError()
}

// of returns what the Nodes share, nil without a cluster.
func (c *Cluster) of() *master.Cluster {
	if c == nil {
		return nil
	}
	return c.seeds
}

// Run asks the seeds until Close. It must be called once.
func (c *Cluster) Run() { c.seeds.Run() }

// Close ends Run and the connections to the seeds. The Nodes must be closed before.
func (c *Cluster) Close() {
	c.cancel()
	c.conns.cut()
	c.requests.runs.Wait()
	c.wakeUps.runs.Wait()
	c.builder.Close()
}

// asideOption returns the option of a connection that only asks for the master of a node; own is the node's option. The
// worker does not notice its end, and hangUp leaves it alone.
func asideOption(life context.Context, own *rueidis.ClientOption, o rueidis.ClientOption, c *conns) rueidis.ClientOption {
	o.AlwaysRESP2 = own.AlwaysRESP2
	o.DialFn, o.DialCtxFn = own.DialFn, own.DialCtxFn
	return requiredOptions(life, o, c.watchAside)
}

// ClusterMembers asks the addresses in an option, one after the other, for the nodes of their cluster. It returns the
// addresses of all known nodes, masters first.
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
