package quorumlock

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/observe"
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

// Subscription delivers the events of all leases of a Manager, or those of some kinds; those
// of one lease in the order in which they happened.
//
// The watchdog never waits for a reader, so a reader that is slow misses events once the
// buffer is full. A Lost is never among these: losses that do not fit wait in memory until the
// buffer has room, one for each lease that was lost. A Released gives way to the end of another
// lease only. Of the other events the newest replaces the oldest, or is dropped itself if the
// buffer is full of ends.
//
// After the Manager's Close, the channel still has what its buffer holds, with the ends of
// leases first to stay; a Lost that has found no room until then is dropped.
type Subscription struct {
	// events has the capacity given to Subscribe. Closed by end.
	events  chan Event
	kinds   []EventKind // none for all
	dropped atomic.Uint64
	bus     *bus

	late    []Event        // losses that wait for room in events; guarded by the bus's mutex
	feeding sync.WaitGroup // the goroutine of feed, which runs while late is not empty; Add with the bus's mutex held
	over    chan struct{}  // closed by end; never sent on
}

// C returns the channel of events. Close closes it, and so does the Manager when it has
// closed and sent its last event.
func (s *Subscription) C() <-chan Event { return s.events }

// Dropped returns how many events were dropped because they were not read in time.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription. It is idempotent and safe for concurrent use.
func (s *Subscription) Close() { s.bus.remove(s) }

// longestTurn bounds how many events are looked at to find one that gives way.
const longestTurn = 64

// weight says which events give way: those of less weight to those of more.
func weight(e Event) int {
	switch e.kind() {
	case EventLost:
		return 2
	case EventReleased:
		return 1
	default:
		return 0
	}
}

// put adds an event to the buffer, and never blocks. It returns false for a Lost that has found
// no room. The caller is the only sender.
func (s *Subscription) put(e Event) bool {
	for range longestTurn {
		select {
		case s.events <- e:
			return true
		default:
		}
		select {
		case oldest := <-s.events:
			if weight(oldest) > min(weight(e), 1) {
				// The end of a lease is its last event, so it may move behind others. The room
				// is its own: only the sender fills it.
				s.events <- oldest
				continue
			}
			s.dropped.Add(1)
		default: // a reader was faster
		}
	}
	if weight(e) < 2 {
		s.dropped.Add(1)
		return true
	}
	return false
}

// send is put, except that losses wait for room. The bus's mutex is held.
func (s *Subscription) send(e Event) {
	switch {
	case len(s.kinds) > 0 && !slices.Contains(s.kinds, e.kind()):
	case len(s.late) == 0 && s.put(e):
	case weight(e) < 2: // while losses wait, feed is the only sender
		s.dropped.Add(1)
	default:
		if s.late = append(s.late, e); len(s.late) == 1 {
			s.feeding.Go(s.feed)
		}
	}
}

// feed sends the losses that wait, and ends when none is left, or with the subscription.
func (s *Subscription) feed() {
	for sent := 0; ; sent = 1 {
		s.bus.mu.Lock()
		if s.late = s.late[sent:]; len(s.late) == 0 {
			s.late = nil
			s.bus.mu.Unlock()
			return
		}
		next := s.late[0]
		s.bus.mu.Unlock()
		select {
		case s.events <- next:
		case <-s.over:
			return
		}
	}
}

// end closes the channel. The subscription is no longer one of the bus's, and the bus's mutex is
// not held.
func (s *Subscription) end() {
	close(s.over)
	s.feeding.Wait()
	for _, e := range s.late {
		if !s.put(e) {
			s.dropped.Add(1)
		}
	}
	close(s.events)
}

// bus hands events to the subscriptions.
type bus struct {
	// watched is how many subscriptions there are. While there are none, leases make no
	// events for them.
	watched atomic.Int32

	observers *observe.Observers // of names

	mu     sync.Mutex
	subs   []*Subscription
	closed bool
}

func (b *bus) add(buffer int, kinds []EventKind) *Subscription {
	s := &Subscription{events: make(chan Event, max(buffer, 1)), kinds: slices.Clone(kinds), bus: b, over: make(chan struct{})}
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
	i := slices.Index(b.subs, s)
	if i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
		b.watched.Add(-1)
	}
	b.mu.Unlock()
	if i >= 0 {
		s.end()
	}
}

// send never blocks. The mutex makes it the only sender of the subscriptions for which no loss
// waits.
func (b *bus) send(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s.send(e)
	}
}

func (b *bus) close() {
	b.mu.Lock()
	subs := b.subs
	b.subs, b.closed = nil, true
	b.watched.Store(0)
	b.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
}
