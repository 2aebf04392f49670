// Package quorumlock is a distributed lock manager on Redis. A majority of independent
// masters grants each lease (the Redlock algorithm). A background watchdog renews it, and
// reports a loss before anyone else can get the lock. Every grant carries a fencing token.
//
// # What it promises
//
//   - At most one lease for a name is valid, or only shared ones. The conditions: of the nodes
//     that hold it, at most the margin lose their data or have their clock stepped forward;
//     clock rates differ by less than 1 %; and work stops when [Lease.Valid] is false or the
//     context ends. The margin is how many of them may lose their data before another client
//     could find a majority: 1 of 3, 2 of 5 when all hold the lease. With [WithRestartGuard],
//     a node that was restarted or flushed does not count as lost data, nor does a failover of
//     a [Sentinel] or [ClusterSlot]: the node does not vote until every lease that it may have
//     forgotten is over.
//   - Fencing tokens are unique for a name, and an attempt that began after a grant was over
//     gets a larger one. Expiry, pauses, lost packets, ambiguous replies and clock steps do
//     not break that. A node that loses its data can break it. [WithRestartGuard] with a time
//     Z prevents that. Let C be the largest difference between two nodes' clocks: Z has to
//     exceed C + 2 s, or C + Z/4 if Z is below 8 s, plus the window of [WithFailover].
//     A lease can also pass from one caller to the next in a process. Its token is in order
//     while the first promise holds; if that breaks, the lease that was passed on has the
//     smaller token. A shared lease has a token between those of the writers before and after
//     it; readers between these two may have the same one.
//   - A loss is reported in time: [Lease.Lost] delivers, and the lease's context ends, before
//     another client can be granted the lease, even if every node is silent. This holds
//     within the bounds above, and while the process runs. If a process was stopped until
//     after the end of its lease, its first call of [Lease.Valid] returns false. If the
//     clocks of too many nodes were stepped forward, the next renewal finds it.
//   - No deadlock: the keys of a holder that died expire. Locks are granted while a majority
//     of the nodes is up and votes.
//
// # What it does not promise
//
// Unconditional mutual exclusion. No lease can give that: a holder that is stopped between
// its last check and its write cannot know that its time has passed (Kleppmann, "How to do
// distributed locking", 2016). Either the resource checks [Lease.Token] and refuses one
// below the highest that it has seen, or the step must be safe to repeat. docs/fencing.md in
// the repository shows how databases, object stores and APIs check a token.
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
// [Manager.Acquire] waits for a lease and [Manager.TryAcquire] asks once; [WithWait] bounds
// the wait, and [WithFailFast] waits for a holder only, not for nodes. [Manager.Do] runs a
// function under a lease; [Manager.Lead] campaigns for leadership again and again; package election
// elects the candidate that is best or healthy.
// [Manager.AcquireAll] and [Manager.DoAll] take several names, all or none.
// Two options say what is asked of a name: [Shared] is a read lock, and a call without it the write lock of the
// same name; [Permits] is a semaphore, and elects several leaders in Lead.
// [Manager.Observe] follows who holds a name, [Manager.Inspect] shows it once, and
// [Manager.List] shows the names that are held, and [Manager.InspectAll] names that are given. Package spread runs a
// function for each of N names, spread evenly over the processes of a group. [Lease.Wanted] tells a holder who waits for its
// lease; [Manager.AskRelease] asks for it, and [Manager.Revoke] takes it away, safely. [Lease.Detach] and
// [Manager.Resume] hand a lease to another process.
// [Manager.Leases] shows the leases of this process, and package web shows all of it on a page.
// [Manager.Nodes] shows the health of the nodes, and [Manager.Ready] whether a majority
// votes. [WithStartupWait] lets a program start before its Redis does. Module adapters/goredis makes
// nodes of the options of a go-redis client.
//
// # The life of a lease
//
//	          missed round, or margin 0
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
// Lost and released are final. At the end of a lease, in this order: [Lease.Err] is set, the channels
// of Renewed, AtRisk and Wanted are closed, the context ends with Err as its cause, Done is closed,
// Lost delivers its value (on a loss) and is closed. After a release, Lost waits for the answers of
// the nodes, which may turn Err into a loss.
//
// A closed channel is always ready. A loop that reads Renewed or AtRisk therefore has a case
// for Lost or Done that leaves the loop:
//
//	for careful := false; ; {
//		select {
//		case lost, ok := <-lease.Lost():
//			if !ok { // released, or another reader has had the one value
//				return lease.Err()
//			}
//			return fmt.Errorf("stopped: %v", lost.Reason)
//		case <-lease.AtRisk():
//			careful = true // start nothing irreversible
//		case renewed := <-lease.Renewed():
//			careful = renewed.Margin == 0 // of three nodes or more; one node never has a margin
//		case job := <-jobs:
//			if lease.Valid() { // by the clocks, now
//				job.Run(lease.Context(), careful, lease.Token())
//			}
//		}
//	}
//
// # When a lease stops being valid
//
// With N nodes a majority is q = N/2+1. A node that confirmed the lock to a request sent at
// s keeps it at least until
//
//	e = s + TTL − drift,   drift = 1 % of the TTL + 2 ms
//
// by the clock of this process: s is read before the request leaves, so a slow answer cannot
// stretch the lease. Until D, the q-th largest e, nobody else finds a majority of free
// nodes. Work stops at
//
//	S = D − safety margin,   safety margin = 2 % of the TTL, at least 50 ms, at most a fifth
//
// [Lease.Remaining] counts down to S. The Manager reports a loss 25 ms before S, or half the
// safety margin if that is less. If its recent reports were late, on a busy machine, it adds twice
// that delay, up to a tenth of the TTL. If the process stands still for longer than it lately
// did, Valid is false at S, but Lost may deliver later.
//
// A round of renewal starts every third of the TTL (less 10 %, plus 10 %); each node that
// confirms moves S forward. A round without a majority is repeated with exponential backoff
// from TTL/20. A node that has lost the key gets it back, while the lease is valid and never
// after.
//
// Time is the largest of the monotonic clock, the clock that counts suspends, and a wall
// clock that was set forward: a machine that slept through S finds its leases lost.
//
// # Fencing tokens
//
// Each node keeps a register for a name, which only grows. An attempt proposes the cluster's
// time in µs. A node that gives the attempt the lock moves its register up to the proposal
// in the same step. The attempt wins when it has moved a majority of the registers to one
// value: its token. If registers were ahead of the proposal, the attempt raises the nodes
// that hold its lock to one above the largest register, which costs a second round trip. Any
// two grants share a node. On it each of them set the register to its own token, and a
// register only grows. So the later grant has the larger token, whatever the clocks show. A node forgets a register a day after its last
// move, and then no new register starts below it.
//
// # Events and telemetry
//
// Each lease has channels for what concerns it; [Manager.Subscribe] delivers the events of
// all leases and nodes, or those of some kinds. No reader can hold up a renewal: a channel of a
// lease has a capacity of one and keeps the latest value, a Subscription counts what its buffer
// could not take and keeps every loss, and the context and Done also report a loss.
//
// A call makes OpenTelemetry spans with the provider of the span in its context, so a traced
// request shows its lock waits by itself, linked to the holder that it waited behind;
// [WithTracerProvider] and [WithMeterProvider] set providers. Warnings go to slog.Default(),
// unless [WithLogger] says otherwise.
//
// # For readers of other libraries' code
//
//   - lease: what other libraries call a mutex or a lock; it ends by itself unless renewed.
//   - holder, owner: the holder is the client that has the lease, and [WithHolder] sets a
//     label for people. The owner is the random value of one grant that marks its keys;
//     redsync calls it Value.
//   - fencing token: a number that grows with each grant, for the resource to check. It is
//     not the owner value, which redislock calls Token. [WithoutFencing] turns tokens off;
//     waiters still queue.
//   - margin: how many nodes that hold the lease may lose their data before another client
//     could be granted it.
//   - restart guard: the delayed restart of the Redlock paper, enforced by the clients.
//     [WithTrustEmptyNodes] skips it for a node without any key, for a first deployment.
//   - reservation: a node keeps a released lock free for the head of its queue for a short
//     time. It is not a lease.
//   - reader, writer: a reader holds a shared lease, which others call a read lock, and a
//     writer the exclusive lease of the same name.
//
// # Compatibility
//
// Until version 1.0 a minor version may change the API, and [CHANGELOG.md] says how; a patch
// version does not.
//
// Clients of different versions may use the same nodes while they speak the same version of
// the protocol. It changes only where old and new leases would not exclude each other. With
// [WithRestartGuard] the nodes know which version is in use, and a client of another one gets
// no lease, and an error that names both versions; without the guard, stop all clients first.
// A client that is older than a kind of lock still excludes it: shared leases keep it out,
// though it cannot ask for one.
//
// The key of a lock is the prefix and the name, its value begins with the random owner
// value, and acquiring and releasing are SET NX PX and compare-and-delete in effect. Other
// Redlock clients on the same keys and this package exclude each other.
//
// Sources: redis.io, "Distributed Locks with Redis"; Gray and Cheriton, "Leases", SOSP 1989;
// Burrows, "The Chubby lock service", OSDI 2006; Attiya, Bar-Noy and Dolev, "Sharing Memory
// Robustly in Message-Passing Systems", JACM 1995.
//
// [CHANGELOG.md]: https://github.com/quorumlock/quorumlock/blob/main/CHANGELOG.md
package quorumlock
