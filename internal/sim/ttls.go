package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// changingRuns is of how many runs of the world Inside one has leases whose TTLs change.
const changingRuns = 5

// ttls are the TTLs that the renewals of a run ask for. Who asks for which is drawn from a generator of its own.
type ttls struct {
	pcg   rand.PCG
	terms []quorum.Terms // empty in runs without changes
	extra time.Duration  // how much longer than usual the longest one is
}

// draw decides whether the TTLs of a run change.
func (t *ttls) draw(w *world) {
	t.terms, t.extra = t.terms[:0], 0
	t.pcg.Seed(uint64(w.p.Seed), 0x771)
	c, planted := &w.config, w.p.Mutation.among(ofTTLs...)
	if w.p.World != Inside || c.orderly || w.permits.limit > 0 || w.handles.first != maxClients ||
		!planted && (w.p.Mutation != 0 || w.p.Seed%changingRuns != 3) {
		return
	}
	usual := c.terms.TTL
	longer := 2 * usual
	if c.guard { // which covers the longest lease
		longer = c.maxTTL
	}
	for _, ttl := range []time.Duration{usual, usual / 4, longer} {
		one := c.terms
		one.TTL, one.Drift = ttl, quorum.Drift(ttl, 0.01)
		one.SafetyMargin = quorum.SafetyMargin(ttl)
		one.Early, one.MaxLag = quorum.Early(one.SafetyMargin), quorum.MaxLag(ttl, ttl)
		one.Timeout = min(max(ttl/10, 20*time.Millisecond), 500*time.Millisecond)
		t.terms = append(t.terms, one)
	}
	t.extra = longer - usual
	c.lag = min(c.lag, t.terms[1].MaxLag) // timers are late for each TTL
	c.late = (t.terms[1].Early + c.lag) * 9 / 10
}

// of returns the terms with a TTL.
func (t *ttls) of(ttl time.Duration) *quorum.Terms {
	i := slices.IndexFunc(t.terms, func(one quorum.Terms) bool { return one.TTL == ttl })
	if i < 0 {
		return nil
	}
	return &t.terms[i]
}

// next returns what a renewal asks for; nil if that is what the lease has.
func (t *ttls) next(w *world) *quorum.Terms {
	if len(t.terms) == 0 || w.quiet || t.pcg.Uint64()%3 != 0 {
		return nil
	}
	return &t.terms[t.pcg.Uint64()%uint64(len(t.terms))]
}

// changing is what a lease knows of its TTLs.
type changing struct {
	ttl       time.Duration // of its requests; 0 while it has not changed
	changedAt time.Duration
	untold    *quorum.Terms // by a planted bug: the shorter TTL that the machine does not know
}

// ttlOf returns how long a request keeps a lock.
func (w *world) ttlOf(m *message) time.Duration {
	if m.ttl > 0 {
		return m.ttl
	}
	return w.config.terms.TTL
}

// changes returns the input that begins a round, which may ask for another TTL.
func (c *client) changes() quorum.Input {
	in, terms := quorum.Input{Kind: quorum.InputBegin}, c.w.ttls.next(c.w)
	if terms == nil || c.ttl == 0 && terms.TTL == c.w.config.terms.TTL || terms.TTL == c.ttl {
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

// asksFor says in a request of a round what the lease asks for.
func (c *client) asksFor(i int, m *message) {
	if m.ttl = c.ttl; len(c.w.ttls.terms) > 0 { // a node runs no renewal that is older than its TTL
		c.limit(i, m, c.now()+c.w.ttlOf(m))
	}
}

// answersTo says in an input what the request asked for that it is an answer to, and what may overtake it.
func (c *client) answersTo(m *message, in *quorum.Input) {
	if len(c.w.ttls.terms) == 0 {
		return
	}
	if in.Terms = c.w.ttls.of(m.ttl); c.w.bugs.has(AnswersAlike) {
		in.Terms = c.w.ttls.of(c.ttl)
	}
	if !c.w.config.fifo && !c.w.bugs.has(NothingOvertakes) {
		in.Since = clock.Validity(c.changedAt) // what was sent before may run later; since then all ask for one TTL
	}
}

// changesAgain lets a holder ask for another TTL while a round is under way.
func (c *client) changesAgain() {
	if t := &c.w.ttls; len(t.terms) > 0 && c.working() && t.pcg.Uint64()%16 == 0 {
		c.renew()
	}
}

// tooOld reports whether a renewal is older than its TTL.
func tooOld(n *node, m *message, wall time.Duration) bool {
	return len(n.w.ttls.terms) > 0 && micros(wall) > m.after
}
