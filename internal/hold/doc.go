// Package hold keeps the locks of this process: it renews each one in quorum, finds out that one
// is lost before another client can get it, and releases locks whose leases have ended.
//
// A Lock is a lock that this process holds on the nodes. One lease at a time stands on it, the Tenant: first the lease
// that it was acquired for, then the leases of callers to which it is passed on.
//
//	Open ──▶ held ⇄ at risk ──▶ lost ───────────────▶ remnants are released after the safety margin
//	           │ ▲      │
//	    Vacate │ │ Pass └──▶ released: Free, or End for Close
//	           ▼ │
//	        no tenant ──▶ Free
//
// quorum.Machine makes all decisions; Lock.step carries them out and reports them to the tenant. So the events of a
// lease have one order, whichever goroutine causes them.
//
//	            due                    Extend                 Receive
//	Watchdog ─────────▶ Lock.step ─────────────▶ the nodes ─────────────▶ Lock.step
//
// Goroutines: one watchdog for any number of locks. It never waits for a node: it posts requests, and the workers of
// the nodes deliver the answers.
//
// Mutexes, in the order in which they are taken: the ensemble's Steps, a Lock, then the registry of
// Locks, the schedule or allPosted. No code of a user runs under them. A Tenant is called with the mutex of
// its Lock held, a Queue without.
//
// This package does not decide who gets a lock next: package queue does.
package hold
