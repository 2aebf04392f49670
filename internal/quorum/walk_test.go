package quorum_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// choices draws numbers in [0, n) that make up a walk: from a generator, or
// from the bytes of a fuzzed input until they run out.
type choices struct {
	rng   *rand.Rand
	bytes []byte
}

func (c *choices) more() bool { return c.rng != nil || len(c.bytes) > 0 }

func (c *choices) draw(n int) int {
	if c.rng != nil {
		return c.rng.IntN(n)
	}
	if len(c.bytes) == 0 {
		return 0
	}
	b := c.bytes[0]
	c.bytes = c.bytes[1:]
	return int(b) % n
}

// walker takes one machine through random inputs, next to a naive model, and checks its
// invariants.
type walker struct {
	choices
	log     func(format string, args ...any) // logs every step when the walk is repeated
	terms   quorum.Terms
	others  []*quorum.Terms // with other TTLs, and one with the same
	asked   *quorum.Terms   // by requests; nil before the first change
	machine quorum.Machine
	dumb    *dumbLease
	now     time.Duration
	lag     time.Duration
	sent    []request // the rounds, and heals
	ended   int
	seen    map[string]int // changes of the TTL, and what came of them
}

// request is one that was sent to the nodes.
type request struct {
	at    time.Duration
	terms *quorum.Terms
}

func newWalker(c choices) *walker {
	w := &walker{choices: c, now: origin, seen: map[string]int{}}
	w.terms.Nodes = []int{3, 5, 1, 2, 4, 7, 3, 5}[w.draw(8)]
	ttl := []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[w.draw(3)]
	if w.draw(4) == 0 {
		w.terms.MaxHold = ttl / 4 * time.Duration(1+w.draw(8))
	}
	early, spare, timeouts := time.Duration(w.draw(2)), time.Duration(w.draw(8)), time.Duration(10+w.draw(10))
	with := func(ttl time.Duration) quorum.Terms {
		t := w.terms
		t.TTL, t.Drift, t.SafetyMargin, t.Timeout = ttl, quorum.Drift(ttl, 0.01), quorum.SafetyMargin(ttl), ttl/timeouts
		t.Early, t.MaxLag = quorum.Early(t.SafetyMargin)*early, quorum.MaxLag(ttl, ttl/40*spare)
		return t
	}
	w.terms = with(ttl)
	for _, ttl := range []time.Duration{ttl, ttl / 4, ttl / 2, 2 * ttl, 4 * ttl} {
		t := with(ttl)
		w.others = append(w.others, &t)
	}
	var voters, answered quorum.Set
	var voterList, answeredList []int
	for i := range w.terms.Nodes {
		switch w.draw(8) {
		case 0: // silent
		case 1:
			answered, answeredList = answered.With(i), append(answeredList, i)
		default:
			voters, voterList = voters.With(i), append(voterList, i)
			answered, answeredList = answered.With(i), append(answeredList, i)
		}
	}
	w.machine = quorum.NewMachine(&w.terms, make(quorum.Window[clock.Validity], w.terms.Nodes), clock.Validity(w.now), voters, answered)
	w.dumb = newDumbLease(w.terms, w.now, voterList, answeredList)
	w.sent = append(w.sent, request{at: w.now})
	return w
}

// pass advances the time: often a little, often to the next relevant instant or just
// before it, seldom very long.
func (w *walker) pass() {
	unit := w.terms.TTL / 1000
	switch w.draw(8) {
	case 0:
	case 1, 2, 3:
		w.now += unit * time.Duration(1+w.draw(50))
	case 4:
		w.now += unit * time.Duration(1+w.draw(250))
	case 5, 6:
		if wake := w.machine.Wake(); wake != quorum.Never {
			w.now = time.Duration(max(clock.Validity(w.now), wake.Add(-time.Duration(w.draw(2)))))
		}
	case 7:
		if w.draw(20) == 0 {
			w.now += w.terms.TTL * time.Duration(1+w.draw(3))
		}
	}
}

// input draws the next input.
func (w *walker) input() quorum.Input {
	in := quorum.Input{Node: w.draw(w.terms.Nodes)}
	answered := w.sent[max(0, len(w.sent)-1-w.draw(3)*w.draw(2))]
	in.At, in.Terms = clock.Validity(answered.at), answered.terms
	if w.draw(8) == 0 { // it was late to be sent
		in.At += (clock.Validity(w.now) - in.At) / clock.Validity(1+w.draw(4))
	}
	if w.draw(4) == 0 { // over a connection that is younger than the lease
		in.Since = in.At - clock.Validity(w.terms.TTL/100)*clock.Validity(w.draw(100))
	}
	switch w.draw(32) {
	case 0, 1, 2, 3, 4:
		in.Kind = quorum.InputBegin
	case 5, 6, 7, 8:
		in.Kind = quorum.InputNoAnswer
	case 9:
		in.Kind = quorum.InputMissing
	case 10:
		if in.Kind = quorum.InputTaken; w.draw(8) == 0 {
			in.Kind = quorum.InputRevoked
		}
	case 11:
		in.Kind = quorum.InputTick
		switch w.draw(30) {
		case 0:
			in.Kind = quorum.InputRelease
		case 1, 2, 3, 4, 5:
			in.Kind, in.By = quorum.InputClockStep, w.terms.TTL/100*time.Duration(1+w.draw(150))
		}
	case 12, 13, 14, 15, 16:
		in.Kind = quorum.InputTick
	default:
		in.Kind = quorum.InputConfirmed
	}
	in.Jump = w.draw(8) == 0
	if w.draw(8) == 0 {
		w.lag = w.terms.TTL / 100 * time.Duration(w.draw(20))
	}
	in.Lag = w.lag
	if in.Kind == quorum.InputTick || in.Kind == quorum.InputBegin || in.Kind == quorum.InputRelease {
		in.Node, in.At, in.Since, in.Terms = 0, 0, 0, nil
	}
	if in.Kind == quorum.InputBegin && w.draw(3) == 0 {
		in.Terms = w.others[w.draw(len(w.others))]
	}
	return in
}

