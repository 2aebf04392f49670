package sim

import "slices"

// Mutation is a planted bug: in the nodes, in the network, or in the code of a client
// around the production decisions. The decisions themselves have no hooks. For a bug
// inside a decision, the client overrides the decision. 0 means no bug.
type Mutation uint8

const (
	// FromReply counts validity from the reply instead of from the send.
	FromReply Mutation = iota + 1
	// AmbiguousVotes counts a node that did not answer in time as a vote.
	AmbiguousVotes
	// MovesLater moves the register some time after the lock was created.
	MovesLater
	// MovesNotStrictly counts a register that was already at the proposal as moved.
	MovesNotStrictly
	// NoCap moves a register without the bound set by the node's clock.
	NoCap
	// NoRaise grants as soon as a quorum has voted.
	NoRaise
	// RaiseAnyOwner raises the register without looking at the owner.
	RaiseAnyOwner
	// RaiseDown sets the register to the top, even downwards.
	RaiseDown
	// RaiseAtTop confirms a raise of a register that is already at the top.
	RaiseAtTop
	// ProposalStays grants the proposal although nodes were raised above it.
	ProposalStays
	// AheadCounts counts a node that is ahead as one that was moved.
	AheadCounts
	// RepeatMoves answers the second copy of a request as if it had moved the
	// register of a node that was ahead.
	RepeatMoves
	// BlockUnbounded uses a whole block without looking at the values before.
	BlockUnbounded
	// BeforeOfTheVote takes the value before from the vote of a node that was
	// raised later.
	BeforeOfTheVote
	// TrimForgets drops a register without raising the base.
	TrimForgets
	// ReleaseMovesBack moves the register back by one at a release.
	ReleaseMovesBack
	// HealMoves sets the register to the token when a lock is healed.
	HealMoves
	// HealShowsToken writes the token into a lock that is healed.
	HealShowsToken
	// OwnerIsEnough confirms the token of a lease by its owner alone.
	OwnerIsEnough
	// PassUnchecked passes a lease on although no quorum of nodes has shown its token.
	PassUnchecked
	// NoProofReset keeps the proof of a hold after a node no longer shows the token.
	NoProofReset
	// ResetOvertaken lets an answer to a request from before the proof was reset confirm
	// the token.
	ResetOvertaken
	// PassBeyondBlock passes a lease on with one token more than the block has.
	PassBeyondBlock
	// CheckOfOne accepts a check that one node has answered.
	CheckOfOne
	// CheckUnbounded mints a whole block without looking at the values before.
	CheckUnbounded
	// ExtendCreates creates the key when it is missing.
	ExtendCreates
	// ExtendForeign extends any owner's key.
	ExtendForeign
	// ExtendZero rounds the time to live down to 0, which deletes the key.
	ExtendZero
	// HalfQuorum accepts n/2 votes as a quorum.
	HalfQuorum
	// KeepFailed does not release after a failed attempt.
	KeepFailed
	// ReleaseForeign deletes any owner's key.
	ReleaseForeign
	// UnLose continues a lost lease when a late confirmation arrives.
	UnLose
	// HealAnytime re-creates a key however late the request arrives.
	HealAnytime
	// AcquireAnytime locks however late the request arrives.
	AcquireAnytime
	// RelativeEnds counts the life of a key from the write instead of from the
	// script's time.
	RelativeEnds
	// NoRetries does not repeat the releases that were lost with a broken connection.
	NoRetries
	// NoFinalCheck grants without a check that the lease is still valid.
	NoFinalCheck
	// NoDrift subtracts nothing for clock rates, and clocks differ by 2 %.
	NoDrift
	// NoGuard lets a node vote at once after it lost its data.
	NoGuard
	// NoFloor does not use the end of a quarantine as a floor of the registers.
	NoFloor
	// FloorAtStart uses the start of the quarantine as that floor instead of its end.
	FloorAtStart
	// NoMarker accepts votes without comparing the restart guard's marker: only a
	// new connection is guarded.
	NoMarker
	// NoMarkerPasses compares the marker only if there is one.
	NoMarkerPasses
	// QuarantineJumps measures a quarantine on a clock that includes the
	// client's own steps.
	QuarantineJumps
	// BlindToSteps accepts votes of nodes whose clock was just set ahead.
	BlindToSteps
	// CommonStepUnseen measures the nodes' clocks on a clock that includes the
	// client's own steps.
	CommonStepUnseen
	// CloseForgets does not release the attempt that Close has ended.
	CloseForgets
	// NotEarly looks for the loss only at the stop, and timers are late.
	NotEarly
	// IgnoresClock does not read the clock: only a missed round after the stop reports the
	// loss.
	IgnoresClock
	// RemnantsAtOnce releases a lost lease while its work may still continue.
	RemnantsAtOnce
	// ReservationVotes counts a node that reserves the lock for the waiter as a
	// vote.
	ReservationVotes
	// ReservationOverwrites grants the lock to the ticket of an old reservation without a
	// check that the reservation still exists.
	ReservationOverwrites
	// ReservationUnmoved grants a reserved lock without moving the register.
	ReservationUnmoved
	// ReservationUnguarded does not compare the marker for a reserved lock.
	ReservationUnguarded
	// ExtendReserved lets an extend take a reserved lock, as heal does, but at any time.
	ExtendReserved
	// ReservesAnyLock reserves the lock for the head of the queue at any release, also
	// while another lease has the lock.
	ReservesAnyLock
	// LapsedTakesLock grants any lock to a client that has waited for the end of a
	// reservation.
	LapsedTakesLock
	// PassOnDeletes deletes any lock when a reservation is passed on.
	PassOnDeletes
	// TakesTooLate takes a reservation for a lease after its end, and does not release the
	// lock there.
	TakesTooLate
	// OneOwner uses one owner value for all attempts of a wait.
	OneOwner
	// ReservedForEver reserves the lock without an end.
	ReservedForEver
	// ReservedForAnybody grants a reserved lock to any client.
	ReservedForAnybody
	// LastFirst reserves the lock for the last ticket of the queue first.
	LastFirst
	// OwnHeadLeftFree leaves the lock free if a release keeps its ticket and that ticket
	// is the head of the queue.
	OwnHeadLeftFree
	// GuardWithoutWindow covers the longest lease, and not the time for which clients
	// count the renewals of an old master.
	GuardWithoutWindow
	// MarkerWithoutEpoch names the server process in the marker, and not the group's term.
	MarkerWithoutEpoch
	// GroupUnguarded runs groups without the restart guard.
	GroupUnguarded
	// EarlierTermOverwrites lets a client of an earlier term start a quarantine.
	EarlierTermOverwrites
	// NoConfirmation counts votes although no majority has confirmed the term recently.
	NoConfirmation
	// UsedTooEarly uses a new term although the term before may still give votes when a
	// lease's key there has ended.
	UsedTooEarly
	// RenewedForEver counts renewals although no majority has confirmed the term for the
	// window.
	RenewedForEver
	// VotesUnguarded counts votes over a connection whose greeting ran no guard.
	VotesUnguarded
	// TiesByChance releases the votes of every caller that asks once, and lets chance
	// decide which of them asks next.
	TiesByChance
	// KeptForgotten does not release the votes that a caller has kept when it gives up.
	KeptForgotten
	// ForgetsTheNewest keeps an observer from comparing tokens with earlier ones.
	ForgetsTheNewest
	// SilenceIsNobody makes an observer count a silent node as one without a lock.
	SilenceIsNobody
	// ExtendIgnoresMarks extends the lock of a lease that was revoked.
	ExtendIgnoresMarks
	// RevokeDeletes deletes the lock of a lease that is revoked.
	RevokeDeletes
	// OneMarkIsEnough counts a lease as revoked that one node has marked.
	OneMarkIsEnough
	// OneRoundIsEnough does not repeat a round in which a lock lives longer than the marks.
	OneRoundIsEnough
	// MarksLiveTooShort makes marks that end with the lock that they find.
	MarksLiveTooShort
	// ResumeKeepsOwner resumes a lease as its old owner.
	ResumeKeepsOwner
	// HandleBeforeTheEnd gives the handle away while the old lease continues.
	HandleBeforeTheEnd
	// ResumesMissing grants a resume on a node that lacks the lock.
	ResumesMissing
	// ResumesAnyLock grants a resume on a node where another lease has the lock.
	ResumesAnyLock
	// ResumesAnyHandle grants a resume of a lock that another owner has detached.
	ResumesAnyHandle
	// ResumesRevoked grants a resume of a lock that was revoked.
	ResumesRevoked
	// ResumesUnmoved resumes a lock without moving the register.
	ResumesUnmoved
	// ResumesUnguarded does not compare the marker for a resume.
	ResumesUnguarded
	// ExtendsDetached extends a lock that its owner has detached.
	ExtendsDetached
	// HealsDetached lets a late heal of the owner take the lock that it has detached.
	HealsDetached
	// AcquiresDetached grants a detached lock to any client.
	AcquiresDetached
	// DropsAnyLock deletes any lock when a handle is given back.
	DropsAnyLock
	// FailedDetachStays leaves the locks of a lease that too few nodes have detached.
	FailedDetachStays
	// KeepOutlivesGuard keeps detached locks for longer than a quarantine.
	KeepOutlivesGuard
	// JoinsWriter lets a reader in where a writer has the lock.
	JoinsWriter
	// TakesReaders gives a writer the lock that readers have.
	TakesReaders
	// SetStays makes a lock of readers and keeps the set of an earlier one.
	SetStays
	// QuitDeletes deletes the lock at the release of any reader.
	QuitDeletes
	// WokenVotes counts a node that has woken a reader as a vote.
	WokenVotes
	// RestoreForeign makes any lock one of readers when a reader heals its own.
	RestoreForeign
	// AlignsDown aligns a register above the top down to it.
	AlignsDown
	// RegisterIsToken gives a reader the top itself as its token.
	RegisterIsToken
	// UnalignedCounts grants a reader as soon as a quorum has voted.
	UnalignedCounts
	// PassesWriters lets a reader join others although an earlier writer waits.
	PassesWriters
	// MoreThanFree lets every waiter in, however few slots are free.
	MoreThanFree
	// RightForEver lets a waiter in forever.
	RightForEver
	// NewcomersTake gives a free slot to any client, before others that wait.
	NewcomersTake
	// LateTakesSlot gives a slot however late the request arrives.
	LateTakesSlot
	// AsksAtLimit asks for the slot behind the last one.
	AsksAtLimit
	// RightOverwrites gives a waiter that was let in a slot that is taken.
	RightOverwrites
	// RightVotes counts a node that has let the waiter in as a vote.
	RightVotes
	// SlotUnmoved gives a slot to a waiter that was let in without moving the register.
	SlotUnmoved
	// RightUnguarded does not compare the marker for a waiter that was let in.
	RightUnguarded
	// ElsewhereKeeps asks for another slot and does not release the votes for the one before.
	ElsewhereKeeps
	// LastLetIn lets the last ticket of the queue in first.
	LastLetIn
	// ReleaseUnread takes each answer to a release as if the node had had the lock.
	ReleaseUnread
	// MovesIgnored relies on a slot's owner although keys have left it.
	MovesIgnored
	// ShorterAfterItsRound counts on a shorter TTL after its round, and not before the round is sent.
	ShorterAfterItsRound
	// NothingOvertakes counts on a longer TTL although earlier requests may still run.
	NothingOvertakes
	// LeanOnOtherData counts a lock of the lean way without looking at the marker.
	LeanOnOtherData
	// LeanBelowBase counts a lock of the lean way without looking at the base.
	LeanBelowBase
	// LeanStands makes a lock of the lean way whose register does not move.
	LeanStands
	// LeanUncapped moves a register in the lean way without the bound set by the node's clock.
	LeanUncapped
	// LeanReadsFirst reads what decides about a lean lock before it makes the lock.
	LeanReadsFirst
	// LeanClockUnseen does not read the clock after a lock of the lean way.
	LeanClockUnseen
	// LeanRelativeEnds counts the life of a lock of the lean way from its arrival.
	LeanRelativeEnds
	// LeanCountsAgain asks again for a lean lock that isn't a vote, as if its answer had been lost.
	LeanCountsAgain
)

