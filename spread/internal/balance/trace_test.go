package balance

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// traceNew is called with the world of each schedule, if it is not nil.
var traceNew func(*world)

func (w *world) logf(format string, args ...any) {
	if w.log != nil {
		w.log(fmt.Sprintf("%9.3f ", w.now.Seconds()) + fmt.Sprintf(format, args...))
	}
}

// state returns what the members of a group believe, for a trace.
func (w *world) state(group string) (s string) {
	for _, p := range w.procs {
		if p.group != group || p.dead {
			continue
		}
		c := p.core
		s += fmt.Sprintf(" %s:M%d,%v,gap %.0f,due %.0f", p.id, c.members, c.count, c.gap.Seconds(), min(c.due-w.now, time.Hour).Seconds())
		if p.stopped > w.now {
			s += ",stopped"
		}
		if !p.reaches() {
			s += ",cut off"
		}
	}
	return s
}

// SEED=193 go test -run OneSchedule -v shows what happens in a random schedule.
func TestOneSchedule(t *testing.T) {
	seed, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	if err != nil {
		t.Skip("no SEED")
	}
	traceNew = func(w *world) {
		w.log = func(line string) { t.Log(line) }
		var show func()
		show = func() {
			w.logf("%s", w.state("g"))
			w.after(2*time.Second, show)
		}
		w.after(2*time.Second, show)
	}
	defer func() { traceNew = nil }()
	if o := schedule(seed, options{}); o.complaint() != "" {
		t.Error(o.complaint())
	}
}
