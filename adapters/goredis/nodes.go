package goredis

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
)

const (
	defaultAddr  = "localhost:6379" // of go-redis, for an empty Addr
	failoverAddr = "FailoverClient" // the Addr of a failover client of go-redis
)

// Nodes returns the options of nodes for quorumlock.New, one for each independent server. The
// options are only read, and can be the options of a client: client.Options().
//
// It returns a *quorumlock.InvalidError, which is quorumlock.ErrInvalid and names the field: for
// a field that is refused, a Network other than tcp and unix, a Protocol other than 2 and 3, nil,
// and for options of a failover client, whose Dialer follows a master without asking a majority
// of the Sentinels. quorumlock.New checks the list as a whole.
func Nodes(servers ...*redis.Options) ([]rueidis.ClientOption, error) {
	nodes := make([]rueidis.ClientOption, len(servers))
	for i, o := range servers {
		var err error
		if nodes[i], err = node(fmt.Sprintf("node %d: redis.Options", i), o); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func node(what string, o *redis.Options) (rueidis.ClientOption, error) {
	if o == nil {
		return none(invalid(what, "nil", "is not a server", "give the options of your client"))
	}
	network, addr := o.Network, o.Addr
	if addr == "" {
		addr = defaultAddr
	}
	if network == "" {
		network = "tcp"
		if strings.HasPrefix(addr, "/") {
			network = "unix"
		}
	}
	n := rueidis.ClientOption{InitAddress: []string{addr}, SelectDB: max(o.DB, 0)}
	switch {
	case addr == failoverAddr:
		return none(invalid(what+".Addr", addr, "belongs to a failover client, whose dialer follows one Sentinel", "give the FailoverOptions to Sentinel"))
	case network != "tcp" && network != "unix":
		return none(invalid(what+".Network", network, "must be tcp or unix", "leave it empty"))
	case network == "unix" && !strings.HasPrefix(addr, "/") && o.Dialer == nil:
		return none(invalid(what+".Addr", addr, "must be the absolute path of a Unix socket, as Network says", "write the whole path"))
	case o.Limiter != nil:
		return none(refused(what+".Limiter", "it would not see the commands of locks, and a renewal that it held back would lose the lease"))
	}
	c := common{
		what: what, network: network, clientName: o.ClientName, dialer: o.Dialer, dialTimeout: o.DialTimeout, tls: o.TLSConfig,
		protocol: o.Protocol, username: o.Username, password: o.Password, onConnect: o.OnConnect != nil,
		provider: o.CredentialsProvider, providerContext: o.CredentialsProviderContext, streaming: o.StreamingCredentialsProvider,
	}
	return n, c.apply(&n)
}

// Sentinel returns the option of one node that is a failover group: quorumlock.Sentinel with the
// settings of a failover client. It needs quorumlock.WithRestartGuard and quorumlock.WithFailover.
// List all Sentinels of the group: go-redis asks one of them, and quorumlock a majority.
//
// It returns a *quorumlock.InvalidError that names the field, for a field that is refused, for
// Protocols other than 2 and 3, and for nil. quorumlock.New checks the addresses.
func Sentinel(o *redis.FailoverOptions) (rueidis.ClientOption, error) {
	const what = "redis.FailoverOptions"
	if o == nil {
		return none(invalid(what, "nil", "is not a failover group", "give the options of your client"))
	}
	replicas := map[string]bool{"ReplicaOnly": o.ReplicaOnly, "RouteByLatency": o.RouteByLatency, "RouteRandomly": o.RouteRandomly}
	if err := noReplicas(what, replicas); err != nil {
		return none(err)
	}
	n := quorumlock.Sentinel(o.MasterName, o.SentinelAddrs...)
	n.SelectDB = max(o.DB, 0)
	c := common{
		what: what, network: "tcp", clientName: o.ClientName, dialer: o.Dialer, dialTimeout: o.DialTimeout, tls: o.TLSConfig,
		protocol: o.Protocol, username: o.Username, password: o.Password, onConnect: o.OnConnect != nil,
		provider: o.CredentialsProvider, providerContext: o.CredentialsProviderContext, streaming: o.StreamingCredentialsProvider,
	}
	if err := c.apply(&n); err != nil {
		return none(err)
	}
	n.Sentinel.Dialer, n.Sentinel.TLSConfig, n.Sentinel.ClientName = n.Dialer, o.TLSConfig, o.ClientName
	n.Sentinel.Username, n.Sentinel.Password = login(o.SentinelUsername, o.SentinelPassword)
	return n, nil
}

// ClusterSlot returns the option of one node that is the owner of a slot: quorumlock.ClusterSlot of
// the tag, such as "{locks}", with the settings of a cluster client, whose Addrs are the seeds. It
// needs quorumlock.WithPrefix, quorumlock.WithRestartGuard and quorumlock.WithFailover. List
// three seeds or more: go-redis asks one of them, and quorumlock a majority. The address of a
// configuration endpoint is not a seed.
//
// It returns a *quorumlock.InvalidError that names the field, for a field that is refused, for
// Protocols other than 2 and 3, and for nil. quorumlock.New checks the tag and the seeds.
func ClusterSlot(tag string, o *redis.ClusterOptions) (rueidis.ClientOption, error) {
	n, err := Cluster(o)
	if err != nil {
		return none(err)
	}
	n.InitAddress = quorumlock.ClusterSlot(tag, n.InitAddress...).InitAddress
	return n, nil
}

// Cluster returns the option for quorumlock.NewCluster, which spreads the names over all masters of a
// cluster: the settings of a cluster client, whose Addrs are the seeds. NewCluster needs
// quorumlock.WithRestartGuard and quorumlock.WithFailover. List five seeds, at least three, and
// the same ones on every client: go-redis asks one of them, and quorumlock a majority. The address
// of a configuration endpoint is not a seed.
//
// It returns the errors of ClusterSlot. quorumlock.NewCluster checks the seeds.
func Cluster(o *redis.ClusterOptions) (rueidis.ClientOption, error) {
	const what = "redis.ClusterOptions"
	if o == nil {
		return none(invalid(what, "nil", "is not a cluster", "give the options of your client"))
	}
	replicas := map[string]bool{"ReadOnly": o.ReadOnly, "RouteByLatency": o.RouteByLatency, "RouteRandomly": o.RouteRandomly}
	if err := noReplicas(what, replicas); err != nil {
		return none(err)
	}
	switch {
	case o.NewClient != nil && reflect.ValueOf(o.NewClient).Pointer() != reflect.ValueOf(redis.NewClient).Pointer():
		// NewClusterClient sets it to NewClient, in the options that it is given.
		return none(refused(what+".NewClient", "a node does not connect through a go-redis client"))
	case o.ClusterSlots != nil:
		return none(refused(what+".ClusterSlots", "a majority of the seeds must name the owner of a slot"))
	}
	n := rueidis.ClientOption{InitAddress: slices.Clone(o.Addrs)}
	c := common{
		what: what, network: "tcp", clientName: o.ClientName, dialer: o.Dialer, dialTimeout: o.DialTimeout, tls: o.TLSConfig,
		protocol: o.Protocol, username: o.Username, password: o.Password, onConnect: o.OnConnect != nil,
		provider: o.CredentialsProvider, providerContext: o.CredentialsProviderContext, streaming: o.StreamingCredentialsProvider,
	}
	return n, c.apply(&n)
}
