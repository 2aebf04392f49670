// Package failover decides which master of a failover group a client may use, and whether that
// master's votes count. It reads no clock and asks nobody: internal/master and the simulation
// drive it alike. docs/safety.md has the proof, in lemma FO.
package failover

import "time"

const (
	// ConfirmEvery is how often a client asks a majority whether the term goes on.
	ConfirmEvery = 500 * time.Millisecond
	// ConfirmedFor is how long a client relies on the last such answer. It has to be shorter
	// than the time between two promotions. Otherwise a client could miss both promotions and
	// count a vote of a server that is the master again, but lacks the writes between them.
	ConfirmedFor = 1500 * time.Millisecond
	// SettleFor is how long a client that knew the term before waits before it connects to
	// the master of a new term. Meanwhile the old master may give votes to clients that have
	// not learnt of the new term. A lease that moved to the new master at once would no longer
	// be extended on the old one, and such a vote could make a second holder. After SettleFor
	// no client counts such a vote: once a majority has named the new term, no majority
	// confirms the old one, and a confirmation counts for ConfirmedFor only. SettleFor is 5 %
	// longer than that, because the clocks of two clients run at different rates.
	SettleFor = ConfirmedFor + ConfirmedFor/20
	// LeastWindow is the shortest window for Renews: it exceeds ConfirmedFor, so that votes
	// are within the window as well.
	LeastWindow = 2 * time.Second
)

// Tracker is what a client knows of the terms of one group. T names a term, and its zero
// value none. It is not safe for concurrent use.
type Tracker[T comparable] struct {
	met       T             // the newest that a majority has named
	metAt     time.Duration // when, on the steady clock; long ago for the first one
	used      T             // the term that was dialled last
	confirmed time.Duration // when a majority was last asked for it and named it, on the validity clock
}

// Meet records that a majority names the term now, on the steady clock. It returns whether
// the term may be used.
func (t *Tracker[T]) Meet(term T, now time.Duration) bool {
	var none T
	if term != t.met {
		if t.metAt = now; t.met == none {
			t.metAt -= SettleFor // this client has no lease of a term before
		}
		t.met = term
	}
	return now >= t.metAt+SettleFor
}

// Use records a connection to the master of a term. A majority was asked for the term at
// this instant of the validity clock.
func (t *Tracker[T]) Use(term T, asked time.Duration) { t.used, t.confirmed = term, asked }

// Used returns the term that was dialled last; none before the first.
func (t *Tracker[T]) Used() T { return t.used }

// Record records the answer of a majority that was asked at this instant of the validity
// clock. It returns whether the term in use goes on; otherwise its connections have to end.
// They also end when the group names an older term, because it has forgotten the newer one.
func (t *Tracker[T]) Record(term T, asked, steady time.Duration) (goesOn bool) {
	t.Meet(term, steady)
	if term != t.used {
		return false
	}
	t.confirmed = asked
	return true
}

// Confirmed returns whether votes of the term in use count now, on the validity clock: a
// suspend must not hide how long ago the last confirmation was.
func (t *Tracker[T]) Confirmed(now time.Duration) bool { return now <= t.confirmed+ConfirmedFor }

// Renews returns whether a lease may rely on what the term in use confirms to a request that
// was sent at this instant of the validity clock. No later term is used before a majority
// has named this one for the last time. So a guard that covers the window outlasts every such
// lease, whatever the old master does. The window is 5 % shorter here, because the clocks of
// this client and of the new master run at different rates.
func (t *Tracker[T]) Renews(sent, window time.Duration) bool {
	return sent <= t.confirmed+window-window/20
}
