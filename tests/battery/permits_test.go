//go:build linux

package battery

import (
	"fmt"
	"slices"
	"testing"
)

// Processes ask for permits of one name, while faults hit the nodes, the connections and the processes. One process has
// a smaller limit, like an instance of the previous version.
func TestNoMoreProcessesHaveAPermitThanThereAre(t *testing.T) {
	eachNight(t)
	for _, limit := range []int{1, 2, 10}[count(0, 1):count(3, 2)] {
		title := fmt.Sprintf("%%d processes want %d permits of one name, %%s, N=%%d", limit)
		underFaults(t, title, func(c *workerConfig) {
			c.Permits, c.Callers = limit, 3
			if c.Client == 0 {
				c.Permits = max(limit-1, 1)
			}
		}, func(r *row, holds []hold) int { return r.atOnce(holds, limit) })
	}
}

// atOnce prints how many leases were valid at one instant. It returns how many slots were used.
func (r *row) atOnce(holds []hold, limit int) (slots int) {
	r.t.Helper()
	type step struct {
		at instant
		by int
	}
	var steps []step
	used := map[string]bool{}
	for i := range holds {
		h := &holds[i]
		used[h.Lock] = true
		if h.Ended > h.Granted {
			steps = append(steps, step{h.Granted, 1}, step{h.Ended, -1})
		}
	}
	slices.SortFunc(steps, func(a, b step) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.by - b.by
	})
	most, valid := 0, 0
	for _, s := range steps {
		valid += s.by
		most = max(most, valid)
	}
	r.figure(fmt.Sprintf("%d leases on %d slots, at most %d valid at once", len(holds), len(used), most), fmt.Sprint(limit), most == limit && len(used) == limit)
	return len(used)
}
