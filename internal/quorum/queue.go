package quorum

import "time"

// Look is RetryDelay for the shortest grace. It goes with its last caller.
func Look(refusals []Refusal, need int, poll time.Duration) time.Duration {
	return RetryDelay(refusals, need, poll, 20*time.Millisecond)
}

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
