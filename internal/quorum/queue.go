package quorum

import (
	"math"
	"time"
)

// Stagger is between the looks of those who wait behind each other for a lock
// whose keys end by themselves: the first is there first, and is not in the way
// of the second.
const Stagger = 2 * time.Millisecond

// Refusal is what a node said that did not grant the lock.
type Refusal struct {
	Left  time.Duration // how long the key in the way lives; Never for no end
	Place int           // how many are before us in the node's queue; −1 if we are not in it
}

// Look returns how long a waiter waits that nobody tells anything, before it asks
// again: until so many of the keys in the way have ended as it needs, or as many
// as end at all. It looks after poll, and the later the more are before it, because a
// client of another kind may release without a word; the longest for that is
// MaxPoll, or poll itself. As long as it has a place, it comes back for it.
func Look(refusals []Refusal, need int, poll time.Duration) time.Duration {
	if len(refusals) == 0 {
		return poll
	}
	ends := make([]time.Duration, len(refusals))
	first, queued := math.MaxInt, 0
	for i, r := range refusals {
		if r.Place >= 0 {
			queued++
		}
		ends[i] = r.Left
		if r.Left != Never {
			ends[i] += time.Millisecond + Stagger*time.Duration(max(r.Place, 0))
		}
		first = min(first, max(r.Place, 0))
	}
	if queued >= max(need, 1) {
		poll = max(poll, MinPoll)
	}
	if first > 0 && poll < MaxPoll {
		poll = min(MaxPoll, poll+poll*time.Duration(min(first, int(MaxPoll/max(poll, 1)))))
	}
	if queued > 0 {
		poll = min(poll, KeepPlace)
	}
	if free := FreedBy(ends, need); free > 0 {
		return min(poll, free)
	}
	return poll
}

// MinPoll and MaxPoll bound for how long a place in enough queues makes a waiter
// trust that it is told. KeepPlace is how often it shows that it is still there: a
// queue is forgotten 60 s after the last one came (acquire.lua).
const (
	MinPoll   = 50 * time.Millisecond
	MaxPoll   = 5 * time.Second
	KeepPlace = 20 * time.Second
)

// Turns is what a waiter knows of the nodes that have told it that it is its turn.
type Turns struct {
	n     int
	kept  Set
	hasty bool // it has asked too early once, or may have
}

// NewTurns returns the state of a waiter for a lock on n nodes.
func NewTurns(n int) Turns { return Turns{n: n} }

// Ask forgets: an attempt begins, which uses what was kept.
func (t *Turns) Ask() {
	t.hasty = t.hasty || t.kept != 0 && t.kept.Len() < Size(t.n)
	t.kept = 0
}

// Told records that node i keeps the lock for the waiter.
func (t *Turns) Told(i int) { t.kept = t.kept.With(i) }

// Kept returns the nodes that have told it since the attempt began.
func (t *Turns) Kept() Set { return t.kept }

// Turn reports whether it is the waiter's turn: so many nodes keep the lock for it
// that they are a quorum. Once, one less is enough: a release goes to all nodes at
// the same time, so the last one has very likely got it when it is asked. If it is
// not so, a waiter that goes on like that would trade nodes with others all the
// time. Some says that one node does at least.
func (t *Turns) Turn() (turn, some bool) {
	need := Size(t.n)
	if !t.hasty {
		need = max(1, need-1)
	}
	return t.kept.Len() >= need, t.kept != 0
}
