package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/vote"
)

// phase of a client.
type phase uint8

const (
	gone    phase = iota // crashed, or not started
	resting              // no caller contends, or one will contend from client.until on
	trying               // an attempt is on its way
	holding              // the lease ends at client.until, or with the loss
)

// client is one process whose callers take the lock again and again. It drives the
// production decisions as the Manager does in production.
type client struct {
	w       *world
	id      int8
	mono    simClock      // the steady clock: it does not step
	forward time.Duration // forward steps of the wall clock, which the validity clock adds to mono

	life    uint32
	phase   phase
	until   time.Duration // by the validity clock
	paused  time.Duration // until this true time; -1 if never
	resumed time.Duration // true time at which the client first reads its clock after a pause or a jump
	jumped  bool          // the clock jumped, and the machine has no input of that yet
	blind   time.Duration // until this true time the client cannot learn who the masters are
	timerAt time.Duration // true time of the earliest scheduled timer; 0 for none
	timely  time.Duration // when that timer was due, by the validity clock

	known    [maxNodes]known
	orphans  orphans
	remnants [4]remnant
	returns  returning
	callers
	attempt
	waiter
	lease
}

// steady returns the time of the clock that measures the nodes' clocks.
func (c *client) steady() time.Duration { return c.mono.read(c.w.now) }

// now returns the time of the clock that measures validity. It includes the forward
// steps of the wall clock, so it may jump, and a jump loses leases.
func (c *client) now() time.Duration { return c.steady() + c.forward }

// when returns the true time at which the validity clock shows at, if it does not jump
// before.
func (c *client) when(at time.Duration) time.Duration { return c.mono.when(at - c.forward) }

// handle processes an event of the client.
func (c *client) handle(e *event) {
	switch e.kind {
	case evTimer:
		c.wake(e)
	case evPause:
		c.pause(e.duration)
	case evCrash:
		c.crash(e.duration)
	case evQuit:
		c.quit(e.duration)
	case evBegin:
		c.begin()
	case evRemnants:
		c.releaseRemnants(e)
	case evRedial:
		c.redial(int(e.node))
	case evWatch:
		c.watch(e)
	case evBlind:
		c.goBlind(e.duration)
	case evCall, evLeave:
		c.serve(e)
	}
}

// begin starts the client, or starts it again after a crash.
func (c *client) begin() {
	if c.phase != gone {
		return
	}
	c.phase = resting
	c.callers = callers{}
	c.attempt = attempt{}
	c.waiter = waiter{queues: c.w.rng.IntN(100) < c.w.config.queues}
	c.orphans, c.returns = orphans{}, returning{}
	c.remnants = [len(c.remnants)]remnant{}
	c.w.trace("client %d starts", c.id)
	var guard time.Duration
	if c.w.config.guard {
		guard = c.w.config.maxTTL
	}
	for i := range c.w.p.Nodes {
		c.known[i] = known{offset: clock.NewOffset(drift), vote: vote.New(guard, drift)}
		c.greet(i)
	}
	if c.w.config.groups != 0 {
		e := event{kind: evWatch, client: c.id, node: -1}
		e.life = c.life
		c.w.schedule(c.w.now+c.w.upTo(failover.ConfirmEvery), &e)
	}
	for caller := range c.w.config.callers {
		if caller > 0 && c.w.readership.has(c.id) {
			break // readers of a process do not wait for each other
		}
		if c.w.config.instant > 0 {
			break // see planTogether
		}
		c.callLater(caller, c.w.config.terms.TTL/10*time.Duration(caller))
	}
}

func (c *client) crash(d time.Duration) {
	if c.phase == gone {
		return
	}
	c.w.stats[Crashes]++
	c.w.trace("client %d crashes", c.id)
	c.vanish(d)
}

// vanish ends the client's life, and schedules its next start.
func (c *client) vanish(d time.Duration) {
	c.phase, c.owner, c.worksUntil = gone, 0, 0
	c.life++
	c.w.schedule(c.w.now+d, &event{kind: evBegin, client: c.id, node: -1})
}

