package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// proof is what the nodes have shown about a hold. The hold is passed on because of it.
// In production it is part of the Manager's hold.
type proof struct {
	provenBy     quorum.Set              // nodes that have shown owner and token since the last reset
	provenFrom   time.Duration           // requests sent before this instant of the validity clock prove nothing
	shown        [maxNodes]time.Duration // true time at which the answered request of each node of provenBy was sent
	proofResetAt time.Duration           // true time of the last reset
	unproven     quorum.Set              // nodes that may show both although the acquisition was not a vote there
}

// recordProof handles what a node shows about the lock, in answer to an extend or a heal. A
// healed lock shows no token.
func (c *client) recordProof(i int, m *message) {
	fresh := m.sent >= c.provenFrom || c.w.bugs.has(ResetOvertaken)
	switch {
	case m.op == opExtend && m.answer == confirmed:
		if fresh && !(c.proof.unproven | c.lean).Has(i) {
			c.shows(i, m.issued)
		}
	case m.answer == confirmed, m.answer == withoutToken, m.answer == withoutVote:
		if fresh && c.provenBy.Has(i) {
			c.resetProof()
		}
	case m.answer == taken, m.answer == missing:
		c.resetProof()
	}
}

// proves returns what a node answers to the extend of a lock that is ours.
func (n *node) proves(m *message) answer {
	switch {
	case n.w.bugs.has(OwnerIsEnough):
		return confirmed
	case !n.votes(m):
		return withoutVote
	case n.shown != m.t:
		return withoutToken
	}
	return confirmed
}

// shows records that node i has shown the token, in answer to a request that was sent at
// the true time issued.
func (c *client) shows(i int, issued time.Duration) {
	c.provenBy = c.provenBy.With(i)
	c.shown[i] = max(c.shown[i], issued)
}

// resetProof resets the proof, because another attempt may have got the lock in between.
func (c *client) resetProof() {
	c.w.stats[ProofResets]++
	c.proofResetAt = c.w.now
	if !c.w.bugs.has(NoProofReset) {
		c.provenBy, c.provenFrom, c.shown = 0, c.now(), [maxNodes]time.Duration{}
	}
}

// shownSince returns the true time at which the oldest request of the newest proof of a
// quorum was sent. It returns 0 without a quorum.
func (c *client) shownSince() time.Duration {
	var since time.Duration
	for i := range c.w.p.Nodes {
		newer := 0
		for j := range c.w.p.Nodes {
			if c.provenBy.Has(j) && c.shown[j] >= c.shown[i] {
				newer++
			}
		}
		if c.provenBy.Has(i) && newer >= quorum.Size(c.w.p.Nodes) {
			since = max(since, c.shown[i])
		}
	}
	return since
}

// check is a raise of a hold. It mints a block of tokens, proves the hold, and reports
// whether another client waits.
type check struct {
	open     bool
	token    int64
	sent     time.Duration
	issued   time.Duration // the same in true time
	until    time.Duration
	raised   quorum.Set
	answered quorum.Set
	before   int64 // the largest register before the raises
	others   int
}

// startCheck begins a check of the hold. Its token may be as far behind the cluster's
// time as the token of an attempt. It must not be ahead, because a node does not bound a
// raise by its own clock.
func (c *client) startCheck(now time.Duration) {
	w := c.w
	w.stats[Checks]++
	clusterTime := c.clusterTime()
	c.check = check{
		open: true, token: max(quorum.Register(min(c.propose(clusterTime), clusterTime)), quorum.NextRegister(c.lastToken)),
		sent: now, issued: w.now, until: now + w.config.terms.Timeout,
	}
	m := message{op: opRaise, owner: c.owner, t: c.check.token}
	for i := range w.p.Nodes {
		c.request(i, &m)
	}
}

// checked handles the answer to a raise of the hold. An answer to a raise of the attempt
// is ignored.
func (c *client) checked(i int, m *message, now time.Duration) {
	k, ok := &c.check, m.answer == done
	switch {
	case m.t == c.ballot.Top():
	case k.open && m.sent == k.sent: // the check before may have proposed the same token
		k.answered = k.answered.With(i)
		if ok {
			k.raised, k.before = k.raised.With(i), max(k.before, m.before)
			k.others = max(k.others, int(m.position))
		}
		if k.raised.Len() >= quorum.Size(c.w.p.Nodes) || k.answered == quorum.All(c.w.p.Nodes) {
			c.endCheck(now)
		}
	case ok && m.t == c.lastToken && m.sent >= c.provenFrom:
		c.shows(i, m.issued)
	case ok:
		c.provenBy = c.provenBy.Without(i) // this node shows another token than the others
	}
}

// endCheck applies the result of a check.
func (c *client) endCheck(now time.Duration) {
	w, k := c.w, c.check
	c.check = check{}
	need := quorum.Size(w.p.Nodes)
	if w.bugs.has(CheckOfOne) {
		need = 1
	}
	if k.raised.Len() >= need {
		c.mint(&k, now)
	} else {
		c.provenBy &^= k.raised // these nodes show another token than the others
	}
	if c.vacant { // the queue waits for the answer
		c.do(now, c.local.Checked(clock.Validity(c.localTime(now)), c.state(now)))
	}
}

// mint replaces the rest of the block of tokens with a new block.
func (c *client) mint(k *check, now time.Duration) {
	w := c.w
	c.others, c.answeredAt = k.others, now
	if k.sent >= c.provenFrom || w.bugs.has(ResetOvertaken) {
		c.provenBy, c.provenFrom, c.proof.unproven = k.raised, k.sent, 0
		for i := range c.shown {
			c.shown[i] = k.issued
		}
	}
	before := k.before
	if w.bugs.has(CheckUnbounded) {
		before = 0
	}
	c.top, c.next, c.lastToken = k.token, max(c.next, quorum.NextRegister(before), k.token-w.config.block+1), k.token
	if w.p.Trace != nil {
		w.trace("client %d has checked owner %d: tokens %d to %d, %d wait elsewhere", c.id, c.owner, c.next, c.lastToken, c.others)
	}
	w.judge.minted(c, k.issued)
}
