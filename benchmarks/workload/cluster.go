//go:build unix

package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

const (
	clusterServers = 6
	clusterTurns   = 3   // how often each client is measured
	leaseTTLs      = 2   // how long leases are measured: they are renewed every third of a TTL, many of them together
	idleTimes      = 5   // how many times longer an idle client is watched: it asks INFO once in ten seconds
	firstLeases    = 512 // enough names for all buckets
	mebibyte       = 1 << 20

	// shortTTL is the TTL of what is not renewed. The guard lasts longer than that.
	shortTTL = 3 * time.Second
)

// Cluster compares a client of a whole Redis Cluster with a client of one of its slots. The document isn't about that, so
// this workload isn't in All.
func Cluster(o Options) Workload {
	w := Workload{
		Name:  "cluster",
		Title: "A whole Redis Cluster against one of its slots",
		About: "The two clients take turns on the same servers. Figures are medians of the turns; the ratio is NewCluster's " +
			"figure by ClusterSlot's in the same turn.",
		Columns: []report.Column{
			{Key: "whole", Title: "NewCluster", Digits: 2}, {Key: "slot", Title: "ClusterSlot", Digits: 2},
			{Key: "ratio", Title: "ratio", Digits: 2}, {Key: "least", Title: "smallest", Digits: 2}, {Key: "most", Title: "largest", Digits: 2},
			{Key: "servers", Title: "ratio of the servers' CPU", Digits: 2}, {Key: "failed", Title: "failed or lost"},
		},
	}
	add := func(name string, ttl time.Duration, turns int, measure func(*Bench, contest.Client, float64) (cost, error)) {
		w.Cases = append(w.Cases, Case{
			Name: name, Nodes: clusterServers, Cluster: true, Contestants: []string{contest.NewCluster},
			Measure: func(b *Bench) (Values, error) {
				b.TTL = ttl
				slot, _ := contest.Named(contest.ClusterSlot)
				return b.compare([]contest.Contestant{b.contestant, slot}, turns, measure)
			},
		})
	}
	for _, callers := range []int{8, 64, 512} {
		add(fmt.Sprintf("client CPU, µs per pair, %d callers", callers), shortTTL, clusterTurns, func(b *Bench, client contest.Client, _ float64) (cost, error) {
			s, err := b.saturateWith(client, callers)
			return cost{micros(s.client) / s.turns, micros(s.servers) / s.turns, s.failed}, err
		})
	}
	for _, leases := range o.Leases {
		add(fmt.Sprintf("client CPU, %% of a core, %d leases, TTL %v", leases, o.TTL), o.TTL, clusterTurns, func(b *Bench, client contest.Client, _ float64) (cost, error) {
			return b.renewing(client, leases)
		})
	}
	add("heap, MiB, idle", shortTTL, 1, func(b *Bench, _ contest.Client, before float64) (cost, error) {
		err := b.sleep(idleTimes * b.Duration)
		return cost{client: heap() - before}, err
	})
	return w
}

// A cost is what one client has used in one turn. The servers' CPU includes their replicas'.
type cost struct{ client, servers, failed float64 }

// compare measures two clients in turns. Only one of them is connected at a time: an idle one has work, too. measure
// gets the heap before its client was there.
func (b *Bench) compare(both []contest.Contestant, turns int, measure func(*Bench, contest.Client, float64) (cost, error)) (Values, error) {
	if err := b.outlastGuard(both); err != nil {
		return nil, err
	}
	var figures [2][]float64
	var ratios, servers []float64
	failed := 0.0
	for range turns {
		var costs [2]cost
		for i, contestant := range both {
			before := heap()
			err := b.with(contestant, func(client contest.Client) (err error) {
				costs[i], err = measure(b, client, before)
				return err
			})
			if err != nil {
				return nil, err
			}
			figures[i] = append(figures[i], costs[i].client)
			failed += costs[i].failed
		}
		ratios = append(ratios, costs[0].client/costs[1].client)
		servers = append(servers, costs[0].servers/costs[1].servers)
	}
	ratio := stats.Summarise(ratios)
	return Values{
		"whole": stats.Summarise(figures[0]).Median, "slot": stats.Summarise(figures[1]).Median,
		"ratio": ratio.Median, "least": ratio.Min, "most": ratio.Max,
		"servers": stats.Summarise(servers).Median, "failed": failed,
	}, nil
}

// outlastGuard waits until the servers grant names to both clients: new ones grant nothing for the time of the guard.
func (b *Bench) outlastGuard(both []contest.Contestant) error {
	errs := make([]error, len(both))
	var done sync.WaitGroup
	for i, contestant := range both {
		done.Go(func() {
			errs[i] = b.with(contestant, func(client contest.Client) error {
				_, err := b.keepAll(client, firstLeases)
				return err
			})
		})
	}
	done.Wait()
	return errors.Join(errs...)
}

// with connects a client for f, and closes it.
func (b *Bench) with(contestant contest.Contestant, f func(contest.Client) error) error {
	client, err := b.connectAs(contestant, 0)
	if err != nil {
		return err
	}
	err = f(client)
	if closer, ok := client.(contest.Closer); ok {
		ctx, cancel := context.WithTimeout(b.Context, closeBound)
		defer cancel()
		err = errors.Join(err, closer.Close(ctx))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", contestant.Name, err)
	}
	return nil
}

// renewing measures the renewals of many leases.
func (b *Bench) renewing(client contest.Client, leases int) (cost, error) {
	kept, err := b.keepAll(client, leases)
	if err != nil {
		return cost{}, err
	}
	if err := b.sleep(b.TTL / 2); err != nil { // a round of each: the acquisitions have ended
		return cost{}, err
	}
	before, err := b.usage()
	if err == nil {
		err = b.sleep(leaseTTLs * b.TTL)
	}
	if err != nil {
		return cost{}, err
	}
	after, err := b.usage()
	u := after.since(before)
	return cost{percentOfCore(u.client, u.elapsed), percentOfCore(u.servers, u.elapsed), lost(kept)}, err
}

// heap returns the MiB of heap that are in use.
func heap() float64 {
	m := collected()
	return float64(m.HeapAlloc) / mebibyte
}
