package quorum_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// TestLocal runs the cases of testdata/local.txt. A hold is proven, useful and has
// tokens, and the process is subscribed, unless the step says otherwise.
func TestLocal(t *testing.T) {
	golden(t, "local", func(t *testing.T, head line) func(line) string {
		var l quorum.Local
		return func(step line) string {
			now := instant(t, step, "at")
			switch step.words[0] {
			case "enter":
				c := quorum.Caller{ID: caller(t, step), Arrived: clock.Validity(now)}
				if text, ok := step.named["terms"]; ok {
					c.Terms = uint64(number(t, text))
				}
				return stepText(l.Enter(clock.Validity(now), c))
			case "leave":
				return stepText(l.Leave(clock.Validity(now), caller(t, step)))
			case "granted":
				l.Granted(clock.Validity(now))
				return fmt.Sprintf("%d wait", l.Waiting())
			case "finished":
				return stepText(l.Finished(clock.Validity(now), hold(t, step)))
			case "checked":
				return stepText(l.Checked(clock.Validity(now), hold(t, step)))
			case "lost":
				return stepText(l.Lost(clock.Validity(now)))
			case "handed-on":
				l.HandedOn(clock.Validity(now), turn(t, step))
				return "nothing"
			case "idle":
				return strconv.FormatBool(l.IdleFrom() <= clock.Validity(now))
			default:
				t.Fatalf("unknown step %q", step.words[0])
				return ""
			}
		}
	})
}

func caller(t *testing.T, step line) quorum.CallerID {
	t.Helper()
	return quorum.CallerID(number(t, step.words[1]))
}

func turn(t *testing.T, step line) time.Duration {
	t.Helper()
	if text, ok := step.named["turn"]; ok {
		return duration(t, text)
	}
	return 0
}

