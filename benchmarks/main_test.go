//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/workload"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// mainVariable makes the test binary the program itself.
const mainVariable = "QUORUMLOCK_BENCHMARKS"

func TestMain(m *testing.M) {
	if _, ok := roleOf(os.Args); ok || os.Getenv(mainVariable) != "" {
		main()
		return
	}
	// Otherwise a process under the race detector waits a second before it ends.
	_ = os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=10"))
	goleak.VerifyTestMain(m)
}

func TestTheKnobsAreChecked(t *testing.T) {
	s, err := parse(nil)
	require.NoError(t, err)
	assert.Equal(t, 5, s.rounds)
	assert.Equal(t, filepath.Join("docs", "benchmarks", "results.json"), s.results)
	assert.Equal(t, "make bench-peers COUNT=5 DURATION=2s", s.command())

	s, err = parse([]string{"-leases", "10, 20", "-workloads", "latency", "-count", "2", "-docs", ""})
	require.NoError(t, err)
	assert.Equal(t, []int{10, 20}, s.options.Leases)
	assert.Empty(t, s.results, "without documents nothing is written")
	assert.Equal(t, "make bench-peers COUNT=2 DURATION=2s LEASES=10,20 WORKLOADS='latency'", s.command())

	s, err = parse([]string{"-cluster"})
	require.NoError(t, err)
	assert.Empty(t, s.results, "figures of two own clients are not for the document")
	assert.Equal(t, 12*time.Second, s.options.TTL)
	assert.Equal(t, []int{100_000}, s.options.Leases)
	assert.Equal(t, 1, s.rounds)
	s, err = parse([]string{"-cluster", "-ttl", "20s", "-leases", "10", "-count", "2"})
	require.NoError(t, err)
	assert.Equal(t, "make bench-peers COUNT=2 DURATION=2s LEASES=10", s.command())
	assert.Equal(t, 20*time.Second, s.options.TTL)

	for _, bad := range [][]string{
		{"-count", "0"}, {"-duration", "0s"}, {"-ttl", "10ms"}, {"-leases", ""}, {"-leases", "5,0"}, {"-workloads", "("}, {"latency"},
	} {
		_, err := parse(bad)
		assert.Error(t, err, "%v", bad)
	}
}

func TestTheGateMeasuresOnlyWhatItsGoalsNeed(t *testing.T) {
	full, err := parse([]string{"-workloads", "latency"})
	require.NoError(t, err)
	short, err := parse([]string{"-workloads", "latency", "-gate"})
	require.NoError(t, err)
	assert.Equal(t, gateRounds, short.rounds)
	assert.Equal(t, gateDuration, short.options.Duration)
	assert.Empty(t, short.results)
	text := func(s *settings) string {
		var b strings.Builder
		for _, j := range newPlan(s) {
			b.WriteString(j.String() + "\n")
		}
		return b.String()
	}
	assert.Contains(t, text(&full), "latency/N=1/raw sockets\n")
	assert.NotContains(t, text(&short), "raw sockets")
	assert.Contains(t, text(&short), "latency/N=1/redislock\n")
}

func TestContestantsTakeTurns(t *testing.T) {
	s, err := parse([]string{"-workloads", "latency/N=3/"})
	require.NoError(t, err)
	plan := newPlan(&s)
	require.NotEmpty(t, plan)
	seen := make(map[string]bool)
	for _, j := range plan {
		assert.False(t, seen[j.contestant], "%s twice in a round", j.contestant)
		seen[j.contestant] = true
	}
}

// TestAShortRunMeasuresEverythingOnRealServers runs the whole way, from the knobs
// to the document, in miniature.
func TestAShortRunMeasuresEverythingOnRealServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers again and again")
	}
	docs, temporary := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	path := filepath.Join(docs, "benchmarks.md")
	require.NoError(t, os.WriteFile(path, []byte("before\n"+report.Begin+report.End+"\nafter\n"), 0o600))
	only := `^(latency/N=1/(quorumlock|redislock|raw sockets)|throughput/64 callers, N=3/(quorumlock|raw sockets)|managers/N=3/quorumlock` +
		`|neighbour/4 redsync, polling.*/quorumlock|watchdog/.*, N=5/quorumlock|close/.*/quorumlock|faults/one node killed, N=3/quorumlock)$`
	args := []string{"-count", "1", "-duration", "60ms", "-ttl", "1s", "-leases", "40", "-docs", docs, "-workloads", only}
	require.NoError(t, run(t.Context(), args))

	results, err := report.Load(filepath.Join(docs, "benchmarks", "results.json"))
	require.NoError(t, err)
	assert.Len(t, results.Sections, 7)
	for _, section := range results.Sections {
		for _, row := range section.Rows {
			assert.Empty(t, row.Errors, "%s/%s/%s", section.Workload, row.Case, row.Contestant)
			for _, column := range section.Columns {
				assert.Contains(t, row.Values, column.Key, "%s/%s/%s", section.Workload, row.Case, row.Contestant)
			}
		}
		assert.NotEmpty(t, section.Run.Redis)
		assert.NotEmpty(t, section.Run.Go)
	}
	pictures, err := filepath.Glob(filepath.Join(docs, "benchmarks", "*.svg"))
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(docs, "benchmarks", "latency.svg")}, pictures, "two figures need no picture")
	median := func(workload, name, contestant, key string) float64 {
		row := results.Find(workload, name, contestant)
		require.NotNil(t, row)
		return row.Median(key)
	}
	assert.Greater(t, median("latency", "N=1", "quorumlock", "p50"), 10.0, "µs: no system call is faster")
	assert.Greater(t, median("throughput", "64 callers, N=3", "raw sockets", "ops"), median("throughput", "64 callers, N=3", "quorumlock", "ops"))
	assert.Positive(t, median("managers", "N=3", "quorumlock", "scripts"), "processes hand the lock on by scripts")
	assert.Greater(t, median("watchdog", "40 leases, N=5", "quorumlock", "scripts"), 5.0, "renewals go on, on five nodes")

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(text), "before\n") && strings.HasSuffix(string(text), "\nafter\n"))
	assert.Contains(t, string(text), "| p50, µs | N=1 |\n|---|---|\n| quorumlock | ")

	left, err := os.ReadDir(temporary)
	require.NoError(t, err)
	assert.Empty(t, left, "directories of servers stay")
	assert.Empty(t, servedFrom(t, temporary), "servers go on")
}

