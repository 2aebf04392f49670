package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// world is one run. Its arrays are kept from run to run.
type world struct {
	p      Params
	config config
	bugs   Mutation
	pcg    *rand.PCG
	rng    *rand.Rand

	now    time.Duration // true time
	quiet  bool          // the faults have stopped
	over   bool
	agenda agenda

	failovers [maxNodes][]succession // planned

	nodes   [maxNodes]node
	clients [maxClients]client
	links   [maxClients][maxNodes][directions]link
	owners  uint32 // owner values and tickets in use
	runs    uint32 // run_ids of nodes in use
	judge   judge
	guests
	stats Stats
}

// guests are the parts of a run that draw from generators of their own.
type guests struct {
	observer   observer // takes no part in the run
	operator   operator
	handles    handles
	readership readership // decides which clients read
	permits    permits    // and which ask for permits
	moves      moves      // whose slots are half moved
	ttls       ttls       // and whose leases get other TTLs
	lean       rand.PCG   // which acquisitions go the lean way, and how long their commands take
	deaf       rand.PCG   // which releases are of a client that no message reaches
}

func newWorld() *world {
	w := &world{pcg: rand.NewPCG(0, 0)}
	w.rng = rand.New(w.pcg)
	return w
}

// schedule adds an event to the agenda.
func (w *world) schedule(at time.Duration, e *event) { w.agenda.add(max(at, w.now), e) }

// run plays p to its end.
func (w *world) run(p Params) Result {
	w.reset(p)
	w.configure()
	w.deaf.Seed(uint64(p.Seed), 0xdeaf)
	w.handles.reset(w)
	w.readership.draw(&w.p, min(w.config.clients, w.handles.first), p.Mutation.among(ofReaders...))
	w.permits.draw(&w.p, &w.config, w.handles.first == maxClients && w.readership.clients == 0, p.Mutation.among(ofPermits...))
	w.drawLean()
	w.ttls.draw(&w.p, &w.config, w.permits.limit == 0 && w.handles.first == maxClients, p.Mutation.among(ofTTLs...))
	w.populate()
	w.plan()
	w.moves.plan(w)
	if w.observer.reset(p.Seed, &w.config.terms, w.bugs); (p.Seed%observedRuns == 0 || p.Mutation.among(ofObservers...)) && w.permits.limit == 0 {
		w.schedule(0, &event{kind: evPoll, client: -1, node: -1})
	}
	if w.operator.reset(p.Seed, w.config.terms.Timeout, w.bugs); p.World == Inside && !w.config.amnesia && w.permits.limit == 0 && (p.Seed%revokedRuns == 5 || p.Mutation.among(ofOperators...) || p.Mutation.has(ResumesRevoked)) {
		w.schedule(w.operator.upTo(4*w.config.terms.TTL), &event{kind: evRevoke, client: -1, node: -1})
	}
	a := &w.agenda
	a.planned, a.heap = append(a.planned, a.heap...), a.heap[:0]
	slices.SortFunc(a.planned, func(a, b slot) int {
		if a.before(&b) {
			return 1
		}
		return -1
	})
	for !w.over && !a.empty() {
		at, e := a.next()
		w.now = at
		w.stats[Events]++
		w.handle(&e)
	}
	w.stats[Runs]++
	return Result{Params: p, Stats: w.stats, Violation: w.judge.found}
}

