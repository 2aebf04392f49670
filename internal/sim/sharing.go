package sim

import (
	"math"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file is what nodes do for readers, the clients that have the lock together. The lock is then everybody's, and
// next to it is the set of the readers. A reader counts only while the lock is there: a new lock of readers has a new
// set.

// shared reports whether readers have the lock, and it was not revoked.
func shared(n *node) bool { return n.owner == everybody && n.form == ownedForm }

// alone reports whether the lock is the client's own, and no reader's.
func alone(n *node, m *message) bool { return n.owner == m.owner && !n.reserved && n.form == ownedForm }

// holds reports whether the node has the lock for the client of m, if it reads, and otherwise for any writer.
func holds(n *node, m *message, wall time.Duration) bool {
	if m.op&reads == 0 {
		return n.locked() && n.owner != everybody
	}
	return alone(n, m) || shared(n) && n.set.has(m.owner, false, wall)
}

// endOf returns when the vote for the client of m ends, ms of the node's clock.
func endOf(n *node, m *message) int64 {
	if i := n.set.find(m.owner, false); m.op&reads != 0 && i >= 0 {
		return n.set.members[i].ends
	}
	return n.expires
}

// keeps reports whether a node has the lock for an owner, in whatever form.
func keeps(n *node, owner uint32, wall time.Duration) bool {
	return n.owner == owner && !n.reserved || shared(n) && n.set.has(owner, false, wall)
}

// turns reports whether a node waits for a ticket.
func turns(n *node, ticket uint32, wall time.Duration) bool {
	return n.reserved && n.owner == ticket || shared(n) && n.set.has(ticket, true, wall)
}

// open makes the lock one of readers.
func open(n *node, end int64) {
	n.owner, n.reserved, n.form, n.shown, n.expires = everybody, false, ownedForm, 0, end
	n.set.made++
	if !n.w.bugs.has(SetStays) {
		n.set.clear()
	}
}

// join adds a member. The lock lives as long, and a little longer.
func join(n *node, owner uint32, woken bool, wall time.Duration, end int64) {
	n.set.put(owner, woken, end)
	stretch(n, wall, end)
}

func stretch(n *node, wall time.Duration, end int64) {
	now := wall.Milliseconds()
	if duration := end - now; n.expires-now < duration+2 {
		n.expires, n.set.ends = end+duration/8, end+duration
		n.set.dropEnded(wall)
	}
}

// vacate drops a lock of readers if none is left, and reports whether it has.
func vacate(n *node, wall time.Duration) bool {
	if n.set.last().ends > wall.Milliseconds() {
		return false
	}
	n.unlock()
	n.set.clear()
	return true
}

// trim drops readers that have ended. The lock then ends with the last one.
func trim(n *node, wall time.Duration) {
	n.set.dropEnded(wall)
	if n.set.count > 0 {
		n.expires = n.set.last().ends
	}
}

// stopped reports whether a writer that bars a reader of an open lock counts as stopped: after 2 s the node told it to
// ask again, and within 1 s it has not asked.
func stopped(n *node, v *waiting, wall time.Duration) bool {
	p, now := &n.set.probe, wall.Milliseconds()
	switch {
	case p.ticket != v.ticket:
		*p = probe{ticket: v.ticket, since: now}
	case p.told && now-p.since >= 1000:
		*p = probe{}
		return true
	case !p.told && now-p.since >= 2000:
		*p = probe{ticket: v.ticket, told: true, since: now}
		n.wake(v, askAgain, 0)
	}
	return false
}

// barred reports whether a writer that came before the reader must go first, and whether a dead one has left the queue.
func barred(n *node, m *message, wall time.Duration, probes bool) (bars, dropped bool) {
	if n.w.bugs.has(PassesWriters) {
		return false, false
	}
	for i := 0; i < n.queued; {
		v := &n.queue[i]
		switch {
		case m.ticket != 0 && v.enqueuedAt >= m.enqueuedAt:
			return false, dropped
		case v.reads:
			i++
		case n.set.has(m.owner, false, wall), n.set.has(m.ticket, true, wall):
			return false, dropped
		case (!probes || !stopped(n, v, wall)) && n.subscribed(v):
			n.w.stats[ReadersBarred]++
			return true, dropped
		default:
			n.dequeue(v.ticket)
			dropped = true
		}
	}
	return false, dropped
}

// share lets a reader in, alongside the others.
func share(n *node, m *message, wall time.Duration, end int64) answer {
	w, bugs := n.w, n.w.bugs
	if w.config.guard && n.marker != m.marker {
		w.stats[MarkerChanges]++
		return markerChanged
	}
	tooLate := micros(wall) > m.after
	isOpen, free := shared(n), n.owner == 0
	own := alone(n, m) || bugs.has(JoinsWriter) && n.locked()
	if free && m.lapsed && !tooLate {
		n.clearQueue(m.ticket)
	}
	bars, dropped := false, false
	if isOpen || free {
		bars, dropped = barred(n, m, wall, isOpen && !tooLate)
	}
	if bars || !isOpen && !free && !own {
		if free && !tooLate {
			n.enqueue(m)
			n.reserve(m.ticket, wall)
		} else if isOpen && dropped {
			admit(n, wall)
		}
		return n.taken(m, wall, !tooLate)
	}
	if tooLate {
		w.stats[TooLate]++
		return late
	}
	if !isOpen {
		open(n, end)
	} else if n.set.last().ends > wall.Milliseconds() {
		w.stats[ReadersTogether]++
	}
	join(n, m.owner, false, wall, end)
	if m.ticket != 0 {
		n.set.drop(m.ticket, true)
		n.dequeue(m.ticket)
	}
	if n.queued > 0 {
		admit(n, wall)
	}
	m.moved, m.before = 0, n.value()
	return granted
}

// admit wakes the readers at the head of the queue, up to the first writer, and has the lock wait for each
// as if it read already. It returns the ticket of the first, or 0 for none.
func admit(n *node, wall time.Duration) (first uint32) {
	w := n.w
	grace := (wall + w.config.grace).Milliseconds()
	var last waiting
	for n.queued > 0 && n.queue[0].reads {
		head := n.queue[0]
		last = head
		n.dequeue(head.ticket)
		if !n.subscribed(&head) {
			continue
		}
		if !shared(n) {
			open(n, grace)
		}
		join(n, head.ticket, true, wall, grace)
		n.wake(&head, forTicket, 0)
		w.stats[ReadersAdmitted]++
		if first == 0 {
			first, n.reservedClient = head.ticket, head.client
		}
	}
	if first != 0 {
		n.watch(&last, 0, wall)
	}
	return first
}

// prolong is extend of a reader. A lock of its own becomes one of readers.
func prolong(n *node, m *message, wall time.Duration, end int64) answer {
	own := alone(n, m)
	switch {
	case !shared(n) && takeable(n, m, wall):
		return missing
	case !shared(n) && !own:
		return taken
	case !own && !n.set.has(m.owner, false, wall), n.tooOld(m, wall):
		return missing
	case own:
		open(n, end)
	}
	join(n, m.owner, false, wall, end)
	counts(n, m)
	if !n.votes(m) {
		return withoutVote
	}
	return confirmed
}

// restore is heal of a reader.
func restore(n *node, m *message, wall time.Duration, end int64) answer {
	switch {
	case micros(wall) > m.after, !n.votes(m) && micros(wall) > m.held:
		n.w.stats[TooLate]++
		return late
	case !takeable(n, m, wall) && !shared(n) && !alone(n, m) && !n.w.bugs.has(RestoreForeign):
		return taken
	case !shared(n):
		heals(n, m)
		open(n, end)
	}
	join(n, m.owner, false, wall, end)
	n.set.ends = max(n.set.ends, 2*end-wall.Milliseconds())
	return confirmed
}

// align moves the register up to the top of a reader's attempt, unless it is there.
func align(n *node, m *message, wall time.Duration) answer {
	value := n.value()
	if !n.votes(m) || !shared(n) || !n.set.has(m.owner, false, wall) {
		return notDone
	}
	if value > m.t {
		if n.w.bugs.has(AlignsDown) {
			m.before, n.register = m.t, m.t
			return done
		}
		return notDone
	}
	counts(n, m)
	m.before, n.register = value, m.t
	return done
}

// quit is release of a reader. The last one deletes the lock.
func quit(n *node, m *message, wall time.Duration) answer {
	ours, free := n.set.drop(m.owner, false), false
	switch {
	case n.owner == m.owner && !n.reserved && n.form != detachedForm, shared(n) && ours && n.w.bugs.has(QuitDeletes):
		n.unlock()
		ours, free = true, true
	case shared(n):
		if m.ticket != 0 && m.update == leaves {
			n.set.drop(m.ticket, true)
		}
		free = vacate(n, wall)
	case n.owner != everybody: // a revoked lock stays
		ours, free = false, n.owner == 0
	}
	return settle(n, m, wall, free, ours)
}

// downgrades reports whether a writer that has finished continues as a reader. Only processes with one caller do.
func downgrades(c *client) bool {
	w := c.w
	return w.readership.clients != 0 && !c.reads && !succeeds(c) && w.config.callers == 1 && !w.quiet && w.readership.pcg.Uint64()%4 == 0
}

// downgrade ends the lease of a writer, whose lock stays, and asks once to have it as a reader.
func downgrade(c *client, now time.Duration) {
	if c.stepHold(quorum.Input{Kind: quorum.InputRelease}); c.machine.State() != quorum.StateReleased {
		c.do(now, c.local.Lost(clock.Validity(c.localTime(now))))
		return
	}
	c.w.trace("client %d goes on as a reader, as owner %d", c.id, c.owner)
	ticket, all := c.ticket, quorum.All(c.w.p.Nodes)
	c.endWait()
	if c.ticket != 0 {
		c.passOn(all&^c.voted, ticket)
	}
	c.waits, c.reads, c.downgrade, c.ticket = true, true, true, 0
	c.wait = quorum.NewWaiter(quorum.WaiterConfig{
		Nodes: c.w.p.Nodes, Arrived: clock.Validity(now), Once: true, Timeout: c.w.config.terms.Timeout, Grace: c.w.config.grace,
	})
	c.keeps, c.kept, c.released = true, all, c.owner
	c.try(now)
}

// abandon releases the lock of a writer that has not become a reader.
func abandon(c *client, now time.Duration) {
	w := c.w
	w.stats[DowngradesFailed]++
	c.releaseKept()
	m := message{op: opRelease, owner: c.released}
	for i := range w.p.Nodes {
		c.request(i, &m)
	}
	c.endWait()
	c.ticket, c.downgrade = 0, false
	c.callLater(c.current, w.config.terms.TTL/4)
	c.do(now, c.local.Lost(clock.Validity(c.localTime(now))))
}

// The rest is what the judge asks about readers.

// none is a place behind every other.
const none = math.MaxInt64

// last reports whether a reader is the last one that a node has.
func last(n *node, owner uint32) bool {
	wall := n.clock.read(n.w.now)
	for _, r := range n.set.members[:n.set.count] {
		if r.ends > wall.Milliseconds() && (r.owner != owner || r.woken) {
			return false
		}
	}
	return true
}

// writersFrom returns the place before which no writer stands in every queue.
func writersFrom(w *world) (place int64) {
	for i := range w.p.Nodes {
		n, first := &w.nodes[i], int64(none)
		for k := n.queued - 1; k >= 0; k-- {
			if !n.queue[k].reads {
				first = n.queue[k].enqueuedAt
			}
		}
		place = max(place, first)
	}
	return place
}

// writerAhead returns the first writer that is in every queue while a reader's attempt begins, unless a node waits for
// that reader, or is free: a client that finds it free may take the head for dead.
func writerAhead(c *client) (first waiting) {
	w := c.w
	for i := range w.p.Nodes {
		if n := &w.nodes[i]; turns(n, c.ticket, 0) || keeps(n, c.owner, 0) || n.owner == 0 {
			return waiting{}
		}
	}
	for _, v := range w.nodes[0].queue[:w.nodes[0].queued] {
		everywhere := !v.reads && !w.clients[v.client].yielded
		for i := range w.p.Nodes {
			everywhere = everywhere && w.nodes[i].rank(v.ticket) >= 0
		}
		if everywhere {
			return v
		}
	}
	return waiting{}
}

// counts checks a reader that a node counts: it has joined the readers that have the lock.
func counts(n *node, m *message) {
	if i := n.set.find(m.owner, false); i >= 0 && n.set.members[i].made != n.set.made {
		n.w.judge.violated("readers", "node %d counts owner %d of client %d, whose lock was lost, and is other readers' now", n.id, m.owner, m.client)
	}
}

// heals checks a lock that a reader's heal makes one of readers: no lease of a writer may count on it.
func heals(n *node, m *message) {
	j := &n.w.judge
	for i := range j.w.config.clients {
		if c := &j.w.clients[i]; n.owner == c.owner && n.locked() && n.owner != m.owner && c.working() {
			j.violated("readers", "a heal of client %d, as owner %d, takes the lock of client %d, owner %d, on node %d", m.client, m.owner, c.id, c.owner, n.id)
		}
	}
}

// settled records that no reader must wait for a client any more.
func settled(j *judge, c *client) {
	for i := range j.ahead {
		if !c.reads && j.ahead[i].ticket == c.ticket {
			j.ahead[i] = waiting{}
		}
	}
}
