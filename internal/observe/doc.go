// Package observe asks about locks that others hold. It reports who has the locks that have observers, by polls of all
// nodes. All observers of a lock share one poll, and quorum.Observer decides what has changed.
//
//	timer ─▶ poll ─▶ one read on each node ─▶ the answers ─▶ quorum.Observer ─▶ Deliver
//	  ▲                                                                          │
//	  └────────────── after the interval, or when the holder's keys end ◀────────┘
//
// Ask and Revoke mark the lock of a holder; quorum.Revocation decides when a revoked lease has ended.
//
// Names finds the locks that exist, for lists: it scans one node after the other.
//
// A poll waits for every node that is not known to be silent, for one node timeout at most.
//
// # Goroutines and locks
//
// It has no goroutine of its own: a poll runs in the goroutine of a timer, and its answers arrive in
// the goroutines of the nodes' workers. Close ends the polls, and waits for them. Observers.mu goes before watch.mu,
// and nothing else is locked under either.
package observe
