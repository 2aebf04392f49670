// Package quorum holds every decision of the lock and nothing else: whether an
// attempt has won, which fencing token it gets, until when a lease may be
// trusted, and when it has to be renewed, healed or given up.
//
// All of it is functions of (state, input, now). Nothing here reads a clock,
// draws a random number, blocks, or starts a goroutine; the package imports
// the standard library only. That is what lets the simulator of internal/sim
// drive the very code that runs in production.
//
// Instants are durations since an origin of the caller's choice. The origin
// lies before every instant, and the instant zero means "never held".
//
// # The parts
//
//   - [Tally] counts the answers of one attempt: pending, won, held by another
//     owner, no quorum.
//   - [Ballot] is an attempt: a Tally and the fencing token that follows from
//     its votes.
//   - [Window] is what a holder knows of its keys, and the deadline that
//     follows.
//   - [Machine] is the life of a granted lease: held, at risk, lost or
//     released.
//   - [Waiter] is a call that waits: when it asks, what becomes of its ticket in
//     the queues of the nodes, and what a wake-up means.
//   - [Local] is the queue of the callers in one process, of which one contends.
//   - [HandOff] looks after a lock that was released to a waiter elsewhere.
//
// # The arithmetic
//
// With n nodes a quorum is q = n/2+1. A node that confirmed the key to a
// request sent at s keeps it at least until e = s + TTL − drift, because its
// own clock started later than s and runs at most the drift bound faster. The
// lease is held until D = the q-th largest e: until then q nodes keep the key,
// and no other client can find a quorum of free ones. Work stops at S = D − guard.
//
// Sources: redis.io "Distributed Locks with Redis"; Gray and Cheriton,
// "Leases" (SOSP 1989), for counting from the send; Burrows, "The Chubby lock
// service" (OSDI 2006), for the at-risk state; Attiya, Bar-Noy and Dolev,
// "Sharing Memory Robustly in Message-Passing Systems" (JACM 1995), for
// registers on majorities, which order the tokens.
package quorum
