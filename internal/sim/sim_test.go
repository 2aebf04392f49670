package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	seedFlag     = flag.Int64("seed", -1, "TestOne: the seed of the run")
	nodesFlag    = flag.Int("nodes", 3, "TestOne: how many nodes")
	worldFlag    = flag.String("world", "inside", "TestOne: inside, anything, stepped or groups")
	spanFlag     = flag.Int("span", Span, "TestOne: how many TTLs the faults go on")
	mutationFlag = flag.String("mutation", "", "TestOne: the planted bug")
	innocentFlag = flag.Bool("innocent", false, "TestOne: the run of the planted bug without it")
)

// briefly is the span of the runs that check what follows the faults.
const briefly = 5

// TestOne plays the run that a failed test has named. With -v it prints
// every event.
func TestOne(t *testing.T) {
	if *seedFlag < 0 {
		t.Skip("plays one run, given by -seed, -nodes, -world, -span, -mutation and -innocent")
	}
	p := Params{Seed: *seedFlag, Nodes: *nodesFlag, Span: *spanFlag, Innocent: *innocentFlag}
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
	total := sweep(t, most, Params{World: Inside, Span: Span}, 3, 5)
	mustHave(t, &total,
		Grants, LeanVotes, LeanDeclined, LeanNoVotes, Raises, Passes, PassesRefused, Checks, CallersGone, TicketsCarried, LeftFree, Renewals, Missed, Heals, ProofResets, Releases, ReleaseRetries,
		Expired, Revoked, Suspended, Lost, Late, Repeated, TooLate, LateAnswers,
		Pauses, Crashes, Quits, Downs, Stalls, Freezes, Cuts, Distances, Queued, Trims, ClientSteps,
		Wipes, Truncations, Flushes, Quarantines, NotAsked, MarkerChanges, Abandoned,
		Reservations, WakeUps, WokenAttempts, PassedOn, QueuesCleared, QueuesLeft, StartedOver, WaitsGivenUp, ReservationsTaken, ServedInOrder, Sightings, Vacancies, Unsighted, Marks, Revocations, MoreRounds,
		Detached, DetachesFailed, Resumes, GivenBack, AskedOnce,
		ReadersGranted, ReadersTogether, ReadersBarred, ReadersAdmitted, Downgrades, DowngradesFailed,
		PermitsGranted, PermitsTogether, LetIn, SlotsKept, AskedElsewhere, TTLChanges)
}

// The clocks of any number of nodes are set ahead and back, some of them together with a
// client's. Keys then expire too early, but no client gets the lock because of that:
// each client compares the clocks that the votes report with its own.
func TestNoOverlapWhenNodesAreSeenToStep(t *testing.T) {
	total := sweep(t, 2000, Params{World: Stepped, Span: Span}, 3, 5)
	mustHave(t, &total, Grants, LeanVotes, LeanNoVotes, Passes, Renewals, Heals, Revoked, Steps, CommonSteps, StepsFound, Pauses,
		Quarantines, Reservations, ReservationsTaken, Resumes, ReadersGranted, ReadersTogether, PermitsTogether)
}

// Nodes are failover groups. The restart guard covers the longest lease and the time for which clients count renewals
// without another confirmation. Old masters continue for longer.
func TestNoOverlapWhenGroupsFailOver(t *testing.T) {
	total := sweep(t, 3000, Params{World: Groups, Span: Span}, 1, 3)
	mustHave(t, &total, Grants, LeanVotes, LeanNoVotes, Passes, Raises, Renewals, Heals, ProofResets, ReleaseRetries, Quarantines, MarkerChanges,
		Failovers, Splits, GroupFreezes, Flaps, Blinds, HangUps, LaterTerms, Unconfirmed, Settlings, Outlasted, Unguarded, Resumes, ReadersGranted, PermitsTogether,
		HalfMoves, KeysGone, MovesMet, MovesSeen)
}

func TestTokensAreUniqueAndOrderedWhateverHappens(t *testing.T) {
	total := sweep(t, most, Params{World: Anything, Span: Span}, 3, 5)
	// Exclusion breaks in these worlds, which is the reason for tokens.
	mustHave(t, &total, Grants, LeanVotes, LeanNoVotes, Steps, Overlaps, Wipes, Truncations, Flushes, Trims, Raises, Passes, ProofResets, StepsFound,
		Reservations, ReservationsTaken, Resumes, ReadersGranted, ReadersTogether, PermitsTogether)
}

