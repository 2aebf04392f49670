package campaign

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Campaign is one call that acquires. It lives until the call has its lock or gives up. Only its
// caller uses it, except for messages of the nodes.
type Campaign struct {
	Call
	of         *Campaigns
	Arrived    clock.Validity // when the call came, by the validity clock
	unreleased *attempt       // may have locks on the nodes; nil for none

	ticket     string         // the member of the nodes' queues; "" for none
	score      string         // in the queues: enqueuedAt, µs of the cluster's time
	enqueuedAt clock.Validity // the place in the queues, by the validity clock: the instant of the call, or a later one after missed reservations
	number     uint64         // of the ticket

	// bell has capacity 1: the time of the next attempt has changed. Never closed. nil before the
	// campaign has a ticket.
	bell chan struct{}

	mu       sync.Mutex
	machine  quorum.Waiter
	reserved bool // a node has reserved the lock since the last attempt began
}

// Begin makes c the campaign of a call.
func (s *Campaigns) Begin(c *Campaign, call Call) {
	c.of, c.Call, c.Arrived = s, call, s.clock.Now()
	c.enqueuedAt = c.Arrived
	c.Kind.begin(c)
	c.machine = quorum.NewWaiter(c.waiter(0, false))
}

// waiter returns the configuration of the campaign's machine.
func (c *Campaign) waiter(notBefore clock.Validity, enqueued bool) quorum.WaiterConfig {
	w := quorum.WaiterConfig{
		Nodes: c.Terms.Nodes, Arrived: c.enqueuedAt, NotBefore: notBefore, Once: c.Once, Enqueued: enqueued, Sure: c.Kind.sure(),
		Unanswered: c.of.unanswered.Load(), Timeout: c.Terms.Timeout, Grace: quorum.MinGrace,
	}
	if c.ticket != "" { // it names this grace
		w.Grace = c.of.grace(c.Terms)
		if c.of.contended.Load() {
			w.Subscribed = c.of.subscribedNodes()
		}
	}
	return w
}

// Restart makes the next attempt begin at an instant, when the call's turn in this process has come.
func (c *Campaign) Restart(notBefore clock.Validity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restart(notBefore, false)
}

// CarryTicket restarts a campaign whose ticket goes to the nodes with the release of the lock before, and
// returns that ticket.
func (c *Campaign) CarryTicket(notBefore clock.Validity) wire.TicketUpdate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restart(notBefore, true)
	return wire.TicketUpdate{Ticket: c.ticket, EnqueuedAt: c.score}
}

// Enrol makes the nodes wake a call that waits for them alone, because it may get the lock together with others. The
// time of its next attempt stays.
func (c *Campaign) Enrol() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restart(c.machine.At(), false)
}

// restart makes the ticket, and a machine whose attempts may carry it, once. c.mu is held.
func (c *Campaign) restart(notBefore clock.Validity, enqueued bool) {
	c.bell = make(chan struct{}, 1)
	c.number = c.of.last.Add(1)
	c.write()
	c.of.enrol(c.ticket, c) // before the machine learns which nodes are subscribed: each later one finds it
	c.machine = quorum.NewWaiter(c.waiter(notBefore, enqueued))
}

// Subscribe makes the nodes wake this process from now on, because the call has met contention.
func (c *Campaign) Subscribe() { c.of.subscribe() }

// Sleep waits until an attempt is due. It returns false when the caller's wait or the Manager
// has ended first. woken means that a node has reserved the lock for the campaign since the last
// attempt began.
func (c *Campaign) Sleep() (due, woken bool) {
	if !c.sleep() {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return true, c.reserved
}

func (c *Campaign) sleep() bool {
	delay := c.due().Sub(c.of.clock.Now())
	if delay <= 0 {
		// A wait of 1 ns has ended by now. It still asks once, as a wait of 0 does.
		return (c.Wait.Err() == nil || c.unreleased == nil) && !c.of.ending()
	}
	timer := c.of.ensemble.Timer(delay)
	defer c.of.ensemble.PutTimer(timer)
	for {
		select {
		case <-timer.C:
			return true
		case <-c.Wait.Done():
			return false
		case <-c.of.closing.Done():
			return false
		case <-c.bell:
		}
		if delay = c.due().Sub(c.of.clock.Now()); delay <= 0 {
			return true
		}
		timer.Reset(delay)
	}
}

// due returns when the next attempt is due.
func (c *Campaign) due() clock.Validity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.machine.At()
}

// Try makes one attempt, which ends with ctx. It returns nil when the lock is open.
func (c *Campaign) Try(ctx context.Context) *Failure {
	a := c.begin()
	c.of.ensemble.Ask(&a.req, a, a.steady)
	return c.Await(ctx)
}

// Ask begins an attempt for each campaign, and their requests leave together. Await must follow for each.
func (s *Campaigns) Ask(campaigns ...*Campaign) {
	_, now := s.clock.Both()
	posts := make([]ensemble.Posting, len(campaigns))
	for i, c := range campaigns {
		a := c.begin()
		posts[i] = ensemble.Posting{Req: &a.req, To: a}
	}
	s.ensemble.AskTogether(posts, now)
}

// begin makes an attempt, which has not asked yet.
func (c *Campaign) begin() *attempt {
	ask, key := c.beginAttempt()
	a := c.of.newAttempt(c, key, ask, c.unreleased)
	if c.unreleased != nil {
		c.unreleased.unref()
	}
	c.unreleased = a
	return a
}

