// Package sim runs the whole lock protocol in a simulated world: nodes with
// clocks of their own, a network that loses, delays, repeats and reorders,
// clients that stop, crash, are closed and come back. It is used by tests only.
//
// The decisions are the production ones: a simulated client drives
// quorum.Ballot, quorum.Machine, quorum.Waiter, quorum.Local, quorum.HandOff and
// clock.Offset the way the lock manager does, and the simulated nodes run the
// operations of the script apply. Two things that production decides outside of
// these are decided here a second time: the restart guard's quarantine, and what
// the nodes have shown of a hold (proof.go). A client is a process with a few
// callers. Clients queue or, by chance, poll. A wake-up is lost, late and doubled like
// any message. The expiry of a queue is left out.
//
// A run is a function of its [Params]: one goroutine, no real clock, and every
// choice drawn from one seed. So a run that went wrong goes wrong again:
//
//	go test ./internal/sim -run TestOne -v -seed=4711 -nodes=3 -world=inside
//
// # Faults
//
// Messages are lost, late, doubled, overtaken, and for long later than the node
// timeout. Nodes go down, lose all or the latest of their data, are flushed,
// trim their registers, stand still between scripts and inside one, and get
// more requests than they can serve. Clients are paused and suspended, crash,
// are closed, and their wall clocks jump. Proposals of tokens are wrong in most
// runs, and in many of them the same for all clients.
//
// # Oracles
//
//   - overlap: two clients work under one lock at the same instant of true
//     time, or two callers of one. Work goes on until the lease ends, and then for the whole guard:
//     the guard is there for that.
//   - token: two grants have a token of their blocks in common, or a token is
//     not above those of a grant that had returned before its attempt began. A
//     lease that is passed on inside a process is a grant of its own; its
//     attempt began when a quorum last showed the token. So is the block of
//     tokens that a check of a hold has minted; its attempt is the check.
//   - reported: a lease is handed out that is not valid, a loss is reported after
//     the stop, or something is reported after the end.
//   - leftover: a packet makes a key after the instant it was limited to, or
//     for too long; or an attempt or a lease that is over leaves a key on a node
//     that was in reach all the time, or is in reach again.
//   - alarm: a step of a clock is found, and there was none.
//   - liveness: the faults have stopped, and no client gets the lock.
//   - order: the head of the queues of all nodes is passed by when the lock is
//     released. Only runs without faults are looked at.
//
// In the world [Inside] everything that the promise allows goes wrong, and all
// seven must hold. In the world [Anything] the nodes' clocks step and run wild
// as well: then exclusion cannot hold, and tokens still must. In the world
// [Stepped] the clocks of nodes are set far ahead and back, some of them
// together with a client's, in front of clients that know them: then exclusion
// holds as well, because no client counts the vote of a node that it sees ahead
// of itself.
package sim
