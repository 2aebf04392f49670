package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// changingRuns is N where one of N runs of the world Inside has leases whose TTLs change.
const changingRuns = 5

// ttls are the TTLs that the renewals of a run ask for. The choices are drawn from a generator of their own.
type ttls struct {
	pcg   rand.PCG
	terms []quorum.Terms // empty in runs without changes
	extra time.Duration  // how much longer than usual the longest one is
}

// draw decides whether the TTLs of a run change.
// alone means that the run has no permits and no handles, and planted that its bug is one of ofTTLs.
func (t *ttls) draw(p *Params, c *config, alone, planted bool) {
	t.terms, t.extra = t.terms[:0], 0
	t.pcg.Seed(uint64(p.Seed), 0x771)
	if p.World != Inside || c.orderly || !alone || !planted && (p.Mutation != 0 || p.Seed%changingRuns != 3) {
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

// next returns the terms that a renewal asks for; nil for no change.
func (t *ttls) next() *quorum.Terms {
	if len(t.terms) == 0 || t.pcg.Uint64()%3 != 0 {
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