// servedFrom returns the processes that work in dir or below: the servers do.
func servedFrom(t *testing.T, dir string) (processes []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, dir) {
			processes = append(processes, link)
		}
	}
	return processes
}

// The servers must end with the program, whatever ends it.
func TestAnInterruptedRunLeavesNoServer(t *testing.T) {
	if _, err := os.Stat("/proc/self/cwd"); err != nil {
		t.Skip("looks for processes in /proc")
	}
	for name, sent := range map[string]os.Signal{"SIGINT": os.Interrupt, "SIGTERM": syscall.SIGTERM, "SIGKILL": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temporary := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-docs", "", "-duration", "1m", "-workloads", "^latency/N=3/raw sockets$")
			cmd.Env = append(os.Environ(), mainVariable+"=1", "TMPDIR="+temporary)
			var said bytes.Buffer
			cmd.Stderr = &said
			cmd.WaitDelay = time.Second // a measurement that continues holds the other end of Stderr
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool { return len(servedFrom(t, temporary)) == 3 }, 20*time.Second, 20*time.Millisecond)

			require.NoError(t, cmd.Process.Signal(sent))
			require.Error(t, cmd.Wait())
			require.Eventually(t, func() bool { return len(servedFrom(t, temporary)) == 0 }, 10*time.Second, 20*time.Millisecond)
			if sent != os.Kill {
				left, err := os.ReadDir(temporary)
				require.NoError(t, err)
				assert.Empty(t, left)
				assert.Contains(t, said.String(), "interrupted")
			}
		})
	}
}

// Otherwise the client's process would carry what the servers say to each other, and its CPU would be in the figures.
func TestTheServersOfAClusterHaveNoProxiesBetweenThem(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	servers := start(t, &workload.Case{Cluster: true})
	addrs := redistest.Addrs(servers)
	slices.Sort(addrs)
	for _, s := range servers {
		require.Eventually(t, func() bool {
			var known []string
			for line := range strings.Lines(s.MustDo("CLUSTER", "NODES").(string)) {
				addr, _, _ := strings.Cut(strings.Fields(line)[1], "@")
				known = append(known, addr)
			}
			slices.Sort(known)
			return slices.Equal(known, addrs)
		}, 20*time.Second, 20*time.Millisecond)
	}
}

func TestAWholeClusterIsComparedWithOneSlotOnRealServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters")
	}
	s, err := parse([]string{"-cluster", "-duration", "60ms", "-ttl", "1s", "-leases", "40", "-workloads", " 8 callers| 40 leases|heap"})
	require.NoError(t, err)
	sections, err := runPlan(t.Context(), &s, newPlan(&s))
	require.NoError(t, err)
	require.Len(t, sections, 1)
	require.Len(t, sections[0].Rows, 3)
	for _, row := range sections[0].Rows {
		require.Empty(t, row.Errors, row.Case)
		for _, column := range sections[0].Columns {
			if column.Key != "servers" || !strings.HasPrefix(row.Case, "heap") {
				assert.Contains(t, row.Values, column.Key, row.Case)
			}
		}
		assert.Positive(t, row.Median("whole"), row.Case)
		assert.Positive(t, row.Median("slot"), row.Case)
	}
	for _, i := range []int{0, 2} { // twice the CPU, and a larger heap; 40 leases cost nearly the same
		row := sections[0].Rows[i]
		assert.Greater(t, row.Median("whole"), row.Median("slot"), "%s: sixteen buckets need more than one", row.Case)
	}
}

func TestAMeasurementThatCannotStartSaysWhy(t *testing.T) {
	t.Setenv("REDIS_SERVER", filepath.Join(t.TempDir(), "none"))
	s, err := parse([]string{"-workloads", "latency/N=1/quorumlock$", "-count", "1", "-docs", ""})
	require.NoError(t, err)
	sections, err := runPlan(t.Context(), &s, newPlan(&s))
	require.NoError(t, err)
	require.Len(t, sections, 1)
	require.Len(t, sections[0].Rows[0].Errors, 1)
	assert.Contains(t, sections[0].Rows[0].Errors[0], "no redis-server")
	_, err = json.Marshal(sections)
	assert.NoError(t, err, "what was not measured has no number")
}
