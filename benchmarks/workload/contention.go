//go:build unix

package workload

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

const (
	contenders = 64
	// contendedPoll is how long contestants that poll wait between two attempts on
	// a lock that is handed on all the time: their defaults are for rare contention.
	contendedPoll = time.Millisecond
	// contendedTimes is how much longer a measurement takes, for enough grants to
	// compare the shares of the callers.
	contendedTimes = 2
)

// The names of the cases of the workload "contention".
const (
	OneProcess    = "one process, 64 goroutines, N=3"
	oneProcessOne = "one process, 64 goroutines, N=1"
	ClientEach    = "64 clients, one goroutine each, N=3"
)

// handOffColumns are the columns of all workloads in which a lock is handed on.
func handOffColumns() []report.Column {
	return []report.Column{
		{Key: "handoffs", Title: "hand-offs/s"},
		{Key: "scripts", Title: "scripts per hand-off and node", Digits: 2},
		{Key: "server", Title: "server CPU, µs per hand-off and node", Digits: 1},
		{Key: "client", Title: "client CPU, µs per hand-off", Digits: 1},
		{Key: "shares", Title: "largest share / smallest", Digits: 2},
	}
}

func contention() Workload {
	return Workload{
		Name:  "contention",
		Title: "One lock, no hold",
		About: "64 goroutines want one lock and give it back at once. A hand-off is a grant to another caller than the last. " +
			"\"One by one\" passes no lease on inside the process. In the last case every goroutine has its own client.",
		Columns: handOffColumns(),
		Chart:   "handoffs",
		Log:     true,
		Cases: []Case{
			{Name: oneProcessOne, Nodes: 1, Contestants: lockers(1), Measure: contend(1, contenders, 0)},
			{Name: OneProcess, Nodes: 3, Contestants: append(lockers(3), contest.Unpassed), Measure: contend(1, contenders, 0)},
			{
				Name: ClientEach, Nodes: 3,
				Contestants: []string{contest.Fenced, contest.Unfenced, contest.RedsyncRueidis},
				Measure:     contend(contenders, 1, 0),
			},
		},
	}
}

// lockers returns the contestants that wait for a lock that is taken.
func lockers(nodes int) []string {
	return append([]string{contest.Fenced, contest.Unfenced}, contest.PeersForNodes(nodes)...)
}

// contend measures a lock that all callers of all clients want all the time and keep for hold.
func contend(clients, callers int, hold time.Duration) func(*Bench) (Values, error) {
	return func(b *Bench) (Values, error) {
		c, err := b.startContest(clients, callers, hold)
		if err != nil {
			return nil, err
		}
		defer c.end()
		s, err := b.measureCrowd(c.crowd, contendedTimes*b.Duration)
		if err != nil {
			return nil, err
		}
		// Hand-offs are counted over the whole contest: the rate of changes among grants is the same in the measured
		// part.
		handOffs := s.turns * c.changing()
		each := handOffs * float64(len(b.Servers))
		return Values{
			"handoffs": handOffs / s.elapsed.Seconds(),
			"scripts":  s.scripts / each,
			"server":   micros(s.servers) / each,
			"client":   micros(s.client) / handOffs,
			"shares":   stats.SharesRatio(s.counts),
		}, nil
	}
}

// A lockContest is a crowd that wants one lock.
type lockContest struct {
	*crowd
	last    atomic.Int64 // the caller that was granted the lock last
	grants  atomic.Int64
	changes atomic.Int64 // grants to another caller than the last
}

const contestedName = "contended"

func (b *Bench) startContest(clients, callers int, hold time.Duration) (*lockContest, error) {
	all := make([]contest.Client, clients)
	for i := range all {
		client, err := b.connect(contendedPoll)
		if err != nil {
			return nil, err
		}
		all[i] = client
	}
	c := &lockContest{}
	c.last.Store(-1)
	c.crowd = b.startCrowd(clients*callers, func(ctx context.Context, caller int) error {
		held, err := all[caller/callers].Lock(ctx, contestedName)
		if err != nil {
			return err
		}
		c.grants.Add(1)
		if c.last.Swap(int64(caller)) != int64(caller) {
			c.changes.Add(1)
		}
		if hold > 0 {
			time.Sleep(hold)
		}
		return held.Release(b.Context)
	})
	return c, nil
}

// changing returns which part of the grants went to another caller.
func (c *lockContest) changing() float64 {
	return float64(c.changes.Load()) / float64(max(c.grants.Load(), 1))
}
