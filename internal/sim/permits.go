package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file mirrors permits.lua as queue.go mirrors queue.lua, and makes clients ask for permits as internal/campaign
// does. A slot is a lock with a register of its own, and all slots have one queue. The nodes here have no index of the
// slots: it is made of their keys, and conformance compares the two. A waiter that is let in may take any free slot,
// and there are never more such waiters than free slots.

// letIn lets in the waiters at the head of the queue, one for each free slot. It returns whether me is one of them, and
// the first of the others.
func letIn(n *node, first int8, me uint32, wall time.Duration) (mine bool, head uint32) {
	w, s, served := n.w, &n.slots, 0
	for n.queued > 0 {
		v := n.queue[0]
		if n.slots.vacancies(&n.lot, v.limit) <= s.admitted(wall) && !w.bugs.has(MoreThanFree) {
			return false, head
		}
		if w.bugs.has(LastLetIn) {
			v = n.queue[n.queued-1]
		}
		if n.dequeue(v.ticket); n.queued > 0 && n.queue[0].enqueuedAt < v.enqueuedAt {
			w.judge.violated("permits", "node %d comes to ticket %d before ticket %d", n.id, v.ticket, n.queue[0].ticket)
		}
		slot := n.slots.vacancy(&n.lot, first, v.limit, served)
		if v.ticket != me && (slot == 0 && !w.bugs.has(MoreThanFree) || !n.subscribed(&v)) {
			continue
		}
		ends := (wall + w.config.grace).Milliseconds()
		if w.bugs.has(RightForEver) {
			ends = (wall + 1000*time.Hour).Milliseconds()
		}
		s.admit(v.ticket, ends)
		w.stats[LetIn]++
		if v.ticket == me {
			return true, head
		}
		wakeFor(n, &v, slot)
		if head == 0 {
			head, n.reservedClient = v.ticket, v.client
		}
		served++
		n.watch(&v, me, wall)
	}
	return false, head
}

// entitled reports whether a client may take a free slot: it was let in, or no waiter is before it.
func entitled(n *node, m *message, wall time.Duration) bool {
	if n.slots.may(m.ticket, wall) || n.w.bugs.has(NewcomersTake) {
		return true
	}
	if m.lapsed && n.slots.vacancies(&n.lot, m.limit) > n.slots.admitted(wall) {
		n.clearQueue(m.ticket)
	}
	mine, _ := letIn(n, m.slot, m.ticket, wall)
	return mine || n.queued == 0 && n.slots.vacancies(&n.lot, m.limit) > n.slots.admitted(wall)
}

// permit is acquire of a slot.
func permit(n *node, m *message, wall time.Duration, end int64) answer {
	w, bugs, s := n.w, n.w.bugs, &n.slots
	check := beforePermit(n, m, wall)
	if let := s.may(m.ticket, wall); !trusts(n, m) && !(let && bugs.has(RightUnguarded)) {
		w.stats[MarkerChanges]++
		return markerChanged
	}
	tooLate, ours := micros(wall) > m.after && !bugs.has(LateTakesSlot), alone(n, m)
	mine := !ours && !tooLate && entitled(n, m, wall)
	free := n.owner == 0 || bugs.has(RightOverwrites) && check.had
	switch {
	case tooLate && (free || ours):
		w.stats[TooLate]++
		return late
	case ours:
		n.repeat(m, end)
		m.again = false // this answer says how many wait
	case mine && free:
		n.lock(m, end)
		if n.move(m, wall); bugs.has(SlotUnmoved) && check.had {
			m.moved, m.before, n.register, n.shown = m.t, m.t-1, check.register, m.t
		}
	default:
		check.letIn(n, wall)
		return withhold(n, m, wall, mine, !tooLate)
	}
	s.revoke(m.ticket)
	n.dequeue(m.ticket)
	check.letIn(n, wall)
	if !ours {
		check.granted(n, m, wall)
	}
	return granted
}

// withhold refuses a slot. A waiter that is let in keeps its right, and learns of a slot that is free.
func withhold(n *node, m *message, wall time.Duration, mine, inTime bool) answer {
	queues := inTime && m.ticket != 0 && m.subscribed
	if queues && !mine {
		n.enqueue(m)
	}
	m.position, m.free = -1, 0
	if queues {
		m.position = n.rank(m.ticket)
	}
	if mine {
		m.free = n.slots.vacancy(&n.lot, m.slot, m.limit, 0)
	}
	m.holder, m.reservation, m.left = n.owner, false, n.slots.soonest(&n.lot, m.limit, wall)
	if n.owner == 0 {
		n.w.stats[SlotsKept]++
		if kept := n.slots.kept(wall); kept >= 0 {
			m.left = kept
		}
	}
	return taken
}

