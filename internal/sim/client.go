package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// phase of a client.
type phase uint8

const (
	gone    phase = iota // crashed, or not started
	resting              // until client.until
	trying               // an attempt is on its way
	holding              // until client.until, or until the loss
	leaving              // waits for answers to the release, until client.until
)

// offset is what a client knows of a node's clock: the difference to its own
// lay in [low, low+width] at the instant at.
type offset struct{ low, width, at time.Duration }

// known is what a client knows of a node.
type known struct {
	offset  offset
	greeted bool // over the connection line, which may vote
	line    uint32
	asked   time.Duration // when the last greeting went out
	jumped  time.Duration // when the clock was last found to be set ahead
	jump    time.Duration // and by how much

	// What the restart guard said.
	marker     marker
	floor      int64
	quarantine time.Duration // votes do not count before
	distrust   bool          // the next greeting starts a quarantine for everybody
}

// client is one process that takes the lock again and again: the driver of
// quorum.Claim and quorum.Machine that the manager is in production.
type client struct {
	w    *world
	id   int8
	mono clock         // does not step
	wall time.Duration // the wall clock is off by so much

	life    uint32
	phase   phase
	until   time.Duration // by mono
	paused  time.Duration // until this true time; -1 if never
	resumed time.Duration // the true time of the last end of a pause
	jumped  bool          // the pause was a suspend, not yet told to the machine
	timerAt time.Duration // true time of the earliest timer that is filed; 0 for none
	timely  time.Duration // the same by mono, were it not late
	known   [maxNodes]known

	// The attempt.
	owner    uint32
	began    time.Duration
	started  time.Duration // the same in true time
	claim    quorum.Claim
	spared   quorum.Set // nodes that certainly hold nothing of it
	late     bool       // the votes had their time, a write-back has its
	failures int
	refusals [maxNodes]quorum.Refusal // Left is the instant at which the key ends
	refused  int

	// The wait: what goes from attempt to attempt.
	queues  bool                           // it is one that stands in line
	listens bool                           // since there was contention
	ticket  uint32                         // 0 as long as it does not stand in line
	place   int64                          // in the queues: when the wait began
	queued  quorum.Set                     // nodes in whose queues it may be
	outof   quorum.Set                     // nodes in whose queues the attempt certainly did not put it
	turns   quorum.Turns                   // what the nodes told since the attempt began
	toldBy  quorum.Set                     // the same, for a planted bug
	next    bool                           // a node keeps the lock for the one before it
	splits  int                            // attempts in a row that some nodes have granted
	served  uint32                         // the last ticket with which all nodes were got
	last    struct{ ticket, owner uint32 } // of the last lease, for a planted bug

	// The lease.
	missing  quorum.Set // nodes that have not granted
	asked    quorum.Set // and that were asked once more, because they keep the lock for us
	machine  quorum.Machine
	window   quorum.Window
	token    int64
	misses   int
	answers  int // to the release
	counters [maxNodes]int64
	stood    quorum.Set
}

func (c *client) now() time.Duration { return c.mono.read(c.w.now) }

// begin starts the client, or starts it again after a crash.
func (c *client) begin() {
	if c.phase != gone {
		return
	}
	now := c.now()
	c.phase, c.failures = resting, 0
	c.until = now
	c.queues, c.listens, c.ticket, c.splits = c.w.rng.IntN(100) < c.w.config.queues, false, 0, 0
	c.served, c.last.ticket = 0, 0
	c.w.trace("client %d starts", c.id)
	for i := range c.w.p.Nodes {
		c.known[i] = known{}
		c.greet(i, now)
	}
	c.sleep()
}

func (c *client) crash(d time.Duration) {
	if c.phase == gone {
		return
	}
	c.w.stats.Crashes++
	c.w.trace("client %d crashes", c.id)
	c.phase, c.owner = gone, 0
	c.life++
	c.w.schedule(c.w.now+d, &event{kind: begin, client: c.id, node: -1})
}

