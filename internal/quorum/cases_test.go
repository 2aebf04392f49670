package quorum_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

func TestClaim(t *testing.T) {
	golden(t, "claim", func(t *testing.T, head line) func(line) string {
		claim := quorum.NewClaim(number(t, head.named["n"]), head.words[0] == "claim")
		return func(step line) string {
			var raise quorum.Set
			for _, i := range step.nodes(t, 1) {
				switch step.words[0] {
				case "grant":
					c := 0
					if word, ok := step.named["c"]; ok {
						c = number(t, word)
					}
					raise |= claim.Grant(i, int64(c))
				case "refuse":
					claim.Refuse(i)
				case "fail":
					claim.Fail(i)
				case "raised":
					claim.Raised(i, true)
				case "unraised":
					claim.Raised(i, false)
				}
			}
			if step.words[0] == "expire" {
				claim.Expire()
			}
			result := claim.Outcome().String()
			if claim.Token() != 0 {
				result += fmt.Sprintf(" token=%d", claim.Token())
			}
			if raise != 0 {
				result += " raise" + members(raise)
			}
			return result
		}
	})
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
		var window quorum.Window
		for _, word := range head.words[1:] {
			if word == "-" {
				word = "0"
			}
			window = append(window, duration(t, word))
		}
		return func(step line) string {
			switch step.words[0] {
			case "deadline":
				if d := window.Deadline(); d != 0 {
					return d.String()
				}
				return "none"
			case "held":
				held := window.Held(duration(t, step.words[1]))
				return fmt.Sprintf("%d margin=%d", held, quorum.Margin(len(window), held))
			case "drift":
				return quorum.Drift(duration(t, step.words[1]), 0.01).String()
			case "guard":
				return quorum.Guard(duration(t, step.words[1])).String()
			}
			t.Fatalf("unknown step %q", step.words[0])
			return ""
		}
	})
}

// The origin of the instants in the cases: they count from the send of the
// acquisition, which must not be the instant zero.
const origin = time.Hour

var kinds = map[string]quorum.Kind{
	"tick": quorum.Tick, "begin": quorum.Begin, "kept": quorum.Kept, "gone": quorum.Gone,
	"foreign": quorum.Foreign, "mute": quorum.Mute, "stepped": quorum.Stepped, "release": quorum.Release,
}

func TestMachine(t *testing.T) {
	golden(t, "machine", func(t *testing.T, head line) func(line) string {
		ttl := duration(t, head.named["ttl"])
		terms := &quorum.Terms{
			Nodes: number(t, head.named["n"]), TTL: ttl, Timeout: ttl / 20,
			Drift: quorum.Drift(ttl, 0.01), Guard: quorum.Guard(ttl),
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
		m := quorum.NewMachine(terms, make(quorum.Window, terms.Nodes), origin, voters, voters)
		var lag time.Duration // stays until a step gives another
		return func(step line) string {
			now := origin + duration(t, step.words[0])
			if step.words[1] == "arm" {
				m.Arm(origin + duration(t, step.words[2]))
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
			if word, ok := step.named["by"]; ok {
				in.By = duration(t, word)
			}
			if len(step.words) > 2 {
				in.Node = number(t, step.words[2])
				in.At, _, _ = m.Round()
				if word, ok := step.named["sent"]; ok {
					in.At = origin + duration(t, word)
				}
			}
			out := m.Step(now, in)
			var told []string
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
					told = append(told, flag.name)
				}
			}
			return strings.Join(append(standing(&m, now), told...), " ")
		}
	})
}

// standing describes a lease between two steps.
func standing(m *quorum.Machine, now time.Duration) []string {
	words := []string{m.State().String()}
	if m.State() == quorum.Lost || m.State() == quorum.Released {
		return words
	}
	words = append(words,
		"stop="+(m.Stop()-origin).String(), "wake="+(m.Wake()-origin).String(),
		fmt.Sprintf("margin=%d", m.Margin(now)))
	if m.Due(now) {
		words = append(words, "due")
	}
	return words
}