// settleSlot is settle behind a slot: a ticket that leaves the queue loses its right as well.
func settleSlot(n *node, m *message, wall time.Duration, free, ours bool) answer {
	check, s := beforePermit(n, m, wall), &n.slots
	update := m.place()
	if m.ticket != 0 && update != keepsPlace {
		n.dequeue(m.ticket)
		s.revoke(m.ticket)
	} else if update != leaves && !s.may(m.ticket, wall) {
		n.enqueue(m)
	}
	var head uint32
	if free || m.ticket != 0 {
		_, head = letIn(n, m.slot, 0, wall)
	}
	if update == yields {
		n.enqueue(m)
	}
	check.letIn(n, wall)
	m.reservation = head != 0 && n.reservedClient != m.client
	if ours {
		return done
	}
	return notDone
}

// permitCheck is what the judge must know of a node before a script that may let waiters in.
type permitCheck struct {
	had      bool  // the ticket had a right
	place    int64 // of the ticket in the queue
	let      int   // how many waiters the run had let in
	register int64
}

func beforePermit(n *node, m *message, wall time.Duration) permitCheck {
	c := permitCheck{had: n.slots.may(m.ticket, wall), place: -none, let: n.w.stats[LetIn], register: n.register}
	if i := n.rank(m.ticket); m.ticket != 0 && i >= 0 {
		c.place = n.queue[i].enqueuedAt
	}
	return c
}

// letIn checks that a node that lets waiters in has a free slot for each.
func (c *permitCheck) letIn(n *node, wall time.Duration) {
	limit := n.w.permits.limit
	if let, free := n.slots.admitted(wall), n.slots.vacancies(&n.lot, limit); n.w.stats[LetIn] > c.let && let > free {
		n.w.judge.violated("permits", "node %d has let %d waiters in, and %d slots are free", n.id, let, free)
	}
}

// granted checks a client that takes a slot without having been let in: no waiter was let in for that slot, and no
// client that came earlier waits.
func (c *permitCheck) granted(n *node, m *message, wall time.Duration) {
	if c.had {
		return
	}
	if n.queued > 0 && n.queue[0].enqueuedAt < c.place || n.queued > 0 && c.place == -none {
		n.w.judge.violated("permits", "client %d takes slot %d on node %d with ticket %d, before client %d with ticket %d",
			m.client, m.slot, n.id, m.ticket, n.queue[0].client, n.queue[0].ticket)
	}
	if let, free := n.slots.admitted(wall), n.slots.vacancies(&n.lot, n.w.permits.limit); let > free {
		n.w.judge.violated("permits", "client %d takes slot %d on node %d, where %d waiters were let in, and %d slots are left",
			m.client, m.slot, n.id, let, free)
	}
}

// The rest is what a client does.

// claim is what a client that asks for permits knows.
type claim struct {
	choice  quorum.Slots
	slot    int8           // of the attempt or the lease, from 1 on; 0 for none
	lostIn  int8           // the slot in which the work continues after the loss of its lease
	offered [maxNodes]int8 // the slot that each node offers instead of the one that it has refused; 0 for none
}

// limit returns how many permits a client asks for; 0 if it asks for none.
func limit(c *client) int8 {
	if c.w.permits.limit == 0 {
		return 0
	}
	return c.w.permits.limits[c.id]
}

// chooseSlots begins the choice of a call.
func chooseSlots(c *client, config *quorum.WaiterConfig) {
	k := limit(c)
	if k == 0 {
		return
	}
	order := make([]int, c.w.p.Nodes)
	for i := range order {
		order[i] = i
	}
	config.Sure = true
	c.choice = quorum.NewSlots(order, int(c.w.permits.pcg.Uint64()%uint64(k)))
}

// claimSlot gives an attempt its slot, which production's choice counts from 0.
func claimSlot(c *client, slot int) {
	if c.slot = int8(slot) + 1; c.w.bugs.has(AsksAtLimit) && c.w.permits.pcg.Uint64()%2 == 0 {
		c.slot = limit(c) + 1
	}
}

// named records the slot that a wake-up names. Another client's limit may be larger.
func named(c *client, m *message) {
	if m.slot > 0 && m.slot <= limit(c) {
		c.choice.Named(int(m.node), int(m.slot)-1)
	}
}

// refuseSlot makes r the refusal of a slot, and keeps the slot that the node offers. A slot that is free is kept for
// waiters that were let in: the next one asks again when their rights end, and then the others are woken.
func refuseSlot(c *client, m *message, r *quorum.Refusal) {
	if limit(c) == 0 {
		return
	}
	if r.Reserved = m.holder == 0 && m.position == 0; m.left < 0 || m.holder == 0 && !r.Reserved {
		r.Left = quorum.Endless
	}
	r.LetIn = c.carried != 0 && m.position < 0
	c.offered[m.node] = m.free
}

// freeSlots returns the slot that each node has offered in place of the one that it refused, -1 for none.
func freeSlots(c *client) []int {
	free := [maxNodes]int{-1, -1, -1, -1, -1}
	for _, r := range c.refusals[:c.refused] {
		free[r.Node] = int(c.offered[r.Node]) - 1
	}
	return free[:c.w.p.Nodes]
}