// quit closes the client, after which it gets and holds nothing, and starts
// another one later.
func (c *client) quit(d time.Duration) {
	w := c.w
	if c.phase == gone || w.quiet {
		return
	}
	if w.now < c.paused {
		w.schedule(c.paused+timersLast, &event{kind: quit, client: c.id, node: -1, duration: d})
		return
	}
	w.stats.Quits++
	w.trace("client %d is closed", c.id)
	now := c.now()
	switch c.phase {
	case trying:
		if !w.bugs.has(CloseForgets) {
			c.releaseAll(now, 0, c.spared, false)
		}
		c.enqueued()
		w.judge.over(c)
	case holding:
		c.giveBack(now)
	}
	c.leave(now)
	c.phase, c.owner = gone, 0
	c.life++
	w.schedule(w.now+d, &event{kind: begin, client: c.id, node: -1})
}

func (c *client) pause(d time.Duration) {
	w := c.w
	end := min(w.now+d, w.config.faults)
	if end <= c.paused {
		return
	}
	w.stats.Pauses++
	w.trace("client %d stops for %v", c.id, d)
	c.paused, c.resumed = end, end
	c.jumped = w.rng.IntN(2) == 0
}

// What waited for a client that was paused is served this long after its end:
// timers first or last, by chance, and messages in their order.
const (
	timersFirst = 0
	messages    = 500 * time.Nanosecond
	timersLast  = time.Microsecond
)

// wake serves a timer.
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
		return // an earlier one was filed since
	}
	c.timerAt = 0
	now := c.now()
	switch c.phase {
	case resting:
		if now >= c.until {
			c.attempt(now)
		}
	case trying:
		if now >= c.until {
			c.expire(now)
		}
	case holding:
		if now >= c.until {
			c.giveBack(now)
			break
		}
		if !c.deaf(now) && c.step(quorum.Input{Kind: quorum.Tick}).Events&quorum.Ended != 0 {
			break
		}
		if c.machine.Due(now) {
			c.renew(now)
		}
	case leaving:
		if now >= c.until {
			c.rest(now, c.w.upTo(c.w.config.terms.TTL/4))
		}
	}
	c.sleep()
}

// sleep files a timer for the next thing to do.
func (c *client) sleep() {
	var at time.Duration
	switch c.phase {
	case gone:
		return
	case holding:
		at = c.machine.Wake()
		if c.w.bugs.has(DeafToLoss) && at <= c.now() {
			at = c.now() + c.w.config.terms.Timeout
		}
		at = min(at, c.until)
	default:
		at = c.until
	}
	if c.timerAt >= max(c.w.now, 1) && c.timely <= at {
		return // that one comes first, and files the next
	}
	// Timers are late, by what a loss is told early for.
	truth := max(c.mono.when(at)+c.w.upTo(c.w.config.late), c.w.now)
	if c.timerAt != 0 && c.timerAt <= truth && c.timerAt >= c.w.now {
		return // likewise
	}
	c.timerAt, c.timely = max(truth, 1), at
	e := event{kind: timer, client: c.id, node: -1}
	e.sent = c.timerAt
	c.w.schedule(c.timerAt, &e)
}

func (c *client) rest(now, d time.Duration) {
	c.phase, c.owner = resting, 0
	c.until = now + d
}

// request sends m to node i.
func (c *client) request(i int, m *message) {
	m.client, m.node, m.life, m.line = c.id, int8(i), c.life, c.w.nodes[i].line
	c.w.transmit(m)
}

// greetTime bounds a greeting; a slower answer is of no use.
const greetTime = time.Second

// greet sends the greeting of a connection.
func (c *client) greet(i int, now time.Duration) {
	m := message{op: greet, sent: now}
	if c.known[i].distrust {
		m.number = 1
	}
	c.known[i].asked = now
	c.request(i, &m)
}

