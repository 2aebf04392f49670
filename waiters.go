package quorumlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// waiter is one call that acquires. It lives until the call has its lease or gives up.
// quorum.Waiter makes its decisions; this type carries them out.
type waiter struct {
	m        *Manager
	terms    *config.Terms
	lock     string
	once     bool            // asks once, as TryAcquire does
	failFast bool            // it has WithFailFast
	ctx      context.Context // ends with the caller's context, or at WithWait's bound
	call     *acquireSpan    // nil without telemetry

	ticket     string        // the member of the nodes' queues; "" for none
	enqueuedAt string        // the score in the queues: the place, µs of the cluster's time
	arrived    time.Duration // when the call came, by the validity clock
	place      time.Duration // the instant of enqueuedAt, by the validity clock: the call, or a later one after missed reservations
	local      *localQueue   // of callers in this process; nil before this one enters it
	id         quorum.CallerID

	// bell has capacity 1 and means that the machine has another At. Never closed.
	bell chan struct{}
	// turn has capacity 1 and means that the caller's turn in this process has come. Sent
	// once for each time that the caller enters the queue, never closed.
	turn chan turn

	mu       sync.Mutex
	machine  quorum.Waiter
	enrolled bool // waiters.byTicket has the ticket
	woken    bool // a node has reserved the lock since the last attempt began
}

// waiters finds waiters by their tickets.
type waiters struct {
	subscribing atomic.Bool  // there was contention, so the nodes are to wake this Manager
	left        atomic.Bool  // the last attempt was not answered in time, see quorum.Waiter.Left
	late        atomic.Int64 // by how much this process misses reservations, see quorum.Grace
	last        atomic.Uint64

	mu         sync.Mutex
	byTicket   map[string]*waiter
	subscribed quorum.Set
}

// find returns the waiter with a ticket, nil for none.
func (s *waiters) find(ticket string) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTicket[ticket]
}

// subscribedNodes returns the nodes whose wake-ups arrive.
func (s *waiters) subscribedNodes() quorum.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscribed
}

// newWaiter returns the waiter of a call.
func (m *Manager) newWaiter(ctx context.Context, lock string, t *config.Terms, once bool) *waiter {
	w := &waiter{m: m, terms: t, lock: lock, once: once, ctx: ctx, arrived: m.clock.Now()}
	w.place = w.arrived
	w.machine = quorum.NewWaiter(w.config(time.Duration(0), false))
	return w
}

// config returns the waiter's configuration for its machine.
func (w *waiter) config(notBefore time.Duration, enqueued bool) quorum.WaiterConfig {
	c := quorum.WaiterConfig{
		Nodes: w.terms.Nodes, Arrived: w.place, NotBefore: notBefore, Once: w.once, Enqueued: enqueued,
		Left: w.m.waiters.left.Load(), Timeout: w.terms.Timeout,
	}
	if w.m.waiters.subscribing.Load() {
		c.Grace, c.Subscribed = w.grace(), w.m.waiters.subscribedNodes()
	} else {
		c.Grace = quorum.MinGrace
	}
	return c
}

// name returns the name of the lock.
func (w *waiter) name() string { return w.lock[len(w.m.cfg.Prefix):] }

// prepare makes the ticket and the channels of a waiter, once.
func (w *waiter) prepare() {
	if w.bell != nil {
		return
	}
	w.bell, w.turn = make(chan struct{}, 1), make(chan turn, 1)
	w.id = quorum.CallerID(w.m.waiters.last.Add(1))
	w.write()
}

// write composes the ticket, and the score of its place.
func (w *waiter) write() {
	_, steady := w.m.clock.Both()
	w.enqueuedAt = strconv.FormatInt(w.m.ensemble.Time(steady+w.place-w.m.clock.Now()).Microseconds(), 10)
	text := strconv.FormatUint(uint64(w.id), 16)
	b := make([]byte, 0, wire.TicketLen+3)
	b = append(b, w.m.id...)
	b = append(b, "0000000000000000"[len(text):]...)
	b = append(b, text...)
	w.ticket = string(strconv.AppendInt(b, w.grace().Milliseconds(), 10))
}

// startOver gives the waiter a ticket with a longer grace and a later place, because it has
// missed its reservations. Its ticket has left the queues.
func (w *waiter) startOver(place time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	late := &w.m.waiters.late
	late.Store(int64(quorum.LaterBy(time.Duration(late.Load()), w.grace())))
	w.place = place
	w.write()
	w.machine.SetGrace(w.grace())
}

// grace is how long the nodes are to reserve the lock for this waiter.
func (w *waiter) grace() time.Duration {
	return quorum.Grace(w.m.ensemble.Trip(), time.Duration(w.m.waiters.late.Load()), w.terms.Timeout)
}

// enrol directs wake-ups for the ticket to this waiter.
func (w *waiter) enrol() {
	s := &w.m.waiters
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket == nil {
		s.byTicket = map[string]*waiter{}
	}
	s.byTicket[w.ticket[:wire.TicketLen]] = w
	w.enrolled = true
}

// forget reverses enrol, and reports whether the ticket was enrolled.
func (w *waiter) forget() bool {
	s := &w.m.waiters
	s.mu.Lock()
	defer s.mu.Unlock()
	was := w.enrolled
	if was {
		delete(s.byTicket, w.ticket[:wire.TicketLen])
		w.enrolled = false
	}
	return was
}

