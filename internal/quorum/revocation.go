package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Revocation decides when a lease that is taken away by force has ended. Each round asks the nodes to
// mark the lock of its owner: a marked lock is neither prolonged nor healed, and lives for Life from
// then on. A mark counts if its answer has come within the window, so no counted mark is later, and if
// the lock had no longer to live than was known.
//
// A marked node has confirmed the lease for the last time before the mark, so what the lock
// had left then bounds that vote. With counted marks on a quorum the other nodes are too few to keep the
// lease. The marks must outlive these votes: otherwise the owner would heal a node whose mark has ended
// while its votes elsewhere still count, and continue forever (spec/revoke.pml). So each mark lives for
// the longest life that is known and the window.
//
// Where a quorum is marked already, by the round before or by another call, the ends of these marks
// bound the votes: such a round needs no window, and counts only locks that still have their mark. So a
// call that is repeated does not keep the lock. It is not safe for concurrent use.
type Revocation struct {
	nodes   int
	window  time.Duration
	longest time.Duration // life of the lock on any node, as far as it is known when a round begins
	seen    time.Duration // the longest life that a node of this round has shown
	drift   float64
	began   clock.Validity
	again   bool // a quorum is marked already
	marked  Set
	counted Set
}

// NewRevocation returns the decisions about a lock that lives for longest at most on the nodes that
// were read. drift is the factor of Drift. again means that a quorum has marked the lock already.
func NewRevocation(nodes int, window, longest time.Duration, drift float64, again bool) Revocation {
	return Revocation{nodes: nodes, window: window, longest: longest, drift: drift, again: again}
}

// Life returns how long the marks of the round must live.
func (r *Revocation) Life() time.Duration {
	if r.again {
		return r.longest + Drift(0, r.drift)
	}
	sum := r.window + r.longest
	return sum + Drift(sum, r.drift)
}

// Begin begins a round.
func (r *Revocation) Begin(now clock.Validity) {
	if r.Repeat() {
		r.longest = max(r.seen, r.Life()) // no mark of the round before lives longer
		r.again = true
	}
	r.began, r.seen, r.marked, r.counted = now, 0, 0, 0
}

// Marked records that a node has marked the lock, which had that long to live, and whether it was marked
// already. The answer had come by now.
func (r *Revocation) Marked(now clock.Validity, node int, lived time.Duration, already bool) {
	r.marked, r.seen = r.marked.With(node), max(r.seen, lived)
	if now <= r.began.Add(r.window) && lived <= r.longest && (already || !r.again) {
		r.counted = r.counted.With(node)
	}
}

// Count returns how many nodes have marked the lock in this round.
func (r *Revocation) Count() int { return r.marked.Len() }

// Until returns the instant from which on the lease is not valid, and whether it is known: too few marks may count.
func (r *Revocation) Until() (at clock.Validity, known bool) {
	return r.began.Add(r.Life()), r.counted.Len() >= Size(r.nodes)
}

// Repeat reports whether another round may find what this one has not: a quorum is marked.
func (r *Revocation) Repeat() bool {
	_, known := r.Until()
	return !known && r.marked.Len() >= Size(r.nodes)
}
