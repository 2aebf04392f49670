//go:build unix

package workload

import (
	"context"
	"fmt"
	"strconv"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
)

func throughput() Workload {
	w := Workload{
		Name:  "throughput",
		Title: "Throughput of many callers",
		About: "Callers of one process acquire and release, each a name of its own; the readers share one name. An operation is " +
			"a pair.",
		Columns: []report.Column{
			{Key: "ops", Title: "ops/s"},
			{Key: "client", Title: "client CPU, µs per op", Digits: 1}, {Key: "servers", Title: "servers' CPU, µs per op", Digits: 1},
			{Key: "allocs", Title: "allocations", Digits: 1}, {Key: "bytes", Title: "B"},
			{Key: "failed", Title: "failed"},
		},
		Chart:     "ops",
		Multiples: true,
	}
	for _, callers := range []int{64, 512} {
		for _, nodes := range []int{1, 3, 5} {
			c := Case{
				Name: ThroughputCase(callers, nodes), Nodes: nodes,
				Contestants: contest.ForNodes(nodes), Measure: measureThroughput(callers),
			}
			if callers == 512 {
				c.Contestants = append(c.Contestants, contest.Readers)
			}
			w.Cases = append(w.Cases, c)
		}
	}
	return w
}

// ThroughputCase returns the name of a case of the throughput workload.
func ThroughputCase(callers, nodes int) string {
	return fmt.Sprintf("%d callers, N=%d", callers, nodes)
}

func measureThroughput(callers int) func(*Bench) (Values, error) {
	return func(b *Bench) (Values, error) {
		s, err := b.saturate(callers)
		if err != nil {
			return nil, err
		}
		return Values{
			"ops":     s.turns / s.elapsed.Seconds(),
			"client":  micros(s.client) / s.turns,
			"servers": micros(s.servers) / s.turns,
			"allocs":  s.allocs / s.turns,
			"bytes":   s.bytes / s.turns,
			"failed":  s.failed,
		}, nil
	}
}

// saturate measures callers that each use a name of their own.
func (b *Bench) saturate(callers int) (span, error) {
	client, err := b.connect(0)
	if err != nil {
		return span{}, err
	}
	return b.saturateWith(client, callers)
}

// saturateWith is saturate by a client that exists.
func (b *Bench) saturateWith(client contest.Client, callers int) (span, error) {
	names := make([]string, callers)
	for i := range names {
		names[i] = "throughput-" + strconv.Itoa(i)
	}
	if s, ok := client.(contest.Saturator); ok {
		return b.saturateBy(s, names)
	}
	c := b.startCrowd(callers, func(ctx context.Context, caller int) error {
		held, err := client.Lock(ctx, names[caller])
		if err != nil {
			return err
		}
		return held.Release(b.Context)
	})
	defer c.end()
	return b.measureCrowd(c, b.Duration)
}

// saturateBy is saturate for a client that runs its callers by itself.
func (b *Bench) saturateBy(s contest.Saturator, names []string) (span, error) {
	ctx, stop := context.WithCancel(b.Context)
	c := &crowd{stop: stop, turns: make([]counter, 1)}
	c.done.Go(func() {
		if err := s.Saturate(ctx, names, func(pairs int64) { c.turns[0].n.Add(pairs) }); err != nil {
			c.fail(err)
		}
	})
	defer c.end()
	return b.measureCrowd(c, b.Duration)
}
