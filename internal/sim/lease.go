package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// lease is the state of a client that holds the lock.
type lease struct {
	voted      quorum.Set // nodes that have granted the attempt; the ticket may be in the queues of the others
	machine    quorum.Machine
	window     quorum.Window[clock.Validity]
	top        int64 // the token that the nodes show
	token      int64 // of the current holder in this process
	next       int64 // the next unused token of the block, up to lastToken
	lastToken  int64
	misses     int
	healed     bool          // a node was asked to make the key again, or in place of a reservation: others may have had it before
	worksUntil time.Duration // after a loss, by the validity clock
	others     int           // tickets of other clients in the queues, by the nodes' last answers
	answeredAt time.Duration // when those answers had arrived
	read       bool          // it is, or was, a reader's
	vacant     bool          // the hold has no lease: its last one was released
	check      check         // under way
	changing
	proof
}

func (c *client) granted(now time.Duration, v verdict) {
	w := c.w
	w.stats[Grants]++
	if c.reads {
		w.stats[ReadersGranted]++
	}
	if c.downgrade {
		w.stats[Downgrades]++
		c.downgrade = false
	}
	c.phase = holding
	c.top, c.token, c.next, c.lastToken, c.healed = v.top, v.first, v.first+1, v.latest, false
	c.others, c.answeredAt = c.waiters, now
	c.voted, c.check = c.ballot.Votes().Granted(), check{}
	c.proof = proof{provenBy: c.ballot.Counted() &^ c.unproven, unproven: c.unproven}
	for i := range c.shown {
		c.shown[i] = c.started
	}
	reserved := c.wait.Won(c.voted)
	c.tooLate = false
	c.local.Granted(clock.Validity(c.localTime(now)))
	c.failures, c.misses, c.jumped, c.read = 0, 0, false, c.reads
	c.startLease(now)
	for i := range w.p.Nodes {
		if reserved.Has(i) && limit(c) == 0 {
			c.takeReservation(i, now)
		}
	}
	takeUp(c, c.ballot.Votes().Refused(), now)
	if w.p.Trace != nil {
		w.trace("client %d holds as owner %d, tokens %d to %d, stops in %v",
			c.id, c.owner, c.token, c.lastToken, c.machine.Stop().Add(-now))
	}
	w.judge.granted(c, now)
	if c.from != 0 {
		w.handles.granted(c, now)
	}
	for i := range w.p.Nodes {
		// The step was found while the lease was being granted.
		if k := &c.known[i]; k.jumped > c.began && c.phase == holding {
			c.clockStep(i, k.jump)
		}
	}
}

// startLease begins the time for which a caller keeps the lease.
func (c *client) startLease(now time.Duration) {
	c.vacant = false
	c.until = now + c.w.upTo(c.w.config.hold)
	if c.w.quiet {
		c.until = now
		if limit(c) > 0 {
			c.until += holdsOn * c.w.config.terms.TTL
		}
	}
}

// working reports whether a caller has the lease.
func (c *client) working() bool { return c.phase == holding && !c.vacant }

// clockStep shortens the time that a node keeps the key, because its clock was set ahead.
func (c *client) clockStep(i int, by time.Duration) {
	c.resetProof()
	c.step(quorum.Input{Kind: quorum.InputClockStep, Node: i, By: by})
}

// interval is the time from one renewal to the next.
func (c *client) interval() time.Duration {
	d := c.w.config.renew
	if len(c.w.ttls.terms) > 0 {
		d = d * (c.machine.Terms().TTL / 1000) / (c.w.config.terms.TTL / 1000)
	}
	return d*9/10 + c.w.upTo(d/5)
}

// step gives an input to the machine and executes its output. It reports a loss to the
// local queue.
func (c *client) step(in quorum.Input) quorum.Output {
	out := c.stepHold(in)
	if out.Events&quorum.Ended != 0 {
		now := c.now()
		c.do(now, c.local.Lost(clock.Validity(c.localTime(now))))
	}
	return out
}

