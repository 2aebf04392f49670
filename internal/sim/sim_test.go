package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
)

var (
	seedFlag     = flag.Int64("seed", -1, "TestOne: the seed of the run")
	nodesFlag    = flag.Int("nodes", 3, "TestOne: how many nodes")
	worldFlag    = flag.String("world", "inside", "TestOne: inside, anything or stepped")
	spanFlag     = flag.Int("span", Span, "TestOne: how many TTLs the faults go on")
	mutationFlag = flag.String("mutation", "", "TestOne: the planted bug")
)

// briefly is the span of the runs that look at what comes after the faults.
const briefly = 5

// TestOne plays the run that a failed test has named. With -v it tells
// everything that happens.
func TestOne(t *testing.T) {
	if *seedFlag < 0 {
		t.Skip("plays one run, told by -seed, -nodes, -world, -span and -mutation")
	}
	p := Params{Seed: *seedFlag, Nodes: *nodesFlag, Span: *spanFlag}
	var ok bool
	if p.World, ok = ParseWorld(*worldFlag); !ok {
		t.Fatalf("no world is named %q", *worldFlag)
	}
	if p.Mutation, ok = ParseMutation(*mutationFlag); !ok {
		t.Fatalf("no planted bug is named %q", *mutationFlag)
	}
	if testing.Verbose() {
		p.Trace = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	}
	result := NewRunner().Run(p)
	t.Log(result.Stats.String())
	if result.Violation != nil {
		t.Errorf("%v\n%v", result.Params, result.Violation)
	}
}

func TestNoOverlapInsideTheFaultModel(t *testing.T) {
	total := sweep(t, 5000, Params{World: Inside, Span: Span})
	mustHave(t, map[string]int{
		"grants": total.Grants, "write-backs": total.WriteBacks, "renewals": total.Renewals,
		"missed rounds": total.Missed, "heals": total.Heals, "releases": total.Releases,
		"expired leases": total.Expired, "revoked leases": total.Revoked,
		"lost messages": total.Lost, "late messages": total.Late, "repeated messages": total.Repeated,
		"refused as late": total.Refused, "pauses": total.Pauses, "crashes": total.Crashes,
		"clients closed": total.Quits, "nodes down": total.Downs, "stalls": total.Stalls, "cuts": total.Cuts,
		"wiped nodes": total.Wipes, "nodes that find an old state": total.Truncations, "flushes": total.Flushes,
		"quarantines": total.Quarantines, "votes not asked for": total.Unasked, "votes refused by the marker": total.Strange,
		"grants too late to use":       total.Abandoned,
		"locks kept for whoever waits": total.Kept, "waiters told": total.Told, "attempts of whoever was told": total.Called,
		"tickets passed on": total.PassedOn, "waits given up": total.GivenUp, "late votes": total.LateVotes,
		"waiters served in order": total.InOrder,
	})
}

// The clocks of any number of nodes are set ahead and back. Nobody is granted
// on the strength of keys that have expired before their time, because each
// client compares the clocks that the votes tell with its own.
func TestNoOverlapWhenNodesAreSeenToStep(t *testing.T) {
	total := sweep(t, 2000, Params{World: Stepped, Span: Span})
	mustHave(t, map[string]int{
		"grants": total.Grants, "renewals": total.Renewals, "heals": total.Heals, "revoked leases": total.Revoked,
		"clock steps": total.Steps, "steps found": total.StepsFound, "pauses": total.Pauses,
		"quarantines": total.Quarantines, "locks kept for whoever waits": total.Kept, "late votes": total.LateVotes,
	})
}

func TestTokensAreUniqueAndOrderedWhateverHappens(t *testing.T) {
	total := sweep(t, 5000, Params{World: Anything, Span: Span})
	// Exclusion breaks in these worlds, and that is what the tokens are for.
	mustHave(t, map[string]int{
		"grants": total.Grants, "clock steps": total.Steps, "overlaps": total.Overlaps,
		"wiped nodes": total.Wipes, "nodes that find an old state": total.Truncations, "flushes": total.Flushes,
		"write-backs": total.WriteBacks, "steps found": total.StepsFound,
		"locks kept for whoever waits": total.Kept, "late votes": total.LateVotes,
	})
}