// turn is what a turn of this process costs the others, see quorum.Turn.
func (m *Manager) turn() time.Duration {
	return quorum.Turn(m.ensemble.Trip(), time.Duration(m.waiters.late.Load()))
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

// onWake handles a wake-up. Any client that may publish can send such a message, as often
// as it likes and of any size. So onWake keeps nothing of a message, and ignores tickets that
// this Manager has not issued, and names that no lock has.
func (m *Manager) onWake(i int, kind wire.WakeKind, ticket, lock string) {
	what, rank := wakeUp(kind)
	if what == 0 || !m.issued(ticket) || !m.mayLock(lock) {
		return
	}
	w := m.waiters.find(ticket)
	if w == nil {
		if what == quorum.WakeReserved || what == quorum.WakeFree {
			m.unused(i, lock, ticket)
		}
		return
	}
	if w.lock != lock {
		return
	}
	w.mu.Lock()
	reaction := w.machine.Wake(m.clock.Now(), i, what, rank, mathrand.Float64())
	w.woken = w.woken || what == quorum.WakeReserved || what == quorum.WakeFree
	w.mu.Unlock()
	switch reaction {
	case quorum.ReactionReschedule:
		w.ring()
	case quorum.ReactionUnused:
		m.unused(i, lock, ticket)
	}
}

// unused handles a reservation for a ticket that no waiter uses any more. A lease of this
// Manager takes it, which makes it one more vote. Otherwise the next waiter gets it.
func (m *Manager) unused(i int, lock, ticket string) {
	if l := m.dog.Find(lock); l != nil && !l.Over() {
		l.TakeReservations(quorum.Set(0).With(i))
		return
	}
	m.passOn(i, lock, ticket)
}

// issued reports whether this Manager has issued a ticket: its id and a number that it has
// given out.
func (m *Manager) issued(ticket string) bool {
	digits, mine := strings.CutPrefix(ticket, m.id)
	number, err := strconv.ParseUint(digits, 16, 64)
	return mine && err == nil && number > 0 && number <= m.waiters.last.Load() && strings.ToLower(digits) == digits
}

// mayLock reports whether a key may be that of a lock of this Manager.
func (m *Manager) mayLock(lock string) bool {
	name, ours := strings.CutPrefix(lock, m.cfg.Prefix)
	return ours && len(name) <= MaxNameLen && checkName(name) == nil
}

// passOn lets a node reserve the lock for the waiter after a ticket that nobody uses. It
// never touches a lease. The node drops the request when it has enough of them: the
// reservation ends with the grace.
func (m *Manager) passOn(i int, lock, ticket string) {
	_, now := m.clock.Both()
	m.ensemble.Nodes()[i].Post(wire.NewPassOn(lock, ticket, now+quorum.MaxGrace), ensemble.Nobody{})
}

// onSubscribed handles the start of a node's wake-ups. The node may have woken waiters
// before the subscription, and removed them from its queue.
func (m *Manager) onSubscribed(i int) {
	m.waiters.mu.Lock()
	m.waiters.subscribed = m.waiters.subscribed.With(i)
	all := make([]*waiter, 0, len(m.waiters.byTicket))
	for _, w := range m.waiters.byTicket {
		all = append(all, w)
	}
	m.waiters.mu.Unlock()
	m.locals.each(func(w *waiter) { all = append(all, w) })
	for _, w := range all {
		w.mu.Lock()
		reaction := w.machine.Subscribed(m.clock.Now(), i, mathrand.Float64())
		w.mu.Unlock()
		if reaction == quorum.ReactionReschedule {
			w.ring()
		}
	}
}

// subscribe makes the nodes wake this Manager from now on, because there is contention.
func (m *Manager) subscribe() {
	if m.waiters.subscribing.Swap(true) {
		return
	}
	for _, n := range m.ensemble.Nodes() {
		n.Subscribe()
	}
}

func (w *waiter) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

// begin starts an attempt of the machine.
func (w *waiter) begin() quorum.Ask {
	w.mu.Lock()
	defer w.mu.Unlock()
	ask := w.machine.Begin(w.m.clock.Now())
	if w.woken {
		w.woken = false
		w.call.woken() // a note: the span hears of it at its end
	}
	if ask.Ticket {
		w.prepare()
		if !w.enrolled {
			w.enrol()
		}
	}
	return ask
}

// won records that an attempt got the lock l. It returns the nodes that reserve the lock
// for the ticket. a.mu is held.
func (w *waiter) won(l *hold.Lock, granted quorum.Set) (reserved quorum.Set) {
	if w.ticket == "" {
		return 0
	}
	w.mu.Lock()
	reserved = w.machine.Won(granted)
	late := &w.m.waiters.late
	if by := late.Load(); by > 0 && w.machine.Relied() {
		late.Store(int64(quorum.EarlierBy(time.Duration(by))))
	}
	w.mu.Unlock()
	if w.forget() {
		l.RecordTicket(w.ticket, quorum.All(w.terms.Nodes)&^granted, reserved)
	}
	return reserved
}

// done ends a waiter without a lease: its ticket leaves the queues.
func (w *waiter) done() {
	if w.ticket == "" {
		return
	}
	w.mu.Lock()
	leave, passOn := w.machine.Done()
	w.mu.Unlock()
	w.forget()
	w.leaveQueues(leave | passOn)
}

// leaveQueues removes the ticket from the queues of these nodes.
func (w *waiter) leaveQueues(nodes quorum.Set) { w.m.ensemble.LeaveQueues(w.lock, w.ticket, nodes) }

// randomHex returns n random hex digits.
func randomHex(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)
}
