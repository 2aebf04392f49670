package node

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// leanBelow is the shortest round trip at which the usual script runs everything: there the lean script saves little,
// and each operation that it declines costs one more round trip.
const leanBelow = time.Millisecond

// Answers of the script to an acquisition, next to 1 and 0: see lua/lean.lua.
const (
	leanBehind = -1
	leanStuck  = -2
)

// lean is the short way of a lone operation, see wire.Lean. A release is one call of its script. An acquisition is
// three commands: that script, or a SET without fencing; MGET of the keys that decide whether the lock is a vote; and
// TIME.
type lean struct {
	digest string           // of wire.Lean, "" while it is not loaded
	rests  bool             // it has declined an operation, and is used again from the next greeting on
	near   bool             // the last round trip was shorter than leanBelow
	looks  rueidis.Commands // the commands behind an acquisition, nil before the first one
}

// runs reports whether the lean way may run the entries, which must be a single one.
func (l *lean) runs(entries []entry) bool {
	return l.digest != "" && !l.rests && l.near && len(entries) == 1 && !entries[0].declined && entries[0].req.Lean()
}

// leanCall appends the commands of a lean call.
func (s *script) leanCall(commands rueidis.Commands, client rueidis.Client, req *wire.Request, ends string) rueidis.Commands {
	lock, args := req.Lock(0), req.ArgsFor(0)
	if req.Kind == wire.Release {
		return append(commands, client.B().Arbitrary("EVALSHA", s.lean.digest, "2", lock, s.hintKey).Args(args...).Build())
	}
	if s.capText != "" {
		commands = append(commands, client.B().Arbitrary("EVALSHA", s.lean.digest, "2", lock, s.registersKey, args[0], args[1], ends, args[4], s.capText).Build())
	} else {
		commands = append(commands, client.B().Arbitrary("SET", lock, args[1], "NX", "PXAT", ends).Build())
	}
	if s.lean.looks == nil {
		s.lean.looks = rueidis.Commands{client.B().Arbitrary("MGET", s.baseKey, s.hintKey, s.markerKey).Build().Pin(), client.B().Time().Build().Pin()}
	}
	return append(commands, s.lean.looks...)
}

// lockEnds returns when the lock of an acquisition sent at sent ends, in ms of the node's clock, rounded up. It is an
// instant, so that a late request does not prolong the lock's life.
func (m *meter) lockEnds(sent clock.Steady, req *wire.Request) string {
	if req.Kind != wire.Acquire {
		return ""
	}
	const ms = time.Millisecond
	life := req.Lifetime()
	return strconv.FormatInt(int64((time.Duration(sent)+m.offset.High(sent)+life+ms-1)/ms), 10)
}

// readLean returns the result of a lean call, and what was read behind it: nil if that could not be read or nothing was
// made.
func (s *script) readLean(req *wire.Request, results []rueidis.RedisResult) (made int64, look *vote.Look, err error) {
	if req.Kind == wire.Release || s.capText != "" {
		made, err = results[0].ToInt64()
	} else if err = results[0].Error(); err == nil { // of SET
		made = 1
	} else if rueidis.IsRedisNil(err) {
		err = nil
	}
	if made == 1 && req.Kind == wire.Acquire {
		look = readLook(results[1:])
	}
	return made, look, err
}

// readLook reads the replies to MGET and TIME; nil if one of them has another shape.
func readLook(results []rueidis.RedisResult) *vote.Look {
	known, err := results[0].ToArray()
	if err != nil || len(known) != 3 {
		return nil
	}
	look := &vote.Look{}
	for i, text := range []*string{&look.Base, &look.Hint, &look.Marker} {
		if known[i].IsNil() {
			continue
		}
		if *text, err = wire.StringOf(&known[i]); err != nil {
			return nil
		}
	}
	reply, err := results[1].ToArray()
	if err != nil || len(reply) != 2 {
		return nil
	}
	clock, ok := wire.Integers(reply)
	if !ok {
		return nil
	}
	look.Clock = clock[0]*1e6 + clock[1]
	return look
}