func TestLockIsGrantedAfterFaultsStop(t *testing.T) {
	total := sweep(t, most, Params{World: Inside, Span: briefly}, 3, 5)
	mustHave(t, &total, Grants, Pauses, Downs, WakeUps, Resumes, PermitsTogether)
}

// Callers ask once, and where none gets a majority the smallest owner value decides. In half of the runs all ask at one
// instant, and one of them must get the lock though a minority of the nodes does not answer.
func TestOneOfThoseWhoAskTogetherIsGranted(t *testing.T) {
	total := sweep(t, most, Params{World: Together, Span: briefly}, 3, 4, 5)
	mustHave(t, &total, Grants, LeanVotes, AskedOnce, VotesKept, Downs, Stalls, Silences, Distances, Pauses, Crashes, Lost, Raises, ReadersGranted, PermitsTogether)
}

// A single node decides alone, and even numbers need more than half.
func TestOtherNumbersOfNodes(t *testing.T) {
	for _, world := range []World{Inside, Anything, Stepped} {
		total := sweep(t, 500, Params{World: world, Span: Span}, 1, 2, 4)
		mustHave(t, &total, Grants, Passes, Renewals, Reservations)
	}
}

// The runs that look for planted bugs are harsher than the usual ones. Without the bugs
// no oracle notices a violation in them.
func TestHarshRunsWithoutTheirBugs(t *testing.T) {
	for _, plant := range Plants() {
		p := Params{World: plant.World, Span: Span, Mutation: plant.Bug, Innocent: true}
		sweep(t, 40, p, plant.Sizes()...)
	}
}

func mustHave(t *testing.T, total *Stats, seen ...Counter) {
	t.Helper()
	for _, c := range seen {
		if total[c] == 0 {
			t.Errorf("the runs had no %v: they prove nothing about them", c)
		}
	}
}

// most is the usual number of seeds of the tests that play the most.
const most = 5000

// seeds returns how many runs a test plays for each number of nodes. QUORUMLOCK_SIM_SEEDS sets it for the tests that
// play the most; the others keep their proportion.
func seeds(t *testing.T, usual int) int64 {
	t.Helper()
	n := usual / slowdown
	if slowdown == 1 && os.Getenv("QUORUMLOCK_NIGHTLY") == "" {
		n = n * 2 / 5 // make sim plays more of them each night
	}
	if testing.Short() {
		n = min(n, 250) // 220 have no round of marks that was repeated
	}
	if word := os.Getenv("QUORUMLOCK_SIM_SEEDS"); word != "" {
		seeds, err := strconv.Atoi(word)
		if err != nil {
			t.Fatalf("QUORUMLOCK_SIM_SEEDS: %v", err)
		}
		n = max(usual*seeds/most, 1)
	}
	return int64(n)
}

// sweep plays the seeds of p with each number of nodes, spread over the
// processors, and fails for each run that broke a promise.
func sweep(t *testing.T, usual int, p Params, sizes ...int) (total Stats) {
	n, shards := seeds(t, usual), int64(runtime.GOMAXPROCS(0))
	began := time.Now()
	sums := make(chan Stats, int64(len(sizes))*shards)
	t.Run(strings.TrimSpace(p.World.String()+" "+p.Mutation.String()), func(t *testing.T) {
		for _, nodes := range sizes {
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
	if p.Innocent {
		return total
	}
	t.Logf("world %v, seeds 0 … %d with each of %v nodes, in %v: %v",
		p.World, n-1, sizes, time.Since(began).Round(time.Millisecond), &total)
	return total
}

func TestSameParamsSameRun(t *testing.T) {
	story := func(r *Runner, p Params) (lines []string) {
		p.Trace = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
		r.Run(p)
		return lines
	}
	used := NewRunner()
	for seed := range int64(20) {
		for _, world := range []World{Inside, Anything, Stepped, Groups, Together} {
			p := Params{Seed: seed, Nodes: 3 + 2*int(seed%2), World: world, Span: briefly}
			first := story(NewRunner(), p)
			again := story(used, p)
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
		c := simClock{offset: time.Hour, rate: rate}
		for _, at := range []time.Duration{0, 1, 999_999, time.Millisecond, time.Second + 1, 17 * time.Minute, 100 * time.Hour} {
			reading := c.read(at)
			when := c.when(reading)
			if c.read(when) < reading || when > 1 && c.read(when-2) >= reading {
				t.Errorf("rate %d: shows %v at %v, awaited until %v", rate, reading, at, when)
			}
		}
	}
}
