//go:build linux

package battery

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// The soak runs processes that hold many locks, a third of them as readers, on servers with a fault every two seconds,
// for any duration.
const (
	soakWorkers = 4
	soakTTL     = 2 * time.Second
	soakPace    = 2 * time.Second // between two faults
	// soakRecovery is how much longer than the quarantine a node counts as disturbed. It covers the node's start, the
	// connections of clients, and the node's clock, by which the quarantine is up to one per cent longer.
	soakRecovery = 1500 * time.Millisecond
	// soakFlush is whether nodes are flushed. For the restart guard a flush is as much a loss as a restart, although no
	// connection ends.
	soakFlush = true
)

// soakKind is a kind of fault.
type soakKind int

const (
	soakKill     soakKind = iota // kill a node, and start it again, empty
	soakWipe                     // FLUSHALL on a node
	soakStopNode                 // SIGSTOP
	soakStopWorker
	soakCutMinority // cut a worker off from a minority of nodes
	soakCutAll      // cut a worker off from all nodes
	soakDelay       // delay the packets between a worker and a node
	soakDrop        // drop the replies to some commands of a worker to a node
	soakReset       // reset all connections of a worker
	soakHalfOpen    // the connection of a worker to a node, until the worker notices
	soakKinds
)

var soakNames = [soakKinds]string{
	"kill node", "flush node", "stop node", "stop worker", "cut worker from minority", "cut worker from all",
	"delay", "drop replies", "reset connections", "half-open connection",
}

// soakFault is a fault of the plan.
type soakFault struct {
	at           time.Duration // since the start
	kind         soakKind
	node, worker int
	lasting      time.Duration // for a delay: the length of the delay
	replies      int
}

func (f *soakFault) String() string {
	return fmt.Sprintf("%v %s, node %d, worker %d, %v, %d replies",
		f.at.Round(time.Millisecond), soakNames[f.kind], f.node, f.worker, f.lasting.Round(time.Millisecond), f.replies)
}

// disturbed returns until when the fault disturbs its node. A stopped node counts too: its locks expire during the
// stop, as if it had lost them.
func (f *soakFault) disturbed() time.Duration {
	switch f.kind {
	case soakKill, soakWipe:
		return f.at + f.lasting + soakTTL + soakRecovery
	case soakStopNode:
		return f.at + f.lasting + soakRecovery
	default:
		return 0
	}
}

// engaged returns until when the fault prevents another fault of its worker.
func (f *soakFault) engaged() time.Duration {
	switch f.kind {
	case soakStopWorker, soakCutMinority, soakCutAll, soakDelay:
		return f.at + f.lasting
	default:
		return 0
	}
}

// faultPlan has the parameters from which a plan of faults is drawn.
type faultPlan struct {
	seed           uint64
	lasting, pace  time.Duration
	longest        time.Duration // of a fault
	nodes, workers int
	kinds          []soakKind
}

// planSoak is the plan of a soak.
func planSoak(seed uint64, lasting time.Duration, nodes int) []soakFault {
	kinds := make([]soakKind, soakKinds)
	for kind := range kinds {
		kinds[kind] = soakKind(kind)
	}
	return faultPlan{seed: seed, lasting: lasting, pace: soakPace, longest: 3 * soakTTL, nodes: nodes, workers: soakWorkers, kinds: kinds}.draw()
}

