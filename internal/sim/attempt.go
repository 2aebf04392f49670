package sim

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// attempt is one attempt of a client. A lease that it wins has the same owner value.
type attempt struct {
	owner   uint32
	began   time.Duration
	started time.Duration // the same in true time
	// issuedFrom is the true time from which its requests were sent; started may belong to an earlier attempt with the
	// same owner.
	issuedFrom time.Duration
	proposal   int64
	ballot     quorum.Ballot
	untouched  quorum.Set // nodes that certainly have no key of this attempt
	raising    bool       // the wait for votes has ended, the wait for raises has begun
	failures   int
	refusals   [maxNodes]quorum.Refusal // Left is the instant at which the key ends
	refused    int
	waiters    int        // tickets in the queues of the nodes that granted
	carried    uint32     // the attempt's ticket; 0 for none
	notQueued  quorum.Set // nodes without an answer whose queue certainly lacks the ticket
	keeps      bool       // its votes stay for the next attempt
	back       uint32     // the owner of the handle to which it gives its locks back when it fails; 0 for none
	kept       quorum.Set // nodes that may have the lock from earlier attempts as this owner
	raises     quorum.Set // nodes that were asked to raise and have not answered
	raiseLate  quorum.Set // nodes whose answer to a raise did not come in time

	stands      [maxNodes]int64 // the position that the attempt moved each node to; 0 where it is ahead
	firstBefore [maxNodes]int64 // the value before the vote
	lastBefore  [maxNodes]int64 // the value before the counted move
	wasRaised   quorum.Set

	lean     quorum.Set // a lean lock that isn't a vote may be there, because the lean way was asked, and no answer says otherwise
	unproven quorum.Set // such a lock must be expected
}

// try begins an attempt: it asks every node.
func (c *client) try(now time.Duration) {
	newAttempt(c, now)
	askNodes(c, now, c.beginAsk(now).Lapsed)
}

// newAttempt makes an attempt that has not asked yet.
func newAttempt(c *client, now time.Duration) {
	w := c.w
	w.stats[Attempts]++
	w.owners++
	c.phase = trying
	before := c.attempt
	c.attempt = attempt{
		owner: w.owners, began: now, started: w.now, failures: c.failures, proposal: c.propose(c.clusterTime()),
	}
	c.issuedFrom = w.now
	if before.keeps {
		c.owner, c.proposal, c.kept, c.started = before.owner, before.proposal, before.kept, before.started
		c.unproven = c.kept &^ before.ballot.Votes().Granted()
	}
	c.ballot = quorum.NewBallot(w.p.Nodes, true, c.proposal)
	if c.reads {
		c.proposal, c.ballot = 0, quorum.NewSharedBallot(w.p.Nodes, true)
	}
}

// askNodes asks every node for its vote.
func askNodes(c *client, now time.Duration, lapsed quorum.Set) {
	w := c.w
	if w.bugs.has(OneOwner) && c.carried != 0 {
		c.owner = c.carried
	}
	if w.bugs.has(ResumeKeepsOwner) && c.from != 0 {
		c.owner = c.from
	}
	c.until = now + w.config.terms.Timeout
	w.judge.begins(c)
	if w.p.Trace != nil {
		w.trace("client %d tries as owner %d, ticket %d, slot %d, enqueued at %d, lapsed on %b, proposes %d",
			c.id, c.owner, c.carried, c.slot, c.enqueuedAt, lapsed, c.proposal)
	}
	silent := c.silent()
	for i := range w.p.Nodes {
		k := &c.known[i]
		if !silent.Has(i) && c.ask(i, c.proposal, lapsed.Has(i), c.until) {
			continue
		}
		if silent.Has(i) {
			w.stats[Silences]++
		}
		w.stats[NotAsked]++
		c.untouched, c.notQueued = c.untouched.With(i), c.notQueued.With(i)
		c.ballot.Fail(i)
		if (!k.greeted || k.line != c.lineTo(i) || silent.Has(i)) && now >= k.asked+w.config.terms.Timeout {
			c.greet(i)
		}
	}
	c.decide(now)
}

