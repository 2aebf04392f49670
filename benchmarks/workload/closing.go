//go:build unix

package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

const (
	closeBound = 20 * time.Second
	scanCount  = "10000"
)

func closing(o Options) Workload {
	w := Workload{
		Name:  "close",
		Title: "Close with many leases",
		About: fmt.Sprintf("A client with many leases is closed, with a context of %v. The locks left on all nodes are counted.", closeBound),
		Columns: []report.Column{
			{Key: "seconds", Title: "s to return", Digits: 2}, {Key: "left", Title: "locks left"}, {Key: "failed", Title: "errors"},
		},
	}
	const nodes = 5
	for _, leases := range o.Leases[:min(1, len(o.Leases))] {
		w.Cases = append(w.Cases, Case{
			Name: ClosingCase(leases), Nodes: nodes, Contestants: []string{contest.Fenced, contest.Unfenced},
			Measure: func(b *Bench) (Values, error) { return b.closeWith(leases) },
		})
	}
	return w
}

// ClosingCase returns the name of the case of the workload "close".
func ClosingCase(leases int) string { return fmt.Sprintf("%d leases, N=5", leases) }

func (b *Bench) closeWith(leases int) (Values, error) {
	client, err := b.connect(0)
	if err != nil {
		return nil, err
	}
	closer, ok := client.(contest.Closer)
	if !ok {
		return nil, errUnsupported
	}
	if _, err := b.keepAll(client, leases); err != nil {
		return nil, err
	}
	locks := make(map[string]bool, leases)
	for i := range leases {
		locks[closer.LockKey(leaseName(leases, i))] = true
	}
	// The locks must be there before: otherwise it proves nothing that none is left. On a busy machine some are lost by
	// then, so not all of them are required.
	if there, err := b.countKeys(locks); err != nil || there < leases {
		return nil, errors.Join(fmt.Errorf("%d locks on all nodes before Close", there), err)
	}
	ctx, cancel := context.WithTimeout(b.Context, closeBound)
	defer cancel()
	began := time.Now()
	err = closer.Close(ctx)
	took := time.Since(began)
	left, countErr := b.countKeys(locks)
	if countErr != nil {
		return nil, countErr
	}
	values := Values{"seconds": took.Seconds(), "left": float64(left), "failed": 0}
	if err != nil {
		values["failed"] = 1
	}
	return values, nil
}

// countKeys returns how many of the keys are on all nodes together.
func (b *Bench) countKeys(keys map[string]bool) (int, error) {
	total := 0
	for _, s := range b.Servers {
		n, err := scan(s, keys)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// scan returns how many of the keys one node has.
func scan(s *redistest.Server, keys map[string]bool) (int, error) {
	found := make(map[string]bool) // SCAN may name a key twice
	for cursor := "0"; ; {
		reply, err := s.Do("SCAN", cursor, "COUNT", scanCount)
		if err != nil {
			return 0, err
		}
		parts, ok := reply.([]any)
		if !ok || len(parts) != 2 {
			return 0, fmt.Errorf("SCAN: %T", reply)
		}
		names, ok := parts[1].([]any)
		if !ok {
			return 0, fmt.Errorf("SCAN: %T", parts[1])
		}
		for _, name := range names {
			if key, ok := name.(string); ok && keys[key] {
				found[key] = true
			}
		}
		if cursor, ok = parts[0].(string); !ok {
			return 0, errors.New("SCAN: a cursor that is no string: " + strconv.Quote(fmt.Sprint(parts[0])))
		}
		if cursor == "0" {
			return len(found), nil
		}
	}
}
