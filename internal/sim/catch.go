package sim

import (
	"fmt"
	"slices"
)

// Seeds is the number of seeds within which a planted bug must be found. The rarest bugs
// need more than a thousand.
const Seeds = 20_000

// rare has a seed for each bug that few runs notice: the search begins there. After a change of the simulation another
// seed may notice the bug, and the search takes longer.
var rare = map[Mutation]int64{
	RaiseAnyOwner: 861, RaiseAtTop: 1172, UsedTooEarly: 1315, BeforeOfTheVote: 1771, CheckOfOne: 1779, ForgetsTheNewest: 611, VotesUnguarded: 787,
	HealMoves: 3212, EarlierTermOverwrites: 3382, CheckUnbounded: 7449, ResetOvertaken: 11_459, RenewedForEver: 11_525,
	HealShowsToken: 15_753, OwnerIsEnough: 15_753, OneRoundIsEnough: 1092, MarksLiveTooShort: 18_722, ResumesUnguarded: 1594,
	KeepOutlivesGuard: 1537, AlignsDown: 232, RightUnguarded: 2867, NothingOvertakes: 2039,
}

// Plant is a planted bug, the world in which it is looked for, and the oracles that may
// notice it.
type Plant struct {
	Bug     Mutation
	World   World
	Oracles []string
}

// The oracles that notice the bugs.
var (
	overlap         = []string{"overlap"}
	token           = []string{"token"}
	overlapOrToken  = []string{"overlap", "token"}
	reported        = []string{"reported"}
	leftover        = []string{"leftover"}
	overlapOrReport = []string{"overlap", "reported"}
	keysStay        = []string{"leftover", "liveness"}
	anythingOfThese = []string{"overlap", "token", "leftover"}
	liveness        = []string{"liveness"}
	order           = []string{"order"}
	sight           = []string{"sight"}
	revocation      = []string{"revocation"}
	handled         = []string{"handles"}
	permitted       = []string{"permits"}

	overlapOrRevocation = []string{"overlap", "revocation"}
	anybodysLock        = []string{"overlap", "revocation", "handles"}
	overlapOrHandles    = []string{"overlap", "handles"}
	tokenOrHandles      = []string{"token", "handles"}
	anythingOrHandles   = []string{"overlap", "token", "handles"}
)

