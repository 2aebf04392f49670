package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Span is the usual length of the faults in a run, in TTLs.
const Span = 25

// lostOnTheWay are the bugs that show when an attempt loses keys before it ends.
var lostOnTheWay = []Mutation{RaiseAnyOwner, RaiseDown, RaiseAtTop, RepeatMoves, BeforeOfTheVote, AlignsDown}

// amnesic are the bugs that show when nodes lose their data.
var amnesic = []Mutation{NoGuard, NoFloor, FloorAtStart, NoCap, NoMarker, NoMarkerPasses, ReservationUnguarded, QuarantineJumps, LeanOnOtherData, LeanReadsFirst, LeanUncapped, ForgetsTheNewest, ResumesUnguarded, KeepOutlivesGuard}

// unfair are the bugs that break only the order of the queue.
var unfair = []Mutation{ReservedForAnybody, LastFirst, OwnHeadLeftFree, PassesWriters}

// passing are the bugs of local passes.
var passing = []Mutation{HealMoves, HealShowsToken, OwnerIsEnough, PassUnchecked, NoProofReset, ResetOvertaken, CheckUnbounded}

// ofObservers are the bugs of an observer.
var ofObservers = []Mutation{ForgetsTheNewest, SilenceIsNobody}

// ofOperators are the bugs of revocations.
var ofOperators = []Mutation{ExtendIgnoresMarks, RevokeDeletes, OneMarkIsEnough, OneRoundIsEnough, MarksLiveTooShort}

// ofHandles are the bugs of handles.
var ofHandles = []Mutation{
	ResumeKeepsOwner, HandleBeforeTheEnd, ResumesMissing, ResumesAnyLock, ResumesAnyHandle, ResumesRevoked, ResumesUnmoved,
	ResumesUnguarded, ExtendsDetached, HealsDetached, AcquiresDetached, DropsAnyLock, FailedDetachStays, KeepOutlivesGuard,
}

// ofReaders are the bugs of shared leases.
var ofReaders = []Mutation{JoinsWriter, TakesReaders, SetStays, QuitDeletes, WokenVotes, RestoreForeign, AlignsDown, RegisterIsToken, UnalignedCounts, PassesWriters}

// ofPermits are the bugs of permits.
var ofPermits = []Mutation{MoreThanFree, RightForEver, NewcomersTake, LateTakesSlot, AsksAtLimit, RightOverwrites, RightVotes, SlotUnmoved, RightUnguarded, ElsewhereKeeps, LastLetIn}

// ofGroups are the bugs of failover groups.
var ofGroups = []Mutation{GuardWithoutWindow, MarkerWithoutEpoch, GroupUnguarded, EarlierTermOverwrites, NoConfirmation, UsedTooEarly, RenewedForEver, VotesUnguarded}

// ofTTLs are the bugs of leases whose TTL changes.
var ofTTLs = []Mutation{ShorterAfterItsRound, NothingOvertakes}

// ofTheLeanWay are the bugs of the lean way.
var ofTheLeanWay = []Mutation{
	LeanOnOtherData, LeanBelowBase, LeanStands, LeanUncapped, LeanReadsFirst,
	LeanClockUnseen, LeanRelativeEnds, LeanCountsAgain,
}

// ofMoves are the bugs of moves of a slot that are taken back.
var ofMoves = []Mutation{MovesIgnored}

