package node

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// flushedMax is how often a request is sent again behind the script: another client may flush the scripts in a loop,
// but hardly each time between two commands that arrive together.
const flushedMax = 50

// quarantineMarker matches no marker. The calls carry it while a node is in quarantine, its
// votes are withheld, or its term is not confirmed: the node then raises no register,
// proves no token, and heals only what it has lost.
const quarantineMarker = "quarantine"

// script holds what each call of the script carries.
type script struct {
	digest                                                        string       // of wire.Apply, as the server has returned it
	loadedOn                                                      uint64       // the connection over which both scripts were loaded; 0 if the server has lost one
	lost                                                          bool         // the server has lost the script: the next call goes behind it
	queued                                                        clock.Steady // until then each call has the companions of its locks
	registersKey, baseKey, hintKey, markerKey, listsKey, inUseKey string
	channels, flags, capText                                      string
	lean                                                          lean
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

// queuedFor is how long calls carry the companions of their locks after the script has asked for them. A prefix has
// queues for as long after the last wait.
const queuedFor = time.Minute

// call is one run of a script, for a part of a batch.
type call struct {
	first, last, locks int
	whole              bool // with the companions of the locks
}

// loaded takes the digests from the replies to SCRIPT LOAD. Without the lean script the usual
// one runs everything.
func (s *script) loaded(results []rueidis.RedisResult) error {
	message, err := results[0].ToMessage()
	if err == nil {
		s.digest, err = wire.StringOf(&message)
	}
	s.lean.digest, _ = results[1].ToString()
	return err
}

// load returns the command that loads the script.
func (s *script) load(client rueidis.Client) rueidis.Completed {
	return client.B().ScriptLoad().Script(wire.Apply).Build()
}

// flushed records that the server has lost the scripts. The next greeting loads the lean script.
func (s *script) flushed() { s.lost, s.lean.digest, s.loadedOn = true, "", 0 }

// head is what differs from call to call.
type head struct {
	offset, sent, marker string
	subscribed           bool
}

// call makes the call for a part of a batch.
func (s *script) call(client rueidis.Client, index int, h head, entries []entry, part *call) rueidis.Completed {
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
