package sim

import "time"

// data is the state of a node: the one lock of a run, its register, and the
// marker.
type data struct {
	lot
	reserved bool  // the owner is the ticket that the lock is reserved for
	base     int64 // one for all names: never below a register that was trimmed

	queue  [maxQueue]waiting // the first is the head
	queued int
	// Until then, no more tickets are woken while the head's place is before watched.
	watched      int64
	watchedUntil time.Duration

	marker marker

	set readers // a key of its own, next to the lock's

	slots slots // of permits; the lock and the register belong to one slot
}

// locked reports whether a lease or an attempt has the lock. A reservation is not a
// lock.
func (d *data) locked() bool { return d.owner != 0 && !d.reserved }

// loss is how much of its data a node finds after a restart.
type loss uint8

const (
	durable   loss = iota // all of it
	emptied               // nothing
	truncated             // an old state: the tail of the log is lost
)

var lossNames = [...]string{"all", "nothing", "an old state"}

func (l loss) String() string { return lossNames[l] }

// node is one Redis master, or a failover group.
type node struct {
	server // of a group the master, outside of receive
	w      *world
	id     int8

	line   uint32
	down   bool
	finds  loss // of the next start
	jumped bool // the clock was stepped at least once
	disk   data // the state that a restart with loss may find
	group  group

	reservedFor uint32 // the last ticket with a reservation, for a planted bug

	reservedClient int8 // of the ticket
}

// stop takes the node down, and every connection breaks.
func (n *node) stop(d time.Duration, finds loss) {
	if n.down {
		return
	}
	w := n.w
	w.stats[Downs]++
	w.trace("node %d goes down for %v, and will find %v", n.id, d, finds)
	n.down, n.finds = true, finds
	n.breakLines()
	n.faulted()
	w.schedule(w.now+d, &event{kind: evUp, client: -1, node: n.id})
}

// start brings the node back as another process. The clients dial it again, and check
// whether it may vote.
func (n *node) start() {
	if !n.down {
		return
	}
	w := n.w
	n.down = false
	n.process()
	n.faulted()
	switch n.finds {
	case emptied:
		w.stats[Wipes]++
		n.data = data{}
	case truncated:
		w.stats[Truncations]++
		n.data = n.disk
	}
	if w.p.Trace != nil {
		w.trace("node %d is back, finds %v: register %d, base %d", n.id, n.finds, n.register, n.base)
	}
	w.redial(int(n.id))
}

// process gives the node a new run_id.
func (n *node) process() {
	n.w.runs++
	n.run = n.w.runs
}

// flush deletes all data. The connections stay open.
func (n *node) flush() {
	if n.down {
		return
	}
	n.w.stats[Flushes]++
	n.w.trace("node %d is flushed", n.id)
	n.data = data{}
	n.faulted()
}

func (n *node) stall(d time.Duration) {
	n.w.stats[Stalls]++
	n.w.trace("node %d stands still for %v", n.id, d)
	n.stalled = max(n.stalled, min(n.w.now+d, n.w.config.faults))
	n.faulted()
}

// save stores the state that a later restart with loss will find: an old lock and an
// old register. Before the first save such a restart finds nothing.
func (n *node) save() { n.disk = n.data }

// trim drops registers: this run's, or other names' registers, which have moved as far as any register may.
func (n *node) trim(others time.Duration) {
	if n.down {
		return
	}
	w := n.w
	w.stats[Trims]++
	forgotten := n.register
	if others > 0 {
		forgotten = micros(n.clock.read(w.now) + min(others, w.config.ahead))
	} else {
		n.register = 0
	}
	if !w.bugs.has(TrimForgets) {
		n.base = max(n.base, forgotten)
	}
	w.trace("node %d forgets registers up to %d: register %d, base %d", n.id, forgotten, n.register, n.base)
}

// faulted records a fault on all links of the node.
func (n *node) faulted() {
	for i := range n.w.links {
		n.w.links[i][n.id][requests].fault = n.w.now
	}
}

// serve runs the script of a request, at once or when the node is free for it.
func (n *node) serve(e *event) {
	w := n.w
	m := &e.message
	fault := &w.links[m.client][n.id][requests].fault
	if w.now < n.stalled {
		*fault = w.now
		w.schedule(n.stalled, e)
		return
	}
	if w.config.service > 0 && !w.quiet && !e.admitted {
		at := max(w.now, n.busy)
		n.busy = at + w.config.service
		if at > w.now {
			w.stats[Queued]++
			*fault = w.now
			e.admitted = true
			w.schedule(at, e)
			return
		}
	}
	if n.down || n.group.size == 0 && m.line != n.line {
		// Sometimes the client's connection reports this. Once a batch has begun, the client cannot know what has run.
		if n.down && m.step == 0 && w.rng.IntN(2) == 0 {
			n.answer(m, notConnected, 0)
		}
		return
	}
	if !n.locks(m) {
		n.look(e)
		return
	}
	if n.half.open && !m.op.aside() { // the script names keys that are not there
		n.answer(m, halfMoved, 0)
		return
	}
	wall := n.clock.read(w.now)
	var frozen time.Duration
	if n.freeze > 0 && m.op != opGreet {
		frozen, n.freeze = n.freeze, 0
		frozen = max(0, min(frozen, w.config.faults-w.now))
		w.stats[Freezes]++
		n.stalled = max(n.stalled, w.now+frozen)
		n.faulted()
	}
	n.expire(wall)
	n.slots.turnTo(&n.lot, m.slot)
	before := holds(n, m, wall)
	a := serveLock(n, m, wall, frozen)
	if w.p.Trace != nil {
		w.trace("node %d: %v of client %d to server %d in term %d by owner %d, ticket %d, t %d: %v, moved %d, before %d; now %d|%d, reserved %v, for %dms, register %d, base %d, queue %v, readers %v, slot %d, let in %v, frozen %v",
			n.id, m.op, m.client, m.server, m.epoch, m.owner, m.ticket, m.t, a, m.moved, m.before,
			n.owner, n.shown, n.reserved, n.expires-wall.Milliseconds(), n.register, n.base, n.queue[:n.queued], n.set.members[:n.set.count], n.slots.in, n.slots.rights[:n.slots.let], frozen)
	}
	if !before && holds(n, m, wall) {
		w.judge.created(n, m)
	}
	n.ends(e, a, frozen)
}

// answer sends m back with a, after the script has stalled for frozen.
func (n *node) answer(m *message, a answer, frozen time.Duration) {
	back := *m
	back.reply, back.answer, back.clock = true, a, micros(n.clock.read(n.w.now))
	n.w.transmit(&back, frozen)
}

// expire drops the lock when its time has ended. The key disappears in the millisecond of its end, the earliest instant
// at which Redis may drop it.
func (n *node) expire(wall time.Duration) {
	n.slots.expire(wall)
	if n.owner != 0 && wall.Milliseconds() >= n.expires {
		n.unlock()
	}
	if wall.Milliseconds() >= n.set.ends {
		n.set.clear()
	}
}

// lock creates the lock. It shows no token yet.
func (n *node) lock(m *message, end int64) {
	n.owner, n.reserved, n.form, n.shown, n.expires = m.owner, false, ownedForm, 0, end
}

// unlock drops the lock, or the reservation.
func (n *node) unlock() { n.owner, n.reserved, n.form, n.shown = 0, false, ownedForm, 0 }

// tooOld reports whether a renewal is older than its TTL.
func (n *node) tooOld(m *message, wall time.Duration) bool {
	return len(n.w.ttls.terms) > 0 && micros(wall) > m.after
}
