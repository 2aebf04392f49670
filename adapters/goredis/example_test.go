package goredis_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/goredis"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The lock is on the server that has the data, with the dialer of the data's client.
func Example() {
	cluster := quorumlocktest.NewCluster(1) // a server inside this process
	defer cluster.Close()
	server := cluster.Options()[0]
	options := &redis.Options{
		Addr: server.InitAddress[0],
		Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return server.DialCtxFn(ctx, addr, nil, nil)
		},
	}
	data := redis.NewClient(options)
	defer func() { _ = data.Close() }()

	ctx := context.Background()
	nodes, err := goredis.Nodes(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := quorumlock.New(ctx, nodes)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = m.Close(ctx) }()
	err = m.Do(ctx, "report", func(ctx context.Context, _ *quorumlock.Lease) error {
		fmt.Println("locks here:", data.Exists(ctx, "quorumlock:report").Val())
		return data.Set(ctx, "report", "done", 0).Err()
	})
	fmt.Println(data.Get(ctx, "report").Val(), err)
	// Output:
	// locks here: 1
	// done <nil>
}

// The server that has the data has the locks as well, with the same user, TLS and database.
func ExampleNodes() {
	ctx := context.Background()
	options := &redis.Options{Addr: "redis.internal:6379", Username: "app", Password: "secret", DB: 2}
	data := redis.NewClient(options) // for your data, as before

	nodes, err := goredis.Nodes(options) // or the options of three or five independent servers
	if err != nil {
		log.Fatal(err)
	}
	m, err := quorumlock.New(ctx, nodes)
	if err != nil {
		log.Fatal(err)
	}
	err = m.Do(ctx, "report", func(ctx context.Context, lease *quorumlock.Lease) error {
		return data.Set(ctx, "report", lease.Token(), 0).Err()
	})
	log.Print(err, m.Close(ctx))
}

// A master under Sentinels is one node.
func ExampleSentinel() {
	options := &redis.FailoverOptions{
		MasterName: "mymaster", SentinelAddrs: []string{"10.0.1.1:26379", "10.0.1.2:26379", "10.0.1.3:26379"},
	}
	node, err := goredis.Sentinel(options)
	if err != nil {
		log.Fatal(err)
	}
	m, err := quorumlock.New(context.Background(), []rueidis.ClientOption{node},
		quorumlock.WithFailover(5*time.Second), quorumlock.WithRestartGuard(15*time.Second))
	log.Print(m, err)
}

// One slot of a Redis Cluster is one node.
func ExampleClusterSlot() {
	options := &redis.ClusterOptions{Addrs: []string{"10.0.2.1:6379", "10.0.2.2:6379", "10.0.2.3:6379"}}
	node, err := goredis.ClusterSlot("{locks}", options)
	if err != nil {
		log.Fatal(err)
	}
	m, err := quorumlock.New(context.Background(), []rueidis.ClientOption{node}, quorumlock.WithPrefix("{locks}:"),
		quorumlock.WithFailover(5*time.Second), quorumlock.WithRestartGuard(15*time.Second))
	log.Print(m, err)
}

// The names are spread over all masters of a Redis Cluster.
func ExampleCluster() {
	options := &redis.ClusterOptions{Addrs: []string{"10.0.2.1:6379", "10.0.2.2:6379", "10.0.2.3:6379", "10.0.2.4:6379", "10.0.2.5:6379"}}
	cluster, err := goredis.Cluster(options)
	if err != nil {
		log.Fatal(err)
	}
	m, err := quorumlock.NewCluster(context.Background(), cluster,
		quorumlock.WithFailover(5*time.Second), quorumlock.WithRestartGuard(15*time.Second))
	log.Print(m, err)
}

// A provider of tokens that change, such as one for Entra ID.
func ExampleLatest() {
	options := &redis.Options{Addr: "redis.internal:6379", StreamingCredentialsProvider: fixed{}}
	credentials, unsubscribe, err := goredis.Latest(options.StreamingCredentialsProvider)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = unsubscribe() }() // after the Manager is closed
	forLocks := *options
	forLocks.StreamingCredentialsProvider, forLocks.CredentialsProviderContext = nil, credentials
	nodes, err := goredis.Nodes(&forLocks)
	log.Print(nodes, err)
}
