package quorumlocktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/master"
)

// RedisCluster is a Redis Cluster, for [quorumlock.NewCluster] or the client of rueidis for clusters: masters that
// share the hash slots, and a replica of each. With n masters, node i is a master at first, and node n+i its replica.
//
// The faults of [Cluster] apply to its servers. Options has an option for each server alone. All servers know of a
// change at once. No failover starts by itself: see [RedisCluster.Failover].
type RedisCluster struct {
	*Cluster
	slots *slots
}

// StartRedisCluster is [Start] for a Redis Cluster with n masters, three or more.
func StartRedisCluster(tb testing.TB, n int) *RedisCluster {
	tb.Helper()
	c := NewRedisCluster(n)
	tb.Cleanup(c.Close)
	return c
}

// NewRedisCluster is [NewCluster] for a Redis Cluster with n masters. It panics when n is less than three.
func NewRedisCluster(n int) *RedisCluster {
	if n < 3 {
		panic(fmt.Sprintf("quorumlocktest: a Redis Cluster with %d masters", n))
	}
	s := newSlots(n)
	return &RedisCluster{Cluster: &Cluster{nodes: s.nodes}, slots: s}
}

// Option returns the option with which [quorumlock.NewCluster] reaches the cluster, by five seeds. It is OptionFor
// with an empty name.
func (c *RedisCluster) Option() rueidis.ClientOption { return c.OptionFor("") }

// OptionFor is Option for a client that [Cluster.Partition] can cut off by name.
func (c *RedisCluster) OptionFor(client string) rueidis.ClientOption {
	var seeds []string
	for _, n := range c.nodes[:5] {
		seeds = append(seeds, n.addr)
	}
	return rueidis.ClientOption{
		InitAddress:  seeds,
		DisableCache: true,
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
			for _, n := range c.nodes {
				if n.addr == addr {
					return n.dialer(client)(ctx, addr, d, secure)
				}
			}
			return nil, fmt.Errorf("quorumlocktest: the cluster has no server %q", addr)
		},
	}
}

// Manager returns a Manager of [quorumlock.NewCluster], and closes it at the end of the test. Unless opts say
// otherwise, the window of WithFailover is 2 s, and the restart guard 12 s: no name is granted before the guard's time
// has passed.
func (c *RedisCluster) Manager(tb testing.TB, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	return c.ManagerFor(tb, "", opts...)
}

// ManagerFor is Manager for a client that [Cluster.Partition] can cut off by name.
func (c *RedisCluster) ManagerFor(tb testing.TB, client string, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	return manager(tb, func(first ...quorumlock.Option) (*quorumlock.Manager, error) {
		const window, ttl = 2 * time.Second, 10 * time.Second // the TTL is the default
		first = append(first, quorumlock.WithFailover(window), quorumlock.WithRestartGuard(ttl+window))
		return quorumlock.NewCluster(context.Background(), c.OptionFor(client), append(first, opts...)...)
	})
}

// MasterOf returns the index of the master that has the bucket of a name.
func (c *RedisCluster) MasterOf(name string) int { return c.slots.owner(bucketSlot(name)) }

func bucketSlot(name string) int { return master.Slot(master.BucketTag(master.Bucket(name))) }

// Move moves the hash slot of the bucket of a name to a master, with its keys. It moves them at once: no client finds
// the slot half moved.
func (c *RedisCluster) Move(name string, to int) {
	slot := bucketSlot(name)
	c.slots.lock()
	defer c.slots.unlock()
	if !c.slots.isMaster(to) {
		panic(fmt.Sprintf("quorumlocktest: server %d is not a master", to))
	}
	if from := c.slots.owner(slot); from != to {
		c.nodes[from].handSlot(slot, c.nodes[to])
	}
}

// Failover makes the replica of a master the owner of all its slots. The replica has the keys that the master has, or had
// when it was killed; [Node.FlushAll] of the replica takes them away, as if they had not reached it. The former master
// becomes its replica.
func (c *RedisCluster) Failover(of int) {
	c.slots.lock()
	defer c.slots.unlock()
	replica := c.slots.replicaOf(of)
	if replica == nil {
		panic(fmt.Sprintf("quorumlocktest: server %d is not a master", of))
	}
	c.nodes[of].handAll(replica)
}
