package sim

import (
	"math/bits"
	"strings"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Mutation is a set of planted bugs: in the nodes, in the network, or in what
// a client does around the production decisions. The decisions themselves
// have no hooks; where a bug would lie inside them, the client overrules them.
type Mutation uint32

const (
	// FromReply counts validity from the reply instead of from the send.
	FromReply Mutation = 1 << iota
	// AmbiguousVotes counts a node that did not answer in time as a vote.
	AmbiguousVotes
	// BlindWriteBack raises the counter without looking at the owner.
	BlindWriteBack
	// NoWriteBack grants as soon as the votes are there.
	NoWriteBack
	// WriteBackSets sets the counter to the token, even down.
	WriteBackSets
	// RaiseAbove confirms a write-back to a counter above the token.
	RaiseAbove
	// AboveCounts counts a node whose counter is above the token as one that
	// stands at it.
	AboveCounts
	// ExtendCreates makes the key when it is missing.
	ExtendCreates
	// ExtendForeign extends whatever key is there.
	ExtendForeign
	// ExtendZero rounds the time to live down to 0, which deletes the key.
	ExtendZero
	// HalfQuorum takes n/2 votes for a quorum.
	HalfQuorum
	// KeepFailed does not release after a failed attempt.
	KeepFailed
	// ReleaseForeign deletes whatever key is there.
	ReleaseForeign
	// BlindUndo takes a failed attempt's step back even if the lock is not its
	// own any more.
	BlindUndo
	// UnLose goes on with a lost lease when a late confirmation comes.
	UnLose
	// HealAnytime re-creates a key however late the request arrives.
	HealAnytime
	// AcquireAnytime locks however late the request arrives.
	AcquireAnytime
	// NoFinalCheck grants without looking whether the lease is still valid.
	NoFinalCheck
	// NoDrift gives nothing up for clock rates, and clocks differ by 2 %.
	NoDrift
	// NoGuard lets a node vote at once after it lost its data.
	NoGuard
	// NoFloor starts counters after a quarantine like any others.
	NoFloor
	// FloorAtStart starts them above the begin of the quarantine instead of its
	// end.
	FloorAtStart
	// NoMarker takes votes without comparing the restart guard's marker: only a
	// new connection is guarded.
	NoMarker
	// NoMarkerPasses compares the marker only if there is one.
	NoMarkerPasses
	// BlindToSteps takes votes of nodes whose clock was just set ahead.
	BlindToSteps
	// CloseForgets leaves the attempt that Close has ended to itself.
	CloseForgets
	// NotEarly looks for the loss at the stop, and timers are late.
	NotEarly
	// DeafToLoss does not look at the clock: only a missed round after the
	// stop tells of the loss.
	DeafToLoss
	// ForgetsTokens lets a counter that is ahead of the node's clock expire
	// before the clock has come up to it.
	ForgetsTokens
	mutations
)

var mutationNames = [...]string{
	"validity from the reply", "silence is a vote", "write-back to any owner", "no write-back",
	"write-back sets", "write-back above the token", "above the token counts", "extend creates", "extend of any owner",
	"extend by zero", "quorum of n/2", "failed attempt keeps its keys", "release of any owner",
	"blind undo", "un-lose", "heal at any time", "acquire at any time", "no final check",
	"no drift bound", "no restart guard", "no floor after a quarantine", "floor at the start of a quarantine",
	"no look at the marker", "a missing marker passes", "blind to steps", "close forgets an attempt",
	"a loss is not told early", "deaf to the clock", "a counter is forgotten before the clock reaches it",
}

// Mutations returns every planted bug.
func Mutations() []Mutation {
	var all []Mutation
	for m := Mutation(1); m < mutations; m <<= 1 {
		all = append(all, m)
	}
	return all
}

// ParseMutation returns the mutation of that name.
func ParseMutation(name string) (m Mutation, ok bool) {
	if name == "" {
		return 0, true
	}
	for i, n := range mutationNames {
		if n == name {
			return 1 << i, true
		}
	}
	return 0, false
}

// String returns the names of the bugs.
func (m Mutation) String() string {
	var names []string
	for ; m != 0; m &= m - 1 {
		names = append(names, mutationNames[bits.TrailingZeros32(uint32(m))])
	}
	return strings.Join(names, ", ")
}

func (m Mutation) has(bug Mutation) bool { return m&bug != 0 }

// lostOnTheWay are the bugs that show when an attempt loses keys before it is
// over.
const lostOnTheWay = BlindWriteBack | WriteBackSets | RaiseAbove | AboveCounts

// amnesic are the bugs that show when nodes lose their data.
const amnesic = NoGuard | NoFloor | FloorAtStart | NoMarker | NoMarkerPasses

// configure changes the terms of a run so that the bug has its chance.
func (m Mutation) configure(w *world, c *config) {
	ttl := c.terms.TTL
	switch {
	case m.has(NoDrift):
		if w.bugs.has(NoDrift) {
			c.terms.Drift = 0
			c.rate = 10_000
		}
		c.stepAware = false // that much drift looks like a step
		c.guard, c.amnesia, c.everyFlush = false, false, 0
		c.clients = maxClients
		c.backoffCap, c.latency = ttl/50, ttl/1000 // somebody is always about to ask
		c.hold = 4 * ttl
		c.everyPause = ttl
		c.everyCut = ttl
	case m.has(NoMarker | NoMarkerPasses):
		c.everyFlush = 2 * ttl
	case m.has(NotEarly) && w.bugs.has(NotEarly):
		c.terms.Early, c.lag = 0, 0
		c.late = quorum.Early(c.terms.Guard)
	case m.has(FloorAtStart):
		// Counters that have just begun, far above the clocks of the nodes that
		// restart one after the other; the end of a quarantine is above them.
		c.known = true
		c.clients = maxClients
		c.maxTTL = 2 * ttl
		c.offset, c.apart, c.rate = c.maxTTL*3/8, true, 1000
		c.hold, c.backoffCap, c.latency = ttl/100, ttl/10, ttl/1000
		c.everyDown, c.everyCut, c.everyFlush = ttl/2, 0, 0
		c.faults = ttl
	case m.has(ForgetsTokens):
		// Tokens far above most clocks, and a name that is out of use for longer
		// than a counter lives.
		c.offset, c.apart, c.rate = 40*ttl, true, 1000
		c.counterTTL, c.backoffCap, c.hold = c.maxTTL, 4*ttl, ttl/10
		c.clients, c.everyPause, c.everyDown = 2, ttl, 2*ttl
		c.guard, c.amnesia, c.everyFlush = false, false, 0
	case m.has(ExtendForeign):
		c.clients = maxClients
		c.hold = 4 * ttl
		c.everyCut = ttl
	}
}
