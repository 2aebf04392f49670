// Package campaign asks the nodes for a lock, attempt after attempt, until one wins.
//
// A Campaign is one call that acquires. An attempt is one round of asking every node. The caller
// drives both:
//
//	          due          granted
//	Sleep ─────────▶ Try ──────────▶ the lock is open (package hold)
//	  ▲               │ failed
//	  │               ▼
//	  └─────────── Concede: the attempt is released, the ticket moves
//
// quorum.Waiter decides when the next attempt is due, and what the ticket does in the queues of
// the nodes; quorum.Ballot decides whether an attempt has won. A message of a node may make an
// attempt due at once: Campaigns finds the Campaign by its ticket.
//
// A Kind is what the call asks for: an exclusive lease, a shared one, a permit, or a lease that was detached. Campaign
// and attempt do not know which kind they have.
//
// Goroutines: one for each question to a user's backoff (delays.go); one that hangs is left behind.
// Otherwise a call runs in its caller's goroutine, and the workers of the nodes deliver answers
// and messages.
//
// Mutexes, in the order in which they are taken: an attempt, a Campaign, then the mutexes of
// package hold, then Campaigns. No code of a user runs under them.
//
// This package makes no error of the library: a Failure is data. It knows nothing about the other callers of its
// process: package queue does.
package campaign