// quit closes the client and schedules its next start. A closed client gets and holds
// no lease.
func (c *client) quit(d time.Duration) {
	w := c.w
	if c.phase == gone || w.quiet {
		return
	}
	if w.now < c.paused {
		w.schedule(c.paused+timersLast, &event{kind: evQuit, client: c.id, node: -1, duration: d})
		return
	}
	w.stats[Quits]++
	w.trace("client %d is closed", c.id)
	switch c.phase {
	case trying:
		if !w.bugs.has(CloseForgets) {
			c.releaseAll(c.untouched&^c.kept, leaves)
		}
		w.judge.over(c)
	case resting:
		c.releaseKept()
	case holding:
		c.release(c.now(), quorum.Step{})
	}
	c.leave()
	for i := range c.remnants {
		c.releaseRemnant(&c.remnants[i])
	}
	c.vanish(d)
}

func (c *client) pause(d time.Duration) {
	w := c.w
	end := min(w.now+d, w.config.faults)
	if end <= c.paused {
		return
	}
	w.stats[Pauses]++
	w.trace("client %d stops for %v", c.id, d)
	c.paused, c.resumed = end, max(c.resumed, end)
	c.jumped = c.jumped || w.rng.IntN(2) == 0
}

// jump sets the client's wall clock. Only a forward step counts, and only for validity.
// The client notices the step when it next reads its clocks.
func (c *client) jump(by time.Duration) {
	w := c.w
	w.stats[ClientSteps]++
	w.trace("the wall clock of client %d jumps by %v", c.id, by)
	if by <= 0 || c.phase == gone {
		return
	}
	c.forward += by
	c.jumped = true
	at := max(w.now+w.upTo(w.config.late), 1)
	if c.timerAt != 0 && c.timerAt >= w.now && c.timerAt < at {
		at = c.timerAt
	}
	c.file(at, c.now())
	c.resumed = max(c.resumed, at)
}

// Inputs that arrived while a client was paused are processed this long after the end
// of the pause: timers first or last, by chance, and messages in order.
const (
	timersFirst = 0
	messages    = 500 * time.Nanosecond
	timersLast  = time.Microsecond
)

// wake handles a timer.
func (c *client) wake(e *event) {
	w := c.w
	if w.now < c.paused {
		order := time.Duration(timersFirst)
		if w.rng.IntN(2) == 0 {
			order = timersLast
		}
		w.schedule(c.paused+order, e)
		return
	}
	if e.sent != c.timerAt {
		return // an earlier timer was scheduled since
	}
	c.timerAt = 0
	now := c.now()
	switch c.phase {
	case resting:
		if c.waits && now >= c.until {
			c.try(now)
		}
	case trying:
		if now >= c.until {
			c.expire(now)
		}
	case holding:
		if c.check.open && now >= c.check.until {
			c.endCheck(now)
			break
		}
		if c.working() && now >= c.until {
			c.finish(now)
			break
		}
		if !c.ignoresClock(now) && c.step(quorum.Input{Kind: quorum.InputTick}).Events&quorum.Ended != 0 {
			break
		}
		if c.machine.Due(clock.Validity(now)) {
			c.renew()
		}
	}
	c.sleep()
}

// sleep schedules a timer for the client's next action.
func (c *client) sleep() {
	w := c.w
	var at time.Duration
	switch c.phase {
	case gone:
		return
	case holding:
		at = time.Duration(c.machine.Wake())
		if w.bugs.has(IgnoresClock) && at <= c.now() {
			at = c.now() + w.config.terms.Timeout
		}
		if c.working() {
			at = min(at, c.until)
		}
		if c.check.open {
			at = min(at, c.check.until)
		}
	case resting:
		if !c.waits {
			return
		}
		at = c.until
	default:
		at = c.until
	}
	if c.timerAt >= max(w.now, 1) && c.timely <= at {
		return // that timer comes first, and schedules the next one
	}
	// A loss is found early by more than a timer is late.
	truth := max(c.when(at)+w.upTo(w.config.late), w.now)
	if c.timerAt != 0 && c.timerAt <= truth && c.timerAt >= w.now {
		return // likewise
	}
	c.file(max(truth, 1), at)
}

