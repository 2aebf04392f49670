package sim

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file drives quorum.Waiter as the Manager does in production.

// waiter is what a client knows about its wait and its earlier waits.
type waiter struct {
	queues     bool   // the client queues, it does not only poll
	reads      bool   // the attempt or the lease is a reader's
	downgrade  bool   // and it began as a writer's
	contended  bool   // the client has been refused, so it subscribes
	waits      bool   // the wait or its lease is under way
	from       uint32 // the owner that detached the lease to resume; 0 in a wait of a caller
	wait       quorum.Waiter
	ticket     uint32 // 0 while the client does not queue
	enqueuedAt int64  // the score of the ticket: when the wait began, µs
	yielded    bool   // the last attempt let others go first
	tooLate    bool   // the last attempt was not answered in time
	wokenBy    quorum.Set
	before     [4]formerWait // earlier waits, the latest first
	last       struct{ ticket, owner uint32 }
	released   uint32 // owner value of the last released lease
	claim
}

// formerWait is a wait that has ended. It is kept for wake-ups that arrive later.
type formerWait struct {
	ticket uint32
	wait   quorum.Waiter
}

// jitter returns a number in [0, 1).
func (c *client) jitter() float64 { return float64(c.w.rng.IntN(1000)) / 1000 }

// startWait begins the wait of the caller that contends now. The instant of its call
// decides its place in the queues.
func (c *client) startWait(now time.Duration, s quorum.Step) {
	arrived := c.arrived[c.current]
	c.waits, c.ticket, c.voted, c.yielded = true, 0, 0, false
	c.reads, c.downgrade = c.w.readership.has(c.id), false
	c.enqueuedAt = c.clusterTime() - micros(now-arrived)
	config := quorum.WaiterConfig{
		Nodes: c.w.p.Nodes, Arrived: clock.Validity(arrived), NotBefore: s.At * clock.Validity(c.w.config.pace), Grace: c.w.config.grace,
		Enqueued: s.Enqueue, Unanswered: c.tooLate, Once: asksOnce(c), Timeout: c.w.config.terms.Timeout,
	}
	if c.queues && c.contended {
		config.Subscribed = quorum.All(c.w.p.Nodes)
	}
	chooseSlots(c, &config)
	c.wait = quorum.NewWaiter(config)
	if s.Enqueue {
		c.makeTicket()
	}
}

func (c *client) makeTicket() {
	c.w.owners++
	c.ticket = c.w.owners
}

// beginAsk gives an attempt its ticket.
func (c *client) beginAsk(now time.Duration) quorum.Ask {
	c.wokenBy = 0
	ask := c.wait.Begin(clock.Validity(now))
	if ask.Ticket && c.ticket == 0 {
		c.makeTicket()
	}
	c.carried = 0
	if ask.Ticket {
		c.carried = c.ticket
	}
	if limit(c) > 0 {
		if slot := c.choice.Begin(); c.kept == 0 { // votes that an attempt keeps are for its slot
			claimSlot(c, slot)
		}
	}
	return ask
}

// result returns the result of a failed attempt.
func (c *client) result(outcome quorum.Outcome, now time.Duration) *quorum.AttemptResult {
	votes := c.ballot.Votes()
	r := &quorum.AttemptResult{
		Outcome: outcome, TooLate: outcome == quorum.OutcomeWon, Granted: votes.Granted(), Overtaken: c.ballot.Overtaken() && c.raiseLate == 0,
		Failed:   quorum.All(c.w.p.Nodes)&^(votes.Granted()|votes.Refused()|votes.Silent()) | c.raiseLate,
		Unqueued: c.notQueued, Owner: c.text(c.owner),
	}
	if c.reads { // the lock in the way is a writer's, or becomes readers'
		r.Owner = c.text(everybody)
	}
	for i := range c.refused {
		r.Refusals = append(r.Refusals, c.refusals[i])
		if c.refusals[i].Left != quorum.Endless {
			r.Refusals[i].Left = max(c.refusals[i].Left-now, time.Microsecond)
		}
	}
	return r
}

