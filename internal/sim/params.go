package sim

import (
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// World is the kind of faults that a run may have.
type World uint8

const (
	// Inside the fault model: clock rates that differ by less than 1 % and no
	// steps; nodes that lose their data only under the restart guard.
	Inside World = iota + 1
	// Anything: clocks that step or run at any rate. Data is lost only by
	// nodes whose clock is not behind by more than the quarantine.
	Anything
	// Stepped is Inside without loss of data, and the clocks of any number of
	// nodes are set ahead by 2 TTL or more, those of others back. Clients do not
	// come and go: each knows every clock from before. A clock that goes back
	// and ahead between two looks of a client is not among them: it may look as
	// if it had gone back alone, and then nobody doubts its votes.
	Stepped
)

var worldNames = [...]string{"?", "inside", "anything", "stepped"}

// String returns the name that the flag of TestOne takes.
func (w World) String() string { return worldNames[w] }

// ParseWorld returns the world of that name.
func ParseWorld(name string) (w World, ok bool) {
	for i, n := range worldNames {
		if n == name && i > 0 {
			return World(i), true
		}
	}
	return 0, false
}

// Params make a run: equal Params, equal run.
type Params struct {
	Seed  int64
	Nodes int // 1 … maxNodes
	World World
	// Span is how many TTLs the faults go on.
	Span int
	// Mutation is a planted bug. Its runs are drawn where it can show.
	Mutation Mutation
	// Innocent draws the runs of Mutation and leaves the bug out.
	Innocent bool
	// Trace, if set, is told every event.
	Trace func(format string, args ...any)
}

// String returns the flags that run it again.
func (p Params) String() string {
	s := fmt.Sprintf("-seed=%d -nodes=%d -world=%v -span=%d", p.Seed, p.Nodes, p.World, p.Span)
	if p.Mutation != 0 {
		s += fmt.Sprintf(" -mutation=%q", p.Mutation)
	}
	return s
}

// maxNodes and maxClients bound the arrays of a world.
const (
	maxNodes   = 5
	maxClients = 4
)

// config is what a run draws from its seed first.
type config struct {
	clients    int
	terms      quorum.Terms
	maxTTL     time.Duration // of the restart guard
	late       time.Duration // timers are late by less
	lag        time.Duration // what clients know of that, beyond terms.Early
	clamp      time.Duration // S: how far a node pulls a new counter to its clock
	counterTTL time.Duration // a counter lives as long after its use, and after the node's clock has come up to it
	backoffCap time.Duration // longest wait between two attempts
	hold       time.Duration // longest hold
	grace      time.Duration // how long a node keeps the lock for whom it told
	faults     time.Duration // when they stop

	rate   int64         // clock rates lie within ± this, in millionths
	offset time.Duration // wall clocks start within ± this
	apart  bool          // at the one end or the other
	step   time.Duration // and may step within ± this; 0 for none

	queues  int  // clients of 100 that stand in line, the others ask again and again
	giveUp  int  // failed attempts of 1000 that end the wait
	deaf    int  // of 1000: who cannot be told by a node, or seems to be there and is not
	orderly bool // nothing goes wrong, and all stand in line

	fifo       bool // links keep the order of their messages
	loss       int  // messages of 1000
	slow       int  // messages of 1000 that are late by up to 3 TTL
	repeat     int  // messages of 1000 that come twice
	latency    time.Duration
	everyPause time.Duration // mean time between two faults of a kind; 0 for none
	everyCrash time.Duration
	everyQuit  time.Duration
	everyDown  time.Duration
	everyFlush time.Duration
	everyCheck time.Duration // clients greet nodes again, over connections that stand
	everyStall time.Duration
	everyCut   time.Duration
	everyStep  time.Duration
	everyBlip  time.Duration

	guard     bool // the restart guard is on
	known     bool // and has seen the nodes before
	amnesia   bool // nodes may lose data: at a restart, and by a flush
	stepAware bool // clients look for steps of the nodes' clocks
}

// modelRate is the most that a clock inside the fault model is fast or slow, in
// millionths: two of them differ by less than 1 %.
const modelRate = 4900

func (w *world) configure() {
	r := w.rng
	c := config{clients: 2 + r.IntN(maxClients-1), fifo: r.IntN(2) == 0}
	ttl := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}[r.IntN(4)]
	c.maxTTL = ttl * time.Duration(1+r.IntN(2))
	c.clamp = min(2*time.Second, c.maxTTL/4)
	c.backoffCap = ttl / 2
	c.hold = ttl / 100 * []time.Duration{5, 30, 150, 400}[r.IntN(4)]
	c.faults = time.Duration(w.p.Span) * ttl
	c.counterTTL = 24 * time.Hour
	c.terms = quorum.Terms{
		Nodes: w.p.Nodes, TTL: ttl, Drift: quorum.Drift(ttl, 0.01),
		Guard: quorum.Guard(ttl), Early: quorum.Early(quorum.Guard(ttl)),
		Timeout: min(max(ttl/10, 20*time.Millisecond), 500*time.Millisecond),
	}
	c.terms.MaxLag = quorum.MaxLag(ttl, ttl)
	c.lag = time.Duration(w.sometimes(int(c.terms.MaxLag)))
	c.late = (c.terms.Early + c.lag) * 9 / 10 // by the truth: by the client's clock it may be more
	if r.IntN(5) == 0 {
		c.terms.MaxHold = ttl/2 + w.upTo(2*ttl)
	}

	c.latency = ttl / 1000 * time.Duration(1+r.IntN(20))
	c.loss = w.sometimes(300)
	c.slow = w.sometimes(100)
	c.repeat = w.sometimes(200)
	c.everyPause = w.every(ttl)
	c.everyCrash = w.every(4 * ttl)
	c.everyDown = w.every(3 * ttl)
	c.everyStall = w.every(3 * ttl)
	c.everyCut = w.every(4 * ttl)
	c.everyQuit = w.every(6 * ttl)
	c.everyCheck = w.every(4 * ttl)
	c.queues = []int{0, 50, 50, 100, 100, 100}[r.IntN(6)]
	c.giveUp, c.deaf = w.sometimes(50), w.sometimes(200)
	c.orderly = w.p.World == Inside && r.IntN(16) == 0
	c.amnesia = (r.IntN(2) == 0 || w.p.Mutation.has(amnesic)) && !w.p.Mutation.has(lostOnTheWay)
	c.guard = c.amnesia || r.IntN(2) == 0
	c.known = r.IntN(3) > 0
	c.stepAware = r.IntN(2) == 0
	if c.amnesia {
		c.everyFlush = w.every(6 * ttl)
	}

	switch {
	case w.p.World == Inside || w.p.World == Stepped:
		c.rate = modelRate
		c.offset = c.maxTTL / 20
		if r.IntN(5) == 0 {
			c.counterTTL = 2 * c.maxTTL
		}
		if w.p.World == Stepped {
			c.stepAware, c.amnesia, c.everyFlush = true, false, 0
			c.everyStep = ttl + w.upTo(8*ttl)
			c.everyCrash, c.everyQuit = 0, 0
			c.counterTTL = 24 * time.Hour
		}
	case c.amnesia:
		// Never behind by more than the quarantine: with 1/8 of it each for
		// the step, the rate and a client that pulls a new counter by S, a
		// token of before the restart stays below the quarantine's end.
		c.rate = 3000
		c.offset = c.maxTTL / 20
		c.step = c.maxTTL / 8
		c.everyStep = w.every(ttl / 4)
	default:
		c.rate = 50_000
		c.offset = time.Hour
		c.step = []time.Duration{ttl / 2, 2 * ttl, time.Hour}[r.IntN(3)]
		c.everyStep = ttl/8 + w.upTo(ttl)
		c.everyBlip = w.every(ttl)
		if r.IntN(2) == 0 || w.p.Mutation.has(lostOnTheWay) {
			c.loseKeysOnTheWay(w)
		} else if r.IntN(4) == 0 { // counters are forgotten; a step forward and back would do that before its time
			c.counterTTL, c.step, c.everyStep = 2*c.maxTTL, 0, 0
		}
	}
	w.p.Mutation.configure(w, &c)
	if c.orderly {
		c.calm()
	}
	c.grace = min(max(4*c.latency, minGrace), maxGrace)
	w.config = c
}

