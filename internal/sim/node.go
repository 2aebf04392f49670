package sim

import "time"

// op is a request; each is one script of internal/node.
type op uint8

const (
	acquire op = iota + 1
	extend
	heal
	raise
	release
	greet // the restart guard and a look at the clock, on a new connection
	told  // no request: the node tells a client that it keeps the lock for its ticket, or for the one before it
)

var opNames = [...]string{"?", "acquire", "extend", "heal", "raise", "release", "greet", "told"}

func (o op) String() string { return opNames[o] }

// answer of a node.
type answer uint8

const (
	granted answer = iota + 1 // acquire: number is the counter
	taken                     // acquire: somebody else has it; number is how long, ms
	late                      // acquire, heal: after the instant it was limited to
	strange                   // acquire: the marker is not the one that the client knows
	refused                   // any: not connected. Not applied
	kept                      // extend, heal; told: for the ticket
	missing                   // extend; told: for the one before it
	foreign                   // extend, heal
	done                      // raise, release, greet
	undone                    // raise, release: not ours
)

var answerNames = [...]string{
	"?", "granted", "taken", "late", "strange", "refused", "kept", "gone", "foreign", "done", "not done",
}

func (a answer) String() string { return answerNames[a] }

// message is a request, or its answer on the way back.
type message struct {
	op     op
	answer answer
	reply  bool
	client int8
	node   int8
	hears  bool   // acquire: the client listens on the node, so that it may queue
	past   bool   // release: others go first
	pass   bool   // release: the owner is a ticket that is not waited with any more
	life   uint32 // of the client, which forgets all when it crashes
	line   uint32 // the connection: it breaks when the node goes down
	owner  uint32
	ticket uint32        // acquire, release, told: of whoever waits; 0 for none
	place  int64         // acquire, release: in the queue, 0 to leave it; taken: how many are before us, or -1
	number int64         // acquire: where a new counter starts, µs; greet: 1 to distrust; taken: see there; else the token, 0 to undo
	floor  int64         // acquire: no counter below this, µs
	marker marker        // acquire: as the client knows it; greet, reply: as it is
	after  int64         // acquire, heal: void after this, µs of the node's clock
	clock  int64         // reply: the node's clock, µs
	sent   time.Duration // by the client's clock
	bound  time.Duration // what the client meant by after, by its own clock
	slack  time.Duration // by how much it may err
}

// micros is the number of µs in d, as the scripts count them.
func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// marker is the restart guard's: it names the process that the data belongs
// to. It is data like any other, and lost with it.
type marker struct {
	run   uint32 // 0: there is no marker
	until int64  // end of the quarantine, µs of the node's clock; 0 if there never was one
}

// data is what a node keeps: for the one lock of a run, and the marker.
type data struct {
	owner   uint32 // 0: no lock
	kept    bool   // and owner is the ticket for which it is kept
	counter int64  // stored with the lock
	expires int64  // ms of the node's clock

	fenced       bool // the fence counter exists
	fence        int64
	fenceExpires int64

	queue  [maxQueue]waiting // by place
	queued int

	marker marker
}

// locked reports whether somebody has the lock. Kept, it is nobody's yet.
func (d *data) locked() bool { return d.owner != 0 && !d.kept }

// loss is what a restart finds of the data.
type loss uint8

const (
	durable   loss = iota // all of it
	emptied               // nothing
	truncated             // an old state: the tail of the log is lost
)

var lossNames = [...]string{"all", "nothing", "an old state"}

func (l loss) String() string { return lossNames[l] }

// node is one Redis master.
type node struct {
	data
	w     *world
	id    int8
	clock clock

	line    uint32
	run     uint32 // the process
	down    bool
	finds   loss          // of the next start
	stalled time.Duration // until this true time
	jumped  bool          // the clock, at least once
	disk    data          // what a restart that lost the newest finds
	gave    uint32        // the last ticket for which it kept the lock, for a planted bug
}

// stop takes the node down: every connection breaks.
func (n *node) stop(d time.Duration, finds loss) {
	if n.down {
		return
	}
	w := n.w
	w.stats.Downs++
	w.trace("node %d goes down for %v, and will find %v", n.id, d, finds)
	n.down, n.finds = true, finds
	n.line++
	n.faulted()
	w.schedule(w.now+d, &event{kind: up, client: -1, node: n.id})
}