// failed ends a failed attempt, and sets the start of the next one if no wake-up arrives.
// poll is the delay of a client without other information.
func (c *client) failed(outcome quorum.Outcome, now, poll time.Duration) {
	w := c.w
	result := c.result(outcome, now)
	if outcome != quorum.OutcomeHeld || quorum.Scattered(w.p.Nodes, result) {
		c.back = c.from
	}
	next := c.wait.Ended(clock.Validity(now), result, poll, c.jitter())
	c.tooLate, c.yielded = c.wait.Unanswered(), next.Ticket == quorum.TicketYield
	if next.Keep && !w.bugs.has(TiesByChance) {
		w.stats[VotesKept]++
		c.keeps, c.kept = true, c.kept|quorum.All(w.p.Nodes)&^c.untouched
		c.phase, c.until = resting, time.Duration(c.wait.At())
		return
	}
	if !w.bugs.has(KeepFailed) {
		c.releaseAll(c.untouched&^next.Leave&^c.kept, updateOf(next.Ticket))
	}
	if next.Ticket == quorum.TicketLeave {
		w.stats[QueuesLeft]++
		c.passOn(next.PassOn, c.ticket)
	}
	if next.Missed {
		w.stats[StartedOver]++
		w.judge.startsOver(c)
		c.enqueuedAt = c.clusterTime() + micros(time.Duration(next.At)-now)
	}
	w.judge.over(c)
	if c.refused > 0 && c.queues && !c.contended {
		c.contended = true
		for i := range w.p.Nodes {
			c.wait.Subscribed(clock.Validity(now), i, c.jitter())
		}
	}
	c.phase, c.owner, c.keeps = resting, 0, false
	c.until = time.Duration(c.wait.At())
}

// releaseKept releases the votes that a caller has kept for its next attempt, which it will
// not make.
func (c *client) releaseKept() {
	if !c.keeps {
		return
	}
	if !c.w.bugs.has(KeptForgotten) {
		c.releaseAll(quorum.All(c.w.p.Nodes)&^c.kept, leaves)
	}
	c.w.judge.over(c)
	c.owner, c.keeps = 0, false
}

// text returns an owner value as the nodes show it. Values are random in production, so their order isn't the order of
// the attempts.
func (c *client) text(owner uint32) string {
	switch {
	case !asksOnce(c):
		return ""
	case owner == everybody:
		return "00000000"
	}
	return fmt.Sprintf("%08x", bits.Reverse32(owner*2654435761))
}

func updateOf(t quorum.TicketUpdate) ticketUpdate {
	switch t {
	case quorum.TicketKeep:
		return keepsPlace
	case quorum.TicketYield:
		return yields
	default:
		return leaves
	}
}

// passOn makes nodes pass on their reservations for a ticket.
func (c *client) passOn(nodes quorum.Set, ticket uint32) {
	for i := range c.w.p.Nodes {
		if nodes.Has(i) {
			c.w.stats[PassedOn]++
			c.request(i, &message{op: opPassOn, ticket: ticket})
		}
	}
}

// woken handles a wake-up.
func (c *client) woken(m *message, now time.Duration) {
	w, i, ticket := c.w, int(m.node), m.ticket
	w.stats[WakeUps]++
	if w.p.Trace != nil {
		w.trace("client %d is woken by node %d for ticket %d: %v", c.id, i, ticket, m.answer)
	}
	kind := kindOf(m.answer)
	if w.bugs.has(TakesTooLate) && reserves(kind) && ticket == c.last.ticket && ticket != c.ticket {
		c.take(i, c.last.owner, now+w.config.terms.Timeout)
		return
	}
	own := ticket == c.ticket && c.waits
	if own {
		named(c, m)
	}
	reaction := quorum.ReactionNone
	switch wait := c.find(ticket); {
	case wait != nil:
		reaction = wait.Wake(clock.Validity(now), i, kind, int(m.rank), c.jitter())
	case reserves(kind):
		reaction = quorum.ReactionUnused
	}
	if own && reserves(kind) {
		c.wokenBy = c.wokenBy.With(i)
	}
	switch reaction {
	case quorum.ReactionReschedule:
		c.reschedule(now)
	case quorum.ReactionUnused:
		switch {
		case limit(c) > 0:
			passRight(c, m, now)
		case c.phase == holding && ticket == c.ticket:
			c.takeReservation(i, now)
		default:
			c.passOn(quorum.Set(0).With(i), ticket)
		}
	}
}

// reserves reports whether a wake-up is for the head of a queue.
func reserves(kind quorum.WakeUp) bool { return kind == quorum.WakeReserved || kind == quorum.WakeFree }

