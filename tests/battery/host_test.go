package battery

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// watchHost prints, at the end of a row, the share of the processors that the hypervisor gave to other machines.
// Without it, a slow host looks like a defect when a time misses its bar. On a quiet host it prints nothing.
func watchHost(row string) (end func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		second := time.NewTicker(time.Second)
		defer second.Stop()
		begin := processors()
		last, worst := begin, 0.0
		for {
			select {
			case <-second.C:
				now := processors()
				worst = max(worst, now.stolenSince(last))
				last = now
			case <-stop:
				if worst >= 0.05 {
					fmt.Printf("# %s: the host took %.0f %% of the CPU, %.0f %% in the worst second\n",
						row, 100*processors().stolenSince(begin), 100*worst)
				}
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// usage is the time of all processors since the start of the machine, in ticks.
type usage struct{ stolen, all float64 }

// processors reads the usage; it is 0 on a machine that does not report it.
func processors() (u usage) {
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(stat), "\n")
	// cpu user nice system idle iowait irq softirq steal; the columns after that are part
	// of user.
	for i, field := range strings.Fields(line) {
		if i < 1 || i > 8 {
			continue
		}
		ticks, _ := strconv.ParseFloat(field, 64)
		u.all += ticks
		if i == 8 {
			u.stolen = ticks
		}
	}
	return u
}

func (u usage) stolenSince(before usage) float64 {
	return (u.stolen - before.stolen) / max(u.all-before.all, 1)
}
