package quorum

import "time"

// Revocation decides when a lease that is taken away by force is over. Each round asks the nodes to
// mark the lock of its owner: a marked lock is neither prolonged nor healed, and lives for Life from
// then on. A mark counts if its answer has come within the window: so no counted mark is later.
//
// A marked node has confirmed the lease for the last time before the mark, so what the lock had to
// live then bounds that vote. With marks on a quorum the other nodes are too few to keep the lease. The
// marks have to outlive all of these votes: otherwise the owner would heal a node whose mark is over
// while its votes elsewhere still count, and go on for ever (spec/revoke.pml). So each mark lives for
// the longest life that was seen and the window, and a round in which a node shows a longer life is
// repeated with that. It is not safe for concurrent use.
type Revocation struct {
	window  time.Duration
	longest time.Duration // life of the lock on any node
	drift   float64
	began   time.Duration
	nodes   int
	again   bool // a majority had marked it before
	marked  Set
	long    bool // a node of this round has shown a longer life
}

// NewRevocation returns the decisions about a lock that lives for longest at most on the nodes that
// were read. drift is the factor of Drift. again means that a majority has marked the lock already: no
// vote outlives these marks, which nobody prolongs, so they need no window, and a call that is repeated
// does not keep the lock.
func NewRevocation(nodes int, window, longest time.Duration, drift float64, again bool) Revocation {
	return Revocation{nodes: nodes, window: window, longest: longest, drift: drift, again: again}
}

// Life returns how long the marks of the next round have to live.
func (r *Revocation) Life() time.Duration {
	if r.again {
		return r.longest + Drift(0, r.drift)
	}
	sum := r.window + r.longest
	return sum + Drift(sum, r.drift)
}

// Begin begins a round.
func (r *Revocation) Begin(now time.Duration) {
	if r.long {
		r.longest = max(r.longest, r.Life()) // the marks of the rounds before
	}
	r.began, r.marked, r.long = now, 0, false
}

// Marked records that a node has marked the lock, which had that long to live. Its answer had come by now.
func (r *Revocation) Marked(now time.Duration, node int, lived time.Duration) {
	if now > r.began+r.window {
		return
	}
	r.marked = r.marked.With(node)
	if lived > r.longest {
		r.long = true
		r.longest = lived
	}
}

// Count returns how many nodes have marked the lock in this round.
func (r *Revocation) Count() int { return r.marked.Len() }

// Until returns the instant from which on the lease is not valid, and whether it is known: not if too
// few nodes have marked the lock, and not if the round has to be repeated.
func (r *Revocation) Until() (at time.Duration, known bool) {
	return r.began + r.Life(), !r.long && r.marked.Len() >= Size(r.nodes)
}

// Repeat reports whether another round may succeed, with longer marks.
func (r *Revocation) Repeat() bool { return r.long && r.marked.Len() >= Size(r.nodes) }
