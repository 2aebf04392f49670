// Package quorum makes every decision of the lock and does nothing else. It decides
// whether an attempt has won, which fencing token it gets, how long a lease is
// valid, and when to renew, heal or end it.
//
// Every decision is a function of (state, input, now). The package reads no clock,
// draws no random number, does not block, and starts no goroutine. It imports only
// the standard library. So the simulator of internal/sim can drive the same code
// that runs in production.
//
// An instant is a duration since an origin that the caller chooses. The origin
// lies before every instant, and the instant zero means "never held".
//
// # The parts
//
//   - [Tally] counts the answers of one attempt: pending, won, held by another
//     owner, no quorum.
//   - [Ballot] is an attempt: a Tally and the fencing token that follows from
//     its votes.
//   - [Window] is what a holder knows about its keys, and the deadline that
//     follows.
//   - [Machine] is the life of a granted lease: held, at risk, lost or
//     released.
//   - [Waiter] is a call that waits. It decides when the call asks, where its
//     ticket stays in the queues of the nodes, and what a wake-up means.
//   - [Local] is the queue of the callers in one process. One of them contends.
//   - [Grace] and [Turn] say how long a process needs to use a reservation, and what
//     its turns cost the others.
//
// # The arithmetic
//
// With n nodes a quorum is q = n/2+1. If a node confirms the key to a request sent
// at s, it keeps the key at least until e = s + TTL − drift. The node starts to
// count later than s, and its clock runs at most the drift bound faster. The lease
// is held until D, the q-th largest e. Until then q nodes keep the key, so no other
// client can find a quorum of free nodes. Work stops at S = D − safety margin.
//
// Sources: redis.io "Distributed Locks with Redis"; Gray and Cheriton,
// "Leases" (SOSP 1989), for counting from the send; Burrows, "The Chubby lock
// service" (OSDI 2006), for the at-risk state; Attiya, Bar-Noy and Dolev,
// "Sharing Memory Robustly in Message-Passing Systems" (JACM 1995), for
// registers on majorities, which order the tokens.
package quorum
