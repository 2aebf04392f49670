package quorumlock

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Event is what a Subscription delivers: Acquired, Renewed, AtRisk, Lost, Released or
// NodeChanged, by value.
type Event interface{ event() }

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

func (Acquired) event()    {}
func (Renewed) event()     {}
func (AtRisk) event()      {}
func (Lost) event()        {}
func (Released) event()    {}
func (NodeChanged) event() {}

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

// Subscription delivers the events of all leases of a Manager; those of one lease in the
// order in which they happened.
type Subscription struct {
	// events has the capacity given to Subscribe. When it is full, the newest event
	// replaces the oldest: the watchdog never waits for a reader, and a slow reader misses
	// the oldest events. That may be the end of a lease, which the lease's own channel and
	// context report too. Closed by the subscription's Close and the Manager's.
	events  chan Event
	dropped atomic.Uint64
	bus     *bus
}

// C returns the channel of events. Close closes it, and so does the Manager when it has
// closed and sent its last event.
func (s *Subscription) C() <-chan Event { return s.events }

// Dropped returns how many events gave way to newer ones because they were not read in
// time.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription. It is idempotent and safe for concurrent use.
func (s *Subscription) Close() { s.bus.remove(s) }

// bus hands events to the subscriptions.
type bus struct {
	// watched is how many subscriptions there are. While there are none, leases make no
	// events for them.
	watched atomic.Int32

	mu     sync.Mutex
	subs   []*Subscription
	closed bool
}

func (b *bus) add(buffer int) *Subscription {
	s := &Subscription{events: make(chan Event, max(buffer, 1)), bus: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(s.events)
		return s
	}
	b.subs = append(b.subs, s)
	b.watched.Add(1)
	return s
}

func (b *bus) remove(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.subs, s); i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
		b.watched.Add(-1)
		close(s.events)
	}
}

// send never blocks: b.mu makes it the only sender, so the place that it frees
// in a full buffer is its own.
func (b *bus) send(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		select {
		case s.events <- e:
			continue
		default:
		}
		select {
		case <-s.events:
			s.dropped.Add(1)
		default:
		}
		s.events <- e
	}
}

func (b *bus) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.subs {
		close(s.events)
	}
	b.subs = nil
	b.watched.Store(0)
}
