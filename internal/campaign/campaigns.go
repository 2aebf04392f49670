package campaign

import (
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/closing"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Config is what campaigns need.
type Config struct {
	Ensemble *ensemble.Ensemble
	Locks    *hold.Locks
	Settings *config.Config
	Manager  string          // 16 hex digits: every ticket begins with them
	Closing  <-chan struct{} // closed when Close begins
}

// Campaigns are the calls of this process that ask the nodes.
type Campaigns struct {
	ensemble *ensemble.Ensemble
	clock    *clock.Clock
	locks    *hold.Locks
	settings *config.Config
	manager  string
	closing  <-chan struct{}
	attempts sync.Pool // of *attempt

	contended  atomic.Bool   // there was contention, so the nodes are to wake this process
	unanswered atomic.Bool   // the last attempt was not answered in time, see quorum.Waiter.Unanswered
	late       atomic.Int64  // by how much this process misses reservations, see quorum.Grace
	last       atomic.Uint64 // the number of the last ticket

	mu         sync.Mutex
	byTicket   map[string]*Campaign
	subscribed quorum.Set // nodes whose messages arrive
}

// New returns the campaigns of a process that has none yet.
func New(c *Config) *Campaigns {
	return &Campaigns{
		ensemble: c.Ensemble, clock: c.Ensemble.Clock, locks: c.Locks, settings: c.Settings, manager: c.Manager, closing: c.Closing,
	}
}

// Contended reports whether this process has met contention.
func (s *Campaigns) Contended() bool { return s.contended.Load() }

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
func (s *Campaigns) ending() bool {
	return closing.Begun(s.closing)
}

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

// mayLock reports whether a key may be that of a lock of this process.
func (s *Campaigns) mayLock(key string) bool {
	lock, _, _ := wire.SlotOf(key)
	name, ours := strings.CutPrefix(lock, s.settings.Prefix)
	return ours && config.CheckName(name) == nil
}

// unused handles a reservation for a ticket that no waiter uses any more. A lock of this process
// takes it, which makes it one more vote. Otherwise the next waiter gets it; that request never
// touches a lease. The node drops the request when it has enough of them: the reservation ends
// with the grace.
func (s *Campaigns) unused(i int, key, ticket string) {
	if l := s.locks.Find(key); l != nil && !l.Over() {
		l.TakeReservations(quorum.Set(0).With(i))
		if _, _, ofSlots := wire.SlotOf(key); !ofSlots {
			return // that was all for which the ticket had a reservation
		}
	}
	_, now := s.clock.Both()
	s.ensemble.Nodes()[i].Post(wire.NewPassOn(key, ticket, now+quorum.MaxGrace), ensemble.Nobody{})
}

// Subscribed handles the start of a node's messages. The node may have woken waiters before, and
// removed them from its queue. others returns the campaigns in the queues of this process. It runs
// when the node is recorded: a campaign that comes to a queue later knows the node, and each other
// one is among these.
func (s *Campaigns) Subscribed(i int, others func() []*Campaign) {
	s.mu.Lock()
	s.subscribed = s.subscribed.With(i)
	var all []*Campaign
	for _, c := range s.byTicket {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range append(all, others()...) {
		c.mu.Lock()
		reaction := c.machine.Subscribed(s.clock.Now(), i, mathrand.Float64())
		c.mu.Unlock()
		if reaction == quorum.ReactionReschedule {
			c.ring()
		}
	}
}
