package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// configure draws the settings of a run.
func (w *world) configure() {
	r := w.rng
	c := config{clients: 2 + r.IntN(usualClients-1), fifo: r.IntN(2) == 0}
	if r.IntN(8) == 0 {
		c.clients = usualClients + 1 + r.IntN(maxClients-usualClients)
	}
	c.drawTerms(w)
	ttl := c.terms.TTL

	c.latency = ttl / 1000 * time.Duration(1+r.IntN(20))
	c.loss = w.sometimes(300)
	c.slow = w.sometimes(100)
	c.repeat = w.sometimes(200)
	if r.IntN(8) == 0 { // about as many requests as a node can process, or more
		c.service = c.terms.Timeout / time.Duration(c.clients*(1+r.IntN(8)))
	}
	c.everyPause = w.every(ttl)
	c.everyCrash = w.every(4 * ttl)
	c.everyDown = w.every(3 * ttl)
	c.everyStall = w.every(3 * ttl)
	c.everyFreeze = w.every(3 * ttl)
	c.everyTrim = w.every(2 * ttl)
	c.everyCut = w.every(4 * ttl)
	c.everyQuit = w.every(6 * ttl)
	c.everyCheck = w.every(4 * ttl)
	if r.IntN(3) == 0 {
		c.everyJump = w.every(4 * ttl)
	}
	if r.IntN(3) == 0 {
		c.everyDistance = w.every(8 * ttl)
	}
	c.queues = []int{0, 50, 50, 100, 100, 100}[r.IntN(6)]
	c.giveUp, c.unsubscribed = w.sometimes(50), w.sometimes(200)
	c.orderly = w.p.World == Inside && r.IntN(16) == 0
	if w.p.Nodes%2 == 0 {
		// With two nodes an attempt needs both votes. A release that overtakes its
		// acquire then blocks the lock for a TTL, and a head that waits for the other
		// node lets its reservation lapse. So even numbers of nodes promise neither
		// liveness within two TTLs nor order.
		c.fifo, c.orderly = true, false
	}
	c.amnesia = (r.IntN(2) == 0 || w.p.Mutation.among(amnesic...)) && !w.p.Mutation.among(lostOnTheWay...)
	c.guard = c.amnesia || r.IntN(2) == 0
	c.known = r.IntN(3) > 0
	c.stepAware = r.IntN(2) == 0
	if c.amnesia {
		c.everyFlush = w.every(6 * ttl)
	}
	c.drawTokens(w)
	c.drawClocks(w)
	w.p.Mutation.configure(w, &c)
	if c.orderly {
		c.calm()
	}
	if c.instant > 0 {
		c.together(w)
	}
	c.grace = min(max(4*c.latency, minGrace), maxGrace)
	w.config = c
}

func (c *config) drawTerms(w *world) {
	r := w.rng
	ttl := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}[r.IntN(4)]
	c.maxTTL = ttl * time.Duration(1+r.IntN(2))
	c.ahead = min(2*time.Second, c.maxTTL/4)
	c.renew = ttl / 3
	if r.IntN(8) == 0 {
		c.renew = ttl / 10 // the holder renews more often
	}
	c.backoffCap = ttl / 2
	c.hold = ttl / 100 * []time.Duration{5, 30, 150, 400}[r.IntN(4)]
	c.faults = time.Duration(w.p.Span) * ttl
	c.terms = quorum.Terms{
		Nodes: w.p.Nodes, TTL: ttl, Drift: quorum.Drift(ttl, 0.01),
		SafetyMargin: quorum.SafetyMargin(ttl), Early: quorum.Early(quorum.SafetyMargin(ttl)),
		Timeout: min(max(ttl/10, 20*time.Millisecond), 500*time.Millisecond),
	}
	c.terms.MaxLag = quorum.MaxLag(ttl, ttl)
	c.lag = time.Duration(w.sometimes(int(c.terms.MaxLag)))
	c.late = (c.terms.Early + c.lag) * 9 / 10 // in true time: on the client's clock it may be more
	if r.IntN(5) == 0 {
		c.terms.MaxHold = ttl/2 + w.upTo(2*ttl)
	}
}

// drawTokens draws the errors of proposals. Correct tokens must not depend on proposals.
func (c *config) drawTokens(w *world) {
	r, ttl := w.rng, c.terms.TTL
	c.misjudged = []time.Duration{0, 2 * c.latency, ttl / 10, 3 * ttl}[r.IntN(4)]
	if r.IntN(3) == 0 {
		c.grain = []time.Duration{time.Millisecond, ttl / 10, 2 * ttl}[r.IntN(3)]
	}
	c.block = []int64{1, 1, 10, 1000, 1_000_000, 1_000_000_000}[r.IntN(6)]
	c.callers = 1 + r.IntN(maxCallers)
	c.pace = []time.Duration{1, ttl / (10 * time.Millisecond)}[r.IntN(2)]
}

