//go:build unix

package workload

import (
	"context"
	"runtime"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// maxSamples bounds the samples of a measurement; it takes no more after that.
// They are reserved beforehand, so that taking one allocates nothing.
const maxSamples = 1 << 20

func latency() Workload {
	w := Workload{
		Name:  "latency",
		Title: "Latency of one caller",
		About: "One caller acquires and releases a free lock, client and servers on one core: on several, the waking of an idle " +
			"core counts most. Longer links are proxies; a round trip takes half of the pair of raw sockets.",
		Columns: []report.Column{
			{Key: "p50", Title: "p50, µs"}, {Key: "p99", Title: "p99, µs"},
			{Key: "allocs", Title: "allocations", Digits: 1}, {Key: "bytes", Title: "B"},
		},
		Chart: "p50",
	}
	for _, nodes := range []int{1, 3, 5} {
		w.Cases = append(w.Cases, Case{
			Name: nodesName(nodes), Nodes: nodes, Pinned: true,
			Contestants: contest.ForNodes(nodes), Measure: measureLatency,
		})
	}
	w.Cases = append(w.Cases, Case{
		Name: "N=3, longer links", Nodes: 3, Pinned: true, Contestants: contest.ForNodes(3), Measure: measureDistantLatency,
	})
	return w
}

// measureDistantLatency is measureLatency over links with a round trip of a millisecond, or more where timers are late.
// The links are goroutines of this process, so it has no figures of memory.
func measureDistantLatency(b *Bench) (Values, error) {
	ctx, stop := context.WithCancel(b.Context)
	defer stop()
	if err := b.stretch(ctx, time.Millisecond); err != nil {
		return nil, err
	}
	v, err := measureLatency(b)
	delete(v, "allocs")
	delete(v, "bytes")
	return v, err
}

func nodesName(nodes int) string { return "N=" + strconv.Itoa(nodes) }

func measureLatency(b *Bench) (Values, error) {
	client, err := b.connect(0)
	if err != nil {
		return nil, err
	}
	pair := func(ctx context.Context) error {
		held, err := client.Lock(ctx, "latency")
		if err != nil {
			return err
		}
		return held.Release(ctx)
	}
	for end := time.Now().Add(b.warmUp()); time.Now().Before(end); {
		if err := pair(b.Context); err != nil {
			return nil, err
		}
	}

	samples := make([]float64, 0, maxSamples)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	last := time.Now()
	for end := last.Add(b.Duration); last.Before(end) && len(samples) < cap(samples); {
		if err := pair(b.Context); err != nil {
			return nil, err
		}
		now := time.Now()
		samples = append(samples, micros(now.Sub(last)))
		last = now
	}
	runtime.ReadMemStats(&after)
	pairs := float64(len(samples))
	return Values{
		"p50":    stats.Percentile(samples, 50),
		"p99":    stats.Percentile(samples, 99),
		"allocs": float64(after.Mallocs-before.Mallocs) / pairs,
		"bytes":  float64(after.TotalAlloc-before.TotalAlloc) / pairs,
	}, nil
}
