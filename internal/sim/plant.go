package sim

import (
	"fmt"
	"slices"
)

// Span is how many TTLs the faults of a usual run go on.
const Span = 25

// Seeds is how many seeds a planted bug may take to be found: the rarest need
// more than a thousand.
const Seeds = 5000

// Plant tells where a planted bug is looked for, and what has to notice it.
type Plant struct {
	Bug     Mutation
	World   World
	Oracles []string
}

// Plants returns every planted bug. Each has to be caught.
func Plants() []Plant {
	return []Plant{
		{FromReply, Inside, []string{"overlap"}},
		{AmbiguousVotes, Inside, []string{"overlap", "token"}},
		{BlindWriteBack, Anything, []string{"token"}},
		{NoWriteBack, Inside, []string{"token"}},
		{WriteBackSets, Anything, []string{"token"}},
		{RaiseAbove, Anything, []string{"token"}},
		{AboveCounts, Anything, []string{"token"}},
		{ExtendCreates, Inside, []string{"leftover"}},
		{ExtendForeign, Inside, []string{"overlap"}},
		{ExtendZero, Inside, []string{"overlap"}},
		{HalfQuorum, Inside, []string{"overlap", "token"}},
		{KeepFailed, Inside, []string{"leftover", "liveness"}},
		{ReleaseForeign, Inside, []string{"overlap", "token"}},
		{BlindUndo, Inside, []string{"token"}},
		{UnLose, Inside, []string{"overlap", "told"}},
		{HealAnytime, Inside, []string{"leftover"}},
		{AcquireAnytime, Inside, []string{"leftover"}},
		{NoFinalCheck, Inside, []string{"told"}},
		{NoDrift, Inside, []string{"overlap"}},
		{NoGuard, Inside, []string{"overlap", "token"}},
		{NoFloor, Inside, []string{"token"}},
		{FloorAtStart, Inside, []string{"token"}},
		{NoMarker, Inside, []string{"overlap", "token"}},
		{NoMarkerPasses, Inside, []string{"overlap", "token"}},
		{BlindToSteps, Stepped, []string{"overlap"}},
		{CloseForgets, Inside, []string{"leftover"}},
		{NotEarly, Inside, []string{"told"}},
		{DeafToLoss, Inside, []string{"told"}},
		{ForgetsTokens, Inside, []string{"token"}},
		{ToldVotes, Inside, []string{"overlap", "token"}},
		{KeptOverwrites, Inside, []string{"overlap"}},
		{KeptUncounted, Inside, []string{"token"}},
		{KeptUnguarded, Inside, []string{"overlap", "token"}},
		{ExtendKept, Inside, []string{"leftover"}},
		{GivesAnyLock, Inside, []string{"overlap", "token"}},
		{PassOnDeletes, Inside, []string{"overlap", "token"}},
		{PassOnUndoes, Inside, []string{"token"}},
		{AsksTooLate, Inside, []string{"leftover"}},
		{OneOwner, Inside, []string{"overlap", "token", "leftover"}},
		{KeptForEver, Inside, []string{"liveness"}},
		{KeptForAnybody, Inside, []string{"order"}},
		{LastFirst, Inside, []string{"order"}},
	}
}

// Catch plays seeds, with three and with five nodes, until an oracle notices
// the bug. The error says that none did, that it was the wrong one, or that
// the run breaks without the bug as well.
func (r *Runner) Catch(plant Plant) (Result, error) {
	for seed := range int64(Seeds) {
		for _, nodes := range []int{3, 5} {
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
	return Result{}, fmt.Errorf("nobody noticed in %d seeds", Seeds)
}