// stepHold is step without the report to the local queue. The caller makes that report.
func (c *client) stepHold(in quorum.Input) quorum.Output {
	w := c.w
	now := c.now()
	in.Jump, in.Lag = c.jumped, w.config.lag
	c.jumped = false
	stop, keys := c.machine.Stop(), c.machine.Deadline().Add(-c.machine.Terms().SafetyMargin)
	out := c.machine.Step(clock.Validity(now), in)
	if out.Begin {
		c.machine.Arm(clock.Validity(now + c.interval()))
	}
	if out.Missed {
		w.stats[Missed]++
		if !out.Begin {
			terms := c.machine.Terms()
			wait := min(terms.TTL/20<<min(c.misses, 10), terms.TTL/3)
			c.machine.Arm(clock.Validity(now + wait/2 + w.upTo(wait)))
		}
		c.misses++
	}
	if out.Confirmed {
		w.stats[Renewals]++
		c.misses = 0
		if untold := c.untold; untold != nil {
			c.untold = nil
			c.machine.Step(clock.Validity(now), quorum.Input{Kind: quorum.InputBegin, Terms: untold})
		}
	}
	for i := range w.p.Nodes {
		if out.Heal.Has(i) {
			w.stats[Heals]++
			c.take(i, c.owner, min(time.Duration(c.machine.Stop()), now+w.config.terms.Timeout))
		}
	}
	if out.Events&quorum.Ended != 0 {
		c.lost(now, time.Duration(stop), time.Duration(keys))
	}
	return out
}

func (c *client) renew() {
	if !c.step(c.changes()).Begin {
		return
	}
	m := message{op: opExtend.of(c.reads), owner: c.owner, t: c.top}
	for i := range c.w.p.Nodes {
		c.asksFor(i, &m)
		c.request(i, &m)
	}
}

// changes returns the input that begins a round, which may ask for another TTL.
func (c *client) changes() quorum.Input {
	in, terms := quorum.Input{Kind: quorum.InputBegin}, c.w.ttls.next()
	if terms == nil || c.w.quiet || c.ttl == 0 && terms.TTL == c.w.config.terms.TTL || terms.TTL == c.ttl {
		return in
	}
	in.Terms = terms
	if c.w.bugs.has(ShorterAfterItsRound) && terms.TTL < c.machine.Terms().TTL {
		in.Terms, c.untold = nil, terms
	}
	c.w.stats[TTLChanges]++
	c.w.trace("client %d asks for a TTL of %v", c.id, terms.TTL)
	c.ttl, c.changedAt = terms.TTL, c.now()
	return in
}

// asksFor adds to a request of a round the TTL that the lease asks for.
func (c *client) asksFor(i int, m *message) {
	if m.ttl = c.ttl; len(c.w.ttls.terms) > 0 { // a node runs no renewal that is older than its TTL
		c.limit(i, m, c.now()+c.w.ttlOf(m))
	}
}

// answersTo adds to an input the TTL that the answered request asked for, and since when all ask for one.
func (c *client) answersTo(m *message, in *quorum.Input) {
	if len(c.w.ttls.terms) == 0 {
		return
	}
	in.Terms = c.w.ttls.of(m.ttl)
	if !c.w.config.fifo && !c.w.bugs.has(NothingOvertakes) {
		in.Since = clock.Validity(c.changedAt) // what was sent before may run later
	}
}

// changesAgain lets a holder ask for another TTL while a round is under way.
func (c *client) changesAgain() {
	if t := &c.w.ttls; len(t.terms) > 0 && c.working() && t.pcg.Uint64()%16 == 0 {
		c.renew()
	}
}

// confirm handles an answer that concerns the lease.
func (c *client) confirm(i int, m *message, now time.Duration) {
	switch {
	case m.answer == granted && !c.counts(i, m):
		return
	case !m.op.asks():
		c.recordProof(i, m)
	case m.answer == granted:
		c.voted = c.voted.With(i)
	case m.answer == taken:
		c.provenBy = c.provenBy.Without(i) // this node never granted, so the others' proof stays
	}
	if c.ignoresClock(now) {
		return
	}
	in := quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: clock.Validity(m.sent)}
	if m.op.asks() {
		in.At = clock.Validity(c.began)
	}
	switch m.answer {
	case granted, confirmed, withoutToken, withoutVote:
		in.Kind, in.NoVote = quorum.InputConfirmed, m.answer == withoutVote
	case taken:
		in.Kind = quorum.InputTaken
	case missing:
		in.Kind = quorum.InputMissing
	}
	if in.Kind == quorum.InputConfirmed && c.w.bugs.has(FromReply) {
		in.At = clock.Validity(now)
	}
	c.answersTo(m, &in)
	if c.step(in).Events&quorum.Ended == 0 {
		c.changesAgain()
	}
	if m.op.asks() && m.answer == taken && limit(c) > 0 && c.working() {
		c.takeReservation(i, now)
	}
}

