package hold

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A Tenant is the lease that stands on a Lock.
type Tenant interface {
	// Report tells the lease what has happened to its lock. It runs with the Lock's mutex held, and the events of a
	// lease come in the order in which they happened. Only Settled may follow the end, which is Lost or Released.
	Report(e Event)
}

// A Queue has the callers of this process that want a Lock, and decides what becomes of it.
type Queue interface {
	// Lost reports that the Lock has ended without a release by its Queue. It runs without a mutex.
	Lost(l *Lock)
	// Finish decides what becomes of the Lock, whose lease was released. It returns the pending answers if it releases
	// the Lock, nil otherwise. It runs without a mutex.
	Finish(l *Lock, state quorum.Hold) *ensemble.Answers
}

// Keys is what becomes of the keys of a lock when it ends.
type Keys uint8

const (
	// Deleted means that the keys are deleted, at the end of the minimum hold if there is one.
	Deleted Keys = iota
	// Unseen means that the keys are deleted at once, and no minimum hold keeps the name: no caller has seen the lease, or
	// the one that was to follow it has failed.
	Unseen
	// Delayed means that the keys stay for the safety margin and the lock delay, so that work under the lease can stop.
	// Then the watchdog deletes them.
	Delayed
	// Left means that the keys stay until they expire, or until DeleteKeys: work under them continues, here or in
	// another process.
	Left
)

// An Ending is how a lease ends, and what becomes of the keys of its lock.
type Ending struct {
	What What          // Released, with Detached if another process resumes the lease; Lost, which the machine finds
	Keys Keys          // with Lost they are Delayed
	Keep time.Duration // with Detached: how long each node keeps the keys, from the arrival of its request
}

// What is a set of things that have happened.
type What uint16

const (
	// Opened means that the lease has been granted.
	Opened What = 1 << iota
	// Passed means, with Opened, that the previous lease has passed the lock on.
	Passed
	// Renewed is quorum's Renewed: a quorum has confirmed, or the risk has ended.
	Renewed
	// AtRisk is quorum's AtRisk: a round has missed its quorum, or the margin fell to 0.
	AtRisk
	// RoundOver means that a round of renewal has ended.
	RoundOver
	// Missed means, with RoundOver, that the round has missed its quorum.
	Missed
	// Lost means that the lock was lost: the lease has ended.
	Lost
	// Released means that the lease was released: it has ended.
	Released
	// Detached means, with Released, that the keys stay for the process that resumes the lease.
	Detached
	// Asking means, with Released, that Settled follows.
	Asking
	// Settled means that the answers to a release are in, or that there are none. With Lost, the lease was
	// lost before it was released; Now is the instant of the release.
	Settled
	// Wanted means that others want the lock, or no longer want it.
	Wanted
)

// An Event is what has happened, and how the lock stands then. With an empty What only the stop
// or the state may have changed.
type Event struct {
	What   What
	State  quorum.State
	Reason quorum.Reason  // with Lost
	Free   clock.Validity // with Lost, unless the nodes have denied the lock: the earliest instant at which another client can get it
	// By the validity clock: when the lease began, when this happened, and when work under the lease
	// must stop.
	Granted, Now, Stop clock.Validity
	Token              int64 // with Opened
	// With Opened, Renewed, AtRisk and RoundOver: how many of the nodes that hold the lock may
	// lose their data, and how many have confirmed the round.
	Margin, Confirmed int
	Value             string // of the lock's keys
	Want              *Want  // with Wanted; valid during the call
	// Errors are the latest errors of the nodes, by node; nil for none. Valid during the call.
	Errors []error
}

// Is reports whether one of these things has happened.
func (e *Event) Is(what What) bool { return e.What&what != 0 }
