package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestPlantedBugsAreCaught(t *testing.T) {
	if len(Plants()) != len(Mutations()) || len(mutationNames) != len(Mutations()) {
		t.Errorf("%d bugs are looked for, %d have names, and there are %d", len(Plants()), len(mutationNames), len(Mutations()))
	}
	if slowdown > 1 || os.Getenv("QUORUMLOCK_SIM_SEEDS") == "" {
		t.Skip("make sim runs it: some of the bugs take thousands of seeds")
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%-40s  %-9s  %-9s  %s\n", "bug", "world", "oracle", "first seed (nodes)")
	runner := NewRunner()
	for _, plant := range Plants() {
		result, err := runner.Catch(plant)
		if err != nil {
			t.Errorf("%v: %v", plant.Bug, err)
			continue
		}
		fmt.Fprintf(&table, "%-40s  %-9v  %-9s  %d (%d)\n",
			plant.Bug, plant.World, result.Violation.Oracle, result.Seed, result.Nodes)
	}
	t.Logf("planted bugs, all of them found within %d seeds:\n%s", Seeds, &table)
}
