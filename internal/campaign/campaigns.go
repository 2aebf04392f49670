package campaign

import (
	"context"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Call is what a call asks for.
type Call struct {
	Wait        context.Context // ends with the caller's context, or with the time for which it waits
	Key         string          // of the lock of the name
	Terms       *config.Terms
	Once        bool   // it asks once, as TryAcquire does
	Kind        Kind   // nil for Exclusive
	TraceParent string // of the call's span, for callers that wait behind the lock; "" for none
	Caller      Caller
}

// Caller takes what a campaign wins. The methods run once an attempt has won, under its mutex.
type Caller interface {
	// Open returns the lock to open, and the lease on it.
	Open() (*hold.Lock, hold.Tenant)
	// Queue returns the queue of the callers of this process that want the lock, nil for none.
	Queue() hold.Queue
}

// Kind is what a call asks the nodes for. A campaign and its attempts do not know which kind they have: each place
// where the kinds differ is a method here. Methods that take a campaign run under its mutex, and methods that take
// an attempt under the attempt's mutex, unless they say otherwise.
type Kind interface {
	// Queues reports whether the call waits behind the other callers of this process that want the name. Otherwise
	// it waits for the nodes alone, because it may get the lock together with others.
	Queues() bool

	// begin prepares a campaign whose key is the key of the name.
	begin(c *Campaign)
	// key returns the key of the lock that the next attempt asks for.
	key(c *Campaign) string
	// named records that a message of node i has named a slot; -1 if it has not.
	named(i, slot int)
	// mark appends the part of a ticket that shows the kind.
	mark(ticket []byte) []byte
	// sure reports whether only a majority of messages is a reason to ask.
	sure() bool

	// propose makes the value of the lock, and proposes a token. No other goroutine has the attempt yet.
	propose(a *attempt)
	ballot(a *attempt) quorum.Ballot
	// acquisition completes the first request.
	acquisition(of wire.Acquisition) wire.Acquisition
	// entry returns what the nodes keep for the attempt. It needs no mutex.
	entry(a *attempt) wire.Entry

	// refused completes what the refusal of a node means. ticket is whether the request had one.
	refused(r refusal, reply *wire.Reply, ticket bool) refusal
	// result completes what the Waiter's decisions need to know.
	result(a *attempt, r *quorum.AttemptResult)
	// elsewhere begins an attempt for another lock, if the one before was refused and that may help. It locks both
	// mutexes.
	elsewhere(c *Campaign, a *attempt, f *Failure) bool
	// undo returns the request that releases what an attempt has made, after it has failed.
	undo(a *attempt, update wire.TicketUpdate, expires clock.Steady) *wire.Request

	// record makes a lock that was won remember its ticket. others are the nodes that have not granted it, and reserved
	// the nodes that may have reserved it. It returns the nodes that takeUp must know. It needs no mutex.
	record(l *hold.Lock, ticket string, others, reserved quorum.Set) quorum.Set
	// takeUp uses the reservations on nodes that have refused a lock that was won. It needs no mutex.
	takeUp(c *Campaign, l *hold.Lock, refused quorum.Set)
	// passedBy handles nodes that have not granted a lock that was won. It needs no mutex.
	passedBy(c *Campaign, nodes quorum.Set)
}

// Config is what campaigns need.
type Config struct {
	Ensemble *ensemble.Ensemble
	Locks    *hold.Locks
	Prefix   string // of the keys of the locks; in a whole cluster each bucket has its own
	Unfenced bool
	Manager  string          // 16 hex digits: every ticket begins with them
	Closing  context.Context // ends when Close begins
}

// Campaigns are the calls of this process that ask the nodes.
type Campaigns struct {
	ensemble *ensemble.Ensemble
	clock    *clock.Clock
	locks    *hold.Locks
	prefix   string
	unfenced bool
	manager  string
	closing  context.Context
	attempts sync.Pool // of *attempt

	contended  atomic.Bool   // there was contention, so the nodes are to wake this process
	unanswered atomic.Bool   // the last attempt was not answered in time, see quorum.Waiter.Unanswered
	late       atomic.Int64  // by how much this process misses reservations, see quorum.Grace
	last       atomic.Uint64 // the number of the last ticket
	voted      atomic.Uint32 // the quorum.Set of nodes that have ever answered a call with their vote or a refusal

	mu         sync.Mutex
	byTicket   map[string]*Campaign
	subscribed quorum.Set // nodes whose messages arrive
}

// New returns the campaigns of a process that has none yet.
func New(c *Config) *Campaigns {
	return &Campaigns{
		ensemble: c.Ensemble, clock: c.Ensemble.Clock, locks: c.Locks, prefix: c.Prefix, unfenced: c.Unfenced, manager: c.Manager, closing: c.Closing,
	}
}

// Contended reports whether this process has met contention.
func (s *Campaigns) Contended() bool { return s.contended.Load() }

// Voted returns the nodes that have ever granted a name to this client, or refused it because of another owner.
func (s *Campaigns) Voted() quorum.Set { return quorum.Set(s.voted.Load()) }

// subscribe makes the nodes wake this process from now on, because there is contention.
func (s *Campaigns) subscribe() {
	if s.contended.Swap(true) {
		return
	}
	for _, n := range s.ensemble.Nodes() {
		n.Subscribe()
	}
}

// Woken reports whether a quorum of nodes can wake a waiter of this process, and a waiter may be in
// their queues.
func (s *Campaigns) Woken() bool {
	return s.subscribedNodes().Len() >= s.ensemble.Quorum() && !s.unanswered.Load()
}

// Turn is what a turn of this process costs the others, see quorum.Turn.
func (s *Campaigns) Turn() time.Duration {
	return quorum.Turn(s.ensemble.Trip(), time.Duration(s.late.Load()))
}

// grace is how long the nodes are to reserve a lock for a waiter of this process.
func (s *Campaigns) grace(t *config.Terms) time.Duration {
	return quorum.Grace(s.ensemble.Trip(), time.Duration(s.late.Load()), t.Timeout)
}

// missed records that a waiter has missed its reservations.
func (s *Campaigns) missed(grace time.Duration) {
	s.late.Store(int64(quorum.LaterBy(time.Duration(s.late.Load()), grace)))
}

// used records that a waiter has used its reservations.
func (s *Campaigns) used() {
	if by := s.late.Load(); by > 0 {
		s.late.Store(int64(quorum.EarlierBy(time.Duration(by))))
	}
}

// ending reports whether Close has begun.
func (s *Campaigns) ending() bool { return s.closing.Err() != nil }

func (s *Campaigns) find(ticket string) *Campaign {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTicket[ticket]
}

func (s *Campaigns) subscribedNodes() quorum.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscribed
}

