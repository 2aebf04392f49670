package quorum_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// TestWaiter runs the cases of testdata/waiter.txt. A refusal of node 1 is written
// r1=position/left, or r1=position/left/reserved, or r1=position/left/stranger,
// and with @owner behind it.
func TestWaiter(t *testing.T) {
	golden(t, "waiter", func(t *testing.T, head line) func(line) string {
		w := quorum.NewWaiter(waiterConfig(t, head))
		return func(step line) string {
			if len(step.words) == 0 {
				t.Fatal("a step without a word")
			}
			return waiterStep(t, &w, step)
		}
	})
}

func waiterConfig(t *testing.T, head line) quorum.WaiterConfig {
	t.Helper()
	c := quorum.WaiterConfig{
		Nodes: number(t, head.named["n"]), Grace: 20 * ms, Arrived: clock.Validity(instant(t, head, "arrived")),
		NotBefore: clock.Validity(instant(t, head, "notbefore")), Subscribed: quorum.All(number(t, head.named["n"])),
	}
	if text, ok := head.named["timeout"]; ok {
		c.Timeout = duration(t, text)
	}
	if _, ok := head.named["subscribed"]; ok {
		c.Subscribed = nodeSet(t, head, "subscribed")
	}
	for _, word := range head.words[1:] {
		switch word {
		case "once":
			c.Once = true
		case "enqueued":
			c.Enqueued = true
		case "permit":
			c.Sure = true
		case "unanswered":
			c.Unanswered = true
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return c
}

func waiterStep(t *testing.T, w *quorum.Waiter, step line) string {
	t.Helper()
	now := instant(t, step, "at")
	jitter, _ := strconv.ParseFloat(step.named["jitter"], 64)
	reaction := func(r quorum.Reaction) string {
		switch r {
		case quorum.ReactionReschedule:
			return due(w)
		case quorum.ReactionUnused:
			return "unused"
		default:
			return "nothing"
		}
	}
	switch what := step.words[0]; what {
	case "due":
		return due(w)
	case "begin":
		return waiterAsk(w.Begin(clock.Validity(now)))
	case "held", "split", "no-quorum":
		return waiterNext(w.Ended(clock.Validity(now), attemptResult(t, step), duration(t, step.named["poll"]), jitter))
	case "won":
		if reserved := w.Won(nodeSet(t, step, "granted")); reserved != 0 {
			return "takes the reservations of" + members(reserved)
		}
		return "nothing"
	case "subscribed":
		return reaction(w.Subscribed(clock.Validity(now), number(t, step.words[1]), jitter))
	case "reserved", "free", "next", "ask-again":
		kind := map[string]quorum.WakeUp{
			"reserved": quorum.WakeReserved, "free": quorum.WakeFree, "next": quorum.WakeNext, "ask-again": quorum.WakeAskAgain,
		}[what]
		rank := 1
		if text, ok := step.named["rank"]; ok {
			rank = number(t, text)
		}
		return reaction(w.Wake(clock.Validity(now), number(t, step.words[1]), kind, rank, jitter))
	case "done":
		leave, passOn := w.Done()
		if leave|passOn == 0 {
			return "nothing"
		}
		return strings.TrimPrefix(nodesTo("leave", leave)+nodesTo("pass on", passOn), ", ")
	default:
		t.Fatalf("unknown step %q", what)
		return ""
	}
}

func due(w *quorum.Waiter) string {
	if w.At() == quorum.Never {
		return "asks no more"
	}
	return fmt.Sprintf("asks at %v", w.At())
}

func waiterAsk(ask quorum.Ask) string {
	text := "without a ticket"
	if ask.Ticket {
		text = "with a ticket"
	}
	return text + nodesTo("lapsed on", ask.Lapsed)
}

func waiterNext(next quorum.Next) string {
	text := [...]string{"no ticket", "keep the place", "yield", "leave"}[next.Ticket]
	if next.Ticket == quorum.TicketLeave {
		text += members(next.Leave)
	}
	text += nodesTo("pass on", next.PassOn)
	if next.Keep {
		text += ", keep the votes"
	}
	if next.At == quorum.Never {
		return text + ", asks no more"
	}
	if next.Missed {
		text += ", start over"
	}
	return fmt.Sprintf("%s, asks at %v", text, next.At)
}

func nodesTo(what string, nodes quorum.Set) string {
	if nodes == 0 {
		return ""
	}
	return ", " + what + members(nodes)
}

// attemptResult reads the end of an attempt.
func attemptResult(t *testing.T, step line) *quorum.AttemptResult {
	t.Helper()
	r := quorum.AttemptResult{
		Outcome: map[string]quorum.Outcome{
			"held": quorum.OutcomeHeld, "split": quorum.OutcomeSplit, "no-quorum": quorum.OutcomeNoQuorum,
		}[step.words[0]],
		Granted: nodeSet(t, step, "granted"), Failed: nodeSet(t, step, "failed"), Unqueued: nodeSet(t, step, "unqueued"),
		TooLate: slices.Contains(step.words, "too-late"), Overtaken: slices.Contains(step.words, "overtaken"), Owner: step.named["owner"],
	}
	for i := range quorum.MaxNodes {
		text, ok := step.named["r"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		text, owner, _ := strings.Cut(text, "@")
		parts := strings.Split(text, "/")
		refusal := quorum.Refusal{Node: i, Position: number(t, parts[0]), Left: time.Duration(quorum.Never), Owner: owner}
		if parts[1] != "never" {
			refusal.Left = duration(t, parts[1])
		}
		if len(parts) > 2 {
			refusal.Reserved, refusal.Stranger, refusal.LetIn = parts[2] == "reserved", parts[2] == "stranger", parts[2] == "let-in"
		}
		r.Refusals = append(r.Refusals, refusal)
	}
	return &r
}

// instant reads an instant, 0 if it is not given.
func instant(t *testing.T, l line, name string) time.Duration {
	t.Helper()
	if text, ok := l.named[name]; ok {
		return duration(t, text)
	}
	return 0
}

// nodeSet reads nodes that are separated by commas.
func nodeSet(t *testing.T, l line, name string) (s quorum.Set) {
	t.Helper()
	for word := range strings.SplitSeq(l.named[name], ",") {
		if word != "" {
			s = s.With(number(t, word))
		}
	}
	return s
}

func TestOneNodeLessThanAQuorumOfReservationsIsEnoughOnce(t *testing.T) {
	for n := 1; n <= 7; n++ {
		q := quorum.Size(n)
		w := quorum.NewWaiter(quorum.WaiterConfig{Nodes: n, Grace: grace, Subscribed: quorum.All(n)})
		held := quorum.AttemptResult{Outcome: quorum.OutcomeHeld}
		for i := range n {
			held.Refusals = append(held.Refusals, quorum.Refusal{Node: i, Left: time.Minute, Position: 0})
		}
		// need returns how many reservations make the waiter ask at once.
		need := func() int {
			w.Begin(0)
			w.Ended(0, &held, time.Second, 0)
			assert.Greater(t, w.At(), clock.Validity(ms), "of %d: nothing is reserved", n)
			for i := range n {
				for range 2 { // repeated reports of one node count once
					if w.Wake(clock.Validity(ms), i, quorum.WakeReserved, 0, 0); w.At() <= clock.Validity(ms) {
						return i + 1
					}
				}
			}
			return 0
		}
		for range 3 {
			assert.Equal(t, max(1, q-1), need(), "of %d", n)
			w.Begin(0)
			if q > 1 {
				w.Ended(0, &held, time.Second, 0)
				w.Begin(0) // without reservations, the waiter does not hurry
			}
			w.Ended(0, &held, time.Second, 0)
			if q > 1 {
				break // it has begun on less than a majority
			}
		}
		for range 3 {
			assert.Equal(t, q, need(), "of %d, after an attempt on less than a quorum", n)
		}
	}
}

func TestAWaiterIsSmall(t *testing.T) {
	w := quorum.NewWaiter(quorum.WaiterConfig{Nodes: 3, Grace: grace})
	held := quorum.AttemptResult{Outcome: quorum.OutcomeHeld}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		w.Begin(0)
		w.Ended(0, &held, time.Second, 0)
		w.Wake(0, 1, quorum.WakeReserved, 0, 0)
	}))
}

// Without a place in the queues no wake-up comes, whatever the backoff is.
func TestAWaiterThatWasNotAnsweredAsksAgainAsSoonAsOneWithAPlace(t *testing.T) {
	w := quorum.NewWaiter(quorum.WaiterConfig{Nodes: 3, Grace: 20 * ms, Subscribed: quorum.All(3)})
	w.Begin(0)
	next := w.Ended(clock.Validity(ms), &quorum.AttemptResult{Outcome: quorum.OutcomeNoQuorum, Failed: quorum.All(2)}, 10*time.Minute, 0)
	assert.Equal(t, clock.Validity(ms+20*time.Second), next.At)
}