// redial greets a node: there is a connection again, or it is time to look.
func (c *client) redial(i int) {
	if c.phase != gone && c.w.now >= c.paused {
		c.greet(i, c.now())
	}
}

// greeted takes the answer to a greeting.
func (c *client) greeted(i int, m *message, now time.Duration) {
	k := &c.known[i]
	if m.answer != done || m.line != c.w.nodes[i].line {
		return // that connection is no more
	}
	if k.line != m.line && c.phase == resting && c.ticket != 0 {
		c.until = min(c.until, now+c.w.upTo(minGrace)) // what it told meanwhile, nobody heard
	}
	k.greeted, k.line = true, m.line
	if m.number == 1 {
		k.distrust = false
	}
	if m.marker == k.marker {
		return // its quarantine is being waited out
	}
	k.marker, k.floor = m.marker, m.marker.until
	left := min(time.Duration(m.marker.until-m.clock)*time.Microsecond, c.w.config.maxTTL)
	if c.w.bugs.has(NoGuard) {
		left = 0
	}
	if left > 0 {
		c.doubt(k, now, left)
	}
	switch {
	case c.w.bugs.has(NoFloor):
		k.floor = 0
	case c.w.bugs.has(FloorAtStart) && k.floor > 0:
		k.floor -= micros(c.w.config.maxTTL)
	}
}

// doubt keeps a node from voting for so long.
func (c *client) doubt(k *known, now, d time.Duration) {
	// One per cent more: the node's clock may run faster.
	k.quarantine = max(k.quarantine, now+d+d/drift)
}

// mayVote reports whether node i is to be asked for its vote.
func (c *client) mayVote(i int, now time.Duration) bool {
	k := &c.known[i]
	return k.greeted && k.line == c.w.nodes[i].line && now >= k.quarantine
}

// limit sets the instant after which m is void, by the client's clock.
func (c *client) limit(i int, m *message, bound time.Duration) {
	o := &c.known[i].offset
	m.bound = bound
	m.after = micros(bound + o.low)
	m.slack = time.Millisecond + (m.bound-o.at)/1e6*time.Duration(3*c.w.config.rate) + o.width
}

// drift is how fast an old measurement of a clock grows stale: rates differ by
// less than 1 %.
const drift = 100

// observe takes the clock of a node from an answer.
func (c *client) observe(m *message, now time.Duration) {
	clock := time.Duration(m.clock) * time.Microsecond
	next := offset{low: clock - now, width: now - m.sent, at: now}
	k := &c.known[m.node]
	old := &k.offset
	if old.at == 0 {
		*old = next
		return
	}
	slack := old.width + (now-old.at+old.width+next.width)/drift // both were read somewhere in their widths
	ahead := next.low > old.low+slack
	behind := next.low+next.width < old.low-slack
	by := next.low + next.width - old.low // at the most
	if ahead || behind || next.width <= slack {
		*old = next
	}
	if ahead && by >= stepMin && c.w.config.stepAware && !c.w.bugs.has(BlindToSteps) {
		c.stepped(int(m.node), now, by)
	}
}

// stepped takes note of a clock that was set ahead: keys have expired before
// their time, those of others as well.
func (c *client) stepped(i int, now, by time.Duration) {
	w := c.w
	w.stats.StepsFound++
	w.judge.alarmed(c, i)
	w.trace("client %d sees the clock of node %d ahead by %v", c.id, i, by)
	k := &c.known[i]
	k.jumped, k.jump = now, by
	longest := w.config.terms.TTL
	if w.config.guard {
		longest = w.config.maxTTL
		k.distrust, k.greeted = true, false
	}
	c.doubt(k, now, longest)
	if c.phase == holding {
		c.step(quorum.Input{Kind: quorum.Stepped, Node: i, By: by})
		c.sleep()
	}
}

// stepMin is the smallest step of a clock that matters.
const stepMin = 25 * time.Millisecond