// askElsewhere begins an attempt for another slot that nodes have named. For the waiter both are one attempt.
func askElsewhere(c *client, now time.Duration, outcome quorum.Outcome) bool {
	if limit(c) == 0 || outcome != quorum.OutcomeHeld && !(asksOnce(c) && quorum.Scattered(c.w.p.Nodes, c.result(outcome, 0))) {
		return false
	}
	slot, again := c.choice.Refused(freeSlots(c))
	if !again {
		return false
	}
	w := c.w
	w.stats[AskedElsewhere]++
	w.judge.over(c)
	m := message{op: opRelease, owner: c.owner, ticket: c.carried, enqueuedAt: c.enqueuedAt, update: keepsPlace}
	if c.carried == 0 {
		m.update = leaves
	}
	for i := range w.p.Nodes {
		if !(c.untouched &^ c.kept).Has(i) && !w.bugs.has(ElsewhereKeeps) {
			c.request(i, &m)
		}
	}
	ticket := c.carried
	newAttempt(c, now)
	c.carried = ticket
	claimSlot(c, slot)
	askNodes(c, now, 0)
	return true
}

// takeUp makes a lease take its slot on the nodes that refused it. Most likely the previous holder's release is on its
// way there, and while the slot looks free, others ask for it without success. The ticket's rights to other slots are
// passed on.
func takeUp(c *client, refused quorum.Set, now time.Duration) {
	if limit(c) == 0 {
		return
	}
	for i := range c.w.p.Nodes {
		if refused.Has(i) && c.working() {
			c.takeReservation(i, now)
		}
	}
	if c.ticket != 0 {
		c.passOn(refused, c.ticket)
	}
}

// passRight handles the right of a ticket that has no use for it. A lease of the slot that the message names takes
// that slot, and the right passes on in any case.
func passRight(c *client, m *message, now time.Duration) {
	if c.phase == holding && m.slot == c.slot {
		c.takeReservation(int(m.node), now)
	}
	c.passOn(quorum.Set(0).With(int(m.node)), m.ticket)
}

// countRights counts the nodes that have let the client in as votes, by a planted bug.
func countRights(c *client) {
	if limit(c) > 0 && c.w.bugs.has(RightVotes) {
		c.countReservations()
	}
}

// bounded checks a grant of a slot: it is below the client's limit, and no more permits are valid than the
// largest limit allows.
func bounded(j *judge, c *client) {
	w := j.w
	if limit(c) == 0 {
		return
	}
	w.permits.granted = w.permits.granted || w.quiet
	w.stats[PermitsGranted]++
	if c.slot < 1 || c.slot > limit(c) {
		j.violated("permits", "client %d, with the limit %d, is granted slot %d", c.id, limit(c), c.slot)
	}
	valid := 0
	for i := range w.config.clients {
		if other := &w.clients[i]; other.working() && other.now() < time.Duration(other.machine.Stop()) {
			valid++
		}
	}
	if valid > 1 {
		w.stats[PermitsTogether]++
	}
	if valid > int(w.permits.limit) && j.inside() {
		j.violated("permits", "%d permits are valid at once, and there are %d", valid, w.permits.limit)
	}
}

// worksOn returns until when a client works in a slot: under a lease, or in the safety margin after its loss.
func worksOn(c *client, slot int8, leased bool) time.Duration {
	switch {
	case leased && c.working() && c.slot == slot:
		return time.Duration(c.machine.Stop().Add(c.machine.Terms().SafetyMargin))
	case c.lostIn == slot:
		return c.worksUntil
	}
	return 0
}

// holdsOn is how many TTLs clients hold their permits after the faults. A free slot waits less for its next holder, so
// no client gets another permit in between.
const holdsOn = 2

// watchPermits looks, after the faults, for a client that waits while a slot below its limit is free. It is called
// again and again, and reports whether the run continues.
func watchPermits(w *world) bool {
	p, ttl := &w.permits, w.config.terms.TTL
	if !w.p.World.plain() && (w.p.World != Groups || w.config.stepAware) || w.p.Nodes%2 == 0 {
		return false
	}
	if p.watched == 0 {
		p.watched = w.now + 4*holdsOn*ttl
	}
	var used [slotIDs]int // by limit: how many of the slots up to it are held
	for i := range w.config.clients {
		if c := &w.clients[i]; c.working() {
			for k := max(c.slot, 0); int(k) < len(used); k++ {
				used[k]++
			}
		}
	}
	least := p.limit + 1 // the least limit of a client that waits for others: it may keep the slots above it free
	for i := range w.config.clients {
		if c := &w.clients[i]; c.waits && c.phase != holding && used[limit(c)] >= int(limit(c)) {
			least = min(least, limit(c))
		}
	}
	for i := range w.config.clients {
		c := &w.clients[i]
		hungry := c.waits && c.phase != holding && used[limit(c)] < int(limit(c)) && limit(c) <= least
		switch since := &p.hungry[i]; {
		case !hungry:
			*since = 0
		case *since == 0:
			*since = w.now
		case w.now-*since > ttl+w.config.backoffCap:
			w.judge.violated("liveness", "client %d waits since %v for one of %d permits, of which %d are in use", c.id, *since, limit(c), used[limit(c)])
		}
	}
	if w.now >= p.watched {
		return false
	}
	w.schedule(w.now+ttl/16, &event{kind: evVerdict, client: -1, node: -1})
	return true
}
