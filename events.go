package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Event is what a Subscription delivers: Acquired, Renewed, AtRisk, Lost, Released or
// NodeChanged, by value.
type Event interface{ kind() EventKind }

// EventKind is a kind of Event, for Subscribe.
type EventKind int

// The kinds of events, each named like its type.
const (
	EventAcquired EventKind = iota + 1
	EventRenewed
	EventAtRisk
	EventLost
	EventReleased
	EventNodeChanged
)

// Acquired is sent when a lease is granted.
type Acquired struct {
	Name       string
	Token      int64
	ValidUntil time.Time
	Margin     int
}

// Renewed is sent when a majority of the nodes has confirmed the lease, or when it is no
// longer at risk.
type Renewed struct {
	Name  string
	Token int64
	// ValidUntil is when work has to stop unless the lease is renewed again. It is on the
	// wall clock, for people: programs call Valid and Remaining.
	ValidUntil time.Time
	// Margin is how many of the nodes that hold the lease may lose their data before
	// another client could be granted it. With 0 the lease is valid and at risk; but a single
	// node always has 0, and is not at risk for it.
	Margin int
	// Confirmed is how many nodes have confirmed the lease in this round.
	Confirmed int
}

// AtRisk is sent when a round of renewal has missed its majority, and when the margin has
// fallen to 0: start nothing irreversible. The lease is still valid. A Renewed with a margin
// above 0 means that it is safe again; with a single node, which never has a margin, any
// Renewed does. (Chubby calls this jeopardy.)
type AtRisk struct {
	Name      string
	Token     int64
	Remaining time.Duration // until work has to stop
	Margin    int
	Confirmed int          // how many nodes have confirmed the lease in the last round
	Nodes     []*NodeError // the latest errors, of the nodes that have one
}

// Lost is sent once, when the lease has ended before it was released: at or before the
// instant at which another client could be granted it.
type Lost struct {
	Name       string
	Token      int64
	Reason     LostReason
	At         time.Time // when it was found lost
	ValidUntil time.Time // when it stopped being valid
	Nodes      []*NodeError
}

// Released is sent when the holder has released the lease.
type Released struct {
	Name  string
	Token int64
}

// NodeChanged is sent when a node begins to vote (Err is nil), stops voting, or has
// something that somebody should look at.
type NodeChanged struct {
	Node int
	Addr string
	Err  error // why it does not vote; nil when it does
	// QuarantinedFor is how long its votes do not count yet, because it may
	// have lost locks: Err says how. 0 without a quarantine.
	QuarantinedFor time.Duration
	Warning        error // what somebody should look at, though the node votes
	// Master is the address of the master that a failover group was last connected to; ""
	// for a node that is one server.
	Master string
}

func (Acquired) kind() EventKind    { return EventAcquired }
func (Renewed) kind() EventKind     { return EventRenewed }
func (AtRisk) kind() EventKind      { return EventAtRisk }
func (Lost) kind() EventKind        { return EventLost }
func (Released) kind() EventKind    { return EventReleased }
func (NodeChanged) kind() EventKind { return EventNodeChanged }

// LostReason says why a lease was lost.
type LostReason int

const (
	// LostExpired means that no majority of the nodes confirmed the lease in time.
	LostExpired LostReason = iota + 1
	// LostRevoked means that nodes have lost the key or have another's, and that no majority
	// is left.
	LostRevoked
	// LostSuspended means that the process did not run when the lease ended: a suspend, a
	// stop, or a clock that was set forward.
	LostSuspended
	// LostMaxHold means that the lease reached the age set by WithMaxHold.
	LostMaxHold
)

// String returns the reason in words.
func (r LostReason) String() string {
	switch r {
	case LostExpired:
		return "not renewed in time"
	case LostRevoked:
		return "key gone or taken on a quorum of nodes"
	case LostSuspended:
		return "process or clock stood still"
	case LostMaxHold:
		return "maximum hold reached"
	default:
		return "unknown"
	}
}

// slug returns the reason as a telemetry attribute.
func (r LostReason) slug() string {
	return [...]string{"unknown", "expired", "revoked", "suspended", "max_hold"}[max(0, min(int(r), 4))]
}

// lostReason translates the decision's reason.
func lostReason(r quorum.Reason) LostReason {
	switch r {
	case quorum.ReasonRevoked:
		return LostRevoked
	case quorum.ReasonSuspended:
		return LostSuspended
	case quorum.ReasonMaxHold:
		return LostMaxHold
	default:
		return LostExpired
	}
}