// attempt asks every node.
func (c *client) attempt(now time.Duration) {
	w := c.w
	w.stats.Attempts++
	w.owners++
	c.phase, c.owner, c.began, c.started = trying, w.owners, now, w.now
	c.claim = quorum.NewClaim(w.p.Nodes, true)
	c.spared, c.outof, c.late, c.stood, c.refused = 0, 0, false, 0, 0
	seed := micros(epoch + c.wall + w.now)
	if c.ticket == 0 && c.queues && c.listens {
		w.owners++
		c.ticket, c.place, c.queued, c.toldBy, c.next, c.splits = w.owners, seed, 0, 0, false, 0
		c.turns = quorum.NewTurns(w.p.Nodes)
	}
	c.turns.Ask()
	if w.bugs.has(OneOwner) && c.ticket != 0 {
		c.owner = c.ticket
	}
	c.until = now + w.config.terms.Timeout
	c.counters = [maxNodes]int64{}
	w.judge.begins(c)
	if w.p.Trace != nil {
		w.trace("client %d tries as owner %d, ticket %d, place %d", c.id, c.owner, c.ticket, c.place)
	}
	for i := range w.p.Nodes {
		k := &c.known[i]
		if c.ask(i, now, seed, c.until) {
			continue
		}
		w.stats.Unasked++
		c.spared, c.outof = c.spared.With(i), c.outof.With(i)
		c.claim.Fail(i)
		if (!k.greeted || k.line != w.nodes[i].line) && now >= k.asked+w.config.terms.Timeout {
			c.greet(i, now)
		}
	}
	c.decide(now)
}

// ask sends an acquire to node i, if that may vote.
func (c *client) ask(i int, now time.Duration, seed int64, bound time.Duration) bool {
	if !c.mayVote(i, now) {
		return false
	}
	k := &c.known[i]
	m := message{
		op: acquire, owner: c.owner, ticket: c.ticket, place: c.place, number: seed, sent: now,
		marker: k.marker, floor: k.floor,
		hears: c.w.config.deaf == 0 || c.w.rng.IntN(1000) >= c.w.config.deaf,
	}
	c.limit(i, &m, bound)
	c.request(i, &m)
	return true
}

// receive takes the answer of a node, or what it tells.
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
	now := c.now()
	switch {
	case m.answer == refused:
	case m.op == greet && now-m.sent > greetTime:
		return
	case m.op == extend, m.op == heal, m.op == greet, m.answer == late, m.op == acquire && m.answer == granted:
		c.observe(m, now)
	}
	if m.op == greet {
		c.greeted(int(m.node), m, now)
		return
	}
	if m.op == told {
		c.hear(m, now)
		c.sleep()
		return
	}
	if m.owner != c.owner {
		return // of an attempt or a lease that is over: its releases are on their way
	}
	if w.p.Trace != nil {
		w.trace("client %d hears from node %d: %v %v, number %d", c.id, m.node, m.op, m.answer, m.number)
	}
	i := int(m.node)
	switch {
	case m.op == release:
		if c.phase == leaving && m.answer != refused {
			if c.answers++; c.answers >= quorum.Size(w.p.Nodes) {
				c.rest(now, w.upTo(w.config.terms.TTL/4))
			}
		}
	case c.phase == trying && m.op == acquire:
		switch k := &c.known[i]; {
		case m.answer == granted && now < k.quarantine:
			c.claim.Fail(i) // the clock was stepped, as this very answer shows or one before it
		case m.answer == granted:
			c.vote(i, m.number, now)
		case m.answer == taken:
			c.spared = c.spared.With(i)
			if c.claim.Votes().Silent().Has(i) {
				c.refuse(i, m, now)
			}
			c.claim.Refuse(i)
		default:
			c.spared, c.outof = c.spared.With(i), c.outof.With(i)
			c.claim.Fail(i)
			if m.answer == strange {
				k.greeted = false
				c.greet(i, now)
			}
		}
		c.decide(now)
	case c.phase == trying && m.op == raise:
		c.claim.Raised(i, m.answer == done)
		if m.answer == done {
			c.stood = c.stood.With(i)
		}
		c.decide(now)
	case c.phase == holding && m.op != raise:
		if m.op == acquire && m.answer == granted {
			c.got(quorum.Set(0).With(i))
		}
		c.confirm(i, m, now)
	case c.phase == resting && m.answer == kept && w.bugs.has(UnLose):
		c.unlose(m)
	}
	c.sleep()
}

