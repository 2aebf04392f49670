package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// proof is what the nodes have shown of a hold, by which it is passed on. In
// production it is part of the Manager's hold.
type proof struct {
	provenBy   quorum.Set              // nodes that have shown owner and token since the last doubt
	provenFrom time.Duration           // requests that were sent before prove nothing, by the validity clock
	shown      [maxNodes]time.Duration // when the request was sent that a node of provenBy has answered, in true time
	doubtedAt  time.Duration           // when the last doubt came up, in true time
}

// prove takes a node's word on the lock, in answer to an extend or a heal. A
// lock that is healed shows no token.
func (c *client) prove(i int, m *message) {
	fresh := m.sent >= c.provenFrom || c.w.bugs.has(DoubtOvertaken)
	switch {
	case m.op == opExtend && m.answer == confirmed:
		if fresh {
			c.shows(i, m.issued)
		}
	case m.answer == confirmed, m.answer == withoutToken:
		if fresh && c.provenBy.Has(i) {
			c.doubt()
		}
	case m.answer == taken, m.answer == missing:
		c.doubt()
	}
}

// shows notes that node i has shown the token, in answer to a request that was
// sent at a true time.
func (c *client) shows(i int, issued time.Duration) {
	c.provenBy = c.provenBy.With(i)
	c.shown[i] = max(c.shown[i], issued)
}

// doubt forgets what the nodes have shown: another attempt may have been granted
// the lock in between.
func (c *client) doubt() {
	c.w.stats[Doubts]++
	c.doubtedAt = c.w.now
	if !c.w.bugs.has(NoDoubt) {
		c.provenBy, c.provenFrom, c.shown = 0, c.now(), [maxNodes]time.Duration{}
	}
}

// shownSince returns the true time at which the oldest request of the newest
// proof of a quorum was sent; 0 without a quorum.
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

// check is a raise of a hold: it mints a block of tokens, proves the hold, and
// tells whether anybody waits elsewhere.
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

// startCheck begins a check of the hold. Its token may be as far behind the
// cluster's time as that of an attempt, but not ahead: a node does not bound a
// raise by its own clock.
func (c *client) startCheck(now time.Duration) {
	w := c.w
	w.stats[Checks]++
	clusterTime := c.clusterTime()
	c.check = check{
		open: true, token: max(min(c.propose(clusterTime), clusterTime), c.lastToken+1),
		sent: now, issued: w.now, until: now + w.config.terms.Timeout,
	}
	m := message{op: opRaise, owner: c.owner, t: c.check.token}
	for i := range w.p.Nodes {
		c.request(i, &m)
	}
}

// checked takes the answer to a raise of the hold. One to a raise of the attempt
// is of no use any more.
func (c *client) checked(i int, m *message, now time.Duration) {
	k, ok := &c.check, m.answer == done
	switch {
	case m.t == c.ballot.Token():
	case k.open && m.sent == k.sent: // the one before may have proposed the same token
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
		c.provenBy = c.provenBy.Without(i) // it shows another token than the others
	}
}

// endCheck uses what a check has brought.
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
		c.provenBy &^= k.raised // they show another token than the others
	}
	if c.vacant { // the queue waits for the answer
		c.do(now, c.local.Checked(c.localTime(now), c.state(now)))
	}
}

// mint replaces what is left of the block of tokens by a new block.
func (c *client) mint(k *check, now time.Duration) {
	w := c.w
	c.others, c.toldAt = k.others, now
	if k.sent >= c.provenFrom || w.bugs.has(DoubtOvertaken) {
		c.provenBy, c.provenFrom = k.raised, k.sent
		for i := range c.shown {
			c.shown[i] = k.issued
		}
	}
	before := k.before
	if w.bugs.has(CheckUnbounded) {
		before = 0
	}
	c.top, c.next, c.lastToken = k.token, max(c.next, before+1, k.token-w.config.block+1), k.token
	if w.p.Trace != nil {
		w.trace("client %d has checked owner %d: tokens %d to %d, %d wait elsewhere", c.id, c.owner, c.next, c.lastToken, c.others)
	}
	w.judge.minted(c, k.issued)
}
