package differential

import (
	"fmt"

	"github.com/quorumlock/quorumlock/internal/sim"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// unknown stands for a number that an answer of the Lua does not have.
const unknown = -1 << 62

// outcome converts an answer of the Lua into the simulation's form.
func outcome(o *sim.Operation, answer any) (sim.Outcome, error) {
	numbers := func() []int64 {
		parts, _ := answer.([]any)
		var all []int64
		for _, p := range parts {
			n, ok := p.(int64)
			if !ok {
				return nil
			}
			all = append(all, n)
		}
		return all
	}()
	out := sim.Outcome{Moved: unknown, Before: unknown, Position: unknown, Left: unknown, Free: unknown}
	code, single := answer.(int64)
	parts, _ := answer.([]any)
	switch o.Name {
	case "lean":
		out.Answer = map[int64]string{1: "made", 0: "not made", -1: "behind"}[code]
	case "acquire", "anew", "wait", "permit", "resume", "share":
		switch {
		case single && code == 0:
			out.Answer = "late"
		case single && code == -1:
			out.Answer = "marker changed"
		case single && o.Name == "share":
			out.Answer, out.Moved, out.Before, out.Position = "granted", 0, code, 0
		case single:
			out.Answer, out.Moved, out.Position = "granted", o.Token, 0
		case len(numbers) == 3:
			out.Answer, out.Moved, out.Before, out.Position = "granted", numbers[0], numbers[1], numbers[2]
		case len(parts) >= 3:
			out.Answer = "taken"
			out.Position, _ = parts[2].(int64)
			if o.Name == "permit" && len(parts) == 4 {
				free, _ := parts[3].(int64)
				out.Free = int(free) // and no Left: the index may have more or fewer slots than this client
			} else {
				out.Left, _ = parts[1].(int64)
			}
		}
	case "extend", "prolong":
		out.Answer = map[int64]string{1: "confirmed", 2: "confirmed without token", 3: "confirmed without vote", 0: "missing", -1: "taken"}[code]
	case "heal", "restore":
		out.Answer = map[int64]string{1: "confirmed", 0: "late", -1: "taken"}[code]
	case "raise", "align":
		if len(numbers) == 2 {
			out.Answer, out.Before, out.Position = "done", numbers[0], numbers[1]
			if numbers[0] < 0 {
				out.Answer, out.Before = "not done", unknown
			}
		}
	case "detach", "revoke":
		out.Answer = map[int64]string{0: "late", -1: "not done"}[code]
		if len(numbers) == 2 {
			out.Answer = "done"
			if o.Name == "detach" && numbers[0] == wire.RevokedBefore {
				out.Answer = "not done"
			}
		}
	default: // release, leave, quit, drop, back, pass
		out.Answer = map[int64]string{1: "done", 2: "done", 0: "not done", -1: "not done"}[code]
	}
	if out.Answer == "" {
		return out, fmt.Errorf("%s has answered %v", o.Name, answer)
	}
	return out, nil
}

// same reports whether two answers agree. The script ended at most this number of ms after it read the clock, and PTTL
// may be smaller by as much.
func same(server, model sim.Outcome, within int64) bool {
	if server.Answer != model.Answer {
		return false
	}
	for _, pair := range [][2]int64{{server.Moved, model.Moved}, {server.Before, model.Before}, {server.Position, model.Position}} {
		if pair[0] != unknown && pair[0] != pair[1] {
			return false
		}
	}
	late := model.Left - server.Left
	return (server.Left < 0 || late >= -1 && late <= within+1) && (server.Free == unknown || (server.Free < 0) == (model.Free < 0))
}
