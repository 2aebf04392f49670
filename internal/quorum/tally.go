package quorum

import (
	"iter"
	"math/bits"
)

// MaxNodes is the largest number of nodes the package counts: a Set is one
// machine word.
const MaxNodes = 32

// Size returns the quorum of n nodes, n/2+1. Any two quorums share a node.
func Size(n int) int { return n/2 + 1 }

// Set is a set of nodes, one bit for each index.
type Set uint32

// Has reports whether node i is in s.
func (s Set) Has(i int) bool { return s&(1<<i) != 0 }

// With returns s and node i.
func (s Set) With(i int) Set { return s | 1<<i }

// Without returns s without node i.
func (s Set) Without(i int) Set { return s &^ (1 << i) }

// Len returns the number of nodes in s.
func (s Set) Len() int { return bits.OnesCount32(uint32(s)) }

// First returns the least number in the set; at least 32 if it is empty.
func (s Set) First() int { return bits.TrailingZeros32(uint32(s)) }

// All yields the nodes of s.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for ; s != 0; s &= s - 1 {
			if !yield(s.First()) {
				return
			}
		}
	}
}

// All returns the set of the nodes 0 … n−1.
func All(n int) Set { return Set(uint64(1)<<n - 1) }

// Dispensable returns which of the silent nodes need not be asked: all of them if the
// others are a quorum, and otherwise none. If most nodes seem silent, the cause may be this
// process, which was stopped for a while, and their answers may arrive at any moment.
func Dispensable(n int, silent Set) Set {
	if n-silent.Len() < Size(n) {
		return 0
	}
	return silent
}

// Outcome is the result of the answers so far. The zero value is invalid, so that a
// forgotten outcome is not mistaken for a real one.
type Outcome uint8

const (
	// OutcomePending means that the answers still missing can change the
	// result.
	OutcomePending Outcome = iota + 1
	// OutcomeWon means that a majority of the nodes granted the lock, so the
	// lease may start.
	OutcomeWon
	// OutcomeHeld means that enough nodes named another owner for the others to be
	// no quorum.
	OutcomeHeld
	// OutcomeNoQuorum means that enough nodes failed for the others to be no quorum.
	OutcomeNoQuorum
	// OutcomeSplit means that no quorum is left, but neither refusals alone nor
	// failures alone are the reason. It is reported as a missing quorum, and as held
	// only where the votes are Scattered among callers that ask once.
	OutcomeSplit
)

// String returns the outcome as the golden cases spell it.
func (o Outcome) String() string {
	return [...]string{"none", "pending", "won", "held", "no-quorum", "split"}[o]
}

// Tally counts the answers of n nodes to one attempt. A node answers once:
// a later answer changes nothing.
type Tally struct {
	n                      uint8
	granted, taken, failed Set
}

// NewTally returns the tally of n nodes, 1 ≤ n ≤ MaxNodes, that have not
// answered.
func NewTally(n int) Tally { return Tally{n: uint8(n)} }

// Granted returns the nodes that granted.
func (t *Tally) Granted() Set { return t.granted }

// Refused returns the nodes that named another owner.
func (t *Tally) Refused() Set { return t.taken }

// Silent returns the nodes that have not answered.
func (t *Tally) Silent() Set {
	return All(int(t.n)) &^ (t.granted | t.taken | t.failed)
}

// Grant records that node i granted. It reports whether that was its first
// answer.
func (t *Tally) Grant(i int) bool { return t.answer(&t.granted, i) }

// Refuse records that node i named another owner. Only this answer counts as
// contention.
func (t *Tally) Refuse(i int) bool { return t.answer(&t.taken, i) }

// Fail records that node i gave no usable answer. The node may have applied the
// request, but it never counts as a vote.
func (t *Tally) Fail(i int) bool { return t.answer(&t.failed, i) }

// Expire fails every node that has not answered.
func (t *Tally) Expire() { t.failed |= t.Silent() }

func (t *Tally) answer(to *Set, i int) bool {
	if !t.Silent().Has(i) {
		return false
	}
	*to = to.With(i)
	return true
}

// Outcome returns the result of the answers as soon as it is certain. If a majority
// is already out of reach, the outcome stays OutcomePending while a silent node can
// still decide between refusal and failure. With an even n both reasons can be true.
// Then later answers may turn OutcomeNoQuorum into OutcomeHeld. No other decided
// outcome changes.
func (t *Tally) Outcome() Outcome {
	n, q := int(t.n), Size(int(t.n))
	blocking := n - q + 1 // the smallest number of nodes without which no quorum is left
	granted, taken, failed, silent := t.granted.Len(), t.taken.Len(), t.failed.Len(), t.Silent().Len()
	switch {
	case granted >= q:
		return OutcomeWon
	case taken >= blocking:
		return OutcomeHeld
	case failed >= blocking:
		return OutcomeNoQuorum
	case granted+silent >= q, taken+silent >= blocking, failed+silent >= blocking:
		return OutcomePending
	default:
		return OutcomeSplit
	}
}