// draw makes the list of faults from the seed alone. The plan stays inside the fault model: at any time at most a
// minority of the nodes is stopped, down, or within one guard of a data loss. If a fault does not fit, the next random
// one replaces it, or none if none fits.
func (p faultPlan) draw() (plan []soakFault) {
	rng := rand.New(rand.NewPCG(p.seed, p.seed))
	disturbed := make([]time.Duration, p.nodes)
	engaged := make([]time.Duration, p.workers)
	for at := p.pace; at < p.lasting; at += p.pace {
		for range 1000 {
			f := soakFault{
				at: at, kind: p.kinds[rng.IntN(len(p.kinds))], node: rng.IntN(p.nodes), worker: rng.IntN(p.workers),
				lasting: time.Duration(rng.Int64N(int64(p.longest))), replies: 1 + rng.IntN(5),
			}
			switch f.kind {
			case soakKill:
				f.lasting /= 4
			case soakWipe:
				f.lasting = 0
			}
			if f.kind == soakWipe && !soakFlush || f.engaged() > 0 && engaged[f.worker] > at {
				continue
			}
			if f.disturbed() > 0 {
				busy := 0
				for _, until := range disturbed {
					if until > at {
						busy++
					}
				}
				if busy >= p.nodes/2 || disturbed[f.node] > at {
					continue
				}
				disturbed[f.node] = f.disturbed()
			}
			engaged[f.worker] = max(engaged[f.worker], f.engaged())
			plan = append(plan, f)
			break
		}
	}
	return plan
}

// The plan has the properties that the soak relies on, for any seed.
func TestThePlanOfTheSoakStaysInsideTheFaultModel(t *testing.T) {
	kinds := map[soakKind]int{}
	for seed := range uint64(200) {
		for _, nodes := range []int{3, 5} {
			plan := planSoak(seed, 5*time.Minute, nodes)
			require.Equal(t, plan, planSoak(seed, 5*time.Minute, nodes), "one seed, one plan")
			for i, f := range plan {
				kinds[f.kind]++
				if f.disturbed() == 0 {
					continue
				}
				bad := map[int]bool{f.node: true}
				for _, earlier := range plan[:i] {
					if earlier.disturbed() > f.at {
						require.NotEqual(t, f.node, earlier.node, "seed %d: %v while %v", seed, &f, &earlier)
						bad[earlier.node] = true
					}
				}
				require.LessOrEqual(t, len(bad), nodes/2, "seed %d: %v", seed, &f)
			}
		}
	}
	for kind := range soakKinds {
		require.Greater(t, kinds[kind], 1000, soakNames[kind])
		require.NotEmpty(t, soakNames[kind])
	}
}

// nemesis carries out the plan.
type nemesis struct {
	servers []*redistest.Server
	grid    [][]*redistest.Proxy
	workers []*child
	// If holders is set, each fault hits a worker that holds a lease, and the one of the plan only if there is none.
	holders *witnessed

	mu      sync.Mutex
	hit     map[int]bool      // workers that have a fault now; kept with holders only
	trouble map[int]time.Time // node: until when it is disturbed, by the clock and not by the plan
	skipped int
	errors  []error
}

// do causes one fault and removes it. It returns when everything is restored, except for
// a quarantine.
func (n *nemesis) do(f *soakFault) {
	if n.holders != nil {
		if !n.aim(f) {
			return
		}
		defer n.healed(f.worker)
	}
	row := n.grid[f.worker]
	switch f.kind {
	case soakKill:
		if n.mayDisturb(f) {
			n.servers[f.node].Kill()
			time.Sleep(f.lasting)
			n.servers[f.node].Restart()
			n.settle(f.node, soakTTL)
		}
	case soakWipe:
		if n.mayDisturb(f) {
			if _, err := n.servers[f.node].Do("FLUSHALL"); err != nil {
				n.failed(err)
			}
			n.settle(f.node, soakTTL)
		}
	case soakStopNode:
		if n.mayDisturb(f) {
			n.servers[f.node].Stop()
			time.Sleep(f.lasting)
			n.servers[f.node].Continue()
			n.settle(f.node, 0)
		}
	case soakStopWorker:
		if _, err := n.workers[f.worker].pause(); err != nil {
			n.failed(err)
		}
		time.Sleep(f.lasting)
		if _, err := n.workers[f.worker].resume(); err != nil {
			n.failed(err)
		}
	case soakCutMinority, soakCutAll:
		if f.kind == soakCutMinority {
			row = slices.Concat(row, row)[f.node : f.node+len(row)/2]
		}
		for _, p := range row {
			p.Swallow()
		}
		time.Sleep(f.lasting)
		for _, p := range row {
			p.Heal()
		}
	case soakDelay:
		row[f.node].Delay(f.lasting / 3)
		time.Sleep(f.lasting)
		row[f.node].Delay(0)
	case soakDrop:
		for range f.replies {
			row[f.node].DropReply(isScript)
		}
	case soakReset:
		for _, p := range row {
			p.Reset()
		}
	case soakHalfOpen:
		row[f.node].HalfOpen()
	}
}

