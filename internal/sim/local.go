package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file hands a lease to the next caller in the same process.

// showing is the latest sign that a node held the lock for the lease and
// showed its token.
type showing struct {
	seen   bool
	issued time.Duration // when the request was sent, in true time
}

// locals decides whether a lease may be passed on inside the process.
type locals struct {
	showings  [maxNodes]showing
	doubts    quorum.Set    // nodes that do not show the token
	doubted   time.Duration // when the last of them was found, by the validity clock
	doubtedAt time.Duration // and in true time
}

// recordToken notes whether an answer shows the token of the lease.
func (c *client) recordToken(i int, m *message) {
	switch {
	case m.op == opAcquire && m.answer == granted:
		if m.moved == c.top {
			c.shows(i, m)
		}
	case m.op == opExtend && m.answer == confirmed:
		c.shows(i, m)
	case m.answer == withoutToken, m.answer == taken, m.answer == missing, m.op == opHeal && m.answer == confirmed:
		c.doubt(i)
	}
}

// shows notes that node i showed the token of the lease in the answer to m. A
// request that was sent before the last doubt proves nothing about it.
func (c *client) shows(i int, m *message) {
	bugs := c.w.bugs
	if m.sent <= c.doubted && !bugs.has(NoDoubt) && !bugs.has(DoubtOvertaken) {
		return
	}
	s := &c.showings[i]
	if !s.seen || m.issued > s.issued {
		*s = showing{seen: true, issued: m.issued}
	}
	c.doubts = c.doubts.Without(i)
}

// doubt notes that node i does not show the token of the lease any more:
// another attempt may have moved its register in between. Until a quorum shows
// the token again, the lease is not passed on.
func (c *client) doubt(i int) {
	if c.doubts.Has(i) {
		return // no news
	}
	c.w.stats[Doubts]++
	c.doubts = c.doubts.With(i)
	c.doubted, c.doubtedAt = c.now(), c.w.now
	if !c.w.bugs.has(NoDoubt) {
		c.showings = [maxNodes]showing{}
	}
}

// shownSince returns the true time at which the oldest request of the newest
// showings of a quorum was sent, and whether there is a quorum of them.
func (c *client) shownSince() (time.Duration, bool) {
	var sorted [maxNodes]time.Duration // the latest first
	shown := 0
	for i := range c.w.p.Nodes {
		s := &c.showings[i]
		if !s.seen {
			continue
		}
		j := shown
		for ; j > 0 && sorted[j-1] < s.issued; j-- {
			sorted[j] = sorted[j-1]
		}
		sorted[j] = s.issued
		shown++
	}
	q := quorum.Size(c.w.p.Nodes)
	if shown < q {
		return 0, false
	}
	return sorted[q-1], true
}

// pass hands the lease to the next local caller, if one waits, and reports
// whether it did.
func (c *client) pass(now time.Duration) bool {
	w := c.w
	if w.quiet || w.rng.IntN(1000) >= w.config.locals || c.token >= c.lastToken ||
		c.machine.End()-now < w.config.terms.TTL/10 {
		return false
	}
	since, ok := c.shownSince()
	if !ok && !w.bugs.has(PassUnchecked) {
		w.stats[PassesRefused]++
		return false
	}
	w.stats[Passes]++
	c.token++
	if left := c.lastToken - c.token; left > 0 && w.rng.IntN(2) == 0 {
		c.token += w.rng.Int64N(left + 1)
	}
	c.until = now + w.upTo(w.config.hold)
	w.trace("client %d passes owner %d on with token %d", c.id, c.owner, c.token)
	w.judge.passed(c, now, max(since, c.doubtedAt))
	return true
}
