package quorum_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

func TestTally(t *testing.T) {
	golden(t, "tally", func(t *testing.T, head line) func(line) string {
		tally := quorum.NewTally(number(t, head.named["n"]))
		return func(step line) string {
			first := true
			for _, i := range step.nodes(t, 1) {
				switch step.words[0] {
				case "grant":
					first = tally.Grant(i)
				case "refuse":
					first = tally.Refuse(i)
				case "fail":
					first = tally.Fail(i)
				}
			}
			if step.words[0] == "expire" {
				tally.Expire()
			}
			result := tally.Outcome().String()
			if !first {
				result += ", not counted"
			}
			return result
		}
	})
}

func TestBallot(t *testing.T) {
	golden(t, "ballot", func(t *testing.T, head line) func(line) string {
		fenced := head.words[0] == "ballot"
		b := quorum.NewBallot(number(t, head.named["n"]), fenced, value(t, head, "t"))
		if head.words[0] == "shared" {
			fenced = true
			b = quorum.NewSharedBallot(number(t, head.named["n"]), true)
		}
		return func(step line) string {
			var raise quorum.Set
			for _, i := range step.nodes(t, 1) {
				switch step.words[0] {
				case "moved":
					raise |= b.Grant(i, value(t, step, "to"), value(t, step, "from"))
				case "ahead":
					raise |= b.Grant(i, 0, value(t, step, "at"))
				case "raised":
					b.Raised(i, value(t, step, "from"), true)
				case "unraised":
					b.Raised(i, 0, false)
				case "refuse":
					b.Refuse(i)
				case "fail":
					b.Fail(i)
				default:
					t.Fatalf("unknown step %q", step.words[0])
				}
			}
			if step.words[0] == "expire" {
				b.Expire()
			}
			result := b.Outcome().String()
			if fenced {
				result += fmt.Sprintf(" token=%d", b.Top())
			}
			if raise != 0 {
				result += " raise" + members(raise)
			}
			if first, last := b.Tokens(value(t, head, "block")); last != 0 {
				result += fmt.Sprintf(" tokens=%d..%d", first, last)
			}
			return result
		}
	})
}

// value returns the number with a name, or 0 if the line has none.
func value(t *testing.T, l line, name string) int64 {
	t.Helper()
	word, ok := l.named[name]
	if !ok {
		return 0
	}
	return int64(number(t, word))
}

func members(s quorum.Set) string {
	var b strings.Builder
	for i := range quorum.MaxNodes {
		if s.Has(i) {
			fmt.Fprintf(&b, " %d", i)
		}
	}
	return b.String()
}

func TestWindow(t *testing.T) {
	golden(t, "window", func(t *testing.T, head line) func(line) string {
		var window quorum.Window[clock.Validity]
		for _, word := range head.words[1:] {
			if word == "-" {
				word = "0"
			}
			window = append(window, clock.Validity(duration(t, word)))
		}
		return func(step line) string {
			switch step.words[0] {
			case "deadline":
				if d := window.Deadline(); d != 0 {
					return d.String()
				}
				return "none"
			case "held":
				held := window.Held(clock.Validity(duration(t, step.words[1])))
				return fmt.Sprintf("%d margin=%d", held, quorum.Margin(len(window), held))
			case "drift":
				return quorum.Drift(duration(t, step.words[1]), 0.01).String()
			case "safety-margin":
				return quorum.SafetyMargin(duration(t, step.words[1])).String()
			}
			t.Fatalf("unknown step %q", step.words[0])
			return ""
		}
	})
}

// The instants in the cases count from the send of the acquisition. That instant must not
// be zero.
const origin = time.Hour

var kinds = map[string]quorum.Kind{
	"tick": quorum.InputTick, "begin": quorum.InputBegin, "release": quorum.InputRelease,
	"confirmed": quorum.InputConfirmed, "missing": quorum.InputMissing, "taken": quorum.InputTaken, "revoked": quorum.InputRevoked,
	"no-answer": quorum.InputNoAnswer, "clock-step": quorum.InputClockStep,
}

