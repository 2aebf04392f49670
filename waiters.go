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

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// minGrace and maxGrace bound how long a node reserves a lock for the waiter that it has
// woken. The waiter must ask for the lock within that time.
const (
	minGrace = 20 * time.Millisecond
	maxGrace = 200 * time.Millisecond
)

// waiter is one call that acquires. It lives as long as nodes may know its ticket: until
// the call gives up, or until every node has granted its lease. quorum.Waiter makes its
// decisions; this type carries them out.
type waiter struct {
	m     *Manager
	terms *terms
	lock  string
	once  bool            // asks once, as TryAcquire does
	ctx   context.Context // ends with the caller's context, or at WithWait's bound
	call  *acquireSpan    // nil without telemetry

	ticket     string        // the member of the nodes' queues; "" for none
	enqueuedAt string        // the score in the queues: the instant of the call, µs of the cluster's time
	arrived    time.Duration // the same instant by the validity clock
	local      *localQueue   // of callers in this process; nil before this one enters it
	id         quorum.CallerID

	// bell has capacity 1 and means that the machine has another At. Never closed.
	bell chan struct{}
	// turn has capacity 1 and means that the caller's turn in this process has come. Sent
	// once for each time that the caller enters the queue, never closed.
	turn chan turn

	mu       sync.Mutex
	machine  quorum.Waiter
	attempt  *attempt // the one that got the lease
	enrolled bool     // waiters.byTicket has the ticket
	woken    bool     // a node has reserved the lock since the last attempt began
}

