// Package sim runs the whole lock protocol in a simulated world: nodes with
// clocks of their own, a network that loses, delays, repeats and reorders,
// clients that stop, crash, are closed and come back. It is used by tests only.
//
// The decisions are the production ones: a simulated client drives
// quorum.Claim and quorum.Machine the way the lock manager does, and the
// simulated nodes do what the scripts of internal/node do. Nothing here
// decides a second time, but for what internal/node decides in Go: the restart
// guard's quarantine, and what is a step of a clock; and for the way of a
// waiter's ticket, which the manager decides: which nodes have it in their
// queues, what is told to whom, who lets others go first. Clients stand in line
// or, by chance, ask again and again. What the nodes tell is lost, late and
// doubled like any message; that a queue expires is left out.
//
// A run is a function of its [Params]: one goroutine, no real clock, and every
// choice drawn from one seed. So a run that went wrong goes wrong again:
//
//	go test ./internal/sim -run TestOne -v -seed=4711 -nodes=3 -world=inside
//
// # What is judged
//
//   - overlap: two clients work under one lock at the same instant of true
//     time. Work goes on until the lease ends, and then for the whole guard,
//     which is what the guard is for.
//   - token: a fencing token is not new, or not above that of a grant that had
//     returned before its attempt began.
//   - told: a lease is handed out that is not valid, a loss is told after the
//     stop, or something is told after the end.
//   - leftover: a packet makes a key after the instant it was limited to, or
//     what is over leaves a key on a node that it could reach all the time.
//   - alarm: a step of a clock is found that was none.
//   - liveness: the faults have stopped, and nobody gets the lock.
//   - order: whoever stood first in the queues of all nodes when the lock was
//     released is passed by. It is looked at in runs in which nothing goes wrong.
//
// In the world [Inside] everything that the promise allows goes wrong, and all
// seven must hold. In the world [Anything] clocks step and run wild as well:
// then exclusion cannot hold, and tokens still must. In the world [Stepped]
// the clocks of nodes are set far ahead and back in front of clients that know
// them: then exclusion holds as well, because none of them counts the vote of a
// node that it sees ahead of itself.
package sim
