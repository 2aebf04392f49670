package sim

import (
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/vote"
)

// known is what a client knows about a node.
type known struct {
	offset  clock.Offset
	greeted bool // over the connection line, so the node may vote over it
	line    uint32
	conn    connection // to a group
	terms   failover.Tracker[term]
	asked   time.Duration // when the last greeting was sent
	owes    time.Duration // since when the node has owed an answer, by the steady clock; 0 if it owes none
	jumped  time.Duration // when the client last found the node's clock set ahead
	jump    time.Duration // and by how much
	rests   bool          // the lean way has declined, and rests until the next greeting

	marker marker    // of the restart guard
	vote   vote.Vote // whether the node may vote
}

// greetTime bounds a greeting. A slower answer is ignored.
const greetTime = time.Second

// greet sends the greeting of a connection.
func (c *client) greet(i int) {
	m := message{op: opGreet}
	_, m.clockSuspect = c.known[i].vote.Suspected()
	c.known[i].asked = c.now()
	if c.grouped(i) {
		if !c.connect(i) {
			return
		}
		m.unguarded = !c.known[i].terms.Confirmed(clock.Validity(c.now()))
		m.forced = c.known[i].terms.Moved()
	}
	c.request(i, &m)
}

// redial greets a node: there is a new connection, or a periodic check is due.
func (c *client) redial(i int) {
	if c.phase != gone && c.w.now >= c.paused {
		c.greet(i)
	}
}

// greeted handles the answer to a greeting.
func (c *client) greeted(i int, m *message, now time.Duration) {
	k := &c.known[i]
	if m.answer != done || m.line != c.lineTo(i) || c.outdated(i, m) {
		return // that connection has ended
	}
	k.rests = false
	if k.line != m.line {
		c.unproven |= c.lean & quorum.Set(0).With(i)
		c.retryReleases(i)
		c.listens(i, now) // its wake-ups were lost in between
	}
	k.greeted, k.line = true, m.line
	if c.w.moves.on {
		if c.looked(i, m); k.terms.Moving() {
			k.vote.Unguarded = !c.w.bugs.has(NoConfirmation)
			return
		}
	}
	if k.vote.Unguarded = m.unguarded && !c.w.bugs.has(VotesUnguarded) && !c.w.bugs.has(NoConfirmation); m.unguarded {
		c.w.stats[Unguarded]++
		return
	}
	if m.clockSuspect {
		k.vote.Guarded(clock.Steady(c.steady()), true)
	}
	if m.forced {
		k.terms.Marked()
	}
	if m.marker == k.marker {
		return // the quarantine is known already
	}
	k.marker = m.marker
	if !c.w.bugs.has(NoGuard) {
		k.vote.Marked(c.waited(), m.marker.until, m.clock, errQuarantined)
	}
}

var (
	errQuarantined = errors.New("in quarantine")
	errStepped     = errors.New("the node's clock was stepped")
)

// waited returns the time of the clock that measures quarantines. It does not jump, so that a jump of
// the wall clock does not end them.
func (c *client) waited() clock.Mono { return c.waitedAt(c.steady(), c.now()) }

func (c *client) waitedAt(steady, validity time.Duration) clock.Mono {
	if c.w.bugs.has(QuarantineJumps) {
		return clock.Mono(validity)
	}
	return clock.Mono(steady)
}

// othersOf returns what is decided outside vote.Vote about a node's votes: whether the term of a group may vote. Lists
// of nodes are not simulated.
func (c *client) othersOf(i int) (o vote.Others) {
	if c.grouped(i) && !c.w.bugs.has(NoConfirmation) {
		o.Term = c.known[i].terms.Votes(clock.Validity(c.now()), c.w.moves.on)
	}
	return o
}

// cast returns how a request was sent.
func (c *client) cast(i int, m *message) vote.Cast {
	sent := vote.Cast{Sent: c.waitedAt(m.steady, m.sent), Steady: clock.Steady(m.steady)}
	if c.grouped(i) {
		terms := &c.known[i].terms
		sent.Former = terms.Used() != term{server: m.server, epoch: m.epoch}
		sent.Outlasted = !terms.Renews(clock.Validity(m.sent), c.w.config.window) && !c.w.bugs.has(RenewedForEver)
	}
	return sent
}

// asks records that the node owes an answer from now on, unless it already does.
func (k *known) asks(now time.Duration) {
	if k.owes == 0 {
		k.owes = now
	}
}

// silent returns the nodes that an attempt does not wait for.
func (c *client) silent() (silent quorum.Set) {
	for i := range c.w.p.Nodes {
		if owes := c.known[i].owes; owes != 0 && c.steady()-owes >= c.w.config.terms.Timeout {
			silent = silent.With(i)
		}
	}
	return quorum.Dispensable(c.w.p.Nodes, silent)
}

// mayVote reports whether the client may ask node i for its vote.
func (c *client) mayVote(i int) bool {
	k := &c.known[i]
	return k.greeted && k.line == c.lineTo(i) && k.vote.May(c.waited(), c.othersOf(i)) == nil
}

