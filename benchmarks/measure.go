//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/workload"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// measureRole is the argument with which this program is started for one
// measurement. It reads a question from its standard input, writes an answer to
// its standard output, and gives up when its input ends.
const measureRole = "measure"

type question struct {
	Options    workload.Options `json:"options"`
	Workload   string           `json:"workload"`
	Case       string           `json:"case"`
	Contestant string           `json:"contestant"`
}

type answer struct {
	Values workload.Values `json:"values,omitempty"`
	Redis  string          `json:"redis,omitempty"` // the version of the servers
	Error  string          `json:"error,omitempty"`
}

// measure is the role of a process that measures once.
func measure() int {
	h := &host{}
	defer h.close() // also when this goroutine panics
	input := bufio.NewReader(os.Stdin)
	var q question
	line, err := input.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &q)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks: question:", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go h.endWithParent(cancel, input)

	a, err := q.answer(ctx, h)
	if err != nil {
		a = answer{Error: err.Error()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks: answer:", err)
		return 1
	}
	return 0
}

// answer starts the servers and measures.
func (q *question) answer(ctx context.Context, h *host) (a answer, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *hostFailure:
			err = r
		default:
			panic(r)
		}
	}()
	c, err := workload.Find(q.Options, q.Workload, q.Case)
	if err != nil {
		return a, err
	}
	contestant, ok := contest.Named(q.Contestant)
	if !ok {
		return a, fmt.Errorf("no contestant %q", q.Contestant)
	}
	if c.Pinned {
		if err := pin(); err != nil { // before the servers start, which inherit it
			return a, fmt.Errorf("pin to one core: %w", err)
		}
	}
	servers := start(h, &c)
	values, err := c.Measure(workload.NewBench(ctx, q.Options, servers, contestant))
	if err != nil {
		return a, err
	}
	for key, value := range values {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			delete(values, key) // not measured, and JSON has no word for it
		}
	}
	return answer{Values: values, Redis: workload.ServerVersion(servers[0])}, nil
}

// start starts the servers of a case.
func start(tb testing.TB, c *workload.Case) []*redistest.Server {
	tb.Helper()
	if !c.Cluster {
		return redistest.Start(tb, c.Nodes)
	}
	// 0 is a server's own port. Otherwise all that servers say to each other would pass through proxies in this process,
	// whose CPU is measured.
	return redistest.StartCluster(tb, redistest.ClusterOptions{Args: []string{
		"--cluster-announce-port", "0", "--cluster-announce-bus-port", "0", "--replica-announce-port", "0",
		"--protected-mode", "no", // each server dials from an address of its own
		"--cluster-require-full-coverage", "no",
	}}).Servers()
}

// A host stands in for the test that package redistest wants. When it is closed, the servers end and their directories
// are removed.
type host struct {
	testing.TB // never set: only what is defined here may be called

	mu       sync.Mutex
	cleanups []func() // guarded by mu
}

// A hostFailure is what the servers fail with.
type hostFailure struct{ text string }

func (f *hostFailure) Error() string { return f.text }

// Helper implements testing.TB.
func (h *host) Helper() {}

// Failed implements testing.TB: logs of servers are not shown.
func (h *host) Failed() bool { return false }

// Cleanup implements testing.TB.
func (h *host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

// Fatalf implements testing.TB: it ends the measurement.
func (h *host) Fatalf(format string, args ...any) { panic(&hostFailure{fmt.Sprintf(format, args...)}) }

// TempDir implements testing.TB.
func (h *host) TempDir() string {
	dir, err := os.MkdirTemp("", "redis-")
	if err != nil {
		h.Fatalf("temporary directory: %v", err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// close runs the clean-ups, the last one first. It may be called again.
func (h *host) close() {
	for {
		h.mu.Lock()
		last := len(h.cleanups) - 1
		if last < 0 {
			h.mu.Unlock()
			return
		}
		cleanup := h.cleanups[last]
		h.cleanups = h.cleanups[:last]
		h.mu.Unlock()
		cleanup()
	}
}

// endWithParent ends the servers and then this process, when the parent has ended or a signal arrives. The measurement
// may hang, so it is not awaited.
func (h *host) endWithParent(cancel func(), input io.Reader) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, input)
		close(gone)
	}()
	select {
	case <-signals:
	case <-gone:
	}
	cancel()
	h.close()
	os.Exit(1)
}