// configure changes the settings of a run so that the bug can show.
func (m Mutation) configure(w *world, c *config) {
	ttl := c.terms.TTL
	c.orderly = c.orderly && m == 0 || m.among(unfair...)
	switch {
	case m.has(NoDrift):
		driftApart(c, w.bugs.has(NoDrift))
	case m.among(NoMarker, NoMarkerPasses):
		c.everyFlush = 2 * ttl
	case m.has(ReservationUnguarded):
		// After a node has lost its data, releases reach it before acquires do.
		c.everyFlush, c.everyCheck, c.loss = 2*ttl, 0, 150
		c.everyDown, c.everyCrash, c.everyQuit = 0, 0, 0
		c.clients, c.queues, c.hold, c.backoffCap = usualClients, 100, 4*ttl, ttl/20
	case m.has(NotEarly) && w.bugs.has(NotEarly):
		c.terms.Early, c.lag = 0, 0
		c.late = quorum.Early(c.terms.SafetyMargin)
	case m.among(NoFloor, FloorAtStart, NoCap):
		m.restartInTurn(c)
	case m.has(QuarantineJumps):
		c.everyJump, c.everyFlush, c.hold = ttl, 2*ttl, 4*ttl
	case m.has(CommonStepUnseen):
		c.everyCommon, c.everyStep, c.hold = 2*ttl, 0, 4*ttl
	case m.has(ExtendForeign):
		c.clients = usualClients
		c.hold = 4 * ttl
		c.everyCut = ttl
	case m.among(lostOnTheWay...):
		c.raiseOften()
	case m.has(MovesNotStrictly):
		c.grain = 2 * ttl
	case m.among(passing...):
		m.passOften(w, c)
	case m.among(ofGroups...):
		m.failOften(w, c)
	case m.has(ForgetsTheNewest):
		// A majority comes back with the key of an earlier holder.
		c.known, c.clients, c.everyDown, c.everyFlush = true, usualClients, ttl, 0
		c.hold, c.backoffCap, c.latency = ttl/5, ttl/50, ttl/1000
	case m.among(ofOperators...):
		// Holders renew at different times on different nodes, and work for a long time.
		c.amnesia, c.everyFlush, c.everyCrash, c.everyQuit, c.everyDown = false, 0, 0, 0, 0
		c.hold, c.terms.MaxHold, c.everyCut, c.loss = 4*ttl, 0, ttl, 200
	case m.among(ofHandles...):
		m.detachOften(c)
	case m.has(RestoreForeign):
		// A reader's lock ends too early, and a writer gets it before the reader's heal comes.
		c.clients, c.everyBlip, c.hold, c.renew, c.loss = usualClients, ttl/4, 4*ttl, ttl/10, min(c.loss, 50)
	case m.among(ofTTLs...):
		// Some client always asks while others hold for a long time, and renewals are lost or late.
		c.clients, c.backoffCap, c.hold, c.terms.MaxHold = usualClients, ttl/50, 4*ttl, 0
		c.amnesia, c.guard, c.everyFlush, c.everyDown, c.queues, c.everyCut = false, false, 0, 0, 0, ttl
	case m.among(ofTheLeanWay...):
		m.leanOften(c)
	case m.has(RemnantsAtOnce):
		c.clients, c.backoffCap, c.hold = usualClients, ttl/50, 4*ttl
		c.terms.MaxHold = ttl / 2
	}
}

// driftApart makes a run in which some client always asks while others hold for a long time. If the bug is planted,
// clocks drift further apart than the terms allow for.
func driftApart(c *config, planted bool) {
	ttl := c.terms.TTL
	if planted {
		c.terms.Drift = 0
		c.rate = 10_000
	}
	c.stepAware = false // that much drift looks like a step
	c.guard, c.amnesia, c.everyFlush = false, false, 0
	c.clients = usualClients
	c.backoffCap, c.latency = ttl/50, ttl/1000 // some client always asks soon
	c.hold = 4 * ttl
	c.everyPause = ttl
	c.everyCut = ttl
}

// restartInTurn makes a run in which nodes restart one after the other and registers are
// ahead of the nodes' clocks. The end of a quarantine is above these registers.
func (m Mutation) restartInTurn(c *config) {
	ttl := c.terms.TTL
	c.known = true
	c.clients, c.queues = usualClients, 0
	c.maxTTL = 2 * ttl
	c.ahead = c.maxTTL / 4
	c.offset, c.apart, c.rate = c.maxTTL/4, true, 1000
	c.misjudged, c.grain, c.block = ttl, 0, 1_000_000_000
	if m.has(NoCap) {
		c.misjudged = 3 * c.maxTTL
	}
	c.hold, c.backoffCap, c.latency = ttl/100, ttl/10, ttl/200
	c.everyDown, c.everyCut, c.everyFlush = ttl, 0, 0
	c.faults = 2 * ttl
}

// raiseOften makes a run in which nodes are often ahead of a proposal, so that most
// attempts raise. Copies of some requests arrive later than whole attempts of other
// clients.
func (c *config) raiseOften() {
	ttl := c.terms.TTL
	c.misjudged, c.grain, c.callers, c.block = 3*ttl, 0, 1, 1_000_000_000
	c.latency, c.slow, c.loss, c.repeat, c.fifo = ttl/100, 300, 0, 600, false
	c.everyBlip, c.step, c.everyStep = ttl/16, 0, 0
}

