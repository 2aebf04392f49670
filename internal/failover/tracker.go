// Package failover decides which master of a failover group a client may use, and whether that
// master's votes count. It reads no clock and sends nothing: internal/master and the simulation
// drive it alike. docs/lemmas.md has the proof, in lemma FO.
package failover

import (
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

const (
	// ConfirmEvery is how often a client asks a majority whether the term continues.
	ConfirmEvery = 500 * time.Millisecond
	// ConfirmedFor is how long a client relies on the last such answer. It must be shorter than
	// the time between two promotions. Otherwise a client could miss both promotions and
	// count a vote of a server that is the master again, but lacks the writes between them.
	ConfirmedFor = 1500 * time.Millisecond
	// SettleFor is how long a client that knew the previous term waits before it connects to the master of a new term.
	// In that time the old master may vote for clients that have not learned of the new term. A lease that moved to the
	// new master at once would no longer be extended on the old one, and such a vote could make a second holder. After
	// SettleFor no client counts such a vote: once a majority has named the new term, no majority confirms the old one,
	// and a confirmation counts for ConfirmedFor only. SettleFor is 5 % longer than that, because the clocks of two
	// clients run at different rates.
	SettleFor = ConfirmedFor + ConfirmedFor/20
	// LeastWindow is the shortest window for Renews: it exceeds ConfirmedFor, so that votes
	// are within the window as well.
	LeastWindow = 2 * time.Second
)

var (
	// ErrUnconfirmed means that no majority has confirmed lately that the connected server
	// is still the master of its group.
	ErrUnconfirmed = errors.New("no majority of the Sentinels or cluster nodes confirms that this server is still the master: if this lasts, check them")
	// ErrMoved means that keys of the slot may have left the master since the marker was written.
	ErrMoved = errors.New("keys of the slot may have moved to another server")
)

// Tracker is what a client knows of the terms of one group. T names a term, and its zero
// value none. It is not safe for concurrent use.
type Tracker[T comparable] struct {
	met       T              // the newest that a majority has named
	metAt     clock.Steady   // when, on the steady clock; long ago for the first one
	used      T              // the term that was dialled last
	confirmed clock.Validity // when a majority was last asked for it and named it, on the validity clock
	move      Move           // of the term in use
}

// Move is what a client knows of a hash slot whose keys are being moved to another server. During a move, single keys
// leave the master. A move that is taken back leaves the master with the same process, name of the data and epoch: only
// a new marker shows the clients that locks may be missing.
type Move struct {
	open   bool           // the last look showed it
	met    bool           // keys may have left since the client's marker was written
	looked clock.Validity // when the master was last asked, on the validity clock
}

// Meet records that a majority names the term now, on the steady clock. It returns whether
// the term may be used.
func (t *Tracker[T]) Meet(term T, now clock.Steady) bool {
	var none T
	if term != t.met {
		if t.metAt = now; t.met == none {
			t.metAt = t.metAt.Add(-SettleFor) // this client has no lease of an earlier term
		}
		t.met = term
	}
	return now >= t.metAt.Add(SettleFor)
}

// Use records a connection to the master of a term. A majority was asked for the term at
// this instant of the validity clock. A new term has a marker of its own.
func (t *Tracker[T]) Use(term T, asked clock.Validity) {
	if term != t.used {
		t.move = Move{}
	}
	t.used, t.confirmed = term, asked
}

// Used returns the term that was dialled last; none before the first.
func (t *Tracker[T]) Used() T { return t.used }

// Record records the answer of a majority that was asked at this instant of the validity
// clock. It returns whether the term in use continues; otherwise its connections must end.
// They also end when the group names an older term, because it has forgotten the newer one.
func (t *Tracker[T]) Record(term T, asked clock.Validity, now clock.Steady) (goesOn bool) {
	t.Meet(term, now)
	if term != t.used {
		return false
	}
	t.confirmed = asked
	return true
}

// Confirmed returns whether votes of the term in use count now, on the validity clock: a
// suspend must not hide how long ago the last confirmation was.
func (t *Tracker[T]) Confirmed(now clock.Validity) bool { return now <= t.confirmed.Add(ConfirmedFor) }

// Votes returns why votes of the term in use do not count now, on the validity clock: ErrUnconfirmed or ErrMoved, nil
// if they count. The master of a slot must also be asked whether keys leave it.
func (t *Tracker[T]) Votes(now clock.Validity, slot bool) error {
	switch {
	case !t.Confirmed(now) || slot && !t.Watched(now):
		return ErrUnconfirmed
	case t.Moved():
		return ErrMoved
	}
	return nil
}

// Renews returns whether a lease may rely on what the term in use confirms to a request that
// was sent at this instant of the validity clock. No later term is used before a majority
// has named this one for the last time. So a guard that covers the window outlasts every such
// lease, whatever the old master does. The window is 5 % shorter here, because the clocks of
// this client and of the new master run at different rates.
func (t *Tracker[T]) Renews(sent clock.Validity, window time.Duration) bool {
	return sent <= t.confirmed.Add(window-window/20)
}

// Look records the master's answer to a question that was asked at this instant of the validity clock: whether keys are
// leaving it. It returns whether the answer has changed.
func (t *Tracker[T]) Look(open bool, asked clock.Validity) (changed bool) {
	changed = open != t.move.open
	t.move.open, t.move.met, t.move.looked = open, t.move.met || open, asked
	return changed
}

// FoundMove records an answer that only a half-moved slot gives. It returns whether that is new.
func (t *Tracker[T]) FoundMove() (first bool) {
	first = !t.move.met
	t.move.met = true
	return first
}

// Moving returns whether keys may leave the master now, as far as the last look shows.
func (t *Tracker[T]) Moving() bool { return t.move.open }

// Moved returns whether keys may have left the master since the marker was written: votes do not count, and the
// next marker must start a quarantine.
func (t *Tracker[T]) Moved() bool { return t.move.met }

// Marked records a new marker, which was written after the last look.
func (t *Tracker[T]) Marked() { t.move.met = t.move.open }

// Watched returns whether a move that lasts longer than ConfirmedFor would be known now, on the validity clock.
func (t *Tracker[T]) Watched(now clock.Validity) bool { return now <= t.move.looked.Add(ConfirmedFor) }