// plants is every planted bug.
var plants = []Plant{
	{FromReply, Inside, overlap},
	{AmbiguousVotes, Inside, overlapOrToken},
	{MovesLater, Inside, token},
	{MovesNotStrictly, Inside, token},
	{NoCap, Inside, token},
	{NoRaise, Inside, token},
	{RaiseAnyOwner, Anything, token},
	{RaiseDown, Anything, token},
	{RaiseAtTop, Anything, token},
	{ProposalStays, Inside, token},
	{AheadCounts, Inside, token},
	{RepeatMoves, Anything, token},
	{BlockUnbounded, Inside, token},
	{BeforeOfTheVote, Anything, token},
	{TrimForgets, Inside, token},
	{ReleaseMovesBack, Inside, token},
	{HealMoves, Anything, token},
	{HealShowsToken, Anything, token},
	{OwnerIsEnough, Anything, token},
	{PassUnchecked, Anything, token},
	{NoProofReset, Anything, token},
	{ResetOvertaken, Anything, token},
	{PassBeyondBlock, Inside, token},
	{CheckOfOne, Inside, token},
	{CheckUnbounded, Anything, token},
	{ExtendCreates, Inside, leftover},
	{ExtendForeign, Inside, anybodysLock},
	{ExtendZero, Inside, overlap},
	{HalfQuorum, Inside, overlapOrToken},
	{KeepFailed, Inside, keysStay},
	{ReleaseForeign, Inside, overlapOrToken},
	{UnLose, Inside, overlapOrReport},
	{HealAnytime, Inside, leftover},
	{AcquireAnytime, Inside, leftover},
	{RelativeEnds, Inside, leftover},
	{NoRetries, Inside, leftover},
	{NoFinalCheck, Inside, reported},
	{NoDrift, Inside, overlap},
	{NoGuard, Inside, overlapOrToken},
	{NoFloor, Inside, token},
	{FloorAtStart, Inside, token},
	{NoMarker, Inside, overlapOrToken},
	{NoMarkerPasses, Inside, overlapOrToken},
	{QuarantineJumps, Inside, overlapOrToken},
	{BlindToSteps, Stepped, overlap},
	{CommonStepUnseen, Stepped, overlap},
	{CloseForgets, Inside, leftover},
	{NotEarly, Inside, reported},
	{IgnoresClock, Inside, reported},
	{RemnantsAtOnce, Inside, overlap},
	{ReservationVotes, Inside, overlapOrToken},
	{ReservationOverwrites, Inside, overlap},
	{ReservationUnmoved, Inside, token},
	{ReservationUnguarded, Inside, overlapOrToken},
	{ExtendReserved, Inside, leftover},
	{ReservesAnyLock, Inside, overlapOrToken},
	{LapsedTakesLock, Inside, overlapOrToken},
	{PassOnDeletes, Inside, anythingOrHandles},
	{TakesTooLate, Inside, leftover},
	{OneOwner, Inside, anythingOfThese},
	{ReservedForEver, Inside, liveness},
	{ReservedForAnybody, Inside, order},
	{LastFirst, Inside, order},
	{OwnHeadLeftFree, Inside, order},
	{GuardWithoutWindow, Groups, overlapOrToken},
	{MarkerWithoutEpoch, Groups, overlapOrToken},
	{GroupUnguarded, Groups, overlapOrToken},
	{EarlierTermOverwrites, Groups, []string{"marker"}},
	{NoConfirmation, Groups, overlapOrToken},
	{UsedTooEarly, Groups, overlapOrToken},
	{RenewedForEver, Groups, overlapOrToken},
	{VotesUnguarded, Groups, overlapOrToken},
	{TiesByChance, Together, liveness},
	{KeptForgotten, Together, leftover},
	{ForgetsTheNewest, Inside, sight},
	{SilenceIsNobody, Inside, sight},
	{ExtendIgnoresMarks, Inside, revocation},
	{RevokeDeletes, Inside, overlapOrRevocation},
	{OneMarkIsEnough, Inside, revocation},
	{OneRoundIsEnough, Inside, revocation},
	{MarksLiveTooShort, Inside, revocation},
	{ResumeKeepsOwner, Inside, anythingOrHandles},
	{HandleBeforeTheEnd, Inside, overlap},
	{ResumesMissing, Inside, handled},
	{ResumesAnyLock, Inside, overlapOrHandles},
	{ResumesAnyHandle, Inside, handled},
	{ResumesRevoked, Inside, handled},
	{ResumesUnmoved, Inside, token},
	{ResumesUnguarded, Inside, tokenOrHandles},
	{ExtendsDetached, Inside, handled},
	{HealsDetached, Inside, handled},
	{AcquiresDetached, Inside, handled},
	{DropsAnyLock, Inside, overlapOrHandles},
	{FailedDetachStays, Inside, leftover},
	{KeepOutlivesGuard, Inside, handled},
	{JoinsWriter, Inside, overlapOrToken},
	{TakesReaders, Inside, overlapOrToken},
	{SetStays, Anything, []string{"readers"}},
	{QuitDeletes, Inside, overlapOrToken},
	{WokenVotes, Inside, overlapOrToken},
	{RestoreForeign, Anything, []string{"readers"}},
	{AlignsDown, Anything, token},
	{RegisterIsToken, Inside, token},
	{UnalignedCounts, Inside, token},
	{PassesWriters, Inside, order},
	{MoreThanFree, Inside, permitted},
	{RightForEver, Inside, liveness},
	{NewcomersTake, Inside, permitted},
	{LateTakesSlot, Inside, leftover},
	{AsksAtLimit, Inside, permitted},
	{RightOverwrites, Inside, overlapOrToken},
	{RightVotes, Inside, overlapOrToken},
	{SlotUnmoved, Inside, token},
	{RightUnguarded, Inside, overlapOrToken},
	{ElsewhereKeeps, Inside, keysStay},
	{LastLetIn, Inside, permitted},
	{ReleaseUnread, Anything, []string{"returned"}},
	{MovesIgnored, Groups, overlapOrToken},
	{ShorterAfterItsRound, Inside, overlap},
	{NothingOvertakes, Inside, overlap},
	{LeanOnOtherData, Inside, overlapOrToken},
	{LeanBelowBase, Inside, token},
	{LeanStands, Inside, token},
	{LeanUncapped, Inside, token},
	{LeanReadsFirst, Inside, overlapOrToken},
	{LeanClockUnseen, Stepped, overlap},
	{LeanRelativeEnds, Inside, leftover},
	{LeanCountsAgain, Inside, token},
}

// Plants returns every planted bug. Each must be caught.
func Plants() []Plant { return plants }

// Sizes returns the numbers of nodes with which the bug is looked for.
func (p Plant) Sizes() []int {
	if p.World == Groups {
		return []int{1, 3}
	}
	return []int{3, 5}
}

// Catch plays seeds with each number of nodes until an oracle notices the bug. The
// error says that no oracle did, that the wrong one did, or that the run also fails
// without the bug.
func (r *Runner) Catch(plant Plant) (Result, error) {
	for i := range int64(Seeds) {
		seed := (rare[plant.Bug] + i) % Seeds
		for _, nodes := range plant.Sizes() {
			result := r.Run(Params{Seed: seed, Nodes: nodes, World: plant.World, Span: Span, Mutation: plant.Bug})
			v := result.Violation
			if v == nil {
				continue
			}
			if !slices.Contains(plant.Oracles, v.Oracle) {
				return result, fmt.Errorf("noticed as %w, which has another reason", v)
			}
			innocent := result.Params
			innocent.Innocent = true
			if v := r.Run(innocent).Violation; v != nil {
				return result, fmt.Errorf("the run breaks without the bug as well: %w", v)
			}
			return result, nil
		}
	}
	return Result{}, fmt.Errorf("no oracle noticed in %d seeds", Seeds)
}