// limit makes m void after the instant bound of the validity clock.
func (c *client) limit(i int, m *message, bound time.Duration) {
	o := &c.known[i].offset
	left := bound - c.now()
	if c.w.config.votesMatch && c.phase == holding {
		m.held = micros(time.Duration(c.machine.HeldUntil(i).Add(c.ruler() - c.now() + o.Low())))
	}
	m.bound = c.steady() + left
	m.after = micros(c.ruler() + left + o.Low())
	m.slack = time.Millisecond + clock.Steady(c.ruler()+left).Sub(o.At())/1e6*time.Duration(3*c.w.config.rate) + o.Width()
}

// ruler returns the time of the clock that measures the nodes' clocks: the steady clock.
// A clock that includes the client's own steps would hide a step common to client and
// node.
func (c *client) ruler() time.Duration {
	if c.w.bugs.has(CommonStepUnseen) {
		return c.now()
	}
	return c.steady()
}

// clusterTime returns the lower median, in µs, of the nodes' clocks that the client knows.
func (c *client) clusterTime() int64 {
	var sorted [maxNodes]time.Duration
	known := 0
	for i := range c.w.p.Nodes {
		o := &c.known[i].offset
		if !o.Known() {
			continue
		}
		at := c.ruler() + o.Mid()
		j := known
		for ; j > 0 && sorted[j-1] > at; j-- {
			sorted[j] = sorted[j-1]
		}
		sorted[j] = at
		known++
	}
	if known == 0 {
		return micros(epoch + c.w.now)
	}
	return micros(sorted[(known-1)/2])
}

// drift bounds the difference between the rates of two clocks.
const drift = 0.01

// observe reads the clock of a node from an answer. A step backward makes keys live longer, which is safe. If the
// answer shows another marker, the node is greeted again.
func (c *client) observe(m *message, now time.Duration) {
	if m.way == leanWay && (!m.read || c.w.bugs.has(LeanClockUnseen)) {
		return // TIME was not read
	}
	sent := m.steady
	if c.w.bugs.has(CommonStepUnseen) {
		sent = m.sent
	}
	i := int(m.node)
	step, found := c.known[i].offset.Observe(time.Duration(m.clock)*time.Microsecond, clock.Steady(sent), clock.Steady(c.ruler()))
	if found && step.Forward() && c.w.config.stepAware && !c.w.bugs.has(BlindToSteps) {
		c.applyClockStep(i, now, step.By)
	}
	if m.answer == markerChanged { // also in an answer to an attempt that has ended
		c.known[i].greeted = false
		c.greet(i)
	}
}

// applyClockStep records that a node's clock was set ahead. Keys on it, also other clients', have expired too early.
func (c *client) applyClockStep(i int, now, by time.Duration) {
	w := c.w
	w.stats[StepsFound]++
	w.judge.alarmed(c, i)
	w.trace("client %d sees the clock of node %d ahead by %v", c.id, i, by)
	k := &c.known[i]
	k.jumped, k.jump = now, by
	longest := w.config.terms.TTL
	if w.config.guard {
		longest, k.greeted = w.config.maxTTL, false
	}
	k.vote.Stepped(c.waited(), clock.Steady(c.steady()), longest, errStepped)
	if w.p.Nodes == 1 && c.grouped(i) { // the client cannot tell whose clock it was
		k.vote.Guarded(clock.Steady(c.steady()), true)
	}
	if c.phase == holding {
		c.clockStep(i, by)
		c.sleep()
	}
}

// orphan is a release whose answer is missing.
type orphan struct {
	op            op
	update        ticketUpdate
	owner, ticket uint32
	enqueuedAt    int64
	line          uint32
	slot          int8
}

// orphans are the latest releases of a client whose fate is unknown, by node. The client sends them again over a new
// connection.
type orphans struct {
	of   [maxNodes][4]orphan
	next [maxNodes]uint8
}

func (o *orphans) sent(i int, m *message) {
	o.of[i][o.next[i]] = orphan{
		op: m.op, update: m.update, owner: m.owner, ticket: m.ticket, enqueuedAt: m.enqueuedAt, line: m.line, slot: m.slot,
	}
	o.next[i] = (o.next[i] + 1) % uint8(len(o.of[i]))
}

func (o *orphans) answered(i int, m *message) {
	for k := range o.of[i] {
		if r := &o.of[i][k]; r.op == m.op && r.owner == m.owner && r.ticket == m.ticket {
			*r = orphan{}
		}
	}
}

// retryReleases repeats the releases that were lost with a broken connection. A retry
// must not bring a ticket back into a queue, because its wait has continued since.
func (c *client) retryReleases(i int) {
	line := c.lineTo(i)
	for k := range c.orphans.of[i] {
		r := &c.orphans.of[i][k]
		if r.op == 0 || r.line == line {
			continue
		}
		c.w.stats[ReleaseRetries]++
		m := message{op: r.op, owner: r.owner, ticket: r.ticket}
		m.slot = r.slot
		if r.op.plain() == opRelease && (r.update != leaves || r.ticket == c.ticket) {
			m.ticket = 0
		}
		*r = orphan{}
		if c.w.handles.find(m.owner) == nil { // a detached lock stays if its drop was not among the latest
			c.w.judge.retried(c, i, &m)
		}
		if !c.w.bugs.has(NoRetries) {
			c.request(i, &m)
		}
	}
}
