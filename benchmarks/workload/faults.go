//go:build unix

package workload

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// faultBound bounds one call while a node is down. redsync waits for its slowest node, and the figures must show that.
const faultBound = 30 * time.Second

// The names of the cases of the workload "faults".
const (
	Hung   = "one node hung, N=3"
	Killed = "one node killed, N=3"
)

func faults() Workload {
	w := Workload{
		Name:  "faults",
		Title: "One node of three down",
		About: fmt.Sprintf("One caller acquires and releases a free lock, while one of three nodes is stopped (SIGSTOP) or killed. A call is "+
			"given up after %v.", faultBound),
		Columns: []report.Column{
			{Key: "lock50", Title: "lock p50, µs"}, {Key: "lock99", Title: "lock p99, µs"},
			{Key: "unlock50", Title: "unlock p50, µs"}, {Key: "unlock99", Title: "unlock p99, µs"},
			{Key: "healthy50", Title: "healthy pair p50, µs"}, {Key: "healthy99", Title: "healthy pair p99, µs"},
			{Key: "ratio99", Title: "pair p99 / healthy", Digits: 2},
			{Key: "goroutines", Title: "goroutines added"}, {Key: "failed", Title: "failed"},
		},
		Chart: "lock50",
		Log:   true,
	}
	names := []string{contest.Fenced, contest.Unfenced, contest.RedsyncGoredis, contest.RedsyncRueidis}
	w.Cases = []Case{
		{Name: Hung, Nodes: 3, Contestants: names, Measure: func(b *Bench) (Values, error) {
			return b.breakNode(b.Servers[len(b.Servers)-1].Stop)
		}},
		{Name: Killed, Nodes: 3, Contestants: names, Measure: func(b *Bench) (Values, error) {
			return b.breakNode(b.Servers[len(b.Servers)-1].Kill)
		}},
	}
	return w
}

// A callTimes is how long calls took, in microseconds, and how many failed.
type callTimes struct {
	locks, unlocks, pairs []float64
	failed                float64
	last                  error
}

// breakNode measures pairs before and after a node is broken.
func (b *Bench) breakNode(fault func()) (Values, error) {
	client, err := b.connect(0)
	if err != nil {
		return nil, err
	}
	b.timePairs(client, b.warmUp())
	healthy := b.timePairs(client, b.Duration)
	if healthy.last != nil {
		return nil, healthy.last
	}
	goroutines := runtime.NumGoroutine()
	fault()
	broken := b.timePairs(client, b.Duration)
	after := runtime.NumGoroutine()
	values := Values{
		"healthy50": stats.Percentile(healthy.pairs, 50), "healthy99": stats.Percentile(healthy.pairs, 99),
		"goroutines": float64(after - goroutines), "failed": broken.failed,
	}
	if len(broken.pairs) == 0 {
		return nil, fmt.Errorf("no pair with a broken node: %w", broken.last)
	}
	values["lock50"], values["lock99"] = stats.Percentile(broken.locks, 50), stats.Percentile(broken.locks, 99)
	values["unlock50"], values["unlock99"] = stats.Percentile(broken.unlocks, 50), stats.Percentile(broken.unlocks, 99)
	values["ratio99"] = stats.Percentile(broken.pairs, 99) / math.Max(values["healthy99"], 1)
	return values, nil
}

// timePairs times pairs for d, and at least one.
func (b *Bench) timePairs(client contest.Client, d time.Duration) (t callTimes) {
	for end := time.Now().Add(d); len(t.pairs) < maxSamples; {
		if err := b.timePair(client, &t); err != nil {
			t.failed++
			t.last = err
		}
		if time.Now().After(end) || b.Context.Err() != nil {
			break
		}
	}
	return t
}

func (b *Bench) timePair(client contest.Client, t *callTimes) error {
	ctx, cancel := context.WithTimeout(b.Context, faultBound)
	defer cancel()
	began := time.Now()
	held, err := client.Lock(ctx, "faults")
	if err != nil {
		return err
	}
	locked := time.Now()
	if err := held.Release(ctx); err != nil {
		// The key of the next lock is still there: the next call waits for it.
		return err
	}
	released := time.Now()
	t.locks = append(t.locks, micros(locked.Sub(began)))
	t.unlocks = append(t.unlocks, micros(released.Sub(locked)))
	t.pairs = append(t.pairs, micros(released.Sub(began)))
	return nil
}
