package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// epoch is what the wall clocks show when a run begins.
const epoch = 1_800_000_000 * time.Second

// clock shows offset + t + rate·t at the true time t. Only a step of the
// offset makes it jump.
type clock struct {
	offset time.Duration
	rate   int64 // in millionths
}

// read returns what the clock shows at the true time t.
func (c *clock) read(t time.Duration) time.Duration {
	return c.offset + t + t/1e6*time.Duration(c.rate) + t%1e6*time.Duration(c.rate)/1e6
}

// when returns the first true time at which the clock shows at least at, give
// or take a nanosecond.
func (c *clock) when(at time.Duration) time.Duration {
	d := at - c.offset
	if d <= 0 {
		return 0
	}
	t := d / time.Duration(1e6+c.rate) * 1e6 // close below; then step by step
	for {
		missing := at - c.read(t)
		if missing <= 0 {
			return t
		}
		t += max(1, missing*1e6/time.Duration(1e6+max(c.rate, 0)))
	}
}

// kind of an event.
type kind uint8

const (
	arrival kind = iota + 1 // a message reaches its receiver
	timer                   // a client has something to do
	pause                   // a client stops for a time
	crash                   // a client vanishes for a time
	quit                    // a client is closed, and starts again later
	begin                   // a client starts
	down                    // a node stops for a time
	up                      // and starts again
	flush                   // a node loses all data, and no connection
	redial                  // a client greets a node
	stall                   // a node stands still for a time, and then goes on
	cut                     // a client and a node do not reach each other for a time
	step                    // a wall clock jumps
	blip                    // a node's clock jumps ahead, and back before anybody sees it
	save                    // a node writes its data to disk
	check                   // a failed attempt must have left nothing
	calm                    // the faults stop
	verdict                 // and by now somebody must have had the lock
)

// event is something that happens at an instant. Which fields matter depends
// on the kind; messages use all of message.
type event struct {
	kind     kind
	finds    loss // down: what the restart finds
	oneWay   bool // cut: only the requests, or only the answers
	client   int8 // or -1
	node     int8 // or -1
	duration time.Duration
	message
}

// place of an event in the heap.
type place struct {
	at    time.Duration
	order uint32 // of scheduling, to break ties
	index uint32 // into world.events
}

func (a *place) before(b *place) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// link is one direction between a client and a node.
type link struct {
	last  time.Duration // when its last message arrives
	fault time.Duration // when a message on it was last lost, late or repeated
	cut   time.Duration // nothing passes before
}

// world is one run. Its arrays are kept from run to run.
type world struct {
	p      Params
	config config
	bugs   Mutation
	pcg    *rand.PCG
	rng    *rand.Rand

	now     time.Duration // true time
	quiet   bool          // the faults have stopped
	over    bool
	heap    []place
	planned []place // what is filed before the run begins, the next one last: it would make the heap deep
	events  []event
	free    []uint32
	order   uint32

	nodes   [maxNodes]node
	clients [maxClients]client
	links   [maxClients][maxNodes][3]link // requests, answers, and what the node tells, by another connection
	owners  uint32                        // owner values handed out
	runs    uint32                        // and run_ids of nodes
	judge   judge
	stats   Stats
}

func newWorld() *world {
	w := &world{pcg: rand.NewPCG(0, 0)}
	w.rng = rand.New(w.pcg)
	return w
}

// schedule files an event.
func (w *world) schedule(at time.Duration, e *event) {
	var index uint32
	if n := len(w.free); n > 0 {
		index = w.free[n-1]
		w.free = w.free[:n-1]
		w.events[index] = *e
	} else {
		index = uint32(len(w.events))
		w.events = append(w.events, *e)
	}
	w.order++
	p := place{at: max(at, w.now), order: w.order, index: index}
	w.heap = append(w.heap, p)
	i := len(w.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !p.before(&w.heap[parent]) {
			break
		}
		w.heap[i] = w.heap[parent]
		i = parent
	}
	w.heap[i] = p
}

