// Package queue has the callers of this process that want one lock: one of them asks the nodes,
// and the lock goes from one to the next, as long as that is safe and fair to the waiters of other
// processes.
//
//	Enter ──▶ Wait ──▶ its turn: ask the nodes (package campaign) ──▶ Granted or Leave
//	            │
//	            └────▶ its turn: a lease, passed on by the one before
//
//	a lease ends ──▶ Finish ──▶ carryOut ──▶ Pass to the next caller
//	                              │ ▲   └──▶ Free, and the next caller asks the nodes
//	                        Check │ │
//	                              └─┘ the nodes say whether others wait
//
// quorum.Local makes all decisions, and Queue carries them out.
//
// Goroutines: none. A queue has a timer, which ends an overdue check and removes an unused queue; Stop stops the
// timers.
//
// Mutexes, in the order in which they are taken: Queues, a Queue, then the mutexes of packages
// campaign and hold. No code of a user runs under them.
//
// This package makes no error of the library: an Obstacle is data. It never asks the nodes for a lock.
package queue