// file schedules a timer at the true time truth. The timer is due at at by the validity
// clock.
func (c *client) file(truth, at time.Duration) {
	c.timerAt, c.timely = truth, at
	e := event{kind: evTimer, client: c.id, node: -1}
	e.sent = truth
	c.w.schedule(truth, &e)
}

// request sends m to node i.
func (c *client) request(i int, m *message) {
	m.client, m.node, m.life, m.line = c.id, int8(i), c.life, c.w.nodes[i].line
	m.sent, m.steady, m.issued = c.now(), c.steady(), c.w.now
	if !m.op.asks() { // drawn apart, so that seeds that notice rare bugs still do
		m.subscribed = c.w.config.unsubscribed == 0 || int(c.w.deaf.Uint64()%1000) >= c.w.config.unsubscribed
	}
	if m.limit = limit(c); m.slot == 0 {
		m.slot = c.slot
	}
	if c.w.config.votesMatch && !m.op.aside() && !m.op.asks() {
		m.marker = c.markerFor(i)
	}
	c.known[i].asks(c.steady())
	up := !c.grouped(i) || c.carries(i, m)
	if m.op.insists() {
		c.orphans.sent(i, m)
	}
	if up {
		c.w.transmit(m, 0)
	}
}

// receive handles the answer of a node, or a wake-up.
func (c *client) receive(e *event) {
	m := &e.message
	w := c.w
	if c.phase == gone || m.life != c.life {
		return
	}
	if w.now < c.paused+messages {
		w.schedule(c.paused+messages, e)
		return
	}
	now, i := c.now(), int(m.node)
	if m.op != opWake && m.answer != notConnected {
		c.known[i].owes = 0
	}
	if m.op != opWake && c.steady()-m.steady > w.config.terms.Timeout {
		w.stats[LateAnswers]++
	}
	switch {
	case c.dropped(i, m), m.op == opGreet && now-m.sent > greetTime:
		return
	case m.op != opWake && m.answer != notConnected:
		c.observe(m, now)
	}
	switch m.op.plain() {
	case opGreet, opWake, opDetach, opDrop, opLook, opWithdraw:
		receiveAside(c, m, now)
		return
	case opRelease, opPassOn:
		if m.answer != notConnected {
			c.orphans.answered(i, m)
			c.handedOn(m, now)
			c.returns.answered(c, i, m, now)
		}
	}
	if m.owner != c.owner || c.kept != 0 && m.issued < c.issuedFrom {
		return // the attempt or lease has ended, and its releases are on their way, or another attempt has its owner
	}
	if m.way != usualWay && c.readLean(i, m, now) {
		return
	}
	if w.p.Trace != nil {
		w.trace("client %d receives from node %d: %v %v, moved %d, before %d", c.id, i, m.op, m.answer, m.moved, m.before)
	}
	switch o := m.op.plain(); {
	case c.phase == trying && o.asks():
		c.answered(i, m, now)
	case c.phase == trying && o == opRaise:
		c.raised(i, m)
		c.decide(now)
	case c.phase == holding && o == opRaise:
		c.checked(i, m, now)
	case c.phase == holding && o != opRelease && o != opPassOn:
		c.confirm(i, m, now)
	case c.phase == resting && m.answer == confirmed && w.bugs.has(UnLose):
		c.unlose(m)
	}
	c.sleep()
}

// receiveAside handles a message that is not about the attempt or the lease of the client.
func receiveAside(c *client, m *message, now time.Duration) {
	switch i := int(m.node); m.op {
	case opGreet:
		c.greeted(i, m, now)
	case opLook:
		c.looked(i, m)
	case opWithdraw:
	case opWake:
		c.woken(m, now)
		c.sleep()
	default:
		if m.op.insists() && m.answer != notConnected {
			c.orphans.answered(i, m)
		}
		c.w.handles.answered(c, m)
	}
}
