// Package quorumlock is a distributed lock manager on Redis. A majority of independent masters (nodes)
// grants each lease (the Redlock algorithm). A background watchdog renews it, and reports a loss
// before another client can get the lock. Every grant carries a fencing token.
//
// # Use
//
//	m, err := quorumlock.New(ctx, quorumlock.Addrs("redis-a:6379", "redis-b:6379", "redis-c:6379"))
//	...
//	defer m.Close(context.Background())
//
//	err = m.Do(ctx, "invoices/close-month", func(ctx context.Context, l *quorumlock.Lease) error {
//		return closeMonth(ctx, l.Token()) // ctx ends if the lease is lost
//	})
//
// The calls:
//
//   - [Manager.Acquire] waits for a lease, [Manager.TryAcquire] asks once, and [Manager.Do] runs a
//     function under a lease. [Manager.AcquireAll] and [Manager.DoAll] take several names, all or none.
//   - [Manager.Lead] runs a function whenever it leads. Package [election] elects the best
//     healthy candidate; package [spread] runs a function for each of N names, spread over a group.
//   - [Shared] makes a lease a read lock, and [Permits] makes it one permit of a semaphore.
//   - [Manager.Inspect] shows who holds a name, [Manager.Observe] follows it, and [Manager.List] lists
//     held names. Package [web] serves it as a page.
//   - [Lease.Renew] extends a lease now. [Lease.Detach] hands it to another process.
//   - [Lease.Wanted] reports who waits for a lease, [Manager.AskRelease] asks its holder to release it, and
//     [Manager.Revoke] takes it away.
//   - [NewCluster] spreads names over a Redis Cluster.
//   - [Manager.Nodes] and [Manager.Ready] show the health of the nodes.
//
// # What it promises
//
//   - Mutual exclusion: at any instant, the valid leases of a name are one exclusive lease, or shared
//     ones, or up to n permits. Conditions: all clients use the same independent nodes. Of the nodes that
//     hold the lease, no more than its margin (below) lose their data or have their clocks stepped
//     forward. Clock rates differ by less than 1 %. Work stops when [Lease.Valid] is false or the context
//     ends.
//   - Fencing: an exclusive lease has a larger token than every lease of its name that had ended when
//     the attempt that won it was sent. Pauses, lost packets and clock steps do not break that. A node that
//     loses its data can, unless [WithRestartGuard] is set and the nodes' clocks agree within seconds and
//     are not set back by more.
//   - Timely loss: [Lease.Lost] delivers the loss, and the context ends, before another client
//     can be granted the lease (same conditions), even if every node is silent. A stopped
//     or overloaded process may learn it later; [Lease.Valid] is right even then.
//   - Dead holders: their keys expire.
//
// With [WithRestartGuard], data lost in a restart, a flush or a failover that the guard sees breaks none of
// this: the node grants no locks until every lease that it may have forgotten has ended.
// [docs/safety.md] has the argument.
//
// # What it does not promise
//
// Unconditional mutual exclusion: a holder that is stopped between its last check and its write cannot
// know that its time has passed (Kleppmann). Either the resource refuses a [Lease.Token] below the highest
// that it has seen, or a late write must be harmless. [docs/fencing.md] shows how.
//
// # The life of a lease
//
//	          renewal missed, or margin 0 (N > 1)
//	 ┌──────┐ ────────────────────────▶ ┌─────────┐
//	 │ held │                           │ at risk │
//	 └──────┘ ◀──────────────────────── └─────────┘
//	  │    │   renewed, with a margin    │    │
//	  │    └───────────┐   ┌─────────────┘    │
//	  │ Release        ▼   ▼                  │ Release
//	  ▼              ┌──────┐                 ▼
//	released         │ lost │               released
//	                 └──────┘
//
// A lost or released lease does not come back. At the end of a lease, in this order: [Lease.Err] is set,
// the channels of Renewed, AtRisk and Wanted are closed, the context ends with Err as its cause, Done is
// closed, Lost delivers the loss, if any, and is closed. After a release, Lost waits for the answers
// of the nodes: if they show that the lease had been lost, Err becomes that loss.
//
// # When a lease ends
//
// A lease is valid for its TTL, less 1 % and 2 ms for clock drift, less a safety margin of 2 % (at least
// 50 ms, at most a fifth of the TTL), counted from before the request that a majority confirmed.
// [Lease.Remaining] counts down to the end. The Manager reports a loss up to 25 ms before, earlier on a
// busy machine.
//
// The watchdog renews when a third of the TTL has passed, and retries with backoff when no majority
// confirms. While the lease is valid, it restores keys that nodes have lost.
//
// # Events and telemetry
//
// A lease has channels for its own events, and [Manager.Subscribe] delivers the events of all leases and
// nodes. A slow reader delays no renewal, and misses no loss before Close.
//
// Calls create OpenTelemetry spans with the provider of the span in their context; [WithTracerProvider] and
// [WithMeterProvider] set providers. Logs go to slog.Default() or [WithLogger]'s.
//
// # Terminology
//
//   - lease: what other libraries call a mutex or a lock. It ends by itself unless renewed.
//   - holder, owner: the holder is the client that has the lease; [WithHolder] sets its label. The owner is
//     the random value of one grant that marks its keys (redsync: Value; redislock: Token).
//   - margin: how many nodes that hold the lease may lose their data before another client could be granted
//     it: 1 of 3, or 2 of 5 when all hold it.
//   - restart guard, quarantine: the delayed restart of the Redlock algorithm, enforced by the clients. A node in
//     quarantine grants no locks.
//   - failover group: a [Sentinel] master set or a [ClusterSlot] that counts as one node.
//   - reservation: a node briefly keeps a released lock free for the head of its queue.
//
// # Compatibility
//
// Until version 1.0 a minor version may change the API, and [CHANGELOG.md] says how. All clients of a node
// must speak one version of the protocol. With [WithRestartGuard], others get errors; without it,
// stop all clients before an upgrade of the protocol.
//
// This package and other Redlock clients on the same keys respect each other's locks, but the restart
// guard does not bind those clients.
//
// [CHANGELOG.md]: https://github.com/quorumlock/quorumlock/blob/main/CHANGELOG.md
// [docs/safety.md]: https://github.com/quorumlock/quorumlock/blob/main/docs/safety.md
// [docs/fencing.md]: https://github.com/quorumlock/quorumlock/blob/main/docs/fencing.md
// [election]: https://pkg.go.dev/github.com/quorumlock/quorumlock/election
// [spread]: https://pkg.go.dev/github.com/quorumlock/quorumlock/spread
// [web]: https://pkg.go.dev/github.com/quorumlock/quorumlock/web
package quorumlock
