//go:build linux

package battery

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A tenure is a lease that a holder has, and its record.
type tenure struct {
	lease *quorumlock.Lease
	h     hold
}

// newTenure begins the record of a lease that was just returned. Ended stays 0 until the lease is seen valid or lost: a
// process that stops between the grant and this call finds a lease that ended before Granted.
func newTenure(l *quorumlock.Lease, client int, began instant) *tenure {
	granted, lock := now(), l.Name()
	if slot := l.Slot(); slot >= 0 { // each slot is a separate lock
		lock = fmt.Sprintf("%s slot %d", lock, slot)
	}
	return &tenure{l, hold{
		Lock: lock, Client: client, Shared: l.Shared(), Token: l.Token(), Began: began, Granted: granted,
	}}
}

// valid calls Valid, and records the instant. It reads the clock before the call: if the process stands still between
// the two, the hold does not become longer.
func (g *tenure) valid() bool {
	at := now()
	if !g.lease.Valid() {
		return false
	}
	g.h.Ended = max(g.h.Ended, at)
	return true
}

// lost completes the record of a lost lease.
func (g *tenure) lost(err *quorumlock.LostError, reported instant) {
	g.h.Ended = max(g.h.Ended, instantOf(err.ValidUntil))
	g.h.Reported, g.h.End = reported, string(err.Reason)
}

// release releases the lease and completes the record. A release that too few nodes confirmed ends the lease anyway.
func (g *tenure) release(ctx context.Context) error {
	g.valid()
	err := g.lease.Release(ctx)
	reported := now()
	var lost *quorumlock.LostError
	switch {
	case errors.As(err, &lost):
		g.lost(lost, reported)
	case err == nil || errors.Is(err, quorumlock.ErrNoQuorum):
		g.h.Reported, g.h.End = reported, released
	default:
		return fmt.Errorf("release of %v: %w", &g.h, err)
	}
	return nil
}

// workerConfig configures a worker process. For each lock it has a goroutine that acquires it, reads the witness's
// register, waits, writes, and releases. Under a shared lease it reads again instead of writing.
type workerConfig struct {
	Client      int
	Addrs       []string
	Witness     string
	Seed        uint64
	Locks       int
	Shared      float64 // this part of the sections reads
	Permits     int     // the number of permits of each lock; 0 for a lock without
	Callers     int     // the number of goroutines under each lock; 0 for one
	TTL, Guard  time.Duration
	Patience    time.Duration    // of an Acquire
	Think       time.Duration    // the longest pause between two sections
	Hold        [2]time.Duration // the shortest and the longest section
	Long        float64          // this part of the sections lasts longer:
	LongHold    [2]time.Duration
	SampleEvery time.Duration // 0 for no samples
}

// workerCommand is a command to a worker.
type workerCommand string

const (
	workerCalm workerCommand = "calm" // the faults have ended: no more long sections
	workerStop workerCommand = "stop"
)

// workerSummary is a worker's last answer.
type workerSummary struct {
	Grants, CalmGrants map[string]int // by lock; those since "calm"
	Acknowledged       map[string]int // writes, by lock
	Ends               map[string]int // by the way in which the lease ended
	Failures           map[string]int // of Acquire, by kind
	Error              string         // an error that must not happen
}

// workerSample is a worker's use of resources at one instant.
type workerSample struct {
	Client     int
	At         instant
	Goroutines int
	Heap       int64 // bytes after a collection
	Stacks     int64 // bytes of the spans that stacks are in
	Resident   int64 // bytes; under the race detector mostly the detector's
}

func lockName(i int) string { return fmt.Sprintf("lock-%02d", i) }

func init() { roles["worker"] = workerRole }

type worker struct {
	config workerConfig
	m      *quorumlock.Manager
	ctx    context.Context // until "stop"
	calm   chan struct{}

	mu      sync.Mutex
	summary workerSummary
}