// start brings the node back as another process. Whether it may vote is for
// the clients to find out: they dial it again.
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
		w.stats.Wipes++
		n.data = data{}
	case truncated:
		w.stats.Truncations++
		n.data = n.disk
	}
	if w.p.Trace != nil {
		w.trace("node %d is back, finds %v: %v", n.id, n.finds, n.data)
	}
	w.redial(int(n.id))
}

// process gives the node a new run_id.
func (n *node) process() {
	n.w.runs++
	n.run = n.w.runs
}

// flush drops everything while the connections stand.
func (n *node) flush() {
	if n.down {
		return
	}
	n.w.stats.Flushes++
	n.w.trace("node %d is flushed", n.id)
	n.data = data{}
	n.faulted()
}

func (n *node) stall(d time.Duration) {
	n.w.stats.Stalls++
	n.w.trace("node %d stands still for %v", n.id, d)
	n.stalled = max(n.stalled, min(n.w.now+d, n.w.config.faults))
	n.faulted()
}

// save keeps what a later restart with loss will find: an old lock, an old
// counter. Until then it finds nothing.
func (n *node) save() { n.disk = n.data }

// faulted notes for all links of the node that something was wrong.
func (n *node) faulted() {
	for i := range n.w.links {
		n.w.links[i][n.id][0].fault = n.w.now
	}
}

// receive runs the script of a request.
func (n *node) receive(e *event) {
	w := n.w
	if w.now < n.stalled {
		w.links[e.message.client][n.id][0].fault = w.now
		w.schedule(n.stalled, e)
		return
	}
	m := &e.message
	if n.down || m.line != n.line {
		// Sometimes the client hears of it.
		if n.down && w.rng.IntN(2) == 0 {
			n.answer(m, refused)
		}
		return
	}
	wall := n.clock.read(w.now)
	n.expire(wall)
	before := n.locked()
	a := n.execute(m, wall)
	if w.p.Trace != nil {
		w.trace("node %d: %v by owner %d, ticket %d, number %d: %v; now %d|%d, kept %v, until %dms, fence %d, queue %v",
			n.id, m.op, m.owner, m.ticket, m.number, a,
			n.owner, n.counter, n.kept, n.expires-wall.Milliseconds(), n.fence, n.queue[:n.queued])
	}
	if !before && n.locked() {
		w.judge.created(n, m)
	}
	n.answer(m, a)
}

// answer sends m back with a. m.number is the counter already.
func (n *node) answer(m *message, a answer) {
	back := *m
	back.reply, back.answer, back.clock = true, a, micros(n.clock.read(n.w.now))
	n.w.transmit(&back)
}

// expire drops what has run out. A key is gone in the very millisecond of its
// end, the earliest that Redis may drop it.
func (n *node) expire(wall time.Duration) {
	ms := wall.Milliseconds()
	if n.owner != 0 && ms >= n.expires {
		n.owner, n.kept = 0, false
	}
	if n.fenced && ms >= n.fenceExpires {
		n.fenced = false
	}
}

// lock makes the lock.
func (n *node) lock(m *message, counter int64, wall time.Duration) {
	n.owner, n.kept, n.counter = m.owner, false, counter
	n.expires = (wall + n.w.config.terms.TTL).Milliseconds()
}

// count sets the fence counter.
func (n *node) count(to int64, wall time.Duration) {
	n.fenced, n.fence = true, to
	used := max(wall, time.Duration(to)*time.Microsecond) // tokens may be ahead of this clock
	if n.w.bugs.has(ForgetsTokens) {
		used = wall
	}
	n.fenceExpires = (used + n.w.config.counterTTL).Milliseconds()
}

func (n *node) execute(m *message, wall time.Duration) answer {
	mutation := n.w.bugs
	ours := n.owner == m.owner && !n.kept
	switch m.op {
	case greet:
		return n.greet(m, wall)

	case acquire:
		return n.acquire(m, wall)

	case extend:
		switch {
		case n.owner == 0 && mutation.has(ExtendCreates), n.kept && mutation.has(ExtendKept):
			n.lock(m, m.number, wall)
			return kept
		case !n.locked():
			return missing
		case !ours && !mutation.has(ExtendForeign):
			return foreign
		case mutation.has(ExtendZero):
			n.owner = 0 // PEXPIREAT of the past deletes the key, and reports success
			return kept
		}
		n.expires = (wall + n.w.config.terms.TTL).Milliseconds()
		if n.fenced {
			n.count(max(n.fence, m.number), wall)
		}
		return kept

	case heal:
		switch {
		case micros(wall) > m.after && !mutation.has(HealAnytime):
			n.w.stats.Refused++
			return late
		case !n.locked():
			n.lock(m, m.number, wall)
			return kept
		case ours:
			n.expires = (wall + n.w.config.terms.TTL).Milliseconds()
			return kept
		}
		return foreign

	case raise:
		switch {
		case !ours && !mutation.has(BlindWriteBack), !n.fenced:
			return undone
		case mutation.has(WriteBackSets):
			n.count(m.number, wall)
		case n.fence > m.number:
			// The counter has passed the token: this owner lost the lock here
			// in between, and a second copy of its acquire got it again.
			if mutation.has(RaiseAbove) {
				return done
			}
			return undone
		default:
			n.count(m.number, wall)
		}
		return done

	default:
		return n.release(m, wall)
	}
}