func (c *client) vote(i int, counter int64, now time.Duration) {
	if c.claim.Votes().Silent().Has(i) {
		c.counters[i] = counter
	}
	back := c.claim.Grant(i, counter)
	if back == 0 {
		return
	}
	m := message{op: raise, owner: c.owner, number: c.claim.Token(), sent: now}
	for j := range c.w.p.Nodes {
		if back.Has(j) {
			c.w.stats.WriteBacks++
			c.request(j, &m)
		}
	}
}

// expire ends the wait: first for votes, then for write-backs.
func (c *client) expire(now time.Duration) {
	if c.w.bugs.has(AmbiguousVotes) {
		silent := c.claim.Votes().Silent()
		for i := range c.w.p.Nodes {
			if silent.Has(i) {
				c.vote(i, max(1, c.claim.Token(), c.highest()), now)
			}
		}
	}
	c.claim.Votes().Expire()
	if c.late {
		c.claim.Expire()
	}
	c.late = true
	c.until = now + c.w.config.terms.Timeout
	c.decide(now)
}

func (c *client) highest() (counter int64) {
	for i := range c.w.p.Nodes {
		if c.claim.Votes().Granted().Has(i) {
			counter = max(counter, c.counters[i])
		}
	}
	return counter
}

// decide ends the attempt when its outcome is certain.
func (c *client) decide(now time.Duration) {
	if c.w.bugs.has(ToldVotes) {
		c.countTold(now)
	}
	outcome, token, voters := c.outcome()
	if outcome == quorum.Pending {
		return
	}
	w := c.w
	terms := &w.config.terms
	if outcome == quorum.Won {
		votes := c.claim.Votes()
		since := c.began
		if w.bugs.has(FromReply) {
			since = now
		}
		if c.window == nil {
			c.window = make(quorum.Window, maxNodes)
		}
		c.window = c.window[:w.p.Nodes]
		c.machine = quorum.NewMachine(terms, c.window, since, voters, quorum.All(w.p.Nodes)&^votes.Silent())
		c.machine.SetLag(w.config.lag)
		c.machine.Arm(since + c.interval())
		if c.machine.End()-now >= terms.TTL/10 || w.bugs.has(NoFinalCheck) {
			c.granted(now, token)
			return
		}
		w.stats.Abandoned++
	}
	c.enqueued()
	if c.splits++; c.claim.Votes().Granted() == 0 || outcome == quorum.Held {
		c.splits = 0
	}
	if !w.bugs.has(KeepFailed) {
		c.releaseAll(now, 0, c.spared, true)
	}
	w.judge.over(c)
	c.listens = c.listens || c.refused > 0
	if !w.quiet && w.rng.IntN(1000) < w.config.giveUp {
		w.stats.GivenUp++
		c.failures = 0
		c.leave(now)
		c.rest(now, w.upTo(terms.TTL/4))
		return
	}
	c.failures++
	wait := min(terms.TTL/20<<min(c.failures, 10), w.config.backoffCap)
	c.rest(now, c.again(now, wait/2+w.upTo(wait/2)))
	c.toldBy = 0
	c.look(now)
}