// walk takes the steps, and returns the first violation, or "".
func (w *walker) walk(steps int) string {
	for range steps {
		if !w.more() {
			break
		}
		w.pass()
		in := w.input()
		if problem := w.step(in); problem != "" {
			return fmt.Sprintf("%+v at %v %+v: %s", w.terms, w.now-origin, in, problem)
		}
	}
	return ""
}

// face is the observable state of a machine.
type face struct {
	state           quorum.State
	reason          quorum.Reason
	stop, deadline  clock.Validity
	began           clock.Validity
	open, announced bool
	confirmed       int
}

func look(m *quorum.Machine) face {
	f := face{state: m.State(), reason: m.Reason(), stop: m.Stop(), deadline: m.Deadline(), confirmed: m.Confirmed()}
	f.began, f.open, f.announced = m.Round()
	return f
}

func (w *walker) step(in quorum.Input) string {
	m, now := &w.machine, w.now
	state, stop := m.State(), m.Stop()
	before, terms := look(m), m.Terms()
	live := state == quorum.StateHeld || state == quorum.StateAtRisk

	out := m.Step(clock.Validity(now), in)
	waiting := before.open && !before.announced && clock.Validity(now) < before.began.Add(terms.Timeout)
	other := in.Kind == quorum.InputBegin && in.Terms != nil && in.Terms.TTL != w.dumb.asked().TTL
	shorter := other && in.Terms.TTL < w.dumb.asked().TTL
	want := w.dumb.step(now, in)
	if w.log != nil {
		w.log("%v %+v: %+v %v stop=%v", now-origin, in, out, m.State(), m.Stop().Add(-origin))
	}

	// The invariants of a lease.
	after := m.State()
	alive := after == quorum.StateHeld || after == quorum.StateAtRisk
	ended := out.Events&quorum.Ended != 0
	switch {
	case !live && (out != quorum.Output{} || look(m) != before):
		return "a change after the end"
	case live && clock.Validity(now) >= stop && (after != quorum.StateLost || !ended):
		return "not lost at the stop"
	case alive && clock.Validity(now) >= m.Stop():
		return "valid at the stop"
	case alive && m.Stop() < stop.Add(-max(m.Terms().SafetyMargin-terms.SafetyMargin, 0)) && in.Kind != quorum.InputMissing && in.Kind != quorum.InputTaken && in.Kind != quorum.InputRevoked && in.Kind != quorum.InputClockStep && !shorter:
		return "the stop moved back"
	case ended && (after != quorum.StateLost || out != quorum.Output{Events: quorum.Ended}):
		return "lost, with another output"
	case live && after == quorum.StateLost && !ended:
		return "lost without an event"
	case (after == quorum.StateReleased) != (state == quorum.StateReleased || live && in.Kind == quorum.InputRelease && !ended):
		return "released by another input"
	case out.Heal != 0 && !alive:
		return "healed after the end"
	case out.Begin != (alive && in.Kind == quorum.InputBegin && (other || !waiting)):
		return "a round began by itself, or did not begin"
	case out.Missed && (out.Events&quorum.AtRisk == 0 || after != quorum.StateAtRisk):
		return "a missed round without a risk"
	case out.Silent != 0 && in.Kind != quorum.InputBegin && (look(m).open || !before.open):
		return "silence in a round that was not closed"
	case out.Confirmed && out.Events&quorum.Renewed == 0:
		return "a confirmed round that is not reported"
	case state == quorum.StateHeld && after == quorum.StateAtRisk && out.Events&quorum.AtRisk == 0:
		return "at risk without an event"
	case state == quorum.StateAtRisk && after == quorum.StateHeld && out.Events&quorum.Renewed == 0:
		return "safe again without an event"
	case out.Events&quorum.AtRisk != 0 && after != quorum.StateAtRisk:
		return "a reported risk that does not exist"
	case (after == quorum.StateLost) != (m.Reason() != 0):
		return "a reason without a loss, or a loss without a reason"
	case in.Kind == quorum.InputTick && alive && m.Wake() <= clock.Validity(now) && !m.Due(clock.Validity(now)) && !(out.Missed && clock.Validity(now) >= m.End()):
		return "it wakes although nothing is due"
	}
	if ended {
		if w.ended++; w.ended > 1 {
			return "ended twice"
		}
	}
	held := 0
	for i := range w.terms.Nodes {
		if m.Holds(i, clock.Validity(now)) {
			held++
		}
	}
	if m.Margin(clock.Validity(now)) != w.terms.Nodes/2+1+held-w.terms.Nodes-1 {
		return "the margin is not q + held - n - 1"
	}

	// The naive model agrees.
	d := w.dumb
	switch {
	case out != want:
		return fmt.Sprintf("did %+v, dumb did %+v", out, want)
	case after != d.state() || m.Reason() != d.why:
		return fmt.Sprintf("is %v, dumb is %v", after, d.state())
	case m.Stop() != clock.Validity(d.stop()) || m.Deadline() != clock.Validity(d.deadline()):
		return fmt.Sprintf("stops at %v, dumb at %v", m.Stop(), d.stop())
	case m.Wake() != clock.Validity(d.wake()) || m.Due(clock.Validity(now)) != d.due(now):
		return fmt.Sprintf("wakes at %v, dumb at %v", m.Wake(), d.wake())
	case m.Margin(clock.Validity(now)) != d.margin(now):
		return fmt.Sprintf("has margin %d, dumb %d", m.Margin(clock.Validity(now)), d.margin(now))
	case *m.Terms() != d.terms || m.Longest() != d.longest() || m.Changed() != (len(d.asks) > 1):
		return fmt.Sprintf("has %+v and %v, dumb %+v and %v", *m.Terms(), m.Longest(), d.terms, d.longest())
	}

	if other && alive {
		w.asked = in.Terms
	}
	for what, seen := range map[string]bool{
		"a change": other && alive, "a change in the middle of a round": other && alive && waiting,
		"a longer TTL in force": m.Terms().TTL > terms.TTL, "a node overtaken": in.Kind == quorum.InputConfirmed && alive && d.overtaken(in),
	} {
		if seen {
			w.seen[what]++
		}
	}
	w.after(out)
	return ""
}

