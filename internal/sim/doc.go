// Package sim runs the whole lock protocol in a simulated world. Nodes have their own
// clocks. The network loses, delays, repeats and reorders messages. Clients pause,
// crash, are closed and come back. Only tests use this package.
//
// The decisions are the production ones. A simulated client drives quorum.Ballot, quorum.Machine, quorum.Waiter,
// quorum.Local, vote.Vote, vote.Look, failover.Tracker and clock.Offset as the Manager does. In one run of four,
// quorum.Observer polls the nodes without taking part in the run. In one run of seven, leases are detached, and other
// clients use copies of their handles: they resume the lease, or give the lock back. The simulated nodes run the
// operations of the script apply. In most runs, a client without a ticket also uses the commands of the lean way; its
// release is the usual one. A client is a process with a few callers. Clients queue or, by chance, poll. A wake-up can be
// lost, late or doubled like any message.
//
// Production makes some decisions outside these types, and this package implements them again: what the nodes have shown
// about a hold (proof.go), the instant of a lease's next round, the greeting and the quarantine of a node (known.go),
// what an answer of the lean way means (lean.go), and which releases are sent again. Other tests must find errors in the
// production code of these, and of what is not simulated: requests that leave a client in another order than the steps
// that caused them, operations that fail inside the script, the expiry of a queue, minimum and maximum holds, lock
// delays, and Verify. A renewal that finds its lease revoked counts as one that finds another owner.
//
// In one run of four, some clients read: they ask for shared leases, and a writer may continue as a reader. The readers
// are drawn from a generator of their own, so the other runs stay as they are.
//
// In about one run of eight, all leases are permits: clients ask for one of up to three slots with quorum.Slots, some
// of them with a smaller limit, and the nodes let them in as permits.lua does. These runs have no readers, handles,
// observers or operators, and each client has one caller. The order in which waiters get permits is not checked, only
// the order in which a node lets them in: waiters that are let in together may change places. Two more things are not
// checked: that one of the calls that ask once at one instant gets a permit, and that a release lets a waiter in at
// once, because waiters also ask by themselves. All runs have tokens: WithoutFencing is not simulated.
//
// A run is a function of its [Params]: it has one goroutine and no real clock, and draws every choice from one seed. So
// a failed run fails again:
//
//	go test ./internal/sim -run TestOne -v -seed=4711 -nodes=3 -world=inside
//
// In one run of five of the world Inside, renewals ask for shorter and longer TTLs, also while a round is under way.
// These runs have no permits and no handles.
//
// # Faults
//
// Messages are lost, late, doubled, overtaken, and for long periods later than the node
// timeout. Nodes go down, lose all or the latest of their data, are flushed, trim their
// registers, stall between scripts and inside one, and get more requests than they can
// process. Clients are paused and suspended, crash, are closed, and their wall clocks
// jump. Token proposals are wrong in most runs. In many runs they are the same for all
// clients.
//
// A node of the world [Groups] may be a failover group of two or three servers, each with data and a clock of its own.
// Replication lags. A failover follows a crash, a split, a freeze or an order. The old master continues to confirm for
// a while. A master may come back with its own old data. Clients learn of a new master late, and some cannot ask for it
// at all.
//
// In one run of three of that world, the groups are slots of a cluster. Sometimes the key of the lock leaves the
// master, which then refuses scripts, and the move is taken back without the key. Lemma FO promises nothing about a
// move that no client noticed while it was open, so such a move is taken back together with its key.
//
// In the world [Together] callers ask once, as TryAcquire does. In half of its runs all of
// them ask at one instant, over distances of their own, and a minority of the nodes is down
// or hangs.
//
// # Oracles
//
//   - overlap: two clients, or two callers of one client, work under one lock at the same instant of true time, and at
//     least one of them does not read. Work continues until the lease ends, and then for the whole safety margin, which
//     exists for that.
//   - token: two grants have a token of their blocks in common, or a token is not above the tokens of a grant that had
//     returned before its attempt began. A lease that is passed on inside a process counts as a grant whose attempt
//     began when a quorum last showed the token. A block of tokens that a check of a hold mints also counts as a grant,
//     and its attempt is the check. A reader's token is odd, and only other readers, including later ones, may have the
//     same one.
//   - readers: a node counts a reader that has not joined the readers that have the lock, or a reader's heal takes a
//     lock that a writer's lease counts on.
//   - permits: a client gets a slot that is not below its limit, or more permits are valid at once than the largest
//     limit. Or a node lets in more waiters than slots are free, or one waiter before another that came earlier. Or it
//     gives a slot to a client that was not let in, although an earlier client waits, or as many waiters are let in as
//     slots are free. The oracles overlap, token and leftover judge each slot as they judge a lock.
//   - reported: a caller gets a lease that is not valid, a loss is reported after the
//     stop, or something is reported after the end.
//   - leftover: a request creates a key after its limit, or for too long. Or an ended attempt or lease leaves a key on
//     a node that was in reach all the time, or is in reach again.
//   - alarm: a client finds a step of a clock that did not step.
//   - liveness: the faults have stopped, and no client gets the lock; or all ask at one instant, and none gets it; or a
//     client waits for a permit while fewer permits than its limit are in use. The last case is not checked with an
//     even number of nodes, or while a client with a smaller limit waits for its slots.
//   - order: the lock is released, and a waiter gets it that is not the head of the queues of all nodes. If the head is
//     a reader, other readers up to the first writer may join it. Or a reader gets the lock before a writer that came
//     earlier and was in all queues when the reader asked. Only runs without faults are checked. If connections keep
//     the order of their messages, no waiter of these runs starts over as if it had missed its reservations.
//   - returned: a release reports no loss although another client was granted the lock before it.
//   - sight: an observer reports no owner, or an owner other than the one that had a majority during its whole poll; or
//     an owner with smaller tokens than one that it has reported.
//   - revocation: a lease that an operator has revoked is valid after the instant by which it must have ended.
//   - handles: two of these happen to one handle: the lease is resumed, the lock is given back, the lease is revoked
//     (but a node that comes back with old data may accept the return of a resumed lock). Or another client is granted
//     the lock between a handle and the lease that resumes it; the token of that lease is not above the token of the
//     detached one; or a request that concerns no handle changes a detached lock.
//   - marker: a client of an earlier term of a group replaces the restart guard's marker of a later one. This costs the
//     group's votes, but not exclusion.
//
// In the world [Inside] every fault of the fault model occurs, and all promises must hold. In the world [Anything] the
// nodes' clocks also step and run at any rate. Exclusion cannot hold there, but the tokens must, also the tokens of
// resumed leases. In the world [Stepped] the clocks of nodes are set far ahead and back, some of them together with a
// client's, while all clients know them. Exclusion also holds there, because no client counts the vote of a node whose
// clock it sees ahead. In the world [Groups] overlap, token, reported, alarm, handles, marker and liveness must hold;
// liveness only if clients do not look for steps.
//
// These bounds of the world [Groups] are assumptions. A majority names each new master, and the next failover comes
// [failoverTime] after that or later. An answer of a majority is less than [failoverTime] old when a client dials.
// Nothing bounds how long an old master continues. The requests of a connection that its client has ended do not reach
// the server.
package sim