// countTold takes the nodes that have told it for votes, if they make a quorum.
func (c *client) countTold(now time.Duration) {
	votes := c.claim.Votes()
	told := c.toldBy & votes.Silent()
	for i := range c.w.p.Nodes {
		if told.Has(i) && votes.Granted().Len()+told.Len() >= quorum.Size(c.w.p.Nodes) {
			c.vote(i, max(1, c.claim.Token(), c.highest()), now)
			told = told.Without(i)
		}
	}
}

// outcome is the claim's, unless a planted bug knows better.
func (c *client) outcome() (o quorum.Outcome, token int64, voters quorum.Set) {
	o, token, voters = c.claim.Outcome(), c.claim.Token(), c.claim.Votes().Granted()
	if o == quorum.Won {
		return o, token, voters
	}
	n, q := c.w.p.Nodes, quorum.Size(c.w.p.Nodes)
	mutation := c.w.bugs
	switch {
	case mutation.has(NoWriteBack) && c.claim.Votes().Outcome() == quorum.Won:
		o = quorum.Won
	case mutation.has(AboveCounts) && c.claim.Votes().Outcome() == quorum.Won:
		at := 0
		for i := range n {
			if voters.Has(i) && (c.counters[i] >= token || c.stood.Has(i)) {
				at++
			}
		}
		if at >= q {
			o = quorum.Won
		}
	case mutation.has(HalfQuorum) && voters.Len() >= n/2:
		o, token = quorum.Won, c.highest()
		for i := 0; voters.Len() < q; i++ {
			voters = voters.With(i)
		}
	}
	return o, token, voters
}

func (c *client) granted(now time.Duration, token int64) {
	w := c.w
	w.stats.Grants++
	c.phase, c.token = holding, token
	c.missing, c.asked = quorum.All(w.p.Nodes), 0
	c.got(c.claim.Votes().Granted())
	c.failures, c.misses, c.jumped = 0, 0, false
	c.until = now + w.upTo(w.config.hold)
	if w.quiet {
		c.until = now
	}
	for i := range w.p.Nodes {
		if c.ticket != 0 && (c.turns.Kept() & c.claim.Votes().Refused()).Has(i) {
			c.askMore(i, now)
		}
	}
	if w.p.Trace != nil {
		w.trace("client %d holds as owner %d, token %d, stops in %v", c.id, c.owner, token, c.machine.Stop()-now)
	}
	w.judge.granted(c, now)
	for i := range w.p.Nodes {
		// Found while the lease was being granted.
		if k := &c.known[i]; k.jumped > c.began && c.phase == holding {
			c.step(quorum.Input{Kind: quorum.Stepped, Node: i, By: k.jump})
		}
	}
}

// interval is the time from one renewal to the next.
func (c *client) interval() time.Duration {
	third := c.w.config.terms.TTL / 3
	return third*9/10 + c.w.upTo(third/5)
}

// step takes an input through the machine and does what it asks for.
func (c *client) step(in quorum.Input) quorum.Output {
	w := c.w
	now := c.now()
	in.Jump, in.Lag = c.jumped, w.config.lag
	c.jumped = false
	stop, keys := c.machine.Stop(), c.machine.Deadline()-w.config.terms.Guard
	out := c.machine.Step(now, in)
	if out.Begin {
		c.machine.Arm(now + c.interval())
	}
	if out.Missed {
		w.stats.Missed++
		if !out.Begin {
			terms := &w.config.terms
			wait := min(terms.TTL/20<<min(c.misses, 10), terms.TTL/3)
			c.machine.Arm(now + wait/2 + w.upTo(wait))
		}
		c.misses++
	}
	if out.Confirmed {
		w.stats.Renewals++
		c.misses = 0
	}
	for i := range w.p.Nodes {
		if out.Heal.Has(i) {
			w.stats.Heals++
			m := message{op: heal, owner: c.owner, number: c.token, sent: now}
			c.limit(i, &m, min(c.machine.Stop(), now+w.config.terms.Timeout))
			c.request(i, &m)
		}
	}
	if out.Events&quorum.Ended != 0 {
		c.lost(now, stop, keys)
	}
	return out
}