// minGrace and maxGrace bound how long a node keeps the lock for whom it told: a
// few round trips.
const (
	minGrace = 20 * time.Millisecond
	maxGrace = 200 * time.Millisecond
)

// calm makes a run in which nothing goes wrong, and whoever was told asks in time.
func (c *config) calm() {
	c.clients, c.queues, c.giveUp, c.deaf = maxClients, 100, 0, 0
	c.latency = min(c.latency, maxGrace/4)
	c.loss, c.slow, c.repeat = 0, 0, 0
	c.everyPause, c.everyCrash, c.everyQuit, c.everyDown = 0, 0, 0, 0
	c.everyFlush, c.everyStall, c.everyCut = 0, 0, 0
	c.everyCheck = c.terms.TTL // or who waits for long does not know the nodes' clocks any more
}

// loseKeysOnTheWay makes a run of slow attempts by many clients that step on
// each other's heels, on nodes whose clocks jump, so that an attempt often
// loses a key before it is over. That is where tokens are in danger.
func (c *config) loseKeysOnTheWay(w *world) {
	ttl := c.terms.TTL
	c.clients = maxClients
	c.fifo = w.rng.IntN(4) == 0
	c.terms.Timeout = ttl / 3
	c.terms.MaxHold = 0
	c.hold = ttl / 100
	c.backoffCap = ttl / 10
	c.latency = ttl / 50 * time.Duration(1+w.rng.IntN(10))
	c.repeat, c.loss = 600, w.rng.IntN(50)
	c.offset = ttl / 10
	c.step, c.everyStep = 0, 0
	if w.rng.IntN(4) == 0 {
		c.step, c.everyStep = 2*ttl, ttl/50+w.upTo(ttl/5)
	}
	c.everyBlip = ttl/50 + w.upTo(ttl/10)
	c.everyPause, c.everyCrash, c.everyDown, c.everyStall, c.everyCut = 0, 0, 0, 0, 0
	if w.rng.IntN(2) == 0 {
		c.queues = 0 // and all of them at once
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