// next takes the earliest event.
func (w *world) next() (e event) {
	if n := len(w.planned) - 1; n >= 0 && (len(w.heap) == 0 || w.planned[n].before(&w.heap[0])) {
		first := w.planned[n]
		w.planned = w.planned[:n]
		return w.take(first)
	}
	first := w.heap[0]
	last := len(w.heap) - 1
	p := w.heap[last]
	w.heap = w.heap[:last]
	i := 0
	for last > 0 {
		child := 2*i + 1
		if child >= last {
			break
		}
		if right := child + 1; right < last && w.heap[right].before(&w.heap[child]) {
			child = right
		}
		if !w.heap[child].before(&p) {
			break
		}
		w.heap[i] = w.heap[child]
		i = child
	}
	if last > 0 {
		w.heap[i] = p
	}
	return w.take(first)
}

func (w *world) take(p place) event {
	w.now = p.at
	w.free = append(w.free, p.index)
	return w.events[p.index]
}

// run plays p to its end.
func (w *world) run(p Params) Result {
	w.reset(p)
	w.configure()
	w.populate()
	w.plan()
	w.planned, w.heap = append(w.planned, w.heap...), w.heap[:0]
	slices.SortFunc(w.planned, func(a, b place) int {
		if a.before(&b) {
			return 1
		}
		return -1
	})
	for !w.over && len(w.heap)+len(w.planned) > 0 {
		e := w.next()
		w.stats.Events++
		w.handle(&e)
	}
	w.stats.Runs++
	return Result{Params: p, Stats: w.stats, Violation: w.judge.found}
}

func (w *world) reset(p Params) {
	w.p, w.bugs = p, p.Mutation
	if p.Innocent {
		w.bugs = 0
	}
	w.pcg.Seed(uint64(p.Seed), uint64(p.Nodes)<<8|uint64(p.World))
	w.now, w.quiet, w.over, w.order, w.owners, w.runs = 0, false, false, 0, 0, 0
	w.heap, w.planned, w.events, w.free = w.heap[:0], w.planned[:0], w.events[:0], w.free[:0]
	w.links = [maxClients][maxNodes][3]link{}
	for i := range w.links {
		for j := range w.links[i] {
			w.links[i][j][0].fault, w.links[i][j][1].fault = -1, -1
		}
	}
	w.stats = Stats{}
	w.judge.reset(w)
}

func (w *world) populate() {
	c := &w.config
	off := func() time.Duration {
		by := w.upTo(2*c.offset+1) - c.offset
		switch {
		case c.apart && by < 0:
			return -c.offset
		case c.apart:
			return c.offset
		}
		return by
	}
	rate := func() int64 { return w.rng.Int64N(2*c.rate+1) - c.rate }
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		*n = node{w: w, id: int8(i), clock: clock{offset: epoch + off(), rate: rate()}}
		n.process()
		if c.known {
			n.marker.run = n.run
		}
	}
	for i := range c.clients {
		window := w.clients[i].window
		w.clients[i] = client{w: w, id: int8(i), paused: -1, window: window}
		w.clients[i].mono = clock{offset: time.Hour, rate: rate()}
		w.clients[i].wall = off()
		w.schedule(w.upTo(c.terms.TTL/10), &event{kind: begin, client: int8(i), node: -1})
	}
}

