package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// This file has the inputs and outputs of a Waiter.

// WakeUp is a message of a node about a ticket. It is a hint: it decides when a
// waiter asks, never what a node answers.
type WakeUp uint8

const (
	// WakeReserved means that the node reserves the lock for the ticket for a grace. A
	// reservation is not a vote, and a lease takes precedence over it.
	WakeReserved WakeUp = iota + 1
	// WakeFree means that the lock is free, and the ticket is the head of the queue. Clients
	// without tickets may be faster.
	WakeFree
	// WakeNext means that the node reserves the lock for a ticket before this one. Its rank
	// is the ticket's among those that the node wakes, from 1 on.
	WakeNext
	// WakeAskAgain means that the node has emptied its queue, because a reservation
	// was not used. Live waiters enter their tickets again when they ask.
	WakeAskAgain
)

// Reaction is what the caller must do after a wake-up.
type Reaction uint8

const (
	// ReactionNone means that the caller does nothing.
	ReactionNone Reaction = iota
	// ReactionReschedule means that At has changed. If it is not after now, the next
	// attempt begins at once.
	ReactionReschedule
	// ReactionUnused means that no waiter has this ticket now. If this process has a
	// lease on the lock, the lease takes the reservation: a heal makes it one more vote.
	// Otherwise a pass gives it to the next waiter.
	ReactionUnused
)

// TicketUpdate is the change to a ticket when a failed attempt is released.
type TicketUpdate uint8

const (
	// TicketNone means that the waiter has no ticket in any queue.
	TicketNone TicketUpdate = iota
	// TicketKeep keeps the place.
	TicketKeep
	// TicketYield keeps the place, but others go first this time.
	TicketYield
	// TicketLeave removes the ticket from the queues of Next.Leave.
	TicketLeave
)

// WaiterConfig describes a waiter. Its zero fields are the usual case.
type WaiterConfig struct {
	Nodes      int
	Arrived    clock.Validity // the instant of the call: the place in the queues
	NotBefore  clock.Validity // the earliest start of the first attempt
	Grace      time.Duration  // how long the nodes reserve the lock for this ticket
	Subscribed Set            // nodes whose wake-ups arrive
	Once       bool           // TryAcquire: asks once and never queues
	Timeout    time.Duration  // with Once: how long a node may take to answer
	Sure       bool           // for a permit: no attempt begins at once on less than a quorum of wake-ups, because nodes may let different waiters in
	Enqueued   bool           // the release of the lease before carried the ticket to all nodes
	Unanswered bool           // the last attempt of this process was not answered in time, see Waiter.Unanswered
}

// Ask is what an attempt carries.
type Ask struct {
	Ticket bool // enter the queue where the lock is taken
	Lapsed Set  // nodes whose reservation was not used: if the lock is free, empty the queue
}

// AttemptResult describes a failed attempt.
type AttemptResult struct {
	Outcome Outcome
	Granted Set
	Failed  Set  // nodes without a usable answer in time, to the acquire or to a raise, or that were not asked
	TooLate bool // a quorum granted, and too little of the lease was left to use it
	// Overtaken means that a quorum granted and answered the raise in time, see Ballot.Overtaken.
	Overtaken bool
	Owner     string // the attempt's owner value
	// Unqueued has, of the failed nodes, those whose queue this attempt certainly did not
	// enter.
	Unqueued Set
	Refusals []Refusal
}

// Next is what follows a failed attempt.
type Next struct {
	At     clock.Validity // the next attempt
	Ticket TicketUpdate
	Leave  Set // with TicketLeave: the nodes in whose queues the ticket may be
	PassOn Set // nodes that reserve the lock for a ticket that has left the queue
	// Missed means that the ticket has come too late for its reservations. Its grace was too short, and its place is At
	// from now on.
	Missed bool
	// Keep means that the votes stay: the attempt is not released, and the next one asks for the same owner value.
	Keep bool
}
