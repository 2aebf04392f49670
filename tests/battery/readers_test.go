//go:build linux

package battery

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// readerProcesses is how many processes read and write one name under faults.
const (
	readerProcesses = 6
	readerTTL       = time.Second
)

// readerFaults are the faults of the soak, each by itself.
var readerFaults = []struct {
	name  string
	kinds []soakKind
}{
	{"a node killed and started empty, guard on", []soakKind{soakKill}},
	{"a node flushed, guard on", []soakKind{soakWipe}},
	{"SIGSTOP of a node", []soakKind{soakStopNode}},
	{"SIGSTOP of a process", []soakKind{soakStopWorker}},
	{"a process cut off from a minority or all", []soakKind{soakCutMinority, soakCutAll}},
	{"packets late", []soakKind{soakDelay}},
	{"replies lost, connections reset or half-open", []soakKind{soakDrop, soakReset, soakHalfOpen}},
}

// Processes read and write one name, while faults hit the nodes, the connections and the
// processes. In full each kind of fault has a run of its own; otherwise all are in one.
func TestNoProcessReadsBesideOneThatWrites(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		if !full {
			var kinds []soakKind
			for _, f := range readerFaults {
				kinds = append(kinds, f.kinds...)
			}
			readAndWrite(t, n, "all faults", kinds, 6*time.Second, 500*time.Millisecond)
			return
		}
		for _, f := range readerFaults {
			t.Run(f.name, func(t *testing.T) { readAndWrite(t, n, f.name, f.kinds, 40*time.Second, time.Second) })
		}
	})
}

func readAndWrite(t *testing.T, n int, fault string, kinds []soakKind, lasting, pace time.Duration) {
	r := newRow(t, fmt.Sprintf("%d processes read and write one name, %s, N=%d", readerProcesses, fault, n))
	seed := uint64(time.Now().UnixNano()) % 1_000_000
	plan := faultPlan{seed: seed, lasting: lasting, pace: pace, longest: 3 * readerTTL, nodes: n, workers: readerProcesses, kinds: kinds}.draw()
	t.Logf("seed %d, %d faults", seed, len(plan))
	w := startWitness(t)
	servers := guardedServers(t, n, readerTTL)
	grid := proxyGrid(t, readerProcesses, servers)
	configs := make([]workerConfig, readerProcesses)
	for i := range configs {
		configs[i] = workerConfig{
			Client: i, Addrs: proxyAddrs(grid[i]), Witness: w.addr, Seed: seed, Locks: 1, Shared: .7,
			TTL: readerTTL, Guard: readerTTL, Patience: 10 * time.Second, Think: 20 * time.Millisecond,
			Hold: [2]time.Duration{time.Millisecond, 20 * time.Millisecond},
			Long: 0.1, LongHold: [2]time.Duration{readerTTL / 4, readerTTL * 5 / 2},
		}
	}
	nem := &nemesis{servers: servers, grid: grid, workers: startWorkers(t, configs), trouble: map[int]time.Time{}}
	made := nem.carryOut(t, plan)
	calm := now()
	time.Sleep(time.Duration(count(4, 2)) * time.Second)
	summaries := stopWorkers(t, nem.workers)
	tally, holds, writes, _ := w.finish(t)

	exclusion(t, r, &tally, holds, writes)
	r.together(holds)
	registers(t, r, &tally, summaries, 1)
	history(t, r, holds)
	after := make([]int, readerProcesses)
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
	r.figure(fmt.Sprintf("faults made %d of %d; leases: %v; not granted: %v", made, len(plan), ends, failures), "some faults", made > 0)
}

// together prints how many of the leases were shared, and how many of these were valid beside
// another one: without any a row about readers has shown nothing.
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