// workerRole answers "ready", works until the command to stop, and answers its summary.
func workerRole() int {
	w := &worker{calm: make(chan struct{}), summary: workerSummary{
		Grants: map[string]int{}, CalmGrants: map[string]int{}, Acknowledged: map[string]int{},
		Ends: map[string]int{}, Failures: map[string]int{},
	}}
	if err := roleConfig(&w.config); err != nil {
		return roleFailed(err)
	}
	opts := []quorumlock.Option{
		quorumlock.WithTTL(w.config.TTL), quorumlock.WithHolder(fmt.Sprintf("worker %d", w.config.Client)),
	}
	if w.config.Guard > 0 {
		opts = append(opts, quorumlock.WithRestartGuard(w.config.Guard))
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	w.ctx = ctx
	var err error
	if w.m, err = quorumlock.New(ctx, quorumlock.Addrs(w.config.Addrs...), opts...); err != nil {
		return roleFailed(err)
	}
	var running sync.WaitGroup
	for i := range w.config.Locks {
		for k := range max(w.config.Callers, 1) {
			running.Go(func() {
				w.run(lockName(i), rand.New(rand.NewPCG(w.config.Seed, uint64(w.config.Client*1000+i+k*1_000_000))))
			})
		}
	}
	if w.config.SampleEvery > 0 {
		running.Go(w.sample)
	}
	if err := answer("ready"); err != nil {
		return roleFailed(err)
	}
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		var command workerCommand
		if err := json.Unmarshal(commands.Bytes(), &command); err != nil {
			return roleFailed(err)
		}
		if command == workerStop {
			break
		}
		close(w.calm)
	}
	stop()
	running.Wait()
	if err := w.m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	if err := answer(&w.summary); err != nil {
		return roleFailed(err)
	}
	return 0
}

// fail records an error that must not happen, and ends the work.
func (w *worker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.summary.Error == "" {
		w.summary.Error = err.Error()
	}
}

func (w *worker) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.summary.Error != ""
}

// add counts a name in one of the summary's maps.
func (w *worker) add(counts map[string]int, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts[name]++
}

// run works under one lock.
func (w *worker) run(lock string, rng *rand.Rand) {
	link, err := dialWitness(w.config.Witness)
	if err != nil {
		w.fail(err)
		return
	}
	defer link.close()
	for w.ctx.Err() == nil && !w.failed() {
		if err := w.section(lock, rng, link); err != nil {
			w.fail(err)
			return
		}
		if w.config.Think > 0 {
			w.dwell(time.Duration(rng.Int64N(int64(w.config.Think))), nil)
		}
	}
}

// dwell waits, and returns early when the work or the lease ends.
func (w *worker) dwell(d time.Duration, lease <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-lease:
	case <-w.ctx.Done():
	}
}

// section is one critical section, from the acquisition to the release.
func (w *worker) section(lock string, rng *rand.Rand, link *witnessLink) error {
	acquire := w.m.Acquire
	if w.config.Shared > 0 && rng.Float64() < w.config.Shared {
		acquire = testkit.With(w.m.Acquire, quorumlock.Shared())
	} else if w.config.Permits > 0 {
		acquire = testkit.With(w.m.Acquire, quorumlock.Permits(w.config.Permits))
	}
	began := now()
	ctx, cancel := context.WithTimeout(w.ctx, w.config.Patience)
	l, err := acquire(ctx, lock)
	cancel()
	if err != nil {
		return w.refused(err)
	}
	g := newTenure(l, w.config.Client, began)
	w.add(w.summary.Grants, lock)
	select {
	case <-w.calm:
		w.add(w.summary.CalmGrants, lock)
	default:
	}
	read, err := link.call(witnessCall{Kind: callEnter, Hold: g.h})
	if err != nil {
		return err
	}
	if err := g.denied(read.Accepted, link); err != nil {
		return err
	}
	w.stay(g, rng)
	base := read.Value
	if read.Accepted && g.valid() {
		accepted, err := w.use(g, &base, link)
		if err != nil {
			return err
		}
		if err := g.denied(accepted, link); err != nil {
			return err
		}
	}
	if err := g.release(context.Background()); err != nil {
		return err
	}
	w.add(w.summary.Ends, g.h.End)
	if read.Accepted && g.h.End != released {
		// This is a program that does not check its lease: the fence must refuse it if there is a successor.
		if _, err := w.use(g, &base, link); err != nil {
			return err
		}
	}
	_, err = link.call(witnessCall{Kind: callExit, Hold: g.h})
	return err
}

