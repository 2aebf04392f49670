package balance

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// scenario is one way in which a group is disturbed, and what must be true of it.
type scenario struct {
	name  string
	seeds int
	run   func(w *world) (complaint string)
}

const longTTL = 10 * time.Second // the default TTL

// group starts members with a list, and waits until they are even.
func (w *world) group(members, names int) []string {
	all := list(names)
	for range members {
		w.join("g", longTTL, all)
	}
	if _, err := w.settle("g", func() []string { return all }, 20*longTTL); err != nil {
		w.fail("at the start: %v", err)
	}
	w.run(w.between(0, 3*longTTL))
	w.moves, w.asks, w.looks, w.gaps = 0, 0, 0, nil
	return all
}

// within waits until the group is even, and complains about the time it took, or about too many moves.
func (w *world) within(names []string, ttls float64, moves int) string {
	took, err := w.settle("g", func() []string { return names }, 20*longTTL)
	switch limit := time.Duration(ttls * float64(longTTL)); {
	case err != nil:
		return err.Error()
	case took > limit:
		return fmt.Sprintf("even after %v, want %v", took, limit)
	case w.moves > moves:
		return fmt.Sprintf("%d moves, want %d", w.moves, moves)
	}
	return ""
}

// given counts the names that were given away.
func (w *world) given() (n int) {
	for _, p := range w.procs {
		n += p.core.Given()
	}
	return n
}

// idle returns the names of a list that no member runs.
func (w *world) idle(names []string) (idle []string) {
	for _, name := range names {
		if l := w.lock("g/" + name); w.free(l) || !l.holder.runs {
			idle = append(idle, name)
		}
	}
	return idle
}

// departure terminates a member of a group, whose functions take up to some seconds to return. The gaps of its names
// are in drops.
func (w *world) departure() {
	size := [][2]int{{2, 3}, {3, 3}, {4, 7}, {7, 7}, {4, 60}, {6, 60}, {6, 250}}[w.chance.IntN(7)]
	slow := []time.Duration{5 * time.Millisecond, 300 * time.Millisecond, 1300 * time.Millisecond, 3 * time.Second}[w.chance.IntN(4)]
	w.group(size[0], size[1])
	w.procs[0].slow = func(string) time.Duration { return w.between(0, slow) }
	w.procs[0].term()
	w.run(3 * longTTL)
}

