package quorumlock

import (
	"cmp"
	"time"

	"github.com/quorumlock/quorumlock/internal/bus"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Event is what a Subscription delivers: Acquired, Renewed, AtRisk, Lost, Released or
// NodeChanged, by value.
type Event interface{ kind() eventKinds }

// eventKinds is a set of kinds of events: one bit for each type.
type eventKinds uint8

// Acquired is sent when a lease is granted.
type Acquired struct {
	Name       string
	Token      int64
	ValidUntil time.Time
	Margin     int
	Shared     bool // it is a shared lease
}

// Renewed is sent when a majority of the nodes has confirmed the lease, or when it is no
// longer at risk.
type Renewed struct {
	Name  string
	Token int64
	// ValidUntil is when work must stop unless the lease is renewed again. It is on the
	// wall clock, for people: programs call Valid and Remaining.
	ValidUntil time.Time
	// Margin is how many of the nodes that hold the lease may lose their data before another
	// client could be granted it. With 0 the lease is valid and at risk. With a single node
	// it is always 0, which does not put the lease at risk.
	Margin int
	// Confirmed is how many nodes have confirmed the lease in this round.
	Confirmed int
}

// AtRisk is sent when a round of renewal has missed its majority, and when the margin has
// fallen to 0: start nothing irreversible, unless the resource checks the token. The lease is still
// valid. A Renewed with a margin above 0 means that it is safe again; with a single node, which
// never has a margin, any Renewed does. (Chubby calls this jeopardy.)
type AtRisk struct {
	Name      string
	Token     int64
	Remaining time.Duration // until work must stop
	Margin    int           // a node that does not answer counts until its key there ends
	Confirmed int           // how many nodes have confirmed the lease in the last round
	Nodes     []*NodeError  // the latest errors, of the nodes that have one
}

// Lost is sent once, when the lease has ended before it was released: before another client can
// be granted it, unless nodes lost its keys.
type Lost struct {
	Name       string
	Token      int64
	Reason     LostReason
	At         time.Time // when it was found lost
	ValidUntil time.Time // when it stopped being valid
	// AnotherFrom is when another client may first hold the lock: D in docs/lease.svg plus the
	// lock delay, or earlier if this process deletes the keys earlier. If the nodes have denied
	// the key (LostRevoked, LostTaken, LostMissing), it is At, and another client may already
	// hold the lock.
	AnotherFrom time.Time
	Nodes       []*NodeError
}

// Wanted says who wants a lease, see Lease.Wanted.
type Wanted struct {
	// Waiters is how many wait: the callers of this process, and the processes in the queue of the node
	// that shows most of them, as Status counts them. One that ended a moment ago may be counted.
	Waiters int
	// Asked means that another client has asked for the lease with Manager.AskRelease: By is the label of
	// that Manager, and Reason is the text given there.
	Asked      bool
	By, Reason string
}

// Released is sent when the holder has released the lease, and the answers of the nodes do not show that it had been
// lost. Another lease may begin before the last of these answers.
type Released struct {
	Name  string
	Token int64
}

// NodeChanged is sent when a node begins to grant locks (Err is nil), when it stops, and when it has
// a problem that needs attention.
type NodeChanged struct {
	Node int
	Addr string
	Err  error // why it grants no locks; nil when it does
	// QuarantinedFor is how much longer it grants no locks, because it may have lost some: Err
	// says how. 0 without a quarantine.
	QuarantinedFor time.Duration
	Warning        error // a problem that needs attention, although the node grants locks
	// Master is the address of the master that a failover group was last connected to; ""
	// for a node that is one server.
	Master string
}

func (Acquired) kind() eventKinds    { return 1 << 0 }
func (Renewed) kind() eventKinds     { return 1 << 1 }
func (AtRisk) kind() eventKinds      { return 1 << 2 }
func (Lost) kind() eventKinds        { return 1 << 3 }
func (Released) kind() eventKinds    { return 1 << 4 }
func (NodeChanged) kind() eventKinds { return 1 << 5 }

// ofTypes returns whether an event has one of the types; nil, which selects all events, for no types.
func ofTypes(types []Event) func(Event) bool {
	if len(types) == 0 {
		return nil
	}
	var set eventKinds
	for _, e := range types {
		switch e.(type) {
		case Acquired, Renewed, AtRisk, Lost, Released, NodeChanged: // but not a user's struct that embeds one, which may be nil
			set |= e.kind()
		}
	}
	return func(e Event) bool { return set&e.kind() != 0 }
}

// NodeStatus is the state of one node; Inspect adds the node's answer about a name.
type NodeStatus struct {
	Addr    string // or the name of a failover group, such as "sentinel:mymaster"
	Master  string `json:",omitzero"` // of a failover group: the server that was last its master; "" for a node that is one server
	Version string // of the server; "" before the first connection, or if INFO is not allowed
	Voting  bool   // it can grant locks now
	// QuarantinedFor is how long the node grants no locks because it may have lost some:
	// it was restarted or flushed or could evict (WithRestartGuard), or its clock was
	// stepped forward.
	QuarantinedFor time.Duration
	Err            error // why it grants no locks; in Inspect's answer, why it did not answer
	Warning        error // a problem that needs attention, as in NodeChanged; in Inspect's answer, also why a node that answers grants no locks
	// RoundTrip is about how long the node takes to answer, and ClockOffset is the node's
	// clock minus this machine's. Both are 0 before the first answer.
	RoundTrip, ClockOffset time.Duration

	// The node's answer about the name; zero from Manager.Nodes.
	Holder  Holder        // zero when the node has no lock
	Readers int           `json:",omitzero"` // how many hold the name together there, with Holder; 0 if Holder has it alone
	TTL     time.Duration `json:",omitzero"` // of the lock; -1 ms for no end, -2 ms if there is none, 0 with Err
	Fence   int64         `json:",omitzero"` // fencing register, or the base that it counts from
}

func nodeStatus(e *ensemble.Ensemble, i int) NodeStatus {
	h := e.Nodes()[i].Health()
	s := NodeStatus{
		Addr: e.Nodes()[i].Addr(), Master: e.Nodes()[i].Master(), Version: h.Identity.Version, QuarantinedFor: h.QuarantineLeft(), Err: h.Err, Warning: h.Warning,
	}
	s.Voting = h.Votes()
	if s.Err == nil {
		s.Err = h.Reason
	}
	if reading, ok := e.Nodes()[i].Reading(); ok {
		now, steady := e.Clock.Both()
		s.RoundTrip = reading.RoundTrip
		s.ClockOffset = time.Duration(steady) + reading.Offset - time.Duration(e.Clock.Time(now).UnixNano())
	}
	return s
}

// LostReason says why a lease was lost, in words. The JSON of Lost and LostError, metrics and spans have one word for
// each: expired, revoked, suspended, max_hold, taken or missing.
type LostReason string

const (
	// LostExpired means that no majority of the nodes confirmed the lease in time.
	LostExpired LostReason = "not renewed in time"
	// LostRevoked means that an operator has revoked the lease (Manager.Revoke). The errors of the nodes
	// say who, and why.
	LostRevoked LostReason = "revoked by an operator"
	// LostSuspended means that the process did not run when the lease ended: a suspend, a
	// stop, or a clock that was set forward.
	LostSuspended LostReason = "process stopped or suspended, or clock set forward"
	// LostMaxHold means that the lease reached the age set by WithMaxHold.
	LostMaxHold LostReason = "held for the maximum time of WithMaxHold"
	// LostTaken means that a node has the key of another owner, and that no majority has the lease's.
	LostTaken LostReason = "taken by another client: too few nodes still hold this lease"
	// LostMissing means that nodes have lost the key, or have ended it early because their clocks were set
	// forward, and that no majority is left. Another owner may have had the lock, or may get it now.
	LostMissing LostReason = "lost by the nodes: too few of them still hold this lease"
)

// slugs are the words for the reasons in JSON, metrics and spans.
var slugs = map[LostReason]string{
	LostExpired: "expired", LostRevoked: "revoked", LostSuspended: "suspended", LostMaxHold: "max_hold", LostTaken: "taken", LostMissing: "missing",
}

func (r LostReason) slug() string { return cmp.Or(slugs[r], "unknown") }

// lostReason translates the decision's reason.
func lostReason(r quorum.Reason) LostReason {
	switch r {
	case quorum.ReasonRevoked:
		return LostRevoked
	case quorum.ReasonSuspended:
		return LostSuspended
	case quorum.ReasonMaxHold:
		return LostMaxHold
	case quorum.ReasonTaken:
		return LostTaken
	case quorum.ReasonMissing:
		return LostMissing
	default:
		return LostExpired
	}
}

// Subscription delivers the events of all leases of a Manager, or events of some kinds. The events
// of one lease arrive in the order in which they happened.
//
// A slow reader misses events once the buffer is full, but no Lost before Close: losses that do
// not fit wait in memory, one for each lease. A Released gives way only to the end of another
// lease. Of the other events the newest replaces the oldest, or is dropped if the buffer is
// full of ends.
//
// After the Manager's Close, the channel still delivers the events in its buffer, in which the
// ends of leases have priority; Dropped counts the rest.
type Subscription struct{ of *bus.Subscription[Event] }

// C returns the channel of events. Close closes it, and so does the Manager when it has
// closed and sent its last event.
func (s *Subscription) C() <-chan Event { return s.of.C() }

// Dropped returns how many events were dropped because they were not read in time.
func (s *Subscription) Dropped() uint64 { return s.of.Dropped() }

// Close ends the subscription. It is idempotent and safe for concurrent use.
func (s *Subscription) Close() { s.of.Close() }

// weight decides which events give way to others.
func weight(e Event) bus.Weight {
	switch e.(type) {
	case Lost:
		return bus.Kept
	case Released:
		return bus.End
	default:
		return bus.News
	}
}