func TestMachine(t *testing.T) {
	golden(t, "machine", func(t *testing.T, head line) func(line) string {
		ttl := duration(t, head.named["ttl"])
		terms := &quorum.Terms{
			Nodes: number(t, head.named["n"]), TTL: ttl, Timeout: ttl / 20,
			Drift: quorum.Drift(ttl, 0.01), SafetyMargin: quorum.SafetyMargin(ttl),
		}
		if word, ok := head.named["early"]; ok {
			terms.Early = duration(t, word)
		}
		if word, ok := head.named["max-lag"]; ok {
			terms.MaxLag = duration(t, word)
		}
		if word, ok := head.named["max-hold"]; ok {
			terms.MaxHold = duration(t, word)
		}
		var voters quorum.Set
		for word := range strings.SplitSeq(head.named["voters"], ",") {
			voters = voters.With(number(t, word))
		}
		m := quorum.NewMachine(terms, make(quorum.Window[clock.Validity], terms.Nodes), clock.Validity(origin), voters, voters)
		var lag time.Duration // stays until a step sets another
		return func(step line) string {
			now := origin + duration(t, step.words[0])
			if step.words[1] == "arm" {
				m.Arm(clock.Validity(origin + duration(t, step.words[2])))
				return strings.Join(standing(&m, now), " ")
			}
			in := quorum.Input{Kind: kinds[step.words[1]]}
			if in.Kind == 0 {
				t.Fatalf("unknown step %q", step.words[1])
			}
			_, in.Jump = step.named["jump"]
			if word, ok := step.named["lag"]; ok {
				lag = duration(t, word)
			}
			in.Lag = lag
			if word, ok := step.named["ttl"]; ok {
				in.Terms = withTTL(terms, duration(t, word))
			}
			if word, ok := step.named["since"]; ok {
				in.Since = clock.Validity(origin + duration(t, word))
			}
			if word, ok := step.named["by"]; ok {
				in.By = duration(t, word)
			}
			if len(step.words) > 2 {
				in.Node = number(t, step.words[2])
				in.At, _, _ = m.Round()
				if word, ok := step.named["sent"]; ok {
					in.At = clock.Validity(origin + duration(t, word))
				}
			}
			out := m.Step(clock.Validity(now), in)
			var words []string
			for _, flag := range []struct {
				set  bool
				name string
			}{
				{out.Begin, "BEGIN"},
				{out.Heal != 0, "HEAL(" + strings.TrimSpace(members(out.Heal)) + ")"},
				{out.Missed, "MISSED"},
				{out.Silent != 0, "SILENT(" + strings.TrimSpace(members(out.Silent)) + ")"},
				{out.Events&quorum.Renewed != 0, "RENEWED"},
				{out.Events&quorum.AtRisk != 0, "AT-RISK"},
				{out.Events&quorum.Ended != 0, "LOST(" + m.Reason().String() + ")"},
			} {
				if flag.set {
					words = append(words, flag.name)
				}
			}
			return strings.Join(append(standing(&m, now), words...), " ")
		}
	})
}

// withTTL returns the terms of a lease with another TTL.
func withTTL(terms *quorum.Terms, ttl time.Duration) *quorum.Terms {
	other := *terms
	other.TTL, other.Timeout = ttl, ttl/20
	other.Drift, other.SafetyMargin = quorum.Drift(ttl, 0.01), quorum.SafetyMargin(ttl)
	return &other
}

// standing describes a lease between two steps.
func standing(m *quorum.Machine, now time.Duration) []string {
	words := []string{m.State().String()}
	if m.State() == quorum.StateLost || m.State() == quorum.StateReleased {
		return words
	}
	words = append(words,
		"stop="+m.Stop().Add(-origin).String(), "wake="+m.Wake().Add(-origin).String(),
		fmt.Sprintf("margin=%d", m.Margin(clock.Validity(now))))
	if m.Due(clock.Validity(now)) {
		words = append(words, "due")
	}
	return words
}

func TestLists(t *testing.T) {
	golden(t, "lists", func(t *testing.T, head line) func(line) string {
		n := number(t, head.named["n"])
		lists := quorum.NewLists(n, 20*time.Second)
		asked := make([]quorum.Enlisting, n)
		var now time.Duration
		return func(step line) string {
			var result strings.Builder
			var nodes []int
			if step.words[0] != "wait" {
				nodes = step.nodes(t, 1)
			}
			for _, i := range nodes {
				a := quorum.Listed{Known: true}
				switch step.words[0] {
				case "ask":
					asked[i] = lists.Entry(i, clock.Steady(now))
					fmt.Fprintf(&result, "%03b adds %v keeps %v  ", asked[i].Members, asked[i].Adds, asked[i].Keeps)
					continue
				case "gone":
					lists.Gone(i)
					continue
				case "stands":
					a.Stands = true
				case "renamed":
					a.Renamed = true
				case "nameless":
					a.Known = false
				case "refuses":
					a.Refused = duration(t, step.named["for"])
					if text, ok := step.named["lacks"]; ok {
						a.Lacks = a.Lacks.With(number(t, text))
					}
				case "knows": // without our list
				default:
					t.Fatalf("unknown step %q", step.words[0])
				}
				lists.Record(i, asked[i], clock.Steady(now), clock.Steady(now), a)
			}
			switch step.words[0] {
			case "wait":
				now += duration(t, step.words[1])
			case "use":
				lists.Use()
			}
			var votes, stale quorum.Set
			for i := range n {
				if lists.Votes(i, clock.Steady(now)) {
					votes = votes.With(i)
				}
				if lists.Stale(i, clock.Steady(now)) {
					stale = stale.With(i)
				}
			}
			fmt.Fprintf(&result, "votes %03b stale %03b", votes, stale)
			if i, refused := lists.Refused(clock.Steady(now)); refused {
				fmt.Fprintf(&result, " refused by %d", i)
			}
			return result.String()
		}
	})
}
