package quorumlocktest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Cluster is a set of independent nodes, like the masters of a Redlock. All methods are
// safe for concurrent use.
type Cluster struct {
	nodes []*Node
}

// Start returns a running cluster of n nodes, and closes it at the end of the test. A
// test may call it inside a synctest bubble, with the tb of the bubble.
//
// Close clients before the test ends, or in a cleanup registered after Start. Otherwise
// their nodes close first.
func Start(tb testing.TB, n int) *Cluster {
	tb.Helper()
	c := NewCluster(n)
	tb.Cleanup(c.Close)
	return c
}

// NewCluster is Start without a test, for a demonstration or a TestMain. The caller
// closes the cluster. NewCluster panics when n is less than one.
func NewCluster(n int) *Cluster {
	if n < 1 {
		panic(fmt.Sprintf("quorumlocktest: a cluster of %d nodes", n))
	}
	c := &Cluster{nodes: make([]*Node, n)}
	for i := range c.nodes {
		c.nodes[i] = newNode(fmt.Sprintf("node-%d:6379", i), nil, i)
	}
	return c
}

// Close kills all nodes, closes all connections, and returns when every goroutine of the
// cluster has ended. A closed node refuses dials and restarts. Further calls do nothing.
func (c *Cluster) Close() {
	for _, n := range c.nodes {
		n.close()
	}
}

// Nodes returns the nodes, in the order of Options. The caller owns the slice.
func (c *Cluster) Nodes() []*Node {
	return slices.Clone(c.nodes)
}

// Options returns the options with which [rueidis.NewClient] reaches each node. Clients
// made from them share nothing but the nodes. It is OptionsFor with an empty name.
func (c *Cluster) Options() []rueidis.ClientOption {
	return c.OptionsFor("")
}

// OptionsFor is Options for a client that [Cluster.Partition] can cut off by name.
// Clients with the same name are cut off together.
//
// It sets ForceSingleClient and DisableCache, because the nodes are not a Redis Cluster and
// do not support client-side caching. The other options have their zero values. The name
// in InitAddress is only a label: each DialCtxFn connects to its own node. It obeys the
// timeout of the rueidis Dialer.
func (c *Cluster) OptionsFor(client string) []rueidis.ClientOption {
	options := make([]rueidis.ClientOption, len(c.nodes))
	for i, n := range c.nodes {
		options[i] = rueidis.ClientOption{
			InitAddress:       []string{n.addr},
			DialCtxFn:         n.dialer(client),
			ForceSingleClient: true,
			DisableCache:      true,
		}
	}
	return options
}

// Partition cuts the named client off from the nodes with these indices, or from all
// nodes if there are none. It is [Node.Cut] for the connections of one client. Partitions
// add up until Rejoin.
func (c *Cluster) Partition(client string, nodes ...int) {
	for _, n := range c.pick(nodes) {
		n.part(client, true)
	}
}

// Rejoin ends every partition of the named client. Connections that lost bytes
// are closed, as by [Node.Heal].
func (c *Cluster) Rejoin(client string) {
	for _, n := range c.nodes {
		n.part(client, false)
	}
}

// Distance makes each direction between the named client and the nodes with these
// indices, or all nodes if there are none, take d longer than [Node.Delay] says. A d of
// zero or less ends it.
func (c *Cluster) Distance(client string, d time.Duration, nodes ...int) {
	for _, n := range c.pick(nodes) {
		n.net.set(func() { n.net.distances[client] = max(d, 0) })
	}
}

func (c *Cluster) pick(indices []int) []*Node {
	if len(indices) == 0 {
		return c.nodes
	}
	nodes := make([]*Node, len(indices))
	for i, index := range indices {
		nodes[i] = c.nodes[index]
	}
	return nodes
}

// dialer returns the DialCtxFn of a client. It ignores the address, so that a test can
// give one node two names.
func (n *Node) dialer(client string) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(ctx context.Context, _ string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		if secure != nil {
			return nil, errors.New("quorumlocktest: the nodes do not speak TLS")
		}
		var timeout time.Duration
		if d != nil {
			timeout = d.Timeout
		}
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		return n.dial(ctx, client)
	}
}
