package election

import (
	"math/bits"
	"time"
)

// This file decides for one candidate: a state machine of events and instants, without a clock, I/O or a
// goroutine. Instants are monotonic, and count from the beginning of Run. Chance is injected.

// rules are the checked settings that decisions need.
type rules struct {
	ttl        time.Duration // of both leases
	margin     int
	minReign   time.Duration
	leadAnyway time.Duration // 0: never
	every      time.Duration // between checks, and the deadline of one
	checks     bool          // it has a Health
	window     time.Duration // of preferences: one minute
	mostDoubts int           // of the doublings of minReign: three
}

const (
	minute  = time.Minute // between two asks of the leader, and the window of preferences
	doubts  = 3           // a favourite that crashes after each win waits for 8 minReign at most
	forgets = 16          // minReigns without a short reign, after which the doublings end
)

// state is the state of a candidate. The table in doc.go has the transitions.
type state int

const (
	idle     state = iota + 1
	queued         // waits for next
	next           // holds next, and waits for the name
	leading        // Lead runs
	yielding       // Lead runs, and must return
)

// lease is one of the two leases of an election.
type lease int

const (
	nextLease lease = iota // NAME/next: its holder waits for the name
	nameLease              // NAME: its holder leads
)

// call is the state of a call, which waits for a lease and then holds it.
type call int

const (
	absent  call = iota // there is none
	waiting             // it has no lease yet
	holding             // it has the lease
	leaving             // it must end, and has not ended yet
)

// what is the kind of an event.
type what int

const (
	ticked    what = iota + 1 // time has passed
	granted                   // event.lease
	ended                     // the call for event.lease, with or without a grant
	wanted                    // event.lease, by event.waiters; the latest ask is event.ask
	observed                  // event.sight
	preferred                 // Preference has returned event.value
	checking                  // Health was called
	checked                   // Health has returned; event.ok means without an error
	asked                     // an ask has ended, delivered or not
)

// event is what happens to a candidate.
type event struct {
	what    what
	lease   lease
	waiters int
	ask     string
	sight   sight
	value   int
	ok      bool
}

// act is the kind of a command, which the edges carry out.
type act int

const (
	actQueue  act = iota + 1 // start a call for command.lease
	actLeave                 // end the call for command.lease
	actLead                  // the answer to granted: run Lead
	actRefuse                // the answer to granted: give the lease back
	actYield                 // tell Lead to return; command.cause says why
	actAsk                   // tell the holder of command.lease command.text; asked follows
)

// command is something that the edges must do.
type command struct {
	act   act
	lease lease
	cause error
	text  string
}

// candidate is the state of one candidate.
type candidate struct {
	rules
	chance func() uint64
	id     string // of this Run, for people

	state    state
	calls    [2]call // by lease
	commands []command

	prefs  preferences
	health health
	reigns reigns

	reignBegan   time.Duration // of this candidate's reign, or of its last one
	restedSince  time.Duration // when the last own reign ended, or Run began
	yieldedAt    time.Duration // when it last yielded to a better one; before: never
	coolUntil    time.Duration // after an unhealthy reign
	waiters      int           // for the name, while it leads
	heard        [2]ask        // the latest ask, by lease, of the present hold
	asking       bool          // an ask is under way
	askNextAt    time.Duration // when to ask the holder of next again
	askLeaderAt  time.Duration // when to ask the leader again
	leaderlessAt time.Duration // the start of the time without a leader, if leaderless
	leaderless   bool
}

// before is an instant so long ago that nothing counts from it.
const before = -1 << 60

func newCandidate(r rules, chance func() uint64, id string) *candidate {
	return &candidate{
		rules: r, chance: chance, id: id, state: idle,
		prefs: preferences{window: r.window}, health: health{every: r.every}, yieldedAt: before, coolUntil: before,
		reigns: reigns{short: r.minReign / 2, forgotten: forgets * r.minReign, most: r.mostDoubts, lastShort: before},
	}
}

// step takes an event and returns the commands, in the order to carry them out.
func (c *candidate) step(e event, now time.Duration) []command {
	c.commands = nil
	switch e.what {
	case granted:
		c.granted(e.lease, now)
	case ended:
		c.ended(e.lease, now)
	case wanted:
		c.wanted(&e, now)
	case observed:
		c.observed(e.sight, now)
	case preferred:
		c.prefs.add(now, e.value)
	case checking:
		c.health.begin(now)
	case checked:
		c.health.end(now, e.ok)
	case asked:
		c.asking = false
	case ticked:
	}
	c.prefs.trim(now)
	c.health.overdue(now)
	c.settle(now)
	return c.commands
}

func (c *candidate) emit(cmd command) { c.commands = append(c.commands, cmd) }

func (c *candidate) queue(l lease) {
	c.calls[l] = waiting
	c.emit(command{act: actQueue, lease: l})
}

// leave ends the call for a lease, and so releases a lease that the call holds.
func (c *candidate) leave(l lease) {
	if c.calls[l] == waiting || c.calls[l] == holding {
		c.calls[l] = leaving
		c.emit(command{act: actLeave, lease: l})
	}
}

// stand ends the candidacy for now.
func (c *candidate) stand() {
	c.leave(nextLease)
	c.leave(nameLease)
	c.state = idle
}