func (c *client) renew(now time.Duration) {
	if !c.step(quorum.Input{Kind: quorum.Begin}).Begin {
		return
	}
	m := message{op: extend, owner: c.owner, number: c.token, sent: now}
	for i := range c.w.p.Nodes {
		c.request(i, &m)
	}
}

// confirm takes an answer that concerns the lease.
func (c *client) confirm(i int, m *message, now time.Duration) {
	if c.deaf(now) {
		return
	}
	in := quorum.Input{Kind: quorum.Mute, Node: i, At: m.sent}
	if m.op == acquire {
		in.At = c.began // too early, if it was asked once more
	}
	switch m.answer {
	case granted, kept:
		in.Kind = quorum.Kept
	case taken, foreign:
		in.Kind = quorum.Foreign
	case missing:
		in.Kind = quorum.Gone
	}
	if in.Kind == quorum.Kept && c.w.bugs.has(FromReply) {
		in.At = now
	}
	c.step(in)
}

// deaf reports whether the machine is kept from seeing that its time is up.
func (c *client) deaf(now time.Duration) bool {
	terms := &c.w.config.terms
	return c.w.bugs.has(DeafToLoss) && now >= c.machine.End() && now < c.machine.Stop()+terms.TTL/3
}

// giveBack releases the lease, which may turn out to be lost.
func (c *client) giveBack(now time.Duration) {
	c.step(quorum.Input{Kind: quorum.Release})
	if c.machine.State() != quorum.Released {
		return
	}
	c.w.stats.Releases++
	if c.w.p.Trace != nil {
		c.w.trace("client %d releases owner %d", c.id, c.owner)
	}
	c.w.judge.released(c)
	c.end(now)
	c.w.judge.over(c)
	c.phase, c.answers = leaving, 0
	c.until = now + c.w.config.terms.Timeout
}

// lost gives up what is left of the lease.
func (c *client) lost(now, stop, keys time.Duration) {
	w := c.w
	if w.p.Trace != nil {
		w.trace("client %d lost owner %d: %v", c.id, c.owner, c.machine.Reason())
	}
	if c.machine.Reason() == quorum.Revoked {
		w.stats.Revoked++
	} else {
		w.stats.Expired++
	}
	w.judge.lost(c, now, stop, keys)
	c.end(now)
	owner := c.owner
	c.rest(now, w.upTo(w.config.terms.TTL/4))
	if w.bugs.has(UnLose) {
		c.owner = owner
	}
}

// unlose goes on as if nothing had happened.
func (c *client) unlose(m *message) {
	terms := &c.w.config.terms
	all := quorum.All(c.w.p.Nodes)
	c.machine = quorum.NewMachine(terms, c.window, m.sent, all, all)
	c.machine.SetLag(c.w.config.lag)
	c.machine.Arm(m.sent + c.interval())
	c.phase, c.until = holding, c.now()+c.w.upTo(c.w.config.hold)
}

// end gives up what the nodes have of the lease, and its ticket.
func (c *client) end(now time.Duration) {
	c.last.ticket, c.last.owner = c.ticket, c.owner
	if c.ticket == c.served {
		c.ticket = 0 // every node has granted, and taken it out
	}
	c.releaseAll(now, c.token, 0, false)
	c.ticket = 0
}

// releaseAll deletes the keys of an attempt or a lease. Its ticket stays in the
// queues if the wait goes on.
func (c *client) releaseAll(now time.Duration, token int64, spared quorum.Set, stays bool) {
	m := message{op: release, owner: c.owner, ticket: c.ticket, number: token, sent: now}
	if stays && c.ticket != 0 {
		m.place, m.past = c.place, c.past()
		c.w.judge.yields(c)
	}
	for i := range c.w.p.Nodes {
		if !spared.Has(i) {
			c.request(i, &m)
		}
	}
}
