package quorum_test

import (
	"fmt"
	"testing"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// TestHandOff runs the cases of testdata/handoff.txt: the round trip is 1 ms.
func TestHandOff(t *testing.T) {
	golden(t, "handoff", func(t *testing.T, _ line) func(line) string {
		var h quorum.HandOff
		return func(step line) string {
			now := instant(t, step, "at")
			ask := quorum.Set(0)
			switch step.words[0] {
			case "released":
				h.Released()
			case "reserved":
				grace := 20 * ms
				if _, ok := step.named["grace"]; ok {
					grace = instant(t, step, "grace")
				}
				h.Reserved(now, number(t, step.words[1]), grace, ms)
			case "settled":
				h.QueueMoved()
			case "look":
				ask = h.Look(now)
			case "lapsed":
				ask = h.Answered(number(t, step.words[1]), true)
			case "moved":
				ask = h.Answered(number(t, step.words[1]), false)
			default:
				t.Fatalf("unknown step %q", step.words[0])
			}
			switch {
			case ask != 0:
				return "ask" + members(ask)
			case h.At() != quorum.Never:
				return fmt.Sprintf("look at %v", h.At())
			default:
				return "nothing"
			}
		}
	})
}
