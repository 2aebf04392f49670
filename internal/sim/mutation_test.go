package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// planted tells where a bug is looked for, and what has to notice it.
type planted struct {
	bug    Mutation
	world  World
	oracle []string
}

var plants = []planted{
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
	{DeafToLoss, Inside, []string{"told"}},
}

func TestPlantedBugsAreCaught(t *testing.T) {
	const most = 5000 // seeds
	if len(plants) != len(Mutations()) {
		t.Errorf("%d bugs are looked for, and there are %d", len(plants), len(Mutations()))
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%-30s  %-9s  %-9s  %s\n", "bug", "world", "oracle", "first seed (nodes)")
	runner := NewRunner()
	for _, plant := range plants {
		result, ok := firstCaught(runner, plant, most)
		if !ok {
			t.Errorf("nobody noticed in %d seeds: %v", most, plant.bug)
			continue
		}
		v := result.Violation
		fmt.Fprintf(&table, "%-30s  %-9v  %-9s  %d (%d)\n", plant.bug, plant.world, v.Oracle, result.Seed, result.Nodes)
		if !slices.Contains(plant.oracle, v.Oracle) {
			t.Errorf("%v: noticed as %v, which has another reason", plant.bug, v)
		}
		innocent := result.Params
		innocent.Innocent = true
		if result := runner.Run(innocent); result.Violation != nil {
			t.Errorf("%v: the run breaks without the bug as well: %v", plant.bug, result.Violation)
		}
	}
	t.Logf("planted bugs, all of them found within %d seeds:\n%s", most, &table)
}

// firstCaught plays seeds, with three and with five nodes, until an oracle
// notices the bug.
func firstCaught(runner *Runner, plant planted, most int64) (Result, bool) {
	for seed := range most {
		for _, nodes := range []int{3, 5} {
			result := runner.Run(Params{Seed: seed, Nodes: nodes, World: plant.world, Span: span, Mutation: plant.bug})
			if result.Violation != nil {
				return result, true
			}
		}
	}
	return Result{}, false
}
