package node

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// leanBelow is the round trip from which the usual script runs everything: next to such a round
// trip the lean script saves little, and each operation that it declines costs one more.
const leanBelow = time.Millisecond

// lean is the short way of a lone operation, see wire.Lean. A release is one call of its script. An acquisition is
// three commands: that script, or a SET without fencing; MGET of what decides whether the lock is a vote; and
// TIME.
type lean struct {
	digest string           // of wire.Lean, "" while it is not loaded
	rests  bool             // it has declined an operation, and is used again from the next greeting on
	near   bool             // the last round trip was shorter than leanBelow
	ahead  int64            // how far a register may move ahead of the node's clock, µs; 0 without fencing
	ends   string           // when the lock of this call ends, ms of the node's clock
	looks  rueidis.Commands // behind an acquisition, nil before the first one
}

// runs reports whether the lean way may run the entries: a single one.
func (l *lean) runs(entries []entry) bool {
	return l.digest != "" && !l.rests && l.near && len(entries) == 1 && !entries[0].declined && !entries[0].anew && entries[0].req.Lean()
}

// leanCommands appends the commands of a lean call.
func (s *script) leanCommands(commands rueidis.Commands, client rueidis.Client, req *wire.Request) rueidis.Commands {
	lock, args := req.Lock(0), req.ArgsFor(0)
	if req.Kind == wire.Release {
		return append(commands, client.B().Arbitrary("EVALSHA", s.lean.digest, "2", lock, s.hintKey).Args(args...).Build())
	}
	if s.lean.ahead > 0 {
		commands = append(commands, client.B().Arbitrary("EVALSHA", s.lean.digest, "2", lock, s.registersKey, args[0], args[1], s.lean.ends, args[4]).Build())
	} else {
		commands = append(commands, client.B().Arbitrary("SET", lock, args[1], "NX", "PXAT", s.lean.ends).Build())
	}
	if s.lean.looks == nil {
		s.lean.looks = rueidis.Commands{client.B().Arbitrary("MGET", s.baseKey, s.hintKey, s.markerKey).Build().Pin(), client.B().Time().Build().Pin()}
	}
	return append(commands, s.lean.looks...)
}

// lockEnds returns when the lock of an acquisition ends that is sent then, ms of the node's clock, rounded up. It is an
// instant, so that the lock lives no longer if the request arrives late.
func (m *meter) lockEnds(sent clock.Steady, life time.Duration) string {
	const ms = time.Millisecond
	return strconv.FormatInt(int64((time.Duration(sent)+m.offset.High(sent)+life+ms-1)/ms), 10)
}

// leanAnswers returns the answer to the operation of a lean call: done, or an answer that declines it.
func (c *courier) leanAnswers(t *transfer, e *entry, results []rueidis.RedisResult) (wire.Answers, wire.Reply) {
	s := &c.greeter.script
	made, err := results[0].ToInt64()
	if e.req.Kind == wire.Acquire && s.lean.ahead == 0 {
		made, err = 1, results[0].Error()
		if rueidis.IsRedisNil(err) {
			made, err = 0, nil
		}
	}
	if err != nil {
		answers, failure := c.failed(t, err)
		if failure.Status == wire.Failed || failure.Status == wire.Misconfigured {
			return c.unproven(t, e)
		}
		return answers, failure
	}
	switch {
	case made == 1 && e.req.Kind == wire.Release:
	case made == 1:
		if !c.leanVote(t, e.req, results[1:]) {
			return c.unproven(t, e)
		}
	default:
		s.lean.rests = made == 0 // a proposal is a little too low now and then
		if e.req.Kind == wire.Release {
			s.queued = t.received.Add(queuedFor) // it may be the queue that was in the way
		}
		return declined, wire.Reply{}
	}
	return wire.AnswerOf("1"), wire.Reply{}
}

// declined is the answer to an operation that the usual script is to run.
var declined = wire.AnswerOf("?")

// leanVote reports whether the lock that a lean acquisition has made is a vote.
func (c *courier) leanVote(t *transfer, req *wire.Request, results []rueidis.RedisResult) bool {
	known, err := results[0].ToArray()
	if err != nil || len(known) != 3 {
		return false
	}
	look := wire.Look{}
	for i, text := range []*string{&look.Base, &look.Hint, &look.Marker} {
		if known[i].IsNil() {
			continue
		}
		if *text, err = wire.StringOf(&known[i]); err != nil {
			return false
		}
	}
	time, err := results[1].ToArray()
	if err != nil || len(time) != 2 {
		return false
	}
	seconds, wrong := time[0].AsInt64()
	micros, err := time[1].AsInt64()
	if wrong != nil || err != nil {
		return false
	}
	look.Clock = seconds*1e6 + micros
	c.meter.observe(look.Clock, t.steady, t.received, c.greeter.stepped)
	if look.Hint != "" {
		c.greeter.script.queued = t.received.Add(queuedFor)
	}
	return look.Counts(req.Proposal(), c.greeter.script.lean.ahead, t.marker)
}

// unproven declines an acquisition that may have made a lock which is no vote: whatever asks for the lock with that
// owner value deletes it first.
func (c *courier) unproven(t *transfer, e *entry) (wire.Answers, wire.Reply) {
	c.greeter.script.lean.rests = true
	c.orphaned(t, e)
	return declined, wire.Reply{}
}

// packLean makes the commands of a transfer in the lean way, and reports false if the node must not be asked for a
// vote: a lock would be made all the same.
func (c *courier) packLean(t *transfer) bool {
	req := t.batch[0].req
	t.marker = c.greeter.head("").marker
	if req.Kind == wire.Acquire {
		if t.marker == quarantineMarker {
			return false
		}
		c.greeter.script.lean.ends = c.meter.lockEnds(t.steady, req.Lifetime())
	}
	t.lean = true
	t.commands = c.greeter.script.leanCommands(t.commands, c.client, req)
	return true
}
