package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outcome is how a random schedule ended.
type outcome struct {
	*world
	ttl  time.Duration
	took time.Duration
	err  error
	idle int // moves in the quiet time
}

// schedule starts some members, disturbs them at random, and lets them settle.
func schedule(seed uint64, opts options, ttls ...time.Duration) outcome {
	w := newWorld(seed, opts)
	if traceNew != nil {
		traceNew(w)
	}
	o := outcome{world: w, ttl: []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second}[w.chance.IntN(3)]}
	pick := func() time.Duration { return o.ttl }
	if len(ttls) > 0 {
		o.ttl = slices.Max(ttls)
		pick = func() time.Duration { return ttls[w.chance.IntN(len(ttls))] }
	}
	names := list(w.chance.IntN(70))
	for range 1 + w.chance.IntN(6) {
		w.after(w.between(0, 2*time.Second), func() { w.join("g", pick(), names) })
	}
	for range 2 { // another group alongside
		w.join("h", o.ttl, list(5))
	}
	w.run(w.between(2*time.Second, 4*o.ttl))
	for range 1 + w.chance.IntN(6) {
		w.disturb(&o, &names, pick)
		w.run(w.between(0, 2*o.ttl*time.Duration(w.chance.IntN(2))+time.Second))
	}
	o.took, o.err = w.settle("g", func() []string { return names }, 20*o.ttl)
	if _, err := w.settle("h", func() []string { return list(5) }, 20*o.ttl); err != nil {
		o.err = fmt.Errorf("the group beside: %w", err)
	}
	w.run(2 * o.ttl) // asks that are under way
	w.moves = 0
	w.run(30 * o.ttl)
	o.idle = w.moves
	if o.err == nil {
		o.err = w.even("g", names)
	}
	if err := w.even("h", list(5)); o.err == nil && err != nil {
		o.err = fmt.Errorf("the group beside: %w", err)
	}
	return o
}

// disturb causes a random disturbance.
func (w *world) disturb(o *outcome, names *[]string, ttl func() time.Duration) {
	var all []*proc
	for _, p := range w.procs {
		if p.group == "g" && p.living() {
			all = append(all, p)
		}
	}
	for len(all) == 0 {
		all = append(all, w.join("g", ttl(), *names))
	}
	p := all[w.chance.IntN(len(all))]
	kind := w.chance.IntN(8)
	w.logf("disturb %d, %s", kind, p.id)
	switch kind {
	case 0:
		for range 1 + w.chance.IntN(3) {
			w.join("g", ttl(), *names)
		}
	case 1:
		if len(all) > 1 {
			p.kill()
		}
	case 2:
		if len(all) > 1 {
			p.term()
		}
	case 3:
		p.stop(w.between(0, 3*o.ttl))
	case 4:
		d := w.between(0, 3*o.ttl)
		w.away = true
		w.after(d, func() { w.away = false })
		w.disturbed(w.now + d)
	case 5:
		d := w.between(0, 3*o.ttl)
		p.cut = true
		w.after(d, func() { p.cut = false })
		w.disturbed(w.now + d)
	case 6:
		*names = list(w.chance.IntN(80))
		for _, p := range w.procs {
			if p.group == "g" {
				p.at(w.between(0, 3*time.Second), func() { p.list(*names); w.disturbed(w.now) })
			}
		}
		w.disturbed(w.now + 3*time.Second)
	case 7:
		longest := w.between(0, 3*o.ttl)
		p.slow = func(string) time.Duration { return w.between(0, longest) }
	}
}

// complaint returns the promise that is broken.
func (o outcome) complaint() string {
	switch {
	case len(o.wrong) > 0:
		return o.wrong[0]
	case o.err != nil:
		return o.err.Error()
	case o.took > 2*o.ttl:
		return fmt.Sprintf("even after %v, TTL %v", o.took, o.ttl)
	case o.idle > 0:
		return fmt.Sprintf("%d moves in a quiet time", o.idle)
	}
	return ""
}

// No schedule of joins, deaths, stops, partitions, slow functions and changes of the list breaks a promise: never two
// runners of a name under valid leases, equal shares within two TTL, and then no moves.
func TestNoRandomScheduleBreaksThePromise(t *testing.T) {
	var took []float64
	for seed := range uint64(testkit.Seeds(t, 3000, 300)) {
		o := schedule(seed, options{})
		took = append(took, float64(o.took)/float64(o.ttl))
		if c := o.complaint(); c != "" {
			t.Errorf("seed %d: %s", seed, c)
		}
	}
	slices.Sort(took)
	t.Logf("TTLs until even: median %.2f, 99 %% %.2f, most %.2f", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}