func TestLockIsGrantedAfterFaultsStop(t *testing.T) {
	total := sweep(t, 5000, Params{World: Inside, Span: briefly})
	mustHave(t, map[string]int{"grants": total.Grants, "pauses": total.Pauses, "nodes down": total.Downs, "waiters told": total.Told})
}

func mustHave(t *testing.T, seen map[string]int) {
	t.Helper()
	for what, n := range seen {
		if n == 0 {
			t.Errorf("the runs had no %s: they prove nothing about them", what)
		}
	}
}

// seeds returns how many runs a test plays for each number of nodes.
func seeds(t *testing.T, usual int) int64 {
	t.Helper()
	n := usual / slowdown
	if testing.Short() {
		n = min(n, 500/8) // four tests, three and five nodes
	}
	if word := os.Getenv("QUORUMLOCK_SIM_SEEDS"); word != "" {
		var err error
		if n, err = strconv.Atoi(word); err != nil {
			t.Fatalf("QUORUMLOCK_SIM_SEEDS: %v", err)
		}
	}
	return int64(n)
}

// sweep plays the seeds of p with three and with five nodes, spread over the
// processors, and fails for each run that broke a promise.
func sweep(t *testing.T, usual int, p Params) (total Stats) {
	n, shards := seeds(t, usual), int64(runtime.GOMAXPROCS(0))
	began := time.Now()
	sums := make(chan Stats, 2*shards)
	t.Run("runs", func(t *testing.T) {
		for _, nodes := range []int{3, 5} {
			for shard := range shards {
				t.Run(fmt.Sprintf("%d nodes, part %d", nodes, shard), func(t *testing.T) {
					t.Parallel()
					var sum Stats
					runner, p := NewRunner(), p
					p.Nodes = nodes
					for p.Seed = shard; p.Seed < n; p.Seed += shards {
						result := runner.Run(p)
						sum.Add(&result.Stats)
						if result.Violation != nil {
							t.Errorf("%v\nshow it: go test ./internal/sim -run TestOne -v %v", result.Violation, p)
						}
					}
					sums <- sum
				})
			}
		}
	})
	close(sums)
	for sum := range sums {
		total.Add(&sum)
	}
	t.Logf("world %v, seeds 0 … %d with 3 nodes and with 5, in %v: %v",
		p.World, n-1, time.Since(began).Round(time.Millisecond), &total)
	return total
}

func TestSameParamsSameRun(t *testing.T) {
	tell := func(r *Runner, p Params) (story []string) {
		p.Trace = func(format string, args ...any) { story = append(story, fmt.Sprintf(format, args...)) }
		r.Run(p)
		return story
	}
	used := NewRunner()
	for seed := range int64(20) {
		for _, world := range []World{Inside, Anything, Stepped} {
			p := Params{Seed: seed, Nodes: 3 + 2*int(seed%2), World: world, Span: briefly}
			first := tell(NewRunner(), p)
			again := tell(used, p)
			if len(first) != len(again) {
				t.Fatalf("%v: %d events, and then %d", p, len(first), len(again))
			}
			for i := range first {
				if first[i] != again[i] {
					t.Fatalf("%v: %q, and then %q", p, first[i], again[i])
				}
			}
		}
	}
}

func TestClockIsReadAndAwaitedAlike(t *testing.T) {
	for _, rate := range []int64{-50_000, -4900, -1, 0, 1, 4900, 50_000} {
		c := clock{offset: time.Hour, rate: rate}
		for _, at := range []time.Duration{0, 1, 999_999, time.Millisecond, time.Second + 1, 17 * time.Minute, 100 * time.Hour} {
			reading := c.read(at)
			when := c.when(reading)
			if c.read(when) < reading || when > 1 && c.read(when-2) >= reading {
				t.Errorf("rate %d: shows %v at %v, awaited until %v", rate, reading, at, when)
			}
		}
	}
}
