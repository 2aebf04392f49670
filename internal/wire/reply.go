package wire

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Status is the meaning of a Reply.
type Status uint8

const (
	// Done means that the operation ran; the values of the reply are its answer.
	Done Status = iota + 1
	// Granted means that the lock is ours; Moved and Before describe the register.
	Granted
	// Taken means that another owner has the lock; Held is its value and TTL how long it
	// lives. Only this answer means contention.
	Taken
	// NotApplied means that the request was not applied: the node was down, in quarantine or
	// closed, or the request expired in its queue.
	NotApplied
	// Unknown means that the request may have been applied; its answer was lost.
	Unknown
	// Failed means that the node answered with an error that may pass (LOADING, BUSY, OOM
	// …).
	Failed
	// Misconfigured means that the node answered with an error that an operator must fix
	// (NOPERM, WRONGTYPE …).
	Misconfigured
	// MayRepeat means the same as NotApplied, and that the request may be sent again at
	// once.
	MayRepeat

	// Statuses is the number of values of Status, including 0 for none.
	Statuses = int(MayRepeat) + 1
)

// String returns the status as a telemetry attribute.
func (s Status) String() string {
	return [...]string{
		"none", "done", "granted", "taken", "unsent", "unknown", "failed", "misconfigured", "unsent",
	}[s]
}

// Answers of Extend, Heal, Release, Pass and Mark about one lock. For Heal and Mark, Missing
// means that the request came too late.
const (
	Ours             = 1
	OursWithoutToken = 2  // Extend: the node does not show the lease's token
	OursWithoutVote  = 3  // Extend: the node does not vote, and the key may be one that it has not granted
	HandedOn         = 2  // Release, Pass: the lock is now reserved for a waiter
	RevokedBefore    = 2  // Mark: the lease was revoked already
	Missing          = 0  // there is no lock, or a Pass found none; Extend: or it is reserved for a waiter
	Another          = -1 // another owner has the lock, or the lease was revoked; Mark: or there is no lock
	Unanswered       = -2 // the operation failed; Reply.Err has the error
)

// Want reports that others want a lock that a request prolongs.
type Want struct {
	Lock    int   // its index in the request
	Waiters int64 // tickets in the queue
	Marked  bool  // a client has asked for the lock, or has revoked the lease
	Note    Note  // who, and why
}

// Page is the answer to a Scan.
type Page struct {
	Cursor string // where the next page begins; LastPage after the last one
	Keys   []string
}

// LastPage is the cursor of the last page, and of the first.
const LastPage = "0"

// Readers are the readers that have a lock together.
type Readers struct {
	Count  int64    // with readers that were woken and have not come yet
	Values []string // of some, the longest-lasting first; a Read has 16, and a refusal one
}

// Reply is the result of a Request on one node.
type Reply struct {
	Status   Status
	Sent     clock.Validity // an instant before the request was sent, on the validity clock
	Since    clock.Validity // what was sent since then went over the connection of the answer, in the order of the requests
	Moved    int64          // Granted: the value to which this request moved the register; 0 if the register was ahead
	Before   int64          // Granted, Raise: the register's value before; Raise: −1 for a refusal
	Waiters  int64          // Granted, Raise, Read: tickets in the queue
	N        int64          // Release, Pass, Mark on one lock: the answer
	Again    bool           // the node may have run the request before, and its answer was lost
	Answers  []int64        // Extend, Heal, Release on several locks: one for each; valid during Receive only
	Held     string         // Taken, Read: the lock's value, "" for none
	Readers  *Readers       // Taken, Read: the readers that have the lock together; nil for none
	TTL      time.Duration  // Taken, Read, Mark: how long the lock lives, or had left before the mark; negative for no end or no lock
	FreeSlot int64          // Taken: a slot that may be asked for at once; −1 for none
	// Position is how many tickets are before ours in the queue; −1 if ours is not in it.
	Position int64 // Taken
	// Wants are the locks of an Extend that others want, valid as long as Answers.
	Wants    []Want
	Register int64    // Read
	Tickets  []Ticket // Read of NewInspect: the tickets of the first waiters whose processes the node can wake
	Page     *Page    // Scan
	Err      error    // for NotApplied and all below
}
