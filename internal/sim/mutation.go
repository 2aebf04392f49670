package sim

import (
	"math/bits"
	"strings"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Mutation is a set of planted bugs: in the nodes, in the network, or in what
// a client does around the production decisions. The decisions themselves
// have no hooks; where a bug would lie inside them, the client overrules them.
type Mutation uint64

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
	// ToldVotes counts a node that keeps the lock for whoever waits as one that
	// has granted it.
	ToldVotes
	// KeptOverwrites locks for whom the lock was kept once, without looking
	// whether it still is.
	KeptOverwrites
	// KeptUncounted leaves the counter alone when whoever was told comes.
	KeptUncounted
	// KeptUnguarded does not compare the marker when whoever was told comes.
	KeptUnguarded
	// ExtendKept takes a lock that is kept for somebody, as heal does, and however
	// late.
	ExtendKept
	// GivesAnyLock keeps the lock for the first in the queue at any release, also
	// while it is somebody else's.
	GivesAnyLock
	// PassOnDeletes deletes whatever key is there, when a ticket is passed on.
	PassOnDeletes
	// PassOnUndoes takes a step of the counter back, as a failed attempt does,
	// when a ticket is passed on.
	PassOnUndoes
	// AsksTooLate asks for one more vote when the lease is over, and does not
	// release it.
	AsksTooLate
	// OneOwner uses one owner value for all attempts of a wait.
	OneOwner
	// KeptForEver keeps the lock without an end.
	KeptForEver
	// KeptForAnybody gives a lock that is kept to whoever asks.
	KeptForAnybody
	// LastFirst serves the last in the queue first.
	LastFirst
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
	"told is a vote", "kept once overwrites", "kept does not count", "kept passes the marker",
	"extend of a kept lock", "hands on any lock", "passing on deletes any lock",
	"passing on takes a step back", "asks after the end", "one owner for a wait", "kept for ever",
	"kept for anybody", "the last is first",
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
		names = append(names, mutationNames[bits.TrailingZeros64(uint64(m))])
	}
	return strings.Join(names, ", ")
}

func (m Mutation) has(bug Mutation) bool { return m&bug != 0 }

// lostOnTheWay are the bugs that show when an attempt loses keys before it is
// over.
const lostOnTheWay = BlindWriteBack | WriteBackSets | RaiseAbove | AboveCounts

// amnesic are the bugs that show when nodes lose their data.
const amnesic = NoGuard | NoFloor | FloorAtStart | NoMarker | NoMarkerPasses | KeptUnguarded

// unfair are the bugs that break no promise but the order of the queue.
const unfair = KeptForAnybody | LastFirst

// configure changes the terms of a run so that the bug has its chance.
func (m Mutation) configure(w *world, c *config) {
	ttl := c.terms.TTL
	c.orderly = c.orderly && m == 0 || m.has(unfair)
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
	case m.has(KeptUnguarded):
		// Releases reach a node that has lost its data before acquires do.
		c.everyFlush, c.everyCheck, c.loss = 2*ttl, 0, 150
		c.everyDown, c.everyCrash, c.everyQuit = 0, 0, 0
		c.clients, c.queues, c.hold, c.backoffCap = maxClients, 100, 4*ttl, ttl/20
	case m.has(NotEarly) && w.bugs.has(NotEarly):
		c.terms.Early, c.lag = 0, 0
		c.late = quorum.Early(c.terms.Guard)
	case m.has(FloorAtStart):
		// Counters that have just begun, far above the clocks of the nodes that
		// restart one after the other; the end of a quarantine is above them.
		c.known = true
		c.clients, c.queues = maxClients, 0
		c.maxTTL = 2 * ttl
		c.offset, c.apart, c.rate = c.maxTTL*3/8, true, 1000
		c.hold, c.backoffCap, c.latency = ttl/100, ttl/10, ttl/200
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
