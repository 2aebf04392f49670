package node

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// flushedMax is how often a request is sent again behind the script: a neighbour may flush the scripts in
// a loop, but hardly each time between two commands that arrive together.
const flushedMax = 50

// quarantineMarker matches no marker. The calls carry it while a node is in quarantine, its
// votes are withheld, or its term is not confirmed: the node then raises no register,
// proves no token, and heals only what it has lost.
const quarantineMarker = "quarantine"

// leanBelow is the round trip from which the usual script runs everything: beside such a round
// trip the lean script saves little, and each operation that it declines costs one more.
const leanBelow = time.Millisecond

// script is what each call of the script carries.
type script struct {
	digest                                                        string       // of wire.Apply, as the server has returned it
	lean                                                          string       // of wire.Lean; "" while it is not used
	lost                                                          bool         // the next call goes behind the script: the server has lost it
	near                                                          bool         // the last round trip was shorter than leanBelow
	queued                                                        clock.Steady // until then each call has the companions of its locks
	registersKey, baseKey, hintKey, markerKey, listsKey, inUseKey string
	channels, flags, capText                                      string
}

// newScript returns what the calls of a node carry.
func newScript(cfg *Config) script {
	s := script{
		registersKey: wire.RegistersKey(cfg.Prefix), baseKey: wire.BaseKey(cfg.Prefix), hintKey: wire.HintKey(cfg.Prefix),
		markerKey: wire.GuardKey(cfg.Prefix), listsKey: wire.ListsKey(cfg.Prefix), inUseKey: wire.InUseKey(cfg.Prefix), channels: wire.WakeChannel(cfg.Prefix, ""),
	}
	if cfg.Cap > 0 {
		s.capText = wire.Micros(cfg.Cap)
	}
	s.flags = "w"
	if cfg.Only {
		s.flags += "1"
	}
	if master.SlotTag(&cfg.Option) != "" {
		s.flags += "c"
	}
	return s
}

// queuedFor is for how long calls have the companions of their locks after the script has asked for them: a prefix
// has queues for as long after the last wait.
const queuedFor = time.Minute

// call is one run of a script, for a part of a batch.
type call struct {
	first, last, locks int
	lean               bool // of wire.Lean; set by script.call
	whole              bool // with the companions of the locks, if it is not lean
}

// loaded takes the digests from the replies to SCRIPT LOAD. Without the lean script the usual
// one runs everything.
func (s *script) loaded(results []rueidis.RedisResult) error {
	message, err := results[0].ToMessage()
	if err == nil {
		s.digest, err = wire.StringOf(&message)
	}
	s.lean, _ = results[1].ToString()
	return err
}

// load returns the command that loads the script.
func (s *script) load(client rueidis.Client) rueidis.Completed {
	return client.B().ScriptLoad().Script(wire.Apply).Build()
}

// flushed records that the server has lost the scripts. The lean one is loaded with the next greeting.
func (s *script) flushed() { s.lost, s.lean = true, "" }

// head is what differs from call to call.
type head struct {
	offset, sent, marker string
	subscribed           bool
}

// call makes the call for a part of a batch.
func (s *script) call(client rueidis.Client, index int, h head, entries []entry, part *call) rueidis.Completed {
	if part.lean = s.runsLean(entries); part.lean {
		part.whole = false
		return s.leanCall(client, h, entries[0].req)
	}
	flags, keys := s.flags, 5+part.locks
	if part.whole {
		flags, keys = "k"+flags, 5+4*part.locks
	}
	if h.subscribed {
		flags = "s" + flags
	}
	// The builder of EVALSHA would compute a cluster slot for every key.
	words := client.B().Arbitrary("EVALSHA", s.digest, strconv.Itoa(keys), s.registersKey, s.baseKey, s.hintKey, s.markerKey, s.listsKey)
	for i := range entries {
		for n := range entries[i].req.Locks() {
			lock := entries[i].req.Lock(n)
			words = words.Args(lock)
			if part.whole {
				queue, watch, set := wire.Companions(lock)
				words = words.Args(queue, watch, set)
			}
		}
	}
	words = words.Args(h.offset, h.sent, h.marker, s.channels, s.capText, flags)
	for i := range entries {
		words = words.Args(entries[i].req.ArgsFor(1 << index)...)
	}
	return words.Build()
}

// whole reports whether the calls for these entries have the companions of their locks.
func (s *script) whole(now clock.Steady, entries []entry) bool {
	need := wire.Never
	for i := range entries {
		need = max(need, entries[i].req.Needs())
	}
	return need == wire.Always || need == wire.Perhaps && now < s.queued
}

// runsLean reports whether the lean script may run the entries: a single one, until it has
// declined one, and again from the next greeting on. It always moves a register.
func (s *script) runsLean(entries []entry) bool {
	return s.lean != "" && s.near && s.capText != "" && len(entries) == 1 && entries[0].req.Lean()
}

// leanCall makes one call of the lean script.
func (s *script) leanCall(client rueidis.Client, h head, req *wire.Request) rueidis.Completed {
	words := client.B().Arbitrary("EVALSHA", s.lean)
	if req.Kind == wire.Release {
		return words.Args("2", req.Lock(0), s.hintKey).Args(req.ArgsFor(0)...).Build()
	}
	words = words.Args("5", req.Lock(0), s.registersKey, s.baseKey, s.hintKey, s.markerKey)
	return words.Args(req.ArgsFor(0)...).Args(h.offset, h.marker, s.capText).Build()
}