// plan draws all faults in advance.
func (w *world) plan() {
	c := &w.config
	ttl := c.terms.TTL
	again := func(every time.Duration, do func(at time.Duration)) {
		if every == 0 {
			return
		}
		for at := w.upTo(2 * every); at < c.faults; at += 1 + w.upTo(2*every) {
			do(at)
		}
	}
	// short times are more frequent than long ones
	skewed := func(most time.Duration) time.Duration { return w.upTo(1 + w.upTo(most)) }
	for i := range int8(c.clients) {
		again(c.everyPause, func(at time.Duration) {
			w.schedule(at, &event{kind: pause, client: i, node: -1, duration: skewed(5 * ttl)})
		})
		again(c.everyCrash, func(at time.Duration) {
			w.schedule(at, &event{kind: crash, client: i, node: -1, duration: skewed(3 * ttl)})
		})
		again(c.everyQuit, func(at time.Duration) {
			w.schedule(at, &event{kind: quit, client: i, node: -1, duration: skewed(3 * ttl)})
		})
		again(c.everyStep*2, func(at time.Duration) {
			w.schedule(at, &event{kind: step, client: i, node: -1, duration: w.upTo(2*c.step+1) - c.step})
		})
	}
	for i := range int8(c.clients) {
		for k := range int8(w.p.Nodes) {
			again(c.everyCut, func(at time.Duration) {
				w.schedule(at, &event{
					kind: cut, client: i, node: k, duration: skewed(3 * ttl), oneWay: w.rng.IntN(3) == 0,
				})
			})
			again(c.everyCheck, func(at time.Duration) {
				w.schedule(at, &event{kind: redial, client: i, node: k})
			})
		}
	}
	for i := range int8(w.p.Nodes) {
		back := w.p.World == Stepped && w.rng.IntN(3) == 0
		again(c.everyDown, func(at time.Duration) {
			e := event{kind: down, client: -1, node: i, duration: skewed(3 * ttl)}
			if c.amnesia {
				e.finds = loss(w.rng.IntN(3))
			}
			w.schedule(at, &e)
			if e.finds == truncated {
				w.schedule(max(0, at-skewed(3*ttl)), &event{kind: save, client: -1, node: i})
			}
		})
		again(c.everyFlush, func(at time.Duration) {
			w.schedule(at, &event{kind: flush, client: -1, node: i})
		})
		again(c.everyStall, func(at time.Duration) {
			w.schedule(at, &event{kind: stall, client: -1, node: i, duration: skewed(2 * ttl)})
		})
		again(c.everyStep, func(at time.Duration) {
			by := w.upTo(2*c.step+1) - c.step
			if w.p.World == Stepped {
				by = 2*ttl + w.upTo(10*ttl)
				if w.rng.IntN(8) == 0 {
					by += time.Hour
				}
				if back {
					by = -by
				}
			}
			w.schedule(at, &event{kind: step, client: -1, node: i, duration: by})
		})
		again(c.everyBlip, func(at time.Duration) {
			w.schedule(at, &event{kind: blip, client: -1, node: i, duration: w.upTo(2 * ttl)})
		})
	}
	w.schedule(c.faults, &event{kind: calm, client: -1, node: -1})
}

func (w *world) handle(e *event) {
	switch e.kind {
	case arrival:
		if e.reply {
			w.clients[e.message.client].receive(e)
		} else {
			w.nodes[e.message.node].receive(e)
		}
	case timer:
		w.clients[e.client].wake(e)
	case pause:
		w.clients[e.client].pause(e.duration)
	case crash:
		w.clients[e.client].crash(e.duration)
	case quit:
		w.clients[e.client].quit(e.duration)
	case begin:
		w.clients[e.client].begin()
	case down:
		w.nodes[e.node].stop(e.duration, e.finds)
	case up:
		w.nodes[e.node].start()
	case flush:
		w.nodes[e.node].flush()
	case redial:
		w.clients[e.client].redial(int(e.node))
	case stall:
		w.nodes[e.node].stall(e.duration)
	case cut:
		w.cut(e)
	case step:
		w.step(e)
	case blip:
		w.stats.Steps++
		n := &w.nodes[e.node]
		n.expire(n.clock.read(w.now) + e.duration)
		w.trace("clock of node %d jumps ahead by %v and back", e.node, e.duration)
	case save:
		w.nodes[e.node].save()
	case check:
		w.judge.leftover(e)
	case calm:
		w.calm()
	case verdict:
		w.judge.starved()
	}
}

// cut parts a client and a node, in one direction or both.
func (w *world) cut(e *event) {
	w.stats.Cuts++
	w.trace("client %d and node %d are cut off for %v, one way: %v", e.client, e.node, e.duration, e.oneWay)
	first := w.rng.IntN(2)
	for direction := range w.links[e.client][e.node] {
		if l := &w.links[e.client][e.node][direction]; min(direction, 1) == first || !e.oneWay {
			l.cut = max(l.cut, w.now+e.duration)
		}
	}
}

// redial tells the clients that a node can be dialled again. How fast they are
// is up to chance: the sooner they greet it, the sooner its quarantine ends.
func (w *world) redial(node int) {
	for i := range w.config.clients {
		w.schedule(w.now+w.upTo(w.config.terms.TTL/10), &event{kind: redial, client: int8(i), node: int8(node)})
	}
}