func hold(t *testing.T, step line) *quorum.Hold {
	t.Helper()
	h := &quorum.Hold{Turn: turn(t, step), Tokens: 100, Proven: true, Useful: true, Subscribed: true, AnsweredAt: clock.Validity(instant(t, step, "answered"))}
	if text, ok := step.named["others"]; ok {
		h.Others = number(t, text)
	}
	if text, ok := step.named["tokens"]; ok {
		h.Tokens = number(t, text)
	}
	for _, word := range step.words[1:] {
		switch word {
		case "unproven":
			h.Proven = false
		case "useless":
			h.Useful = false
		case "unsubscribed":
			h.Subscribed = false
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return h
}

func stepText(s quorum.Step) string {
	switch s.Kind {
	case quorum.StepContend:
		return fmt.Sprintf("%d contends at %v", s.Caller, s.At)
	case quorum.StepPass:
		return fmt.Sprintf("pass to %d", s.Caller)
	case quorum.StepCheck:
		return "check"
	case quorum.StepRelease:
		text := "release"
		if s.LeaveFree {
			text = "leave free"
		}
		if s.Caller != 0 {
			text += fmt.Sprintf(", %d contends at %v", s.Caller, s.At)
		}
		if s.Enqueue {
			text += ", its ticket goes along"
		}
		return text
	default:
		return "nothing"
	}
}

// localWalk takes one local queue through random inputs, next to a naive model.
type localWalk struct {
	choices
	now     time.Duration
	local   quorum.Local
	last    quorum.CallerID
	fifo    []quorum.Caller // callers that have entered and not finished, in order
	state   string          // idle, contending, held, checking
	granted time.Duration
	quiet   time.Duration // when no caller waited elsewhere
	passes  int           // since then, or the grant
	seen    map[string]int
}

func (w *localWalk) walk(steps int) string {
	for range steps {
		if !w.more() {
			break
		}
		w.now += time.Duration(w.draw(4)*w.draw(4)) * ms / 2
		if w.draw(64) == 0 {
			w.now += quorum.PassFor - ms
		}
		if problem := w.step(); problem != "" {
			return fmt.Sprintf("at %v, %s, %d callers: %s", w.now-origin, w.state, len(w.fifo), problem)
		}
	}
	return w.finish()
}

func (w *localWalk) step() string {
	switch what := w.draw(10); {
	case what < 3:
		w.last++
		c := quorum.Caller{ID: w.last, Arrived: clock.Validity(w.now), Terms: uint64(w.draw(8) / 7)}
		s := w.local.Enter(clock.Validity(w.now), c)
		w.fifo = append(w.fifo, c)
		return w.judge(s, nil, w.state != "idle")
	case what == 3 && len(w.fifo) > 0:
		i := w.draw(len(w.fifo))
		if i == 0 && w.state != "contending" {
			return "" // the holder does not leave
		}
		c := w.fifo[i]
		w.fifo = slices.Delete(w.fifo, i, i+1)
		if i == 0 {
			w.state = "idle"
		}
		return w.judge(w.local.Leave(clock.Validity(w.now), c.ID), nil, i > 0)
	case what == 4 && w.draw(4) == 0:
		w.local.HandedOn(clock.Validity(w.now), 0)
		return ""
	case what == 5 && (w.state == "held" || w.state == "checking") && w.draw(3) == 0:
		w.state = "idle"
		w.fifo = w.fifo[1:]
		return w.judge(w.local.Lost(clock.Validity(w.now)), nil, false)
	case w.state == "contending":
		w.local.Granted(clock.Validity(w.now))
		w.state, w.granted, w.quiet, w.passes = "held", w.now, w.now, 0
		return ""
	case w.state == "held":
		h := w.hold()
		return w.judge(w.local.Finished(clock.Validity(w.now), h), h, false)
	case w.state == "checking":
		h := w.hold()
		h.AnsweredAt = clock.Validity(w.now - time.Duration(w.draw(2))*ms)
		return w.judge(w.local.Checked(clock.Validity(w.now), h), h, false)
	}
	return ""
}

func (w *localWalk) hold() *quorum.Hold {
	h := &quorum.Hold{
		Tokens: w.draw(4), Proven: w.draw(8) != 0, Useful: w.draw(16) != 0, Subscribed: w.draw(2) == 0,
		AnsweredAt: clock.Validity(w.granted + time.Duration(w.draw(int((w.now-w.granted)/ms)+1))*ms),
	}
	if w.draw(2) == 0 {
		h.Others = 1 + w.draw(20)
	}
	return h
}

// judge checks a step. Unless quiet is set, the input before it ended the turn of the
// head.
func (w *localWalk) judge(s quorum.Step, h *quorum.Hold, quiet bool) string {
	w.seen[strconv.Itoa(int(s.Kind))]++
	if h != nil && h.Others == 0 && h.AnsweredAt > clock.Validity(w.quiet) {
		w.quiet, w.passes = time.Duration(h.AnsweredAt), 0
	}
	if h != nil && s.Kind != quorum.StepCheck {
		w.fifo = w.fifo[1:] // the head has finished
	}
	var first quorum.Caller
	if len(w.fifo) > 0 {
		first = w.fifo[0]
	}
	switch s.Kind {
	case quorum.StepNone:
		if !quiet && len(w.fifo) > 0 {
			return "a caller is forgotten"
		}
		if !quiet {
			w.state = "idle"
		}
	case quorum.StepContend:
		switch {
		case quiet || w.state != "idle":
			return "a second contender"
		case h != nil:
			return "contends for a lock that it holds"
		case s.Caller != first.ID:
			return "the wrong caller contends"
		case s.At > clock.Validity(w.now+quorum.ReacquireDelay) || s.At < clock.Validity(w.now):
			return "contends too late"
		}
		w.state = "contending"
	case quorum.StepPass:
		if problem := w.passed(s, h, first); problem != "" {
			return problem
		}
		w.state = "held"
	case quorum.StepCheck:
		if h == nil || w.state != "held" {
			return "a check without a hold, or during a check"
		}
		if len(w.fifo) < 2 {
			return "a check without a next caller"
		}
		w.state = "checking"
	case quorum.StepRelease:
		switch {
		case h == nil:
			return "releases a lock that it does not hold"
		case s.Caller != first.ID:
			return "the wrong caller contends, or a caller is forgotten"
		case s.Caller != 0 && (s.At > clock.Validity(w.now+quorum.ReacquireDelay) || s.At < clock.Validity(w.now)):
			return "contends too late"
		case s.Enqueue && (s.Caller == 0 || h.Others == 0 || !h.Subscribed):
			return "a release carries a ticket without a caller, a queue or wake-ups"
		case s.LeaveFree && h.Others == 0:
			return "left free although no caller waits elsewhere"
		}
		w.state = "idle"
		if s.Caller != 0 {
			w.state = "contending"
		}
	default:
		return "refuses a caller that waits"
	}
	return ""
}

// passed checks a pass.
func (w *localWalk) passed(s quorum.Step, h *quorum.Hold, first quorum.Caller) string {
	w.passes++
	switch {
	case h == nil || w.state != "held" && w.state != "checking":
		return "passes on a lock that it does not hold"
	case s.Caller != first.ID || first.ID == 0:
		return "passes to the wrong caller"
	case !h.Proven || !h.Useful || h.Tokens <= 0:
		return "passes without proof, validity or a token"
	case w.now >= w.granted+quorum.PassFor:
		return "passes for so long that clients without queues get no turn"
	case h.Others > 0 && (w.passes > 16 || w.now >= w.quiet+quorum.CheckAfter):
		return "passes for too long although callers wait elsewhere"
	case h.Others > 0 && first.Arrived > clock.Validity(w.quiet):
		return "passes to a caller that came after the hold, although callers wait elsewhere"
	case h.Others == 0 && clock.Validity(w.now) >= h.AnsweredAt.Add(quorum.CheckAfter):
		return "passes without a recent answer of the nodes"
	}
	return ""
}

// finish lets all remaining callers finish.
func (w *localWalk) finish() string {
	for range 2*len(w.fifo) + 4 {
		h := &quorum.Hold{Tokens: 1, Proven: true, Useful: true, AnsweredAt: clock.Validity(w.now), Others: w.draw(2)}
		var problem string
		switch w.state {
		case "idle":
			if len(w.fifo) != 0 {
				return "callers are forgotten at the end"
			}
			if w.local.IdleFrom() > clock.Validity(w.now+time.Second) {
				return "not idle at the end"
			}
			return ""
		case "contending":
			w.local.Granted(clock.Validity(w.now))
			w.state, w.granted, w.quiet, w.passes = "held", w.now, w.now, 0
		case "held":
			problem = w.judge(w.local.Finished(clock.Validity(w.now), h), h, false)
		case "checking":
			problem = w.judge(w.local.Checked(clock.Validity(w.now), h), h, false)
		}
		if problem != "" {
			return problem
		}
	}
	return "it does not come to an end"
}

func newLocalWalk(c choices) *localWalk {
	return &localWalk{choices: c, now: origin, state: "idle", seen: map[string]int{}}
}

func TestLocalKeepsItsLawsOnRandomWalks(t *testing.T) {
	const walks, steps = 20_000, 80
	seen := walkAll(t, walks, 7, func(c choices) (map[string]int, string) {
		w := newLocalWalk(c)
		problem := w.walk(steps)
		return w.seen, problem
	})
	for kind := quorum.StepNone; kind <= quorum.StepRelease; kind++ {
		if seen[strconv.Itoa(int(kind))] < walks/10 {
			t.Errorf("step %d only %d times: the walks miss something", kind, seen[strconv.Itoa(int(kind))])
		}
	}
}

func FuzzLocal(f *testing.F) {
	fuzz(f, func(c choices) string { return newLocalWalk(c).walk(1000) })
}

func TestOneReleaseInAnEighthOfTheContendersLeavesItFreeForStrangers(t *testing.T) {
	for _, c := range []struct {
		others, every int
		strangers     bool
	}{
		{1, 1, true}, {7, 1, true}, {14, 1, true}, {15, 2, true}, {16, 2, true}, {63, 8, true},
		{1, 4, false}, {2, 6, false}, {15, 32, false},
	} {
		var l quorum.Local
		if c.strangers {
			l.StrangerSeen(clock.Validity(origin - 9*time.Minute))
		} else {
			l.StrangerSeen(clock.Validity(origin - 10*time.Minute))
		}
		var free, want []int
		for i := range 64 {
			now := origin + time.Duration(i)*100*ms
			l.Enter(clock.Validity(now), quorum.Caller{ID: 1, Arrived: clock.Validity(now)})
			l.Granted(clock.Validity(now))
			if s := l.Finished(clock.Validity(now+ms), &quorum.Hold{Others: c.others, AnsweredAt: clock.Validity(now)}); s.LeaveFree {
				free = append(free, i)
			}
		}
		for i := c.every - 1; i < 64; i += c.every {
			want = append(want, i)
		}
		assert.Equal(t, want, free, "%+v", c)
	}
}

// 16 processes in turn: without the parts, the first 480 releases leave the lock to a waiter, and then 16 in a row leave it free.
func TestProcessesDoNotCountTheirReleasesInStep(t *testing.T) {
	const processes = 16
	for name, c := range map[string]struct {
		part    func(i int) float64
		longest int // without a release that leaves the lock free
	}{
		"in step": {func(int) float64 { return 0 }, 31 * processes},
		"spread":  {func(i int) float64 { return float64(i) / processes }, 3*processes - 2},
	} {
		var all [processes]quorum.Local
		for i := range all {
			all[i].Spread(c.part(i))
		}
		longest, last := 0, -1
		for i := range 10_000 {
			now, l := clock.Validity(origin+time.Duration(i)*ms), &all[i%processes]
			l.Enter(now, quorum.Caller{ID: 1, Arrived: now})
			l.Granted(now)
			if l.Finished(now, &quorum.Hold{Others: processes - 1, AnsweredAt: now}).LeaveFree {
				longest, last = max(longest, i-last-1), i
			}
		}
		assert.Equal(t, c.longest, longest, name)
	}
}

func TestAPassDoesNotAllocate(t *testing.T) {
	var l quorum.Local
	now := origin
	l.Enter(clock.Validity(now), quorum.Caller{ID: 1, Arrived: clock.Validity(now)})
	l.Granted(clock.Validity(now))
	next := quorum.CallerID(2)
	h := &quorum.Hold{Tokens: math.MaxInt, Proven: true, Useful: true, AnsweredAt: clock.Validity(now)}
	for range 64 {
		l.Enter(clock.Validity(now), quorum.Caller{ID: next, Arrived: clock.Validity(now)})
		next++
	}
	allocated := testing.AllocsPerRun(10_000, func() {
		l.Enter(clock.Validity(now), quorum.Caller{ID: next, Arrived: clock.Validity(now)})
		next++
		if l.Finished(clock.Validity(now), h).Kind != quorum.StepPass {
			t.Fatal("no pass")
		}
	})
	assert.Zero(t, math.Floor(allocated))
}

// A queue that was removed is made anew, without these memories, when the next caller comes.
func TestAQueueIsNeededWhileItRemembersWhatOthersAreOwed(t *testing.T) {
	l := quorum.Held(0, 0, 0)
	assert.False(t, l.Needed(0))
	l.StrangerSeen(0)
	assert.True(t, l.Needed(clock.Validity(10*time.Minute-1)))
	assert.False(t, l.Needed(clock.Validity(10*time.Minute)))
	l.Finished(clock.Validity(time.Hour), &quorum.Hold{Tokens: 1, Proven: true, Useful: true, Others: 8})
	assert.True(t, l.Needed(clock.Validity(2*time.Hour)), "one of the next releases is to leave the lock free")
}