// use writes the register, or reads it again: then the first value is the only right one.
func (w *worker) use(g *tenure, base *int64, link *witnessLink) (right bool, err error) {
	if g.h.Shared {
		reply, err := link.call(witnessCall{Kind: callRead})
		return reply.Accepted && reply.Value == *base, err
	}
	reply, err := link.call(witnessCall{Kind: callWrite, Base: *base, Value: *base + 1})
	if err == nil && reply.Accepted {
		*base++
		w.add(w.summary.Acknowledged, g.h.Lock)
	}
	return reply.Accepted, err
}

// stay is the work of a section: short, or sometimes several TTLs long.
func (w *worker) stay(g *tenure, rng *rand.Rand) {
	between := func(d [2]time.Duration) time.Duration {
		return d[0] + time.Duration(rng.Int64N(int64(d[1]-d[0])+1))
	}
	if rng.Float64() >= w.config.Long {
		w.dwell(between(w.config.Hold), nil)
		return
	}
	end := now().after(between(w.config.LongHold))
	for w.ctx.Err() == nil && now() < end && g.valid() {
		select {
		case <-w.calm:
			return
		default:
			w.dwell(20*time.Millisecond, g.lease.Done())
		}
	}
}

// denied reports to the witness that an access was refused while the lease was valid, or that a reader found an
// impossible value. A holder with a higher token has accessed the register, so either the tokens are wrong or two
// leases are valid at once.
func (g *tenure) denied(right bool, link *witnessLink) error {
	if right || !g.valid() {
		return nil
	}
	_, err := link.call(witnessCall{Kind: callDenied})
	return err
}

// refused sorts the errors of Acquire. It counts those caused by taken locks and by faults; any other error must not
// happen.
func (w *worker) refused(err error) error {
	switch {
	case w.ctx.Err() != nil:
	case errors.Is(err, quorumlock.ErrHeld):
		w.add(w.summary.Failures, "held")
	case errors.Is(err, quorumlock.ErrNoQuorum):
		var short *quorumlock.QuorumError
		if errors.As(err, &short) {
			for _, node := range short.Nodes {
				if node.Misconfigured {
					return fmt.Errorf("acquire: %w", err)
				}
			}
		}
		w.add(w.summary.Failures, "no quorum")
	case errors.Is(err, context.DeadlineExceeded):
		w.add(w.summary.Failures, "cut short")
	default:
		return fmt.Errorf("acquire: %w", err)
	}
	return nil
}

// sample reports the process's use of resources to the witness, again and again.
func (w *worker) sample() {
	link, err := dialWitness(w.config.Witness)
	if err != nil {
		w.fail(err)
		return
	}
	defer link.close()
	for w.ctx.Err() == nil {
		w.dwell(w.config.SampleEvery, nil)
		debug.FreeOSMemory() // collects first
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		resident, err := residentBytes()
		if err == nil {
			_, err = link.call(witnessCall{Kind: callSample, Sample: workerSample{
				Client: w.config.Client, At: now(), Goroutines: runtime.NumGoroutine(),
				Heap: int64(stats.HeapAlloc), Stacks: int64(stats.StackInuse), Resident: resident,
			}})
		}
		if err != nil {
			w.fail(err)
			return
		}
	}
}

// startWorkers starts worker processes and waits until they are ready.
func startWorkers(t *testing.T, configs []workerConfig) []*child {
	t.Helper()
	workers := make([]*child, len(configs))
	for i, config := range configs {
		workers[i] = spawn(t, "worker", config)
	}
	for _, w := range workers {
		var ready string
		require.NoError(t, w.receive(&ready))
	}
	return workers
}

// stopWorkers stops the workers and returns their summaries.
func stopWorkers(t *testing.T, workers []*child) []workerSummary {
	t.Helper()
	for _, w := range workers {
		require.NoError(t, w.send(workerStop))
	}
	summaries := make([]workerSummary, len(workers))
	for i, w := range workers {
		require.NoError(t, w.receive(&summaries[i]))
		require.NoError(t, w.end())
		require.Empty(t, summaries[i].Error, "worker %d", i)
	}
	return summaries
}

