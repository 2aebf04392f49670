package battery

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// forSizes runs a row on 3 and on 5 nodes, as subtests "N=3" and "N=5". With small counts it uses 3 only, and rows that
// mostly wait run in parallel.
func forSizes(t *testing.T, waits bool, run func(t *testing.T, n int)) {
	t.Helper()
	sizes := []int{3, 5}
	if !full {
		sizes = sizes[:1]
		if waits {
			t.Parallel()
		}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) { run(t, n) })
	}
}

// within waits for a condition, and reports whether it came true.
func within(d time.Duration, condition func() bool) bool {
	for deadline := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		if condition() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// patiently is within with a limit for a loaded machine. It ends the test if the condition does not come true.
func patiently(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	if !within(30*time.Second, condition) {
		tb.Fatalf("waited in vain: %s", what)
	}
}

// ended reports whether the end of a lease has been reported. It only reads the channel, because Valid and Err would
// themselves find the end and report it.
func ended(l *quorumlock.Lease) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

// at returns the smallest value that at least this part of the values does not exceed.
func at(part float64, values []time.Duration) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// spread formats durations for a figure.
func spread(values []time.Duration) string {
	return fmt.Sprintf("p50 %v, p99 %v, max %v", brief(at(.5, values)), brief(at(.99, values)), brief(at(1, values)))
}

// brief rounds a duration for a reader.
func brief(d time.Duration) time.Duration {
	switch abs := d.Abs(); {
	case abs >= 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case abs >= 100*time.Millisecond:
		return d.Round(time.Millisecond)
	case abs >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	default:
		return d.Round(time.Microsecond)
	}
}

// spin keeps every core busy twice over, until stop is called.
func spin() (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !over.Load() {
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
	}
}

// memory returns the memory of this process after a collection, in MiB, and the name of the figure. That is its
// resident set, except under the race detector, whose shadow of all memory ever touched would dominate it. There it is
// the memory that the Go runtime has from the system and has not returned.
func memory(tb testing.TB) (mib float64, what string) {
	tb.Helper()
	debug.FreeOSMemory()
	if raced() {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return float64(stats.Sys-stats.HeapReleased) / (1 << 20), "memory of the runtime (-race)"
	}
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(tb, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			require.NoError(tb, err)
			return kib / 1024, "RSS"
		}
	}
	tb.Fatal("no VmRSS in /proc/self/status")
	return 0, ""
}

// grown prints how much the memory has grown above since. It is a bar only in full runs, because only there the process
// does nothing else.
func (r *row) grown(since float64) {
	r.t.Helper()
	now, what := memory(r.t)
	r.figure(fmt.Sprintf("%s %+.1f MiB", what, now-since), atLeastInFull("at most +10 MiB"), !full || now-since <= 10)
}

// raced reports whether the race detector is built in.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// lockKey is the key of a lock under the default prefix.
func lockKey(name string) string { return config.DefaultPrefix + name }

// holding returns how many of the servers have the lock, or -1 if one does not answer.
func holding(servers []*redistest.Server, name string) (n int) {
	for _, s := range servers {
		reply, err := s.Do("EXISTS", lockKey(name))
		if err != nil {
			return -1
		}
		if reply == int64(1) {
			n++
		}
	}
	return n
}
