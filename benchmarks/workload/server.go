//go:build unix

package workload

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
)

const (
	serverCallers = 512
	// Renewed leases have a quarter of the usual TTL, so that a short measurement
	// sees some rounds.
	extensionTTLs   = 4
	extensionLeases = 20_000
)

// The names of the cases of the workload "server".
const (
	ServerPairs      = "acquire and release, 512 callers, N=1"
	ServerExtensions = "extension, 20,000 leases, N=1"
)

func serverCost(o Options) Workload {
	return Workload{
		Name:  "server",
		Title: "CPU of a server",
		About: fmt.Sprintf("CPU time of one node, kernel included (INFO cpu): for a pair under %d callers, for one extension of 20,000 "+
			"leases with a TTL of %v, and for the script alone, pipelined.", serverCallers, extensionTTL(o.TTL)),
		Columns: []report.Column{
			{Key: "server", Title: "CPU, µs", Digits: 2}, {Key: "scripts", Title: "scripts", Digits: 3}, {Key: "rate", Title: "operations/s"},
		},
		Chart: "server",
		Cases: append([]Case{
			{
				Name: ServerPairs, Nodes: 1, Contestants: contest.ForNodes(1),
				Measure: func(b *Bench) (Values, error) {
					s, err := b.saturate(serverCallers)
					if err != nil {
						return nil, err
					}
					return serverValues(s.usage, s.turns), nil
				},
			},
			{
				Name: ServerExtensions, Nodes: 1, Contestants: []string{contest.Fenced, contest.Unfenced},
				Measure: func(b *Bench) (Values, error) { return b.extensions() },
			},
		}, scriptCases()...),
	}
}

func serverValues(u usage, operations float64) Values {
	return Values{
		"server":  micros(u.servers) / operations,
		"scripts": u.scripts / operations,
		"rate":    operations / u.elapsed.Seconds(),
	}
}

// extensionTTL is in whole milliseconds: Redis keeps time in milliseconds.
func extensionTTL(ttl time.Duration) time.Duration {
	return (ttl / extensionTTLs).Truncate(time.Millisecond)
}

// extensions measures a client that renews leases in the background.
func (b *Bench) extensions() (Values, error) {
	b.TTL = extensionTTL(b.TTL)
	client, err := b.connect(0)
	if err != nil {
		return nil, err
	}
	renewals, ok := client.(contest.Renewals)
	if !ok {
		return nil, errUnsupported
	}
	if _, err := b.keepAll(client, extensionLeases); err != nil {
		return nil, err
	}
	var confirmed atomic.Int64
	renewals.CountRenewals(func() { confirmed.Add(1) })
	if err := b.sleep(b.TTL / 2); err != nil { // a round of each: the acquisitions have ended
		return nil, err
	}
	before, err := b.usage()
	counted := confirmed.Load()
	if err == nil {
		err = b.sleep(max(b.Duration, b.TTL))
	}
	if err != nil {
		return nil, err
	}
	after, err := b.usage()
	if err != nil {
		return nil, err
	}
	return serverValues(after.since(before), float64(confirmed.Load()-counted)), nil
}