// step moves a wall clock. One that was near the truth stays near it: steps do
// not add up.
func (w *world) step(e *event) {
	if w.p.World == Stepped && e.node >= 0 && !w.watched(int(e.node)) {
		return
	}
	w.stats.Steps++
	if e.client >= 0 {
		w.clients[e.client].wall = e.duration
	} else {
		n := &w.nodes[e.node]
		n.jumped = true
		drifted := n.clock.read(w.now) - n.clock.offset - w.now
		if w.p.World == Stepped {
			n.clock.offset += e.duration
		} else {
			n.clock.offset = epoch + e.duration - drifted
		}
	}
	w.trace("clock of client %d or node %d is off by %v", e.client, e.node, e.duration)
}

// watched reports whether every client knows the clock of a node.
func (w *world) watched(node int) bool {
	for i := range w.config.clients {
		if w.clients[i].known[node].offset.at == 0 {
			return false
		}
	}
	return true
}

// calm stops the faults: nodes are up, clients run, what is on its way arrives
// soon, and who holds the lock gives it back.
func (w *world) calm() {
	w.quiet = true
	w.trace("the faults stop")
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		n.start()
		n.stalled = 0
	}
	for i := range w.config.clients {
		c := &w.clients[i]
		c.paused = -1
		if c.phase == gone {
			c.begin()
		}
		if c.phase == holding {
			c.until = 0
		}
		c.sleep()
	}
	c := &w.config
	w.schedule(w.ready()+2*c.terms.TTL+c.backoffCap+3*c.terms.Timeout, &event{kind: verdict, client: -1, node: -1})
}

// ready returns when a quorum of nodes is out of quarantine for every client:
// before, nobody may be granted the lock.
func (w *world) ready() time.Duration {
	c := &w.config
	// A client has greeted every node when its next attempt is over.
	greeted := w.now + c.backoffCap + 3*c.terms.Timeout
	var ready [maxNodes]time.Duration // sorted
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		at := w.now
		longest := greeted + c.maxTTL + c.maxTTL/25
		switch {
		case c.stepAware && c.everyStep > 0:
			at = longest // a step may be found as late as that
		case !c.guard:
		case n.marker.run != n.run:
			at = longest
		default:
			ends := n.clock.when(time.Duration(n.marker.until) * time.Microsecond)
			at = min(max(greeted, ends+c.maxTTL/25), longest)
		}
		for k := range c.clients {
			client := &w.clients[k]
			at = max(at, client.mono.when(client.known[i].quarantine))
		}
		j := i
		for ; j > 0 && ready[j-1] > at; j-- {
			ready[j] = ready[j-1]
		}
		ready[j] = at
	}
	return ready[quorum.Size(w.p.Nodes)-1]
}

// transmit puts a message on its link, or loses it.
func (w *world) transmit(m *message) {
	w.stats.Messages++
	c := &w.config
	direction := 0
	switch {
	case m.op == told:
		direction = 2
	case m.reply:
		direction = 1
	}
	l := &w.links[m.client][m.node][direction]
	if w.quiet {
		w.deliver(l, m, w.upTo(c.latency))
		return
	}
	fate := w.rng.IntN(1000)
	if fate < c.loss || w.now < l.cut {
		w.stats.Lost++
		l.fault = w.now
		return
	}
	w.deliver(l, m, w.delay(l))
	if w.rng.IntN(1000) < c.repeat {
		w.stats.Repeated++
		l.fault = w.now // a second copy can make a key where the first could not
		w.deliver(l, m, w.delay(l))
	}
}

func (w *world) delay(l *link) time.Duration {
	c := &w.config
	if c.slow > 0 && w.rng.IntN(1000) < c.slow {
		w.stats.Late++
		l.fault = w.now
		return w.upTo(1 + w.upTo(3*c.terms.TTL))
	}
	return w.upTo(c.latency)
}

func (w *world) deliver(l *link, m *message, delay time.Duration) {
	at := w.now + delay
	if !w.quiet && at > w.config.faults {
		at = w.config.faults + w.upTo(w.config.latency)
	}
	if w.config.fifo {
		at = max(at, l.last)
		l.last = at
	}
	w.schedule(at, &event{kind: arrival, client: -1, node: -1, message: *m})
}

func (w *world) trace(format string, args ...any) {
	if w.p.Trace != nil {
		w.p.Trace("%12v "+format, append([]any{w.now}, args...)...)
	}
}