// greet runs the restart guard: a marker that is missing or names another
// process starts a quarantine, and so does a client that has seen the clock
// jump ahead.
func (n *node) greet(m *message, wall time.Duration) answer {
	w := n.w
	if w.config.guard && (n.marker.run != n.run || m.number == 1) {
		w.stats.Quarantines++
		n.marker = marker{run: n.run, until: micros(wall + w.config.maxTTL)}
	}
	m.marker = n.marker
	return done
}

func (n *node) acquire(m *message, wall time.Duration) answer {
	mutation := n.w.bugs
	ours := n.owner == m.owner && !n.kept
	forUs := n.kept && m.ticket != 0 && (n.owner == m.ticket || mutation.has(KeptForAnybody)) ||
		mutation.has(KeptOverwrites) && m.ticket != 0 && n.gave == m.ticket
	void := micros(wall) > m.after && !mutation.has(AcquireAnytime)
	switch {
	case n.w.config.guard && n.marker != m.marker && !mutation.has(NoMarker) &&
		!(mutation.has(NoMarkerPasses) && n.marker.run == 0) && !(mutation.has(KeptUnguarded) && forUs):
		n.w.stats.Strange++
		return strange
	case n.owner != 0 && !ours && !forUs:
		return n.taken(m, wall, !void)
	case void:
		n.w.stats.Refused++
		return late
	case ours:
		n.expires = (wall + n.w.config.terms.TTL).Milliseconds()
		m.number = n.counter
		return granted
	}
	if !forUs && n.queued > 0 {
		n.enqueue(m)
		if first := n.give(m.ticket, wall); first != 0 && first != m.ticket {
			return n.taken(m, wall, true)
		}
	}
	var counter int64
	switch {
	case n.fenced && forUs && mutation.has(KeptUncounted):
		counter = n.fence
	case n.fenced:
		counter = n.fence + 1
	default:
		clamp := micros(n.w.config.clamp)
		counter = min(max(m.number, micros(wall)-clamp), micros(wall)+clamp)
	}
	counter = max(counter, m.floor)
	n.count(counter, wall) // before the lock: nothing is rolled back
	n.lock(m, counter, wall)
	m.number = counter
	return granted
}

// taken has whoever asks in time wait, and tells how long the lock is somebody
// else's.
func (n *node) taken(m *message, wall time.Duration, timely bool) answer {
	place := int64(-1)
	if timely && n.enqueue(m) {
		place = n.rank(m.ticket)
	}
	m.number, m.place = n.expires-wall.Milliseconds(), place
	return taken
}

func (n *node) release(m *message, wall time.Duration) answer {
	mutation := n.w.bugs
	free := n.owner == 0
	ours := n.owner == m.owner ||
		!free && (mutation.has(ReleaseForeign) || m.pass && mutation.has(PassOnDeletes))
	switch {
	case ours:
		n.owner, n.kept = 0, false
		switch {
		case !n.fenced:
		case m.number > n.fence:
			n.count(m.number, wall)
		case m.number == 0 && n.fence == n.counter:
			n.count(n.fence-1, wall)
		}
	case mutation.has(BlindUndo) && m.number == 0 && n.fenced:
		n.count(n.fence-1, wall)
	}
	stays := m.place != 0
	if stays && n.kept && n.owner == m.ticket {
		return undone // kept for it meanwhile: back in the queue, it would get its turn twice
	}
	if stays && !m.past {
		n.enqueue(m)
	} else {
		n.dequeue(m.ticket)
	}
	var given uint32
	if ours || free || mutation.has(GivesAnyLock) {
		given = n.give(m.ticket, wall)
	}
	if stays && (m.past || given == m.ticket) {
		n.enqueue(m)
	}
	if ours {
		return done
	}
	return undone
}