// propose returns the token that the attempt proposes. Correct tokens do not depend on
// it, so it is wrong in some runs, and often the same as another client's.
func (c *client) propose(t int64) int64 {
	w := c.w
	t += micros(w.upTo(2*w.config.misjudged+1) - w.config.misjudged)
	if grain := micros(w.config.grain); grain > 0 {
		t -= t % grain
	}
	return max(quorum.Register(t), 2)
}

// ask sends an acquire to node i, if the node may vote.
func (c *client) ask(i int, t int64, lapsed bool, bound time.Duration) bool {
	if !c.mayVote(i) {
		return false
	}
	w := c.w
	m := message{
		op: opAcquire.of(c.reads), owner: c.owner, ticket: c.carried, enqueuedAt: c.enqueuedAt, t: t, lapsed: lapsed,
		marker:     c.known[i].marker,
		subscribed: w.config.unsubscribed == 0 || w.rng.IntN(1000) >= w.config.unsubscribed,
	}
	if c.from != 0 {
		m.op, m.holder = opResume, c.from
	}
	c.limit(i, &m, bound)
	c.goLean(i, &m)
	c.request(i, &m)
	return true
}

// answered handles a node's answer to the attempt.
func (c *client) answered(i int, m *message, now time.Duration) {
	switch {
	case m.answer == granted && !c.counts(i, m), m.answer == unknown:
		c.ballot.Fail(i)
	case m.answer == granted:
		c.vote(i, m)
	case m.answer == taken:
		c.untouched = c.untouched.With(i)
		if c.ballot.Votes().Silent().Has(i) {
			c.refuse(i, m, now)
		}
		c.ballot.Refuse(i)
	default:
		c.untouched, c.notQueued = c.untouched.With(i), c.notQueued.With(i)
		c.ballot.Fail(i)
	}
	c.decide(now)
}

// vote records the vote of node i, and asks nodes below the top to raise.
func (c *client) vote(i int, m *message) {
	moved, before := m.moved, m.before
	if moved == 0 && c.w.bugs.has(AheadCounts) {
		moved, before = c.proposal, min(before, c.proposal-1)
	}
	if c.ballot.Votes().Silent().Has(i) {
		c.stands[i], c.firstBefore[i], c.lastBefore[i] = moved, before, before
		c.waiters = max(c.waiters, int(m.position))
	}
	below := c.ballot.Grant(i, moved, before)
	if below == 0 {
		return
	}
	raise := message{op: opRaise.of(c.reads), owner: c.owner, t: c.ballot.Top()}
	for j := range c.w.p.Nodes {
		if below.Has(j) {
			c.w.stats[Raises]++
			c.raises = c.raises.With(j)
			c.request(j, &raise)
		}
	}
}

// raised handles the answer to a raise.
func (c *client) raised(i int, m *message) {
	ok := m.answer == done
	c.raises = c.raises.Without(i)
	c.ballot.Raised(i, m.before, ok)
	if ok && m.t == c.ballot.Top() && m.before < m.t {
		c.stands[i], c.lastBefore[i] = m.t, m.before
		c.wasRaised = c.wasRaised.With(i)
	}
}

// expire ends the wait: first for votes, then for raises.
func (c *client) expire(now time.Duration) {
	if c.w.bugs.has(AmbiguousVotes) {
		c.inventVotes(c.ballot.Votes().Silent())
	}
	c.ballot.Votes().Expire()
	if c.raising {
		c.ballot.Expire()
		c.raiseLate = c.raises
	}
	c.raising = true
	c.until = now + c.w.config.terms.Timeout
	c.decide(now)
}

// inventVotes counts nodes as if they had moved to the top.
func (c *client) inventVotes(nodes quorum.Set) {
	for i := range c.w.p.Nodes {
		if nodes.Has(i) {
			m := message{moved: c.ballot.Top(), before: c.ballot.Top() - 1}
			if c.reads {
				m.moved, m.before = 0, slices.Max(c.lastBefore[:])
			}
			c.vote(i, &m)
		}
	}
}