// Await ends the attempt that was begun, as Try does.
func (c *Campaign) Await(ctx context.Context) *Failure {
	a := c.unreleased
	failure := a.await(ctx)
	for failure != nil && c.Kind.elsewhere(c, a, failure) {
		a = c.unreleased
		failure = a.await(ctx)
	}
	if failure == nil {
		c.unreleased = nil
		if c.of.unanswered.Load() {
			c.of.unanswered.Store(false)
		}
		a.unref()
	}
	return failure
}

// beginAttempt starts an attempt of the machine, and returns the key to ask for.
func (c *Campaign) beginAttempt() (ask quorum.Ask, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ask, key = c.machine.Begin(c.of.clock.Now()), c.Kind.key(c)
	c.reserved = false
	return ask, key
}

// Concede ends the failed attempt. poll is how long the campaign waits if no message arrives. It
// reports whether another attempt follows.
func (c *Campaign) Concede(poll time.Duration) (again bool) {
	a := c.unreleased
	result := a.result()
	c.mu.Lock()
	next := c.machine.Ended(c.of.clock.Now(), result, max(poll, 0), mathrand.Float64())
	if !c.Once {
		c.of.unanswered.Store(c.machine.Unanswered())
	}
	c.mu.Unlock()
	if next.Keep { // the next attempt keeps the votes
		return next.At != quorum.Never
	}
	c.of.ensemble.LeaveQueues(c.Key, c.ticket, c.concede(a, next))
	if next.Missed {
		c.startOver(next.At)
	}
	return next.At != quorum.Never
}

// concede releases the locks that an attempt may have created, and updates the ticket as the
// machine decides. It returns the nodes whose queues the ticket must leave.
func (c *Campaign) concede(a *attempt, next quorum.Next) quorum.Set {
	var update wire.TicketUpdate
	switch {
	case c.ticket == "":
	case next.Ticket == quorum.TicketKeep:
		update = wire.TicketUpdate{Ticket: c.ticket, EnqueuedAt: c.score}
	case next.Ticket == quorum.TicketYield:
		update = wire.TicketUpdate{Ticket: c.ticket, EnqueuedAt: c.score, Yields: true}
	case next.Ticket == quorum.TicketLeave:
		update = wire.TicketUpdate{Ticket: c.ticket}
	}
	c.end(a, update)
	return next.Leave | next.PassOn
}

// end ends the campaign's use of an attempt that has failed.
func (c *Campaign) end(a *attempt, update wire.TicketUpdate) {
	a.release(update)
	a.unref()
	c.unreleased = nil
}

// Poll returns how long a caller that asks once, and comes first in a tie, waits before it asks
// again: about a round trip.
func (c *Campaign) Poll() time.Duration { return max(c.of.ensemble.Trip(), quorum.MinGrace/4) }

// GiveUp ends a campaign without a lock: its votes are released, and its ticket leaves the queues.
func (c *Campaign) GiveUp() {
	if c.unreleased != nil {
		// The machine does not learn of this attempt: nodes that have not answered are not late.
		c.end(c.unreleased, wire.TicketUpdate{})
	}
	c.mu.Lock()
	leave, passOn := c.machine.Done()
	ticket := c.ticket
	c.mu.Unlock()
	if ticket != "" {
		c.of.forget(ticket)
		c.of.ensemble.LeaveQueues(c.Key, ticket, leave|passOn)
	}
}

// won records that an attempt has opened the lock l. It returns the nodes that reserve the lock for
// the ticket.
func (c *Campaign) won(l *hold.Lock, granted quorum.Set) (reserved quorum.Set) {
	others := quorum.All(c.Terms.Nodes) &^ granted
	if c.ticket == "" {
		return c.Kind.record(l, "", others, others)
	}
	c.mu.Lock()
	reserved = c.machine.Won(granted)
	if c.machine.Relied() {
		c.of.used()
	}
	c.of.forget(c.ticket)
	c.mu.Unlock()
	return c.Kind.record(l, c.ticket, others, reserved)
}

// startOver gives the campaign a ticket with a longer grace and a later place, because it has
// missed its reservations. Its ticket has left the queues.
func (c *Campaign) startOver(place clock.Validity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of.missed(c.of.grace(c.Terms))
	c.enqueuedAt = place
	c.write()
	c.machine.SetGrace(c.of.grace(c.Terms))
}

// write composes the ticket, and the score of its place.
func (c *Campaign) write() {
	validity, steady := c.of.clock.Both()
	c.score = strconv.FormatInt(c.of.ensemble.Time(steady.Add(c.enqueuedAt.Sub(validity))).Microseconds(), 10)
	c.ticket = string(c.Kind.mark(fmt.Appendf(nil, "%s%016x%d", c.of.manager, c.number, c.of.grace(c.Terms).Milliseconds())))
}

// wake handles a message of node i about the ticket. It may name a slot; −1 if it does not.
func (c *Campaign) wake(i int, what quorum.WakeUp, rank, slot int) quorum.Reaction {
	c.mu.Lock()
	c.Kind.named(i, slot)
	reaction := c.machine.Wake(c.of.clock.Now(), i, what, rank, mathrand.Float64())
	c.reserved = c.reserved || what == quorum.WakeReserved || what == quorum.WakeFree
	c.mu.Unlock()
	if reaction == quorum.ReactionReschedule {
		c.ring()
	}
	return reaction
}

// ring reports that the time of the next attempt has changed.
func (c *Campaign) ring() {
	select {
	case c.bell <- struct{}{}:
	default:
	}
}
