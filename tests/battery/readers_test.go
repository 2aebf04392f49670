//go:build linux

package battery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// kindProcesses is how many processes want one name under faults, for leases of any kind.
const (
	kindProcesses = 6
	kindTTL       = time.Second
)

// kindFaults are the faults of the soak, each in a separate run.
var kindFaults = []struct {
	name  string
	kinds []soakKind
}{
	{"a node killed and started empty, guard on", []soakKind{soakKill}},
	{"a node flushed, guard on", []soakKind{soakWipe}},
	{"SIGSTOP of a node", []soakKind{soakStopNode}},
	{"SIGSTOP of a process", []soakKind{soakStopWorker}},
	{"a process cut off from a minority or all", []soakKind{soakCutMinority, soakCutAll, soakCutAll}},
	{"packets late", []soakKind{soakDelay}},
	{"replies lost, connections reset or half-open", []soakKind{soakDrop, soakReset, soakHalfOpen}},
}

// Processes read and write one name, while faults hit the nodes, the connections and the processes. In full runs each
// kind of fault has its own run; otherwise one run has all.
func TestNoProcessReadsBesideOneThatWrites(t *testing.T) {
	eachNight(t)
	underFaults(t, "%d processes read and write one name, %s, N=%d", func(c *workerConfig) { c.Shared = .7 },
		func(r *row, holds []hold) int {
			r.together(holds)
			return 1
		})
}

// underFaults has processes work under one name. title has places for the number of processes, the faults and the
// number of nodes. set chooses the leases that a process asks for. judge checks the leases of a run, and returns the
// number of locks.
func underFaults(t *testing.T, title string, set func(*workerConfig), judge func(r *row, holds []hold) (locks int)) {
	forSizes(t, true, func(t *testing.T, n int) {
		run := func(t *testing.T, name string, kinds []soakKind, lasting, pace time.Duration) {
			workUnderFaults(t, newRow(t, fmt.Sprintf(title, kindProcesses, name, n)), n, kinds, lasting, pace, set, judge)
		}
		if full {
			for _, f := range kindFaults {
				t.Run(f.name, func(t *testing.T) { run(t, f.name, f.kinds, 40*time.Second, time.Second) })
			}
			return
		}
		var kinds []soakKind
		for _, f := range kindFaults {
			kinds = append(kinds, f.kinds...)
		}
		run(t, "all faults", kinds, 6*time.Second, 500*time.Millisecond)
	})
}

func workUnderFaults(t *testing.T, r *row, n int, kinds []soakKind, lasting, pace time.Duration, set func(*workerConfig), judge func(*row, []hold) int) {
	seed := uint64(time.Now().UnixNano()) % 1_000_000
	plan := faultPlan{seed: seed, lasting: lasting, pace: pace, longest: 3 * kindTTL, nodes: n, workers: kindProcesses, kinds: kinds}.draw()
	t.Logf("seed %d, %d faults", seed, len(plan))
	w := startWitness(t)
	servers := guardedServers(t, n, kindTTL)
	grid := proxyGrid(t, kindProcesses, servers)
	configs := make([]workerConfig, kindProcesses)
	for i := range configs {
		configs[i] = workerConfig{
			Client: i, Addrs: proxyAddrs(grid[i]), Witness: w.addr, Seed: seed, Locks: 1,
			TTL: kindTTL, Guard: kindTTL, Patience: 10 * time.Second, Think: 20 * time.Millisecond,
			Hold: [2]time.Duration{time.Millisecond, 20 * time.Millisecond},
			Long: 0.1, LongHold: [2]time.Duration{kindTTL / 4, kindTTL * 5 / 2},
		}
		set(&configs[i])
	}
	nem := &nemesis{servers: servers, grid: grid, workers: startWorkers(t, configs), trouble: map[int]time.Time{}}
	bites := full && (slices.Contains(kinds, soakCutAll) || slices.Contains(kinds, soakStopWorker))
	if bites { // the process of the plan would rarely have a lease
		nem.holders, nem.hit = w, map[int]bool{}
	}
	made := nem.carryOut(t, plan)
	calm := now()
	time.Sleep(8 * time.Second) // each has a turn, even on a busy machine
	summaries := stopWorkers(t, nem.workers)
	tally, holds, writes, _ := w.finish(t)

	exclusion(t, r, &tally, holds, writes)
	registers(t, r, &tally, summaries, judge(r, holds))
	history(t, r, holds)
	after := make([]int, kindProcesses)
	for i := range holds {
		if holds[i].Began > calm {
			after[holds[i].Client]++
		}
	}
	r.figure(fmt.Sprintf("leases of each process after the faults: %d to %d", slices.Min(after), slices.Max(after)), "some", slices.Min(after) > 0)
	ends, failures := map[string]int{}, map[string]int{}
	for i := range summaries {
		merge(ends, summaries[i].Ends)
		merge(failures, summaries[i].Failures)
	}
	bar, bitten := "half of them made", true
	if bites {
		bar, bitten = bar+", and leases were lost", lostBy(summaries, false) && len(ends) > 1
	}
	r.figure(fmt.Sprintf("faults made %d of %d; leases: %v; not granted: %v", made, len(plan), ends, failures), bar, made*2 >= len(plan) && bitten)
}

// together prints how many of the leases were shared, and how many of these were valid alongside another one. Without
// any, a row about readers has shown nothing.
func (r *row) together(holds []hold) {
	r.t.Helper()
	reads, beside := 0, 0
	for _, of := range byLock(holds) {
		var readers spans
		for i := range of {
			h := &of[i]
			if !h.Shared {
				continue
			}
			reads++
			if h.Ended <= h.Granted {
				continue
			}
			if readers.beside(h) != nil {
				beside++
			}
			readers.add(*h)
		}
	}
	r.figure(fmt.Sprintf("%d leases shared, %d of them beside another, and %d exclusive", reads, beside, len(holds)-reads),
		"some of each", beside > 0 && len(holds) > reads)
}