// decide ends the attempt when its outcome is certain.
func (c *client) decide(now time.Duration) {
	if c.w.bugs.has(ReservationVotes) || c.reads && c.w.bugs.has(WokenVotes) {
		c.countReservations()
	}
	countRights(c)
	verdict := c.verdict()
	if verdict.outcome == quorum.OutcomePending {
		return
	}
	w := c.w
	awaits := asksOnce(c) && verdict.outcome == quorum.OutcomeHeld && quorum.AwaitsVotes(w.p.Nodes, c.result(verdict.outcome, 0))
	if awaits || askElsewhere(c, now, verdict.outcome) {
		return
	}
	terms := &w.config.terms
	if verdict.outcome == quorum.OutcomeWon {
		votes := c.ballot.Votes()
		since := c.began
		if w.bugs.has(FromReply) {
			since = now
		}
		if c.window == nil {
			c.window = make(quorum.Window[clock.Validity], maxNodes)
		}
		c.window = c.window[:w.p.Nodes]
		c.machine = quorum.NewMachine(terms, c.window, clock.Validity(since), verdict.voters, quorum.All(w.p.Nodes)&^votes.Silent())
		c.changing = changing{}
		c.machine.SetLag(w.config.lag)
		c.machine.Arm(clock.Validity(since + c.interval()))
		if c.machine.End().Sub(clock.Validity(now)) >= terms.TTL/10 || w.bugs.has(NoFinalCheck) {
			c.granted(now, verdict)
			return
		}
		w.stats[Abandoned]++
	}
	c.failures++
	wait := min(terms.TTL/20<<min(c.failures, 10), w.config.backoffCap)
	if asksOnce(c) {
		wait = w.config.grace / 4
	}
	c.failed(verdict.outcome, now, wait/2+w.upTo(wait/2))
	over := c.wait.At() == quorum.Never
	if over || !w.quiet && w.rng.IntN(1000) < w.config.giveUp {
		if w.stats[WaitsGivenUp]++; over {
			w.stats[AskedOnce]++
		}
		if c.downgrade {
			abandon(c, now)
			return
		}
		c.releaseKept()
		c.leave()
		c.callLater(c.current, terms.TTL/4)
		c.do(now, c.local.Leave(clock.Validity(c.localTime(now)), quorum.CallerID(c.current+1)))
		return
	}
	if c.until <= now {
		c.try(now)
	}
}

// verdict is the outcome of an attempt. It is the ballot's outcome, unless a planted
// bug overrides it.
type verdict struct {
	outcome            quorum.Outcome
	voters             quorum.Set
	top, first, latest int64 // latest is the last token of the block: the top
}

func (c *client) verdict() verdict {
	b, bugs := &c.ballot, c.w.bugs
	v := verdict{outcome: b.Outcome(), voters: b.Votes().Granted(), top: b.Top()}
	v.first, v.latest = b.Tokens(c.w.config.block)
	n, q := c.w.p.Nodes, quorum.Size(c.w.p.Nodes)
	votes := b.Votes().Outcome() == quorum.OutcomeWon
	override := func() { v.outcome, v.first, v.latest = quorum.OutcomeWon, v.top, v.top }
	switch {
	case bugs.has(UnalignedCounts) && c.reads && votes:
		v.outcome, v.first, v.latest = quorum.OutcomeWon, v.top+1, v.top+1
	case bugs.has(RegisterIsToken) && c.reads:
		v.first, v.latest = v.top, v.top
	case bugs.has(NoRaise) && votes:
		override()
	case bugs.has(ProposalStays) && v.outcome == quorum.OutcomeWon:
		v.top = c.proposal
		override()
	case bugs.has(BlockUnbounded) && v.outcome == quorum.OutcomeWon:
		v.first = max(1, v.top-c.w.config.block+1)
	case bugs.has(BeforeOfTheVote) && v.outcome == quorum.OutcomeWon:
		v.first = c.firstOfVotes(v)
	case bugs.has(HalfQuorum) && v.outcome != quorum.OutcomeWon && v.voters.Len() >= n/2 && n > 1:
		override()
		for i := 0; v.voters.Len() < q; i++ {
			v.voters = v.voters.With(i)
		}
	}
	return v
}

// firstOfVotes returns the first usable token of a planted bug: the bug takes the value
// before from a node's vote, although the node was raised later.
func (c *client) firstOfVotes(v verdict) int64 {
	var before int64
	for i := range c.w.p.Nodes {
		switch {
		case c.stands[i] != v.top:
		case c.wasRaised.Has(i):
			before = max(before, c.firstBefore[i])
		default:
			before = max(before, c.lastBefore[i])
		}
	}
	return max(before, v.top-c.w.config.block) + 1
}
