package node

import (
	"errors"
	"time"
)

// Kind is a kind of operation.
type Kind uint8

// The operations; each is the script of its name, which tells what it does.
const (
	Acquire Kind = iota
	Extend
	Heal
	Raise
	Release
	Read
	guard // sent by the node itself
	kinds
)

// releaseTicket is where the arguments of Release begin that are about a ticket.
const releaseTicket = 3

// HandedOn is what Release answers where the lock is kept for somebody who waits
// from now on.
const HandedOn = 2

// MaxBatch is the largest number of locks in one Extend or Heal: a script
// stops the server for everybody while it runs.
const MaxBatch = 128

// String returns the name of the operation in errors and telemetry.
func (k Kind) String() string {
	return [...]string{"acquire", "extend", "heal", "raise", "release", "read", "guard"}[k]
}

// Request is one operation, the same for every node that it is posted to. It
// must not change after it was posted. Keys and arguments are those of the
// script of its kind, less the arguments that only the node knows.
type Request struct {
	Kind Kind
	Keys []string
	Args []string
	// Expires is the instant after which the request is not sent any more. What
	// makes a lock is void by then on the node too: its "not after" is no later.
	Expires time.Duration
	// Insist keeps the request across failures of the connection until it is
	// answered or expires: for releases, which are all that removes a key
	// early.
	Insist bool
}

// Status is what a Reply means.
type Status uint8

const (
	// Done: the script ran; the values of the reply are its answer.
	Done Status = iota + 1
	// Granted: the lock is ours; N is the counter.
	Granted
	// Taken: somebody else has the lock; Value and TTL tell who and for how
	// long. It is the only answer that means contention.
	Taken
	// Unsent: the request was not applied: the node was down, in quarantine,
	// closed, or the request expired in the queue.
	Unsent
	// Unknown: the request may have been applied; the answer did not come.
	Unknown
	// Failed: the node answered an error that may pass (LOADING, BUSY, OOM …).
	Failed
	// Misconfigured: the node answered an error that somebody has to mend
	// (NOPERM, READONLY, WRONGTYPE …).
	Misconfigured
)

// String returns the status as a telemetry attribute.
func (s Status) String() string {
	return [...]string{
		"none", "done", "granted", "taken", "unsent", "unknown", "failed", "misconfigured",
	}[s]
}

// Reply is what came of a Request on one node.
type Reply struct {
	Status Status
	Sent   time.Duration // read before the request went out, for the count of validity
	N      int64         // Granted: counter; Raise, Release: the script's answer
	Many   []int64       // Extend, Heal: one answer for each lock; valid during Receive only
	Place  int64         // Taken: how many are before us in the queue; −1 if we are not in it
	Value  string        // Taken, Read: the lock's value, "" for none
	TTL    time.Duration // Taken, Read: how long it lives; negative for ever or not at all
	Fence  int64         // Read: the fence counter, 0 for none
	Queue  int64         // Read: how many wait
	Err    error         // for Unsent and all below
}

// Receiver gets the replies to posted requests. Receive is called in the
// worker's goroutine, or in that of somebody who posts to a full queue, so it
// must not block, and nobody may post with a lock that Receive takes. The reply
// is valid during the call.
type Receiver interface {
	Receive(node int, req *Request, reply *Reply)
}

// Errors of a node that are not the server's own. They arrive in Reply.Err.
var (
	ErrClosed      = errors.New("closed")
	ErrConnecting  = errors.New("not connected yet")
	ErrExpired     = errors.New("not sent in time")
	ErrLate        = errors.New("refused by the node as too late")
	ErrQuarantined = errors.New("in quarantine: the node was restarted, flushed, able to evict, or never used before")
	ErrStepped     = errors.New("in quarantine: the node's clock was stepped forward")
	ErrReconnected = errors.New("connection changed on the way")
)

// ConfigError is an answer or a property of a node that somebody has to mend.
type ConfigError struct {
	Problem string // what is wrong, with the server's own words where there are any
	Fix     string // what to do
}

// Error returns the problem and the fix.
func (e *ConfigError) Error() string { return e.Problem + ": " + e.Fix }
