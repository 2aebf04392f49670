//go:build unix

// Package workload has what the benchmarks measure: each workload is a file, and
// each of its cases is measured once per contestant and round, in a process of
// its own with servers of its own.
package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Options are the knobs of all workloads.
type Options struct {
	Duration time.Duration `json:"duration"` // how long one measurement takes, without its preparations
	TTL      time.Duration `json:"ttl"`      // of all locks; the leases are watched for one and a half TTLs
	Leases   []int         `json:"leases"`   // how many leases are watched: a case for each
}

// DefaultOptions returns the options of a full run.
func DefaultOptions() Options {
	return Options{Duration: 2 * time.Second, TTL: 10 * time.Second, Leases: []int{50_000, 100_000}}
}

// Values are the results of one measurement, by the key of a column.
type Values map[string]float64

// A Workload is a question and its cases.
type Workload struct {
	Name      string
	Title     string
	About     string // what is measured, for readers of the tables
	Columns   []report.Column
	Chart     string   // the key of the column that the bar chart shows
	Log       bool     // the chart has a logarithmic scale
	Multiples bool     // it has a panel for each number of servers
	Lines     []string // the keys of the columns that line charts show in its place
	Cases     []Case
}

// A Case is a workload with all its numbers fixed but the contestant.
type Case struct {
	Name        string
	Nodes       int
	Contestants []string
	Pinned      bool // the client and all servers share one core
	Cluster     bool // the nodes are a Redis Cluster: three masters and a replica of each
	Measure     func(*Bench) (Values, error)
}

// All returns the workloads in the order of the tables. Cluster isn't one of them.
func All(o Options) []Workload {
	return []Workload{
		latency(), throughput(), serverCost(o), contention(), managers(), neighbour(),
		watchdog(o), closing(o), faults(), growth(),
	}
}

// Find returns a case by the names of its workload and of itself.
func Find(o Options, workload, name string) (Case, error) {
	for _, w := range append(All(o), Cluster(o)) {
		if i := slices.IndexFunc(w.Cases, func(c Case) bool { return w.Name == workload && c.Name == name }); i >= 0 {
			return w.Cases[i], nil
		}
	}
	return Case{}, fmt.Errorf("no workload %q with a case %q", workload, name)
}

// A Bench is what one measurement may use.
type Bench struct {
	Options
	Context    context.Context // ends when the measurement is given up
	Servers    []*redistest.Server
	contestant contest.Contestant
	via        []string // addresses in place of the servers' own; nil for these
}

// NewBench returns a Bench for a contestant on servers.
func NewBench(ctx context.Context, o Options, servers []*redistest.Server, contestant contest.Contestant) *Bench {
	return &Bench{Options: o, Context: ctx, Servers: servers, contestant: contestant}
}

// connect returns a client. If it polls, it does so at this interval, or at its default for 0.
func (b *Bench) connect(poll time.Duration) (contest.Client, error) {
	return b.connectAs(b.contestant, poll)
}

func (b *Bench) connectAs(c contest.Contestant, poll time.Duration) (contest.Client, error) {
	addrs := b.via
	if addrs == nil {
		addrs = redistest.Addrs(b.Servers)
	}
	client, err := c.Connect(b.Context, addrs, contest.Settings{TTL: b.TTL, Poll: poll})
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", c.Name, err)
	}
	return client, nil
}

// warmUp is how long a client works before it is measured.
func (b *Bench) warmUp() time.Duration { return max(b.Duration/5, 100*time.Millisecond) }

// sleep waits for d, or returns why the measurement is given up.
func (b *Bench) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.Context.Done():
		return context.Cause(b.Context)
	}
}

// errUnsupported says that a contestant cannot do what a workload asks.
var errUnsupported = errors.New("the contestant cannot do this")