// waiters finds waiters by their tickets.
type waiters struct {
	subscribing atomic.Bool // there was contention, so the nodes are to wake this Manager
	left        atomic.Bool // the last attempt was not answered in time, see quorum.Waiter.Left
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
func (m *Manager) newWaiter(ctx context.Context, lock string, t *terms, once bool) *waiter {
	w := &waiter{m: m, terms: t, lock: lock, once: once, ctx: ctx, arrived: m.clock.Now()}
	w.machine = quorum.NewWaiter(w.config(time.Duration(0), false))
	return w
}

// config returns the waiter's configuration for its machine.
func (w *waiter) config(notBefore time.Duration, enqueued bool) quorum.WaiterConfig {
	c := quorum.WaiterConfig{
		Nodes: w.terms.Nodes, Arrived: w.arrived, NotBefore: notBefore, Once: w.once, Enqueued: enqueued,
		Left: w.m.waiters.left.Load(),
	}
	if w.m.waiters.subscribing.Load() {
		c.Grace, c.Subscribed = w.m.grace(), w.m.waiters.subscribedNodes()
	} else {
		c.Grace = minGrace
	}
	return c
}

// name returns the name of the lock.
func (w *waiter) name() string { return w.lock[len(w.m.cfg.prefix):] }

// prepare makes the ticket and the channels of a waiter, once.
func (w *waiter) prepare() {
	if w.bell != nil {
		return
	}
	w.bell, w.turn = make(chan struct{}, 1), make(chan turn, 1)
	_, steady := w.m.clock.Both()
	waited := w.m.clock.Now() - w.arrived
	w.enqueuedAt = strconv.FormatInt(w.m.clusterTime(steady-waited).Microseconds(), 10)
	number := w.m.waiters.last.Add(1)
	w.id = quorum.CallerID(number)
	text := strconv.FormatUint(number, 16)
	b := make([]byte, 0, node.TicketLen+3)
	b = append(b, w.m.id...)
	b = append(b, "0000000000000000"[len(text):]...)
	b = append(b, text...)
	w.ticket = string(strconv.AppendInt(b, w.m.grace().Milliseconds(), 10))
}

// enrol directs wake-ups for the ticket to this waiter.
func (w *waiter) enrol() {
	s := &w.m.waiters
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket == nil {
		s.byTicket = map[string]*waiter{}
	}
	s.byTicket[w.ticket[:node.TicketLen]] = w
	w.enrolled = true
}

// forget reverses enrol, and reports whether the ticket was enrolled.
func (w *waiter) forget() bool {
	s := &w.m.waiters
	s.mu.Lock()
	defer s.mu.Unlock()
	was := w.enrolled
	if was {
		delete(s.byTicket, w.ticket[:node.TicketLen])
		w.enrolled = false
	}
	return was
}

// grace is how long the nodes are to reserve a lock for this process: a few round trips.
func (m *Manager) grace() time.Duration {
	var trips [MaxNodes]time.Duration
	known := 0
	for _, n := range m.nodes {
		if reading, ok := n.Reading(); ok {
			i := known
			for ; i > 0 && trips[i-1] > reading.RoundTrip; i-- {
				trips[i] = trips[i-1]
			}
			trips[i] = reading.RoundTrip
			known++
		}
	}
	if known == 0 {
		return minGrace
	}
	return min(max(4*trips[known/2], minGrace), maxGrace)
}

// wakeUps translates the kinds of messages that a node publishes.
var wakeUps = map[node.WakeKind]quorum.WakeUp{
	node.WakeReserved: quorum.WakeReserved,
	node.WakeNext:     quorum.WakeNext,
	node.WakeAskAgain: quorum.WakeAskAgain,
}

// onWake handles a wake-up. It ignores tickets of other Managers: any client that may
// publish could send such a message.
func (m *Manager) onWake(i int, kind node.WakeKind, ticket, lock string) {
	what, known := wakeUps[kind]
	if !known || !strings.HasPrefix(ticket, m.id) || !strings.HasPrefix(lock, m.cfg.prefix) {
		return
	}
	w := m.waiters.find(ticket)
	if w == nil {
		if kind == node.WakeReserved { // nobody uses the ticket any more
			m.pass(i, lock, ticket)
		}
		return
	}
	if w.lock != lock {
		return
	}
	w.mu.Lock()
	reaction, a := w.machine.Wake(m.clock.Now(), i, what, mathrand.Float64()), w.attempt
	w.woken = w.woken || what == quorum.WakeReserved
	w.mu.Unlock()
	switch reaction {
	case quorum.ReactionReschedule:
		w.ring()
	case quorum.ReactionAskForVote:
		if a != nil {
			a.askAgain(quorum.Set(0).With(i))
		}
	case quorum.ReactionPassOn:
		m.pass(i, lock, ticket)
	}
	if w.local != nil && kind != node.WakeAskAgain { // it does not show that the queue moved
		w.local.queueMoved()
	}
}

// pass removes a ticket from a node's queue, and lets the node reserve the lock for the
// next waiter. It never touches a lease.
func (m *Manager) pass(i int, lock, ticket string) {
	if !m.enter() {
		return // the reservation ends with the grace
	}
	defer m.inflight.Done()
	_, now := m.clock.Both()
	m.post(i, node.NewPass(lock, ticket, now+time.Minute), nobody{})
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
	for _, n := range m.nodes {
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
		w.call.woken()
	}
	if ask.Ticket {
		w.prepare()
		if !w.enrolled {
			w.enrol()
		}
	}
	return ask
}

// won records that an attempt got the lease. A node that reserves the lock for the waiter
// from now on is asked again, for one more vote. won returns the nodes that refused the
// attempt and already reserve the lock. a.mu is held.
func (w *waiter) won(a *attempt, granted, refused quorum.Set) quorum.Set {
	if w.ticket == "" {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	again := w.machine.Won(granted, refused)
	if granted == quorum.All(w.terms.Nodes) {
		w.forget()
		return again
	}
	w.attempt = a
	if w.enrolled {
		a.hold.mu.Lock()
		a.hold.waiter = w
		a.hold.mu.Unlock()
	}
	return again
}

// vote records the answer of a node that arrives after the grant.
func (w *waiter) vote(a *attempt, i int, granted bool) {
	if w.ticket == "" {
		return
	}
	w.mu.Lock()
	again := w.machine.Vote(i, granted)
	all := w.machine.Votes() == quorum.All(w.terms.Nodes)
	w.mu.Unlock()
	if again {
		a.askAgain(quorum.Set(0).With(i))
	}
	if all {
		w.forget()
	}
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

// unvoted returns the nodes that have not granted the lease, and so may still queue the
// ticket.
func (w *waiter) unvoted() quorum.Set {
	w.mu.Lock()
	defer w.mu.Unlock()
	return quorum.All(w.terms.Nodes) &^ w.machine.Votes()
}

// leaveQueues removes the ticket from the queues of these nodes.
func (w *waiter) leaveQueues(nodes quorum.Set) {
	if nodes == 0 {
		return
	}
	_, now := w.m.clock.Both()
	req := node.NewPass(w.lock, w.ticket, now+time.Minute)
	for i := range w.m.nodes {
		if nodes.Has(i) {
			w.m.post(i, req, nobody{})
		}
	}
}

// randomHex returns n random hex digits.
func randomHex(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)
}
