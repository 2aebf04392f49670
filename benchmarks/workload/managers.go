//go:build unix

package workload

import (
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
)

const (
	managerClients = 16
	managerCallers = 4
	managerHold    = time.Millisecond
)

func managers() Workload {
	w := Workload{
		Name:  "managers",
		Title: "One lock, many clients, a short hold",
		About: fmt.Sprintf("%d clients with %d callers each want one lock and hold it for %v, so fewer than a thousand hand-offs a second "+
			"are possible.", managerClients, managerCallers, managerHold),
		Columns: handOffColumns(),
		Chart:   "handoffs",
	}
	for _, nodes := range []int{3, 5} {
		w.Cases = append(w.Cases, Case{
			Name: nodesName(nodes), Nodes: nodes,
			Contestants: []string{contest.Fenced, contest.Unfenced, contest.Permits, contest.RedsyncRueidis},
			Measure:     contend(managerClients, managerCallers, managerHold),
		})
	}
	return w
}