// after does what the machine's owner does about an output, with random omissions.
func (w *walker) after(out quorum.Output) {
	arm := time.Duration(0)
	switch {
	case out.Begin:
		w.sent = append(w.sent, request{w.now, w.asked})
		arm = w.now + w.terms.TTL/3
	case out.Heal != 0:
		w.sent = append(w.sent, request{w.now, w.asked})
	case out.Missed:
		arm = w.now + w.terms.TTL/20
	}
	if arm != 0 && w.draw(8) != 0 {
		w.machine.Arm(clock.Validity(arm))
		w.dumb.next = arm
	}
}

// walkAll runs a walk for each seed, and returns how often the walks saw what. A walk
// returns the problem that it has met.
func walkAll(t *testing.T, walks, stream uint64, walk func(choices) (seen map[string]int, problem string)) map[string]int {
	t.Helper()
	total := map[string]int{}
	for seed := range walks {
		seen, problem := walk(choices{rng: rand.New(rand.NewPCG(seed, stream))})
		if problem != "" {
			t.Fatalf("seed %d: %s", seed, problem)
		}
		for what, n := range seen {
			total[what] += n
		}
	}
	t.Log(total)
	return total
}

func TestMachineKeepsItsLawsOnRandomWalks(t *testing.T) {
	const walks, steps = 20_000, 60
	ends, seen := map[quorum.Reason]int{}, map[string]int{}
	for seed := range uint64(walks) {
		w := newWalker(choices{rng: rand.New(rand.NewPCG(seed, 0))})
		if problem := w.walk(steps); problem != "" {
			again := newWalker(choices{rng: rand.New(rand.NewPCG(seed, 0))})
			again.log = t.Logf
			again.walk(steps)
			t.Fatalf("seed %d: %s", seed, problem)
		}
		ends[w.machine.Reason()]++
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	t.Logf("%d walks, by reason: %v; %v", walks, ends, seen)
	for _, what := range []string{"a change", "a change in the middle of a round", "a longer TTL in force", "a node overtaken"} {
		if seen[what] < walks/50 {
			t.Errorf("only %d times %s: the walks miss something", seen[what], what)
		}
	}
	for reason := range quorum.ReasonMissing + 1 {
		if ends[reason] < walks/1000 {
			t.Errorf("only %d walks ended with reason %v: the walks miss something", ends[reason], reason)
		}
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte{})
	fuzz(f, func(c choices) string { return newWalker(c).walk(1000) })
}

// fuzz fuzzes walks, from 64 random ones on.
func fuzz(f *testing.F, walk func(c choices) (problem string)) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 64 {
		life := make([]byte, 40+rng.IntN(400))
		for i := range life {
			life[i] = byte(rng.Uint32())
		}
		f.Add(life)
	}
	f.Fuzz(func(t *testing.T, life []byte) {
		if problem := walk(choices{bytes: life}); problem != "" {
			t.Fatal(problem)
		}
	})
}