var mutationNames = [...]string{
	"validity from the reply", "silence is a vote",
	"a register moves after its lock", "moves are not strict", "no bound by the node's clock", "no raise",
	"raise of any owner", "a raise goes down", "raise of a register at the top", "the proposal stays",
	"ahead counts as moved", "a repeated request moves", "a whole block", "the value before of the vote",
	"a trim forgets", "release moves back", "heal moves the register", "heal shows the token",
	"the owner is enough for the token", "passes are not checked", "the proof is never reset", "an answer overtaken by a reset",
	"a pass beyond the block", "a check of one node", "a check mints a whole block",
	"extend creates", "extend of any owner", "extend by zero", "quorum of n/2", "failed attempt keeps its keys",
	"release of any owner", "un-lose", "heal at any time", "acquire at any time", "relative ends", "no release retries", "no final check",
	"no drift bound", "no restart guard", "no floor after a quarantine", "floor at the start of a quarantine",
	"no look at the marker", "a missing marker passes", "a quarantine jumps", "blind to steps",
	"a common step is not seen", "close forgets an attempt",
	"a loss is not found early", "the clock is ignored", "remnants are released at once",
	"a reservation is a vote", "an old reservation overwrites", "a reserved lock moves nothing",
	"a reservation passes the marker", "extend of a reserved lock", "reserves any lock", "a lapsed wait takes any lock",
	"passing on deletes any lock", "asks after the end", "one owner for a wait", "reserved for ever",
	"reserved for anybody", "the last is first", "a lock is left free for its own head",
	"the guard does not cover the window", "a marker without the epoch", "a group without the guard",
	"an earlier term overwrites the marker", "no confirmation of the term", "a new term is used too early", "renewed for ever", "votes unguarded",
	"ties by chance", "kept votes are forgotten",
	"an observer forgets the newest token", "silence is nobody",
	"extend ignores marks", "a revocation deletes", "one mark is enough", "one round of marks is enough", "marks end with the lock",
	"resume keeps the owner", "the handle exists before the end", "resume of a missing lock", "resume of any lock", "resume of any handle", "resume of a revoked lock",
	"a resumed lock moves nothing", "resume passes the marker", "extend of a detached lock", "heal of a detached lock", "acquire of a detached lock", "drop of any lock", "a failed detach stays", "a detached lock outlives the guard",
	"a reader joins a writer", "a writer takes the readers' lock", "the set is not made anew", "a reader's release deletes the lock",
	"a woken reader has a vote", "a reader's heal takes any lock", "an align goes down", "the register is a reader's token",
	"readers do not align", "a reader passes a waiting writer",
	"more are let in than slots are free", "a right has no end", "a newcomer takes a slot before others that wait", "a late request takes a slot",
	"a client asks for a slot at its limit", "a right takes any slot", "a right is a vote", "a slot moves nothing", "a right passes the marker",
	"votes for another slot stay", "the last is let in first",
	"the answers to a release are not read",
	"a half move is ignored",
	"a shorter TTL counts after its round", "no renewal is overtaken",
	"a lean lock on other data is a vote",
	"a lean lock below the base is a vote",
	"a lean lock moves nothing",
	"a lean move has no bound by the node's clock",
	"a lean acquisition reads in front of its lock",
	"the clock behind a lean lock is not read",
	"a late lean lock lives longer",
	"a lean lock counts when it is asked for again",
}

// Mutations returns every planted bug.
func Mutations() []Mutation {
	all := make([]Mutation, len(mutationNames))
	for i := range all {
		all[i] = Mutation(i + 1)
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
			return Mutation(i + 1), true
		}
	}
	return 0, false
}

// String returns the name of the bug, and nothing for none.
func (m Mutation) String() string {
	if m == 0 {
		return ""
	}
	return mutationNames[m-1]
}

// has reports whether the planted bug is this one.
func (m Mutation) has(bug Mutation) bool { return m == bug }

// among reports whether the planted bug is one of these.
func (m Mutation) among(bugs ...Mutation) bool { return slices.Contains(bugs, m) }