// aim sets the worker of a fault: of those without a fault, the one with the newest grant, or else the one of the plan.
// It reports whether one of these is without a fault.
func (n *nemesis) aim(f *soakFault) bool {
	reply, err := n.holders.link.call(witnessCall{Kind: callInside})
	if err != nil {
		n.failed(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, worker := range append(reply.Clients, f.worker) {
		if !n.hit[worker] {
			f.worker, n.hit[worker] = worker, true
			return true
		}
	}
	n.skipped++
	return false
}

// healed records the end of a worker's fault.
func (n *nemesis) healed(worker int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hit[worker] = false
}

// mayDisturb checks the real state: on a busy machine a restart may take longer than planned. Then the fault is left
// out.
func (n *nemesis) mayDisturb(f *soakFault) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	busy := 0
	for node, until := range n.trouble {
		if node == f.node && time.Now().Before(until) {
			busy = len(n.servers)
		} else if time.Now().Before(until) {
			busy++
		}
	}
	if busy >= len(n.servers)/2 {
		n.skipped++
		return false
	}
	n.trouble[f.node] = time.Now().Add(time.Hour) // until settle sets the true instant
	return true
}

// settle records that a node is up again, and until when it counts as disturbed.
func (n *nemesis) settle(node int, guard time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// The guard's extra time is part of the recovery. So this is never longer than
	// planned, unless the fault itself took longer.
	n.trouble[node] = time.Now().Add(guard + guard/50 + 200*time.Millisecond)
}

func (n *nemesis) failed(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.errors = append(n.errors, err)
}

// QUORUMLOCK_SOAK sets the duration, QUORUMLOCK_SEED the faults, and
// QUORUMLOCK_SOAK_NODES the number of nodes (3). The seed reproduces the faults, but not
// the reactions of the processes and the kernel.
func TestSoak(t *testing.T) {
	lasting := fromEnv(t, "QUORUMLOCK_SOAK", time.Duration(count(1800, 12))*time.Second, time.ParseDuration)
	seed := fromEnv(t, "QUORUMLOCK_SEED", uint64(time.Now().UnixNano())%1_000_000, func(s string) (uint64, error) {
		return strconv.ParseUint(s, 10, 64)
	})
	nodes := fromEnv(t, "QUORUMLOCK_SOAK_NODES", 3, strconv.Atoi)
	locks := 32
	if lasting < time.Minute {
		locks = 8 // a fifth of the computation, on machines that also run other tests
	}
	// The end is part of the run: without faults every lock must be granted again.
	calm := min(15*time.Second, lasting/4)
	plan := planSoak(seed, lasting-calm-soakPace, nodes)
	t.Logf("soak of %v, QUORUMLOCK_SEED=%d, N=%d, %d faults:", lasting, seed, nodes, len(plan))
	for i := range plan {
		t.Log(&plan[i])
	}
	title := fmt.Sprintf("soak of %v, %d processes, %d locks, N=%d, seed %d", lasting, soakWorkers, locks, nodes, seed)
	if !raced() {
		title += ", no race detector"
	}
	r := newRow(t, title)

	w := startWitness(t)
	servers := guardedServers(t, nodes, soakTTL)
	grid := proxyGrid(t, soakWorkers, servers)
	sampleEvery := min(max(lasting/200, 500*time.Millisecond), 5*time.Second)
	configs := make([]workerConfig, soakWorkers)
	for i := range configs {
		configs[i] = workerConfig{
			Client: i, Addrs: proxyAddrs(grid[i]), Witness: w.addr, Seed: seed, Locks: locks, Shared: 1. / 3,
			TTL: soakTTL, Guard: soakTTL, Patience: 10 * time.Second, Think: 400 * time.Millisecond,
			Hold: [2]time.Duration{5 * time.Millisecond, 50 * time.Millisecond},
			Long: 0.02, LongHold: [2]time.Duration{soakTTL, 4 * soakTTL},
			SampleEvery: sampleEvery,
		}
	}
	nem := &nemesis{servers: servers, grid: grid, workers: startWorkers(t, configs), trouble: map[int]time.Time{}}
	begun := now()
	made := nem.carryOut(t, plan)
	calmBegan := now()
	time.Sleep(max(calm-soakTTL-soakRecovery, 4*time.Second))
	calmed := now().since(calmBegan)
	summaries := stopWorkers(t, nem.workers)
	tally, holds, writes, samples := w.finish(t)
	total := now().since(begun)

	exclusion(t, r, &tally, holds, writes)
	r.together(holds)
	registers(t, r, &tally, summaries, locks)
	history(t, r, holds)
	grants, calmGrants := make([]int, soakWorkers), map[string]int{}
	ends, failures := map[string]int{}, map[string]int{}
	for i := range summaries {
		for lock, k := range summaries[i].Grants {
			grants[i] += k
			calmGrants[lock] += summaries[i].CalmGrants[lock]
		}
		merge(ends, summaries[i].Ends)
		merge(failures, summaries[i].Failures)
	}
	granted := 0
	for _, k := range calmGrants {
		if k > 0 {
			granted++
		}
	}
	r.figure(fmt.Sprintf("locks granted in the last %v, after the faults: %d/%d; grants by worker %v",
		calmed.Round(time.Second), granted, locks, grants), "all, every worker", granted == locks && slices.Min(grants) > 0)
	bar := "nine of ten made"
	bitten := lostBy(summaries, len(holds) > 10_000)
	if len(holds) > 10_000 {
		bar += ", and each process has lost leases"
	}
	r.figure(fmt.Sprintf("faults made %d of %d; leases: %v; acquisitions: %d, not granted: %v",
		made, len(plan), ends, len(holds), failures), bar, made*10 >= len(plan)*9 && bitten)
	judgeSamples(r, samples, begun, total)
}

// lostBy reports whether each worker, or any, has lost a lease: faults that no lease has felt show nothing.
func lostBy(summaries []workerSummary, each bool) bool {
	all := 0
	for i := range summaries {
		lost := 0
		for end, k := range summaries[i].Ends {
			if end != released {
				lost += k
			}
		}
		if all += lost; each && lost == 0 {
			return false
		}
	}
	return !each || all > 0
}

// carryOut causes the faults of a plan, waits until the nodes vote again, and tells the workers that calm begins. It
// returns how many faults it has caused.
func (n *nemesis) carryOut(t *testing.T, plan []soakFault) (made int) {
	t.Helper()
	var faults sync.WaitGroup
	begun := now()
	for i := range plan {
		begun.after(plan[i].at).wait()
		faults.Go(func() { n.do(&plan[i]) })
	}
	faults.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	assert.Empty(t, n.errors, "faults that could not be made") // the figures are useful anyway
	time.Sleep(soakTTL + soakRecovery)                         // the last quarantine, and its effects
	for _, child := range n.workers {
		require.NoError(t, child.send(workerCalm))
	}
	return len(plan) - n.skipped
}

// registers compares the witness's registers with the writes that it has confirmed.
func registers(t *testing.T, r *row, tally *witnessTally, summaries []workerSummary, locks int) {
	t.Helper()
	acknowledged := map[string]int{}
	for i := range summaries {
		merge(acknowledged, summaries[i].Acknowledged)
	}
	wrong := 0
	for lock, stands := range tally.Registers {
		if int64(acknowledged[lock]) != stands {
			wrong++
			t.Logf("%s: the register stands at %d after %d writes", lock, stands, acknowledged[lock])
		}
	}
	r.figure(fmt.Sprintf("registers that do not stand at the number of their writes %d/%d", wrong, len(tally.Registers)),
		"0", wrong == 0 && len(tally.Registers) == locks)
}

// history checks the history of each lock.
func history(t *testing.T, r *row, holds []hold) {
	t.Helper()
	histories, operations, illegal := linearizable(holds)
	for _, bad := range illegal {
		t.Log(bad)
	}
	r.figure(fmt.Sprintf("linearizable %d/%d, %d operations", histories-len(illegal), histories, operations), "all", len(illegal) == 0)
}

func merge(into, from map[string]int) {
	for name, k := range from {
		into[name] += k
	}
}

// judgeSamples compares the resources of each worker in the first third of the run, after a warm-up, with the last
// third. It uses medians, so that one fault does not matter. Only growth counts; a process that needs less later has no
// leak.
//
// The warm-up is long, two fifths of the run up to five minutes. The heap must reach the size that the worst fault
// causes, and any of the first faults may be the worst.
//
// The library is responsible for the live heap, which is what a collection leaves. Stacks have no bar of their own: the
// goroutines are counted, and with time the runtime spreads the stacks of the same goroutines over more spans of 32
// KiB. Resident memory includes everything. Under the race detector most of it is the detector's own, which grew in
// every observed run, while the same load without it, make soak RACE=, is flat. The bar is the same, so a long run
// under the detector misses it.
func judgeSamples(r *row, samples []workerSample, begun instant, total time.Duration) {
	bound := 0.05
	if total < 2*time.Minute {
		bound = 0.5 // few samples, and faults in all of them
	}
	warm := min(2*total/5, 5*time.Minute)
	third := (total - warm) / 3
	const stacks, resident = "stacks", "resident memory"
	kinds := []struct {
		name string
		of   func(*workerSample) int64
	}{
		{"goroutines", func(s *workerSample) int64 { return int64(s.Goroutines) }},
		{"live heap", func(s *workerSample) int64 { return s.Heap }},
		{stacks, func(s *workerSample) int64 { return s.Stacks }},
		{resident, func(s *workerSample) int64 { return s.Resident }},
	}
	for _, kind := range kinds {
		worst := -1.0
		var text []string
		for worker := range soakWorkers {
			var first, last []int64
			for i := range samples {
				s := &samples[i]
				switch at := s.At.since(begun); {
				case s.Client != worker || at < warm:
				case at < warm+third:
					first = append(first, kind.of(s))
				case at > total-third:
					last = append(last, kind.of(s))
				}
			}
			r.t.Logf("worker %d, %s, medians of the tenths of the run: %v", worker, kind.name, tenths(samples, worker, kind.of, begun, total))
			a, b := quantile(first, 0.5), quantile(last, 0.5)
			if a == 0 || b == 0 {
				r.t.Errorf("worker %d: no samples of %s", worker, kind.name)
				continue
			}
			growth := float64(b)/float64(a) - 1
			worst = max(worst, growth)
			text = append(text, fmt.Sprintf("%s → %s", amount(a), amount(b)))
		}
		limit := bound
		if kind.name == resident && total < 10*time.Minute {
			limit *= 2 // the race detector's shadow has grown for minutes
		}
		bar := fmt.Sprintf("at most %.0f %% in a run this long", 100*limit)
		if kind.name == stacks {
			limit, bar = math.Inf(1), "none: spans of the runtime"
		}
		r.figure(fmt.Sprintf("growth of %s %+.1f %% at most (%s)", kind.name, 100*worst, strings.Join(text, ", ")), bar, worst <= limit)
	}
}

// tenths shows when the growth happened.
func tenths(
	samples []workerSample, worker int, of func(*workerSample) int64, begun instant, total time.Duration,
) (medians []string) {
	var parts [10][]int64
	for i := range samples {
		if s := &samples[i]; s.Client == worker {
			part := &parts[max(0, min(9, int(10*s.At.since(begun)/total)))]
			*part = append(*part, of(s))
		}
	}
	for _, part := range parts {
		medians = append(medians, amount(quantile(part, 0.5)))
	}
	return medians
}

// amount formats bytes readably and small numbers unchanged.
func amount(v int64) string {
	if v < 1<<16 {
		return strconv.FormatInt(v, 10)
	}
	return fmt.Sprintf("%.2f MiB", float64(v)/(1<<20))
}