func kindOf(a answer) quorum.WakeUp {
	switch a {
	case leftFree:
		return quorum.WakeFree
	case forNext:
		return quorum.WakeNext
	case askAgain:
		return quorum.WakeAskAgain
	default:
		return quorum.WakeReserved
	}
}

// find returns the wait of a ticket, or nil if the ticket is unknown.
func (c *client) find(ticket uint32) *quorum.Waiter {
	if c.waits && c.ticket == ticket {
		return &c.wait
	}
	for k := range c.before {
		if c.before[k].ticket == ticket {
			return &c.before[k].wait
		}
	}
	return nil
}

// reschedule moves the next attempt to the waiter's new instant.
func (c *client) reschedule(now time.Duration) {
	if c.phase != resting {
		return
	}
	c.until = time.Duration(c.wait.At())
	if c.until <= now {
		c.w.stats[WokenAttempts]++
		c.try(now)
	}
}

// listens records that wake-ups of node i arrive again.
func (c *client) listens(i int, now time.Duration) {
	if c.waits && c.queues && c.contended && c.wait.Subscribed(clock.Validity(now), i, c.jitter()) == quorum.ReactionReschedule {
		c.reschedule(now)
	}
}

// takeReservation makes the lease take a reservation for its ticket, unless the node is known to have granted it. The
// request must not lock after the end of the lease, because the release of the lease may arrive before it.
func (c *client) takeReservation(i int, now time.Duration) {
	if bound := min(c.machine.Stop(), clock.Validity(now+c.w.config.terms.Timeout)); clock.Validity(now) < bound && c.machine.HeldUntil(i) == 0 {
		c.w.stats[ReservationsTaken]++
		c.take(i, c.owner, time.Duration(bound))
	}
}

// take creates the lock of a lease on a node again, or in the place of a reservation.
func (c *client) take(i int, owner uint32, bound time.Duration) {
	c.healed = true
	m := message{op: opHeal.of(c.reads), owner: owner, t: c.top}
	m.ttl = c.ttl
	c.limit(i, &m, bound)
	c.request(i, &m)
}

// endWait ends the wait. It returns the nodes whose queues may have the ticket if the wait led to no lease, and the
// nodes that reserve the lock for it. If every node granted with a ticket, it is in no queue.
func (c *client) endWait() (leave, passOn quorum.Set) {
	if !c.waits {
		return 0, 0
	}
	leave, passOn = c.wait.Done()
	c.waits = false
	if c.ticket == 0 {
		return leave, passOn
	}
	copy(c.before[1:], c.before[:len(c.before)-1])
	c.before[0] = formerWait{ticket: c.ticket, wait: c.wait}
	c.last.ticket, c.last.owner = c.ticket, c.owner
	if c.voted == quorum.All(c.w.p.Nodes) {
		c.ticket = 0
	}
	return leave, passOn
}

// leave ends a wait that has led to no lease: the ticket leaves the queues.
func (c *client) leave() {
	leave, passOn := c.endWait()
	ticket := c.ticket
	c.ticket = 0
	for i := range c.w.p.Nodes {
		if (leave | passOn).Has(i) {
			c.request(i, &message{op: opPassOn, ticket: ticket})
		}
	}
}

// refuse records a node's answer that did not grant the lock.
func (c *client) refuse(i int, m *message, now time.Duration) {
	c.refusals[c.refused] = quorum.Refusal{
		Node: i, Left: now + time.Duration(m.left)*time.Millisecond, Position: int(m.position), Reserved: m.reservation,
		Owner: c.text(m.holder),
	}
	refuseSlot(c, m, &c.refusals[c.refused])
	c.refused++
}

// handedOn records that a node has left this client's lock to another client.
func (c *client) handedOn(m *message, now time.Duration) {
	if m.op == opRelease && m.reservation && m.owner == c.released {
		c.local.HandedOn(clock.Validity(c.localTime(now)), 0)
	}
}

// countReservations counts the nodes that reserve the lock as votes, if they complete a
// quorum.
func (c *client) countReservations() {
	votes := c.ballot.Votes()
	woken := c.wokenBy & votes.Silent()
	for i := range c.w.p.Nodes {
		if woken.Has(i) && votes.Granted().Len()+woken.Len() >= quorum.Size(c.w.p.Nodes) {
			c.inventVotes(quorum.Set(0).With(i))
			woken = woken.Without(i)
		}
	}
}