func (w *world) reset(p Params) {
	w.p, w.bugs = p, p.Mutation
	if p.Innocent {
		w.bugs = 0
	}
	w.pcg.Seed(uint64(p.Seed), uint64(p.Nodes)<<8|uint64(p.World))
	w.now, w.quiet, w.over, w.owners, w.runs = 0, false, false, 0, 0
	w.agenda.reset()
	w.links = [maxClients][maxNodes][directions]link{}
	for i := range w.links {
		for j := range w.links[i] {
			w.links[i][j][requests].fault, w.links[i][j][replies].fault = -1, -1
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
		clock := func() simClock { return simClock{offset: epoch + off(), rate: rate()} }
		*n = node{w: w, id: int8(i), server: server{clock: clock()}}
		n.process()
		if c.known {
			n.marker.run = n.run
		}
		if c.groups&(1<<i) != 0 {
			n.formGroup(clock)
		}
	}
	for i := range c.clients {
		window := w.clients[i].window
		w.clients[i] = client{w: w, id: int8(i), paused: -1, lease: lease{window: window}}
		w.clients[i].mono = simClock{offset: time.Hour, rate: rate()}
		w.schedule(w.upTo(c.terms.TTL/10), &event{kind: evBegin, client: int8(i), node: -1})
	}
}

func (w *world) handle(e *event) {
	switch e.kind {
	case evArrival:
		if e.reply {
			w.clients[e.message.client].receive(e)
		} else {
			w.nodes[e.message.node].receive(e)
		}
	case evTimer, evPause, evCrash, evQuit, evBegin, evRemnants, evRedial, evCall, evLeave, evWatch, evBlind:
		w.clients[e.client].handle(e)
	case evDown:
		w.nodes[e.node].stop(e.duration, e.finds)
	case evUp:
		w.nodes[e.node].start()
	case evFlush:
		w.nodes[e.node].flush()
	case evStall:
		w.nodes[e.node].stall(e.duration)
	case evFreeze:
		w.nodes[e.node].freeze = e.duration
	case evTrim:
		w.nodes[e.node].trim(e.duration)
	case evMoveLate:
		n := &w.nodes[e.node]
		n.register = max(n.register, e.t)
	case evCut:
		w.cut(e)
	case evDistance:
		w.distance(e)
	case evStep:
		w.step(e)
	case evCommonStep:
		w.commonStep(e)
	case evBlip:
		blip(w, e)
	case evFailover:
		w.failover(e)
	case evNamed:
		w.nodes[e.node].name(e.t)
	case evCopy:
		w.nodes[e.node].replicate(e.caller)
	case evSave:
		w.nodes[e.node].save()
	case evMove, evMoveBack:
		w.nodes[e.node].moveSlot(e)
	case evCheck:
		w.judge.leftover(e)
	case evPoll, evLook, evSeen:
		observe(w, e)
	case evRevoke, evMark, evMarked, evRevoked:
		operate(w, e)
	case evDetach, evDetached, evUse:
		useHandles(w, e)
	case evCalm:
		w.calm()
	case evVerdict:
		w.judge.starved()
	}
}

// redial notifies the clients that a node can be dialled again. Their delays are random:
// the sooner a client greets the node, the sooner its quarantine ends.
func (w *world) redial(node int) {
	for i := range w.config.clients {
		w.schedule(w.now+w.upTo(w.config.terms.TTL/10), &event{kind: evRedial, client: int8(i), node: int8(node)})
	}
}

// calm stops the faults. Nodes are up, clients run, messages on their way arrive soon,
// and the holder releases the lock.
func (w *world) calm() {
	w.quiet = true
	w.trace("the faults stop")
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		n.start()
		n.stalled, n.freeze = 0, 0
		n.endMoves()
		n.repair()
	}
	for i := range w.config.clients {
		c := &w.clients[i]
		c.paused, c.blind = -1, 0
		if c.phase == gone {
			c.begin()
		}
		if c.phase == holding {
			c.until = 0
		}
		c.sleep()
	}
	c := &w.config
	w.schedule(max(w.ready(), w.handles.ends)+2*c.terms.TTL+w.ttls.extra+c.backoffCap+3*c.terms.Timeout, &event{kind: evVerdict, client: -1, node: -1})
}

// ttlOf returns how long a request keeps a lock.
func (w *world) ttlOf(m *message) time.Duration {
	if m.ttl > 0 {
		return m.ttl
	}
	return w.config.terms.TTL
}

// ready returns the instant at which a quorum of nodes is out of quarantine for every
// client. Before it, possibly no client can get the lock.
func (w *world) ready() time.Duration {
	c := &w.config
	// A client has greeted every node when its next attempt has ended.
	greeted := w.now + c.backoffCap + 3*c.terms.Timeout
	var ready [maxNodes]time.Duration // sorted
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		at := w.now
		longest := greeted + c.maxTTL + c.maxTTL/25
		switch {
		case c.stepAware && c.everyStep > 0:
			at = longest // a step may be found that late
		case c.groups&(1<<i) != 0:
			at = greeted + 2*failover.ConfirmedFor // the clients must find the master first
		case !c.guard:
		case n.marker.run != n.run:
			at = longest
		default:
			ends := n.clock.when(time.Duration(n.marker.until) * time.Microsecond)
			at = min(max(greeted, ends+c.maxTTL/25), longest)
		}
		for k := range c.clients {
			client := &w.clients[k]
			at = max(at, client.mono.when(client.steady()+client.known[i].vote.Left(client.waited())))
		}
		if c.groups&(1<<i) != 0 {
			at += longest - greeted // a client in quarantine does not see yet that it needs another one
		}
		j := i
		for ; j > 0 && ready[j-1] > at; j-- {
			ready[j] = ready[j-1]
		}
		ready[j] = at
	}
	return ready[quorum.Size(w.p.Nodes)-1]
}

func (w *world) trace(format string, args ...any) {
	if w.p.Trace != nil {
		w.p.Trace("%12v "+format, append([]any{w.now}, args...)...)
	}
}

// sometimes returns a number up to most, often 0.
func (w *world) sometimes(most int) int {
	if w.rng.IntN(3) == 0 {
		return 0
	}
	return w.rng.IntN(most + 1)
}

// every returns a mean time between faults around d, or 0 for none.
func (w *world) every(d time.Duration) time.Duration {
	if w.rng.IntN(3) == 0 {
		return 0
	}
	return d/2 + w.upTo(4*d)
}

// upTo returns a time in [0, d).
func (w *world) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(d)))
}
