// Package goredis makes nodes of quorumlock from the options of go-redis v9, so that the
// locks reach the same servers with the same user, database, TLS and dialer as your data.
//
// [Nodes] takes the options of independent servers, [Sentinel] the options of a failover
// client, [ClusterSlot] and [Cluster] the options of a cluster. The Manager makes connections of its
// own, one to each node, and a second one as soon as one of its callers must wait: with three nodes
// 3, then 6. With [Cluster] the nodes are the masters. Your client keeps its own, and its pool is
// not touched.
//
// What happens to each field of redis.Options, redis.FailoverOptions and redis.ClusterOptions:
//
//	used: Addr, Addrs, ClientName, CredentialsProvider, CredentialsProviderContext, DB, DialTimeout,
//	      Dialer, MasterName, Network, Password, Protocol, SentinelAddrs, SentinelPassword,
//	      SentinelUsername, TLSConfig, Username
//	refused: ClusterSlots, Limiter, NewClient, OnConnect, ReadOnly, ReplicaOnly, RouteByLatency,
//	      RouteRandomly, StreamingCredentialsProvider
//	without effect: AutoPipelineOptions, ClientSideCache, ClientSideCacheConfig,
//	      ClientSideCacheStrategy, ClusterStateReloadInterval, ConnMaxIdleTime, ConnMaxLifetime,
//	      ConnMaxLifetimeJitter, ContextTimeoutEnabled, DialerRetries, DialerRetryBackoff,
//	      DialerRetryTimeout, DisableIdentity, DisableIndentity, DisableRoutingPolicies,
//	      FailingTimeoutSeconds, IdentitySuffix, MaintNotificationsConfig, MaxActiveConns,
//	      MaxConcurrentDials, MaxIdleConns, MaxRedirects, MaxRetries, MaxRetryBackoff,
//	      MinIdleConns, MinRetryBackoff, NodeAddress, PipelinePoolSize, PipelineReadBufferSize,
//	      PipelineWriteBufferSize, PoolFIFO, PoolSize, PoolTimeout, PushNotificationProcessor,
//	      ReadBufferSize, ReadTimeout, ShardPicker, UnstableResp3, UseDisconnectedReplicas,
//	      WriteBufferSize, WriteTimeout
//
// Used means used as go-redis does:
//
//   - An empty Addr is localhost:6379. A Dialer decides about TLS itself, and TLSConfig then
//     does nothing. Of the three sources of credentials, CredentialsProviderContext comes
//     first and Username and Password come last. A user without a password does not log in.
//   - A dial takes 500 ms at most, or DialTimeout if that is less. A Dialer must end with its
//     context: while it does not, its node is down. The Dialer of client.Options() does not if it
//     makes TLS connections, so take the options that you wrote in place of it.
//   - A provider of credentials is asked for each new connection, and gets a context of
//     DialTimeout, or 5 s. An open connection stays as it is until the server closes it.
//   - Protocol 2 is RESP2, with a third connection to each node.
//   - FailoverOptions give their Dialer, TLSConfig and ClientName to the Sentinels as well.
//
// A refused field is an error, because to ignore it would change what the options mean. Give a
// copy of the options without it:
//
//   - OnConnect, NewClient and Limiter are code around go-redis's own connections and commands.
//   - ReadOnly, ReplicaOnly, RouteByLatency and RouteRandomly send commands to replicas, which
//     have no vote. ClusterSlots is a list of masters that no majority has confirmed.
//   - StreamingCredentialsProvider must be unsubscribed from, and a node has no end of its
//     own. [Latest] makes a CredentialsProviderContext of it.
//
// The rest is about pools, retries, buffers, caches and routing, which a node does not have:
// it has one connection, and no command is sent twice. Timeouts come from
// quorumlock.WithNodeTimeout. Hooks of a client (AddHook) are not options, and see no lock.
//
// The table is for go-redis v9.22.0, the newest version that compiles with Go 1.25. A field
// that a newer one adds is without effect until the table has it.
package goredis