// ignoresClock reports whether a planted bug hides the end of the lease from the machine.
func (c *client) ignoresClock(now time.Duration) bool {
	terms := &c.w.config.terms
	return c.w.bugs.has(IgnoresClock) && clock.Validity(now) >= c.machine.End() && clock.Validity(now) < c.machine.Stop().Add(terms.TTL/3)
}

// release releases the lock, unless the lock turns out to be lost. Then the next caller
// contends.
func (c *client) release(now time.Duration, s quorum.Step) {
	c.stepHold(quorum.Input{Kind: quorum.InputRelease})
	switch {
	case c.machine.State() == quorum.StateReleased:
		c.giveBack(now, s)
	case s.Caller != 0:
		s.Enqueue = false // no release carries the ticket
		c.contend(now, s)
	}
}

func (c *client) giveBack(now time.Duration, s quorum.Step) {
	w := c.w
	w.stats[Releases]++
	if w.p.Trace != nil {
		w.trace("client %d releases owner %d, left free: %v, the next caller's ticket goes along: %v",
			c.id, c.owner, s.LeaveFree, s.Enqueue)
	}
	if c.working() { // the process is closed
		w.judge.once(c)
	}
	w.judge.released(c, s.LeaveFree)
	c.endWait()
	c.released = c.owner
	c.returns.begin(c, c.now())
	w.judge.over(c)
	m := message{op: opRelease.of(c.reads), owner: c.owner, ticket: c.ticket, update: leaves, leaveFree: s.LeaveFree}
	c.phase, c.owner, c.ticket = resting, 0, 0
	if s.Caller != 0 {
		c.contend(now, s)
	}
	if s.LeaveFree {
		w.stats[LeftFree]++
	}
	if s.Enqueue {
		w.stats[TicketsCarried]++
		m.ticket, m.enqueuedAt, m.update = c.ticket, c.enqueuedAt, keepsPlace
	}
	for i := range w.p.Nodes {
		c.request(i, &m)
	}
}

// lost ends the lease. Its remnants are released after the safety margin, because the work may continue until then.
func (c *client) lost(now, stop, keys time.Duration) {
	w := c.w
	reason := c.machine.Reason()
	if w.p.Trace != nil {
		w.trace("client %d lost owner %d: %v", c.id, c.owner, reason)
	}
	margin := c.machine.Terms().SafetyMargin
	c.worksUntil = 0
	if c.working() {
		if !reason.Denied() { // another client may hold the lock already
			c.worksUntil, c.lostIn = stop+margin, c.slot
		}
		w.judge.once(c)
		c.callLater(c.current, w.config.terms.TTL/4)
	}
	switch {
	case reason.Denied():
		w.stats[Revoked]++
	case reason == quorum.ReasonSuspended:
		w.stats[Suspended]++
	default:
		w.stats[Expired]++
	}
	w.judge.lost(c, now, stop, keys)
	c.endWait()
	if w.bugs.has(RemnantsAtOnce) {
		c.releaseAll(0, leaves)
	} else {
		c.leaveRemnants(max(now, stop) + margin)
	}
	c.phase, c.ticket = resting, 0
	if !w.bugs.has(UnLose) {
		c.owner = 0
	}
}

// unlose continues the lost lease, by a planted bug.
func (c *client) unlose(m *message) {
	terms := &c.w.config.terms
	all := quorum.All(c.w.p.Nodes)
	c.machine = quorum.NewMachine(terms, c.window, clock.Validity(m.sent), all, all)
	c.machine.SetLag(c.w.config.lag)
	c.machine.Arm(clock.Validity(m.sent + c.interval()))
	c.phase, c.until, c.check, c.vacant = holding, time.Duration(quorum.Never), check{}, false
}

// releaseAll deletes the locks of an attempt or a lease, and updates its ticket.
func (c *client) releaseAll(untouched quorum.Set, update ticketUpdate) {
	m := message{op: opRelease.of(c.reads), owner: c.owner, ticket: c.ticket, enqueuedAt: c.enqueuedAt, update: update, holder: c.back}
	if c.ticket == 0 {
		m.update = leaves
	}
	if m.update == yields {
		c.w.judge.yields(c)
	}
	for i := range c.w.p.Nodes {
		if !untouched.Has(i) {
			c.request(i, &m)
		}
	}
}