// enrol directs messages about a ticket to its campaign.
func (s *Campaigns) enrol(ticket string, c *Campaign) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket == nil {
		s.byTicket = map[string]*Campaign{}
	}
	s.byTicket[ticket[:wire.TicketLen]] = c
}

// forget reverses enrol.
func (s *Campaigns) forget(ticket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byTicket, ticket[:wire.TicketLen])
}

// Wake handles a message of node i about a ticket. Any client that may publish can send such a
// message, as often as it likes and of any size. So Wake keeps nothing of a message, and ignores
// tickets that this process has not issued, and names that no lock has.
func (s *Campaigns) Wake(i int, kind wire.WakeKind, ticket, key string) {
	what, rank := wakeUp(kind)
	if what == 0 || !s.issued(ticket) || !s.mayLock(key) {
		return
	}
	lock, slot, ofSlots := wire.SlotOf(key)
	c := s.find(ticket)
	if c == nil {
		if what == quorum.WakeReserved || what == quorum.WakeFree {
			s.unused(i, key, ticket)
		}
		return
	}
	if ofSlots {
		lock = wire.FamilyKey(lock)
	}
	if c.Key == lock && c.wake(i, what, rank, slot) == quorum.ReactionUnused {
		s.unused(i, key, ticket)
	}
}

// wakeUp returns what a message of a node means, 0 for one that is unknown.
func wakeUp(kind wire.WakeKind) (what quorum.WakeUp, rank int) {
	switch rank = kind.Rank(); {
	case rank > 0:
		what = quorum.WakeNext
	case kind == wire.WakeReserved:
		what = quorum.WakeReserved
	case kind == wire.WakeFree:
		what = quorum.WakeFree
	case kind == wire.WakeAskAgain:
		what = quorum.WakeAskAgain
	}
	return what, rank
}

// issued reports whether this process has issued a ticket: its id and a number that it has given
// out.
func (s *Campaigns) issued(ticket string) bool {
	digits, mine := strings.CutPrefix(ticket, s.manager)
	number, err := strconv.ParseUint(digits, 16, 64)
	return mine && err == nil && number > 0 && number <= s.last.Load() && strings.ToLower(digits) == digits
}

// Manager returns what the tickets of this process begin with.
func (s *Campaigns) Manager() string { return s.manager }

// mayLock reports whether a key may be the key of a lock of this process.
func (s *Campaigns) mayLock(key string) bool {
	lock, _, _ := wire.SlotOf(key)
	name, ours := strings.CutPrefix(lock, s.prefix)
	return ours && config.CheckName(name) == nil
}

// unused handles a reservation for a ticket that no waiter uses any longer. A lock of this process takes it, which
// makes it one more vote. Otherwise the next waiter gets it; that request never touches a lease. The node drops the
// request when it has enough of them: the reservation ends with the grace.
func (s *Campaigns) unused(i int, key, ticket string) {
	if l := s.locks.Find(key); l != nil && l.TakeReservations(quorum.Set(0).With(i)) {
		if _, _, ofSlots := wire.SlotOf(key); !ofSlots {
			return // that was all for which the ticket had a reservation
		}
	}
	_, now := s.clock.Both()
	s.ensemble.Nodes()[i].Post(wire.NewPassOn(key, ticket, now.Add(quorum.MaxGrace)), ensemble.Nobody{})
}

// Subscribed handles the start of a node's messages. The node may have woken waiters before, and
// removed them from its queue. A campaign that enrols later knows the node, and the others learn of
// it here.
func (s *Campaigns) Subscribed(i int) {
	s.mu.Lock()
	s.subscribed = s.subscribed.With(i)
	all := slices.Collect(maps.Values(s.byTicket))
	s.mu.Unlock()
	for _, c := range all {
		c.mu.Lock()
		reaction := c.machine.Subscribed(s.clock.Now(), i, mathrand.Float64())
		c.mu.Unlock()
		if reaction == quorum.ReactionReschedule {
			c.ring()
		}
	}
}