// passOften makes a run of leases that are passed on many times and sometimes lose a
// key, on nodes whose clocks jump.
func (m Mutation) passOften(w *world, c *config) {
	ttl := c.terms.TTL
	c.hold, c.callers, c.block = ttl/10, maxCallers, 1_000_000_000
	c.pace = 20 * ttl / quorum.CheckAfter // otherwise a check would precede every pass
	c.terms.MaxHold, c.clients = 0, usualClients
	c.everyPause, c.everyCrash, c.everyQuit, c.everyJump = 0, 0, 0, 0
	c.step, c.everyStep, c.everyBlip = 0, 0, ttl/2
	c.loss, c.slow = min(c.loss, 50), min(c.slow, 20)
	if m.among(HealShowsToken, HealMoves, OwnerIsEnough) {
		// Another attempt must win with votes that are lost one by one.
		c.terms.Timeout, c.latency = ttl/3, ttl/100*time.Duration(1+w.rng.IntN(5))
		c.everyBlip, c.queues, c.backoffCap = ttl/4, 0, ttl/10
		c.everyDown, c.everyStall, c.everyCut, c.everyDistance, c.everyFreeze = 0, 0, 0, 0, 0
		c.guard, c.amnesia, c.everyFlush, c.service = false, false, 0, 0
	}
	if m.among(HealShowsToken, OwnerIsEnough) {
		// The lease must outlive that attempt.
		c.terms.Timeout, c.everyBlip, c.hold, c.renew = ttl*6/10, ttl/2, 2*ttl, ttl/10
		c.slow, c.loss, c.repeat, c.fifo = 300, 0, 600, false
	}
	if m.has(CheckUnbounded) {
		c.pace = 1 // every pass is checked
		c.terms.Timeout, c.everyBlip, c.queues, c.backoffCap = ttl/3, ttl/4, 0, ttl/10
	}
	if m.has(ResetOvertaken) {
		c.terms.Timeout, c.everyBlip, c.queues, c.backoffCap = ttl/3, ttl/4, 0, ttl/10
		c.slow, c.repeat, c.fifo = 300, 600, false
	}
}

// failOften makes a run of leases that outlive several terms of a group.
func (m Mutation) failOften(w *world, c *config) {
	c.outlive(w)
	switch {
	case m.has(GuardWithoutWindow):
		c.window = max(failover.LeastWindow, 3*c.terms.TTL/2)
		c.maxTTL = c.terms.TTL + c.window
		if w.bugs.has(m) {
			c.maxTTL -= c.window
		}
	case w.bugs.has(GroupUnguarded):
		c.guard = false
	}
}

// leanOften makes a run in which most attempts go the lean way, because no client queues and greetings are frequent.
func (m Mutation) leanOften(c *config) {
	ttl := c.terms.TTL
	c.alone = 7
	switch m {
	case LeanUncapped:
		NoCap.restartInTurn(c)
	case LeanBelowBase, LeanCountsAgain:
		// Registers are dropped, and then a proposal is below the base.
		c.everyTrim, c.misjudged, c.grain, c.hold, c.backoffCap = ttl/4, 3*ttl, 0, ttl/100, ttl/10
	case LeanStands:
		c.grain = 2 * ttl
	case LeanReadsFirst:
		c.everyTrim, c.misjudged, c.grain, c.hold, c.backoffCap = ttl/16, 3*ttl, 0, ttl/100, ttl/10
		c.fifo = false // otherwise a release comes between the commands of its client, and that is noticed first
	case LeanOnOtherData:
		c.everyFlush, c.hold, c.fifo = ttl, 4*ttl, false
	case LeanClockUnseen:
		c.hold, c.terms.MaxHold = 4*ttl, 0
	case LeanRelativeEnds:
		c.slow = 200
	}
	c.clients, c.queues, c.everyCheck = usualClients, 0, ttl/4
}

// detachOften makes a run of holders that work for a long time and do not vanish.
func (m Mutation) detachOften(c *config) {
	ttl := c.terms.TTL
	c.clients, c.hold, c.terms.MaxHold, c.everyCrash, c.everyQuit = usualClients, 4*ttl, 0, 0, 0
	switch m {
	case ResumeKeepsOwner, HandleBeforeTheEnd:
		c.fifo = false // otherwise the keys that a second lease leaves are noticed first
	case ResumesRevoked:
		c.amnesia, c.everyFlush = false, 0
	case ResumesUnguarded:
		// Nodes lose their registers, the holder restores the lock, and the successor has not greeted them since.
		c.known, c.everyFlush, c.everyDown, c.everyCheck = true, 3*ttl, 0, 0
		c.misjudged, c.everyCut, c.loss, c.backoffCap, c.queues = 3*ttl, 0, 0, 8*ttl, 0
	case KeepOutlivesGuard:
		// A node comes back with a detached lock that was resumed on it. Another one has missed the resume.
		c.known, c.everyFlush, c.everyDown, c.maxTTL = true, 0, 8*ttl, ttl
		c.everyPause, c.everyCut, c.everyFreeze, c.everyStall, c.everyDistance = 0, 0, 0, 0, 0
		c.loss, c.slow = 150, 0
	}
}