// drawClocks draws the clock faults of the run's world.
func (c *config) drawClocks(w *world) {
	ttl := c.terms.TTL
	switch {
	case w.p.World != Anything:
		c.rate = modelRate
		c.offset = c.maxTTL / 20
		if w.p.World == Stepped {
			c.stepAware, c.amnesia, c.everyFlush = true, false, 0
			c.everyStep = ttl + w.upTo(8*ttl)
			c.everyCommon = w.every(8 * ttl)
			c.everyCrash, c.everyQuit = 0, 0
		}
	case c.amnesia:
		// The quarantine is longer than A + C: a register is at most a quarter
		// of it ahead of its node's clock, steps differ by a quarter, and rates
		// by 15 % of it in the usual span.
		c.rate = 3000
		c.offset = c.maxTTL / 20
		c.step = c.maxTTL / 8
		c.everyStep = w.every(ttl / 4)
	default:
		c.rate = 50_000
		c.offset = time.Hour
		c.step = []time.Duration{ttl / 2, 2 * ttl, time.Hour}[w.rng.IntN(3)]
		c.everyStep = ttl/8 + w.upTo(ttl)
		c.everyBlip = w.every(ttl)
		if w.rng.IntN(2) == 0 || w.p.Mutation.among(lostOnTheWay...) {
			c.loseKeysOnTheWay(w)
		}
	}
	if w.p.World == Groups {
		c.drawGroups(w)
	}
	if w.p.World == Together {
		c.once, c.queues, c.callers = true, 0, 1
		if w.rng.IntN(2) == 0 {
			c.instant = ttl + w.upTo(ttl)
		}
	}
}

// together makes a run in which all clients ask at one instant.
func (c *config) together(w *world) {
	c.calm()
	c.clients, c.queues = 2+w.rng.IntN(maxClients-1), 0
	c.guard, c.amnesia, c.stepAware, c.fifo = false, false, false, true
	c.hold, c.terms.MaxHold = 4*c.terms.TTL, 0
	c.everyTrim = 0 // a base that is ahead of the clocks fails the attempt for good
	c.latency = min(c.latency, c.terms.Timeout/16)
}

// drawGroups draws which nodes are failover groups, and their faults. The restart guard
// covers the longest lease and the window.
func (c *config) drawGroups(w *world) {
	r, ttl := w.rng, c.terms.TTL
	c.groups = 1
	if r.IntN(2) == 0 {
		c.groups = 1<<w.p.Nodes - 1
	}
	c.guard, c.votesMatch = true, true
	c.window = max(failover.LeastWindow, ttl/2*time.Duration(r.IntN(4)))
	c.maxTTL += c.window
	c.ahead = min(2*time.Second, (c.maxTTL-c.window)/4)
	c.everyFailover = ttl + w.upTo(6*ttl)
	c.everyBlind = w.every(4 * ttl)
	if r.IntN(2) == 0 {
		c.offset = 5 * time.Millisecond // the safety margin of a lease covers this
	}
	if r.IntN(2) == 0 {
		c.outlive(w)
	}
}

// outlive makes a run of leases that outlive the terms of groups, with few other faults.
// Some clients stay with an old master as long as they can, others find the new one soon.
func (c *config) outlive(w *world) {
	ttl := c.terms.TTL
	c.hold, c.backoffCap, c.terms.MaxHold = 4*ttl, ttl/20, 0
	c.everyFailover = c.maxTTL/2 + w.upTo(2*c.maxTTL)
	c.everyBlind, c.everyPause = ttl+w.upTo(4*ttl), 2*ttl+w.upTo(4*ttl)
	c.loss, c.slow, c.service = min(c.loss, 50), min(c.slow, 20), 0
	c.everyCrash, c.everyQuit, c.everyDown, c.everyFlush = 0, 0, 0, 0
	c.everyStall, c.everyFreeze, c.everyDistance, c.everyJump = 0, 0, 0, 0
}

// calm makes a run without faults, in which each client that is woken asks in time.
func (c *config) calm() {
	c.clients, c.queues, c.giveUp, c.unsubscribed = usualClients, 100, 0, 0
	c.latency = min(c.latency, maxGrace/4)
	c.lag, c.late = 0, time.Millisecond // a late timer lets a reservation lapse
	c.loss, c.slow, c.repeat, c.service = 0, 0, 0, 0
	c.misjudged, c.grain = 0, 0
	c.everyPause, c.everyCrash, c.everyQuit, c.everyJump, c.everyDown = 0, 0, 0, 0, 0
	c.everyFlush, c.everyStall, c.everyFreeze, c.everyCut, c.everyDistance = 0, 0, 0, 0, 0
	c.everyCheck = c.terms.TTL // otherwise a client that waits long forgets the nodes' clocks
}

// loseKeysOnTheWay makes a run of slow attempts by many clients that compete closely, on nodes whose clocks jump. So an
// attempt often loses a key before it ends. Such runs put tokens at risk.
func (c *config) loseKeysOnTheWay(w *world) {
	ttl := c.terms.TTL
	c.clients = usualClients
	c.fifo = w.rng.IntN(4) == 0
	c.terms.Timeout = ttl / 3
	c.terms.MaxHold = 0
	c.hold = ttl / 100
	c.backoffCap = ttl / 10
	c.latency = ttl / 50 * time.Duration(1+w.rng.IntN(10))
	c.repeat, c.loss, c.service = 600, w.rng.IntN(50), 0
	c.offset = ttl / 10
	c.step, c.everyStep = 0, 0
	if w.rng.IntN(4) == 0 {
		c.step, c.everyStep = 2*ttl, ttl/50+w.upTo(ttl/5)
	}
	c.everyBlip = ttl/50 + w.upTo(ttl/10)
	c.everyPause, c.everyCrash, c.everyDown, c.everyStall, c.everyCut = 0, 0, 0, 0, 0
	c.everyJump, c.everyFreeze, c.everyDistance = 0, 0, 0
	if w.rng.IntN(2) == 0 {
		c.queues = 0 // all clients ask at once
	}
}