func (c *candidate) granted(l lease, now time.Duration) {
	if c.calls[l] != waiting {
		if l == nameLease {
			c.emit(command{act: actRefuse})
		}
		return // the call is leaving, and ends
	}
	c.calls[l], c.heard[l] = holding, ask{}
	if l == nextLease {
		c.state, c.askLeaderAt = next, now
		return
	}
	if now-c.yieldedAt < c.minReign/2 {
		c.reigns.doubt(now) // the reign in between was too short for the observation to see
	}
	c.state, c.reignBegan, c.waiters = leading, now, 0
	c.emit(command{act: actLead})
	c.leave(nextLease) // another candidate may be the next one
}

func (c *candidate) ended(l lease, now time.Duration) {
	c.calls[l] = absent
	switch {
	case l == nameLease && (c.state == leading || c.state == yielding):
		c.state, c.restedSince = idle, now
	case l == nextLease && (c.state == queued || c.state == next):
		c.stand() // it was lost
	}
}

func (c *candidate) wanted(e *event, now time.Duration) {
	if e.lease == nameLease {
		c.waiters = e.waiters
	}
	if a, ok := parseAsk(e.ask); ok && !a.same(c.heard[e.lease]) {
		a.at = now
		c.heard[e.lease] = a
	}
}

func (c *candidate) observed(s sight, now time.Duration) {
	c.reigns.see(s, now)
	if nobody := s.known && !s.held; nobody != c.leaderless {
		c.leaderless, c.leaderlessAt = nobody, now
	}
}

// leaderlessFor reports whether no one has led for a time.
func (c *candidate) leaderlessFor(d, now time.Duration) bool {
	return c.leaderless && now-c.leaderlessAt >= d
}

// healthy reports whether Health lets it lead.
func (c *candidate) healthy() bool { return !c.checks || c.health.ok }

// stays reports whether a candidate that waits may continue.
func (c *candidate) stays(now time.Duration) bool {
	return c.healthy() || c.leadAnyway > 0 && c.leaderlessFor(c.leadAnyway, now)
}

// settle makes the transitions that are due.
func (c *candidate) settle(now time.Duration) {
	switch c.state {
	case idle:
		cooled := now >= c.coolUntil || c.leaderlessFor(2*c.ttl, now) || !c.healthy()
		if c.calls == [2]call{} && cooled && c.stays(now) {
			c.state, c.askNextAt = queued, now+c.soon()
			c.queue(nextLease)
		}
	case queued:
		c.settleQueued(now)
	case next:
		c.settleNext(now)
	case leading:
		c.settleLeading(now)
	case yielding: // until Lead has returned
	}
}

// soon is half of a TTL, give or take a fifth: asks that came in step would replace each other forever.
func (c *candidate) soon() time.Duration {
	hi, _ := bits.Mul64(c.chance(), uint64(c.ttl/5))
	return c.ttl*2/5 + time.Duration(hi)
}

func (c *candidate) settleQueued(now time.Duration) {
	if !c.stays(now) {
		c.stand()
		return
	}
	switch {
	case c.calls[nameLease] == absent && c.leaderlessFor(3*c.ttl, now): // the next holder does not lead
		c.queue(nameLease)
	case c.calls[nameLease] == waiting && !c.leaderless:
		c.leave(nameLease) // the name has one waiter
	}
	if least, ok := c.prefs.least(); ok && !c.asking && now >= c.askNextAt {
		c.askNextAt = now + c.soon()
		c.ask(nextLease, least)
	}
}

func (c *candidate) settleNext(now time.Duration) {
	greatest, known := c.prefs.greatest()
	if a := c.heard[nextLease]; !c.stays(now) || a.asked && now-a.at <= 2*c.ttl && (!known || a.value > greatest) {
		c.stand() // and queue again, behind the better one
		return
	}
	if c.calls[nameLease] == absent {
		c.queue(nameLease)
	}
	if least, ok := c.prefs.least(); ok && !c.asking && now >= c.askLeaderAt && now-c.restedSince >= c.minReign {
		c.askLeaderAt = now + minute
		c.ask(nameLease, least)
	}
}

func (c *candidate) ask(l lease, value int) {
	c.asking = true
	c.emit(command{act: actAsk, lease: l, text: ask{value: value, number: c.chance(), id: c.id}.String()})
}

func (c *candidate) settleLeading(now time.Duration) {
	if !c.healthy() && (c.leadAnyway == 0 || c.waiters > 0) {
		c.yield(ErrUnhealthy)
		c.coolUntil = now + c.minReign
		return
	}
	a := c.heard[nameLease]
	greatest, known := c.prefs.greatest()
	switch {
	case !a.asked, now-a.at > minute+2*c.ttl, !known, a.value < greatest, uint(a.value)-uint(greatest) < uint(c.margin): // as ints, the difference may overflow
	case c.waiters == 0:
	case now-c.reignBegan < c.minReign<<c.reigns.doubts(now):
	default:
		c.yield(ErrYielded)
		c.yieldedAt = now
	}
}

func (c *candidate) yield(cause error) {
	c.state = yielding
	c.emit(command{act: actYield, cause: cause})
}