func scenarios() []scenario {
	return []scenario{
		{"a fourth joins three", 30, func(w *world) string {
			names := w.group(3, 60)
			w.join("g", longTTL, names)
			c := w.within(names, 1, 16)
			if c == "" && slices.Max(w.gaps) >= time.Second {
				return fmt.Sprintf("a name that moved had no runner for %v", slices.Max(w.gaps))
			}
			return c
		}},
		{"nobody moves in a quiet hour", 12, func(w *world) string {
			names := w.group(3+w.chance.IntN(4), 60)
			switch w.chance.IntN(3) {
			case 0:
				w.join("g", longTTL, names)
			case 1:
				w.procs[0].term()
			case 2:
				w.procs[0].kill()
			}
			w.run(2 * longTTL)
			w.moves = 0
			w.run(time.Hour)
			if err := w.even("g", names); err != nil || w.moves > 0 {
				return fmt.Sprintf("%d moves in an hour, %v", w.moves, err)
			}
			return ""
		}},
		{"a seventh joins six", 30, func(w *world) string {
			names := w.group(6, 60)
			w.join("g", longTTL, names)
			return w.within(names, 1, 10)
		}},
		{"three join three", 30, func(w *world) string {
			names := w.group(3, 60)
			for range 3 {
				w.join("g", longTTL, names)
			}
			return w.within(names, 2, 36)
		}},
		{"one of six leaves", 30, func(w *world) string {
			names := w.group(6, 60)
			w.procs[w.chance.IntN(6)].term()
			return w.within(names, 0.5, 2)
		}},
		{"a name of a member that leaves runs again soon", 120, func(w *world) string {
			w.departure()
			if longest := slices.Max(w.drops); longest >= time.Second {
				return fmt.Sprint("no runner for ", longest)
			}
			return ""
		}},
		{"one of six is killed", 60, func(w *world) string {
			names := w.group(6, 60)
			w.procs[w.chance.IntN(6)].kill()
			return w.within(names, 1.7, 5)
		}},
		{"one of six is killed, of 200 names", 20, func(w *world) string {
			names := w.group(6, 200)
			w.procs[w.chance.IntN(6)].kill()
			return w.within(names, 1.7, 10)
		}},
		{"one of three is killed, of 5 names", 60, func(w *world) string {
			names := w.group(3, 5)
			w.procs[w.chance.IntN(3)].kill()
			return w.within(names, 1.3, 2)
		}},
		{"one of six stops for longer than a TTL", 30, func(w *world) string {
			names := w.group(6, 60)
			w.procs[w.chance.IntN(6)].stop(15 * time.Second)
			return w.within(names, 1.5, 14)
		}},
		{"Redis is away for longer than a TTL", 30, func(w *world) string {
			names := w.group(6, 60)
			before := w.given()
			w.away = true
			w.run(15 * time.Second)
			w.away = false
			w.disturbed(w.now)
			if c := w.within(names, 0.6, 1000); c != "" {
				return c
			}
			if given := w.given() - before; given > 0 {
				return fmt.Sprintf("%d names were given away", given)
			}
			return ""
		}},
		{"the list grows and shrinks", 30, func(w *world) string {
			w.group(6, 60)
			for _, n := range []int{75, 40} {
				names := list(n)
				for _, p := range w.procs {
					p.at(w.between(0, 2*time.Second), func() { p.list(names); w.disturbed(w.now) })
				}
				w.run(2 * time.Second)
				if c := w.within(names, 1.3, 16); c != "" {
					return fmt.Sprintf("%d names: %s", n, c)
				}
			}
			return ""
		}},
		{"a list is emptied and filled again", 20, func(w *world) string { // with the text of the former ask on one of two names
			names := w.group(1, 2)
			p := w.join("g", longTTL, names)
			for w.asks == 0 {
				w.run(10 * time.Millisecond)
			}
			w.run(200 * time.Millisecond)
			p.list(nil)
			w.run(longTTL)
			p.list(names)
			return w.within(names, 0.6, 1)
		}},
		{"a fifth of the counts is wrong", 6, func(w *world) string {
			names := w.group(3, 60)
			w.opts.wrongView = 0.2
			w.join("g", longTTL, names)
			if c := w.within(names, 2, 18); c != "" {
				return c
			}
			w.run(2 * longTTL)
			w.moves = 0
			w.run(30 * time.Minute)
			if w.moves > 0 {
				return fmt.Sprintf("%d moves in a quiet time", w.moves)
			}
			return ""
		}},
		{"functions that take half a minute to return", 20, func(w *world) string {
			names := w.group(3, 60)
			for _, p := range w.procs {
				p.slow = func(string) time.Duration { return 30 * time.Second }
			}
			w.join("g", longTTL, names)
			return w.within(names, 0.6, 16)
		}},
		{"an asker is terminated", 30, func(w *world) string {
			names := w.group(2, 40)
			p := w.join("g", longTTL, names)
			for w.asks == 0 {
				w.run(10 * time.Millisecond)
			}
			w.run(w.between(200*time.Millisecond, time.Second))
			p.term()
			c := w.within(names, 1.5, 30)
			late := slices.DeleteFunc(w.gaps, func(gap time.Duration) bool { return gap < 100*time.Millisecond })
			if len(late) > 2 { // the asker may leave while the functions return
				return fmt.Sprintf("%d names that were given away had no runner for %v", len(late), slices.Max(late))
			}
			return c
		}},
		{"askers are killed, and then a holder", 40, func(w *world) string {
			names := w.group(2, 12)
			one, two := w.join("g", longTTL, names), w.join("g", longTTL, names)
			for w.asks < 4 {
				w.run(10 * time.Millisecond)
			}
			w.run(200 * time.Millisecond)
			one.kill()
			two.kill()
			w.procs[0].kill()
			return w.within(names, 2, 30)
		}},
		{"a holder is deaf", 5, func(w *world) string {
			names := w.group(4, 60)
			w.procs[0].deaf = true
			for range 3 {
				w.join("g", longTTL, names)
			}
			w.run(5 * longTTL)
			if others := w.runs("g")[1:]; slices.Max(others)-slices.Min(others) > 1 {
				return fmt.Sprintf("the others are uneven: %v", others)
			}
			w.asks = 0
			w.run(time.Hour)
			if w.asks > 1500 {
				return fmt.Sprintf("%d asks in an hour", w.asks)
			}
			return ""
		}},
		{"a member cannot acquire", 10, func(w *world) string {
			names := w.group(4, 61)
			w.procs[0].barred = true
			w.procs[0].stop(12 * time.Second)
			w.procs[1].term()
			w.run(5 * longTTL)
			if idle := w.idle(names); len(idle) > 0 {
				return fmt.Sprintf("nobody runs %v: %v", idle, w.runs("g"))
			}
			return ""
		}},
		{"the lists differ", 20, func(w *world) string {
			names := list(60)
			for i, part := range [][]string{names[:40], names[20:], names, names[50:55]} {
				w.join("g", longTTL, part)
				if i%2 > 0 {
					w.run(w.between(0, 2*longTTL))
				}
			}
			w.run(6 * longTTL)
			if idle := w.idle(names); len(idle) > 0 {
				return fmt.Sprintf("nobody runs %v", idle)
			}
			w.moves = 0
			w.run(30 * time.Minute)
			if idle := w.idle(names); len(idle) > 0 || w.moves > 0 {
				return fmt.Sprintf("%d moves in a quiet time, idle %v", w.moves, idle)
			}
			return ""
		}},
		{"a foreign program holds three names", 5, func(w *world) string {
			names := w.group(3, 30)
			stranger := w.join("s", longTTL, nil)
			stranger.kill()
			for _, name := range names[:3] {
				w.lock("g/" + name).holder = &hold{p: stranger, expires: 24 * time.Hour, runs: true, asked: "x"}
			}
			w.run(5 * longTTL)
			if runs := w.runs("g"); slices.Max(runs)-slices.Min(runs) > 1 {
				return fmt.Sprint("uneven: ", runs)
			}
			w.asks = 0
			w.run(time.Hour)
			if w.asks > 100 {
				return fmt.Sprintf("%d asks in an hour", w.asks)
			}
			return ""
		}},
		{"a loss is ignored", 20, func(w *world) string {
			names := w.group(3, 30)
			p := w.procs[0]
			p.slow = func(string) time.Duration { return 40 * time.Second }
			p.cut = true
			w.run(12 * time.Second)
			p.cut = false
			w.disturbed(w.now)
			return w.within(names, 1.5, 25)
		}},
		{"a foreign program releases a name", 10, func(w *world) string {
			names := list(31)
			stranger := w.join("s", longTTL, nil)
			stranger.kill()
			for _, name := range names[:1] {
				l := w.lock("g/" + name)
				l.holder = &hold{p: stranger, lock: l, expires: 24 * time.Hour, runs: true}
			}
			for range 3 {
				w.join("g", longTTL, names)
			}
			w.run(5 * time.Minute)
			for _, name := range names[:1] {
				w.lock("g/" + name).holder = nil
			}
			w.run(2 * time.Minute)
			if idle := w.idle(names); len(idle) > 0 {
				return fmt.Sprintf("nobody runs %v", idle)
			}
			return ""
		}},
		{"names of a terminated member come free one by one", 20, func(w *world) string {
			names := w.group(5, 100)
			w.procs[0].slow = func(string) time.Duration { return w.between(2*time.Second, 40*time.Second) }
			w.procs[0].term()
			return w.within(names, 0.8, 12)
		}},
		{"a terminated member is cut off while its functions return", 20, func(w *world) string {
			names := w.group(5, 55)
			p := w.procs[0]
			p.slow = func(string) time.Duration { return w.between(12*time.Second, 40*time.Second) }
			p.term()
			p.cut = true
			w.run(4 * time.Second)
			p.cut = false
			return w.within(names, 1, 12)
		}},
	}
}

// complaint returns the first promise that a scenario breaks.
func (s *scenario) complaint(seeds int, opts options) string {
	for seed := range uint64(seeds) {
		w := newWorld(seed, opts)
		c := s.run(w)
		if len(w.wrong) > 0 {
			c = w.wrong[0]
		}
		if c != "" {
			return fmt.Sprintf("%s, seed %d: %s", s.name, seed, c)
		}
	}
	return ""
}

func TestEachScenarioKeepsThePromise(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			if c := s.complaint(s.seeds, options{}); c != "" {
				t.Error(c)
			}
		})
	}
}