// exclusion prints the figures that every run with a witness must reach: the witness's counts during the run, and the
// results of the oracles on its log, which come from an independent path.
func exclusion(t *testing.T, r *row, tally *witnessTally, holds []hold, writes []registerWrite) {
	t.Helper()
	for _, complaint := range tally.Complaints {
		t.Log("witness: ", complaint)
	}
	seen, wrong := overlaps(holds), disorders(holds)
	for _, complaint := range append(seen[:min(len(seen), 10)], wrong[:min(len(wrong), 10)]...) {
		t.Log("oracle: ", complaint)
	}
	require.Equal(t, tally.Grants, len(holds), "a grant without an account")
	require.Zero(t, tally.Unfinished)
	r.figure(fmt.Sprintf("overlaps %d (witness) and %d (intervals) of %d holds", tally.Overlaps, len(seen), len(holds)),
		"0", tally.Overlaps == 0 && len(seen) == 0)
	r.figure(fmt.Sprintf("token errors %d (witness) and %d (oracle)", tally.TokenErrors, len(wrong)),
		"0", tally.TokenErrors == 0 && len(wrong) == 0)
	lost := lostUpdates(writes)
	r.figure(fmt.Sprintf("stale accesses accepted %d, valid ones refused %d, lost updates %d (%d of %d accesses refused)",
		tally.Stale, tally.RefusedWhileValid, max(lost, tally.Lost), tally.Refused, tally.Refused+tally.Accepted),
		"0, 0, 0", tally.Stale == 0 && tally.RefusedWhileValid == 0 && tally.Lost == 0 && lost == 0)
}

// Row 17: eight processes want one lock again and again, without any pause. The lock must change hands at more than 80
// % of the rate that such sections allow, so it is held for that part of the time. The race detector takes half of the
// client's CPU in a hand-over, so the rate is judged in a run without it, which make battery also does.
func TestEightProcessesShareOneLock(t *testing.T) {
	eachNight(t)
	lasting := time.Duration(count(60, 5)) * time.Second
	for _, n := range []int{3, 5}[:count(2, 1)] {
		title := fmt.Sprintf("8 processes, 1 lock, %v, N=%d", lasting, n)
		judged := full && !raced()
		if !raced() {
			title += ", no race detector"
		}
		r := newRow(t, title)
		w := startWitness(t)
		addrs := redistest.Addrs(redistest.Start(t, n))
		configs := make([]workerConfig, 8)
		for i := range configs {
			configs[i] = workerConfig{
				Client: i, Addrs: addrs, Witness: w.addr, Locks: 1, TTL: 2 * time.Second, Patience: time.Minute,
				Hold: [2]time.Duration{5 * time.Millisecond, 5 * time.Millisecond},
			}
		}
		workers := startWorkers(t, configs)
		time.Sleep(lasting)
		summaries := stopWorkers(t, workers)
		tally, holds, writes, _ := w.finish(t)

		exclusion(t, r, &tally, holds, writes)
		least, served := len(holds), 0
		acknowledged := 0
		for i := range summaries {
			grants := summaries[i].Grants[lockName(0)]
			least = min(least, grants)
			if grants > 0 {
				served++
			}
			acknowledged += summaries[i].Acknowledged[lockName(0)]
		}
		stands := tally.Registers[lockName(0)]
		r.figure(fmt.Sprintf("register %d after %d writes", stands, acknowledged), "equal", int64(acknowledged) == stands)
		_, operations, illegal := linearizable(holds)
		r.figure(fmt.Sprintf("linearizable, %d operations, %d illegal", operations, len(illegal)), "0", len(illegal) == 0)
		share := 8 * float64(least) / float64(len(holds))
		r.figure(fmt.Sprintf("served %d/8, smallest share %.2f of a fair one", served, share),
			atLeastInFull("8/8, a third"), served == 8 && share >= 1./3 || !full)
		var held time.Duration
		for i := range holds {
			held += max(0, holds[i].Ended.since(holds[i].Granted))
		}
		part := held.Seconds() / lasting.Seconds()
		r.figure(fmt.Sprintf("%.0f sections a second, held for %.0f %% of the time", float64(len(holds))/lasting.Seconds(), 100*part),
			atLeastInFull("more than 80 % without the race detector"), part > 0.8 || !judged)
	}
}
