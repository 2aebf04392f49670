package node

import (
	"strconv"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// quarantineMarker matches no marker. The calls carry it while a node is in quarantine, its
// votes are withheld, or its term is not confirmed: the node then raises no register,
// proves no token, and heals only what it has lost.
const quarantineMarker = "quarantine"

// script is what each call of the script carries.
type script struct {
	digest                                              string // of the text, as the server has returned it
	registersKey, baseKey, hintKey, markerKey, listsKey string
	channels, flags, capText                            string
}

// newScript returns what the calls of a node carry.
func newScript(cfg *Config) script {
	s := script{
		registersKey: wire.RegistersKey(cfg.Prefix), baseKey: wire.BaseKey(cfg.Prefix), hintKey: wire.HintKey(cfg.Prefix),
		markerKey: wire.GuardKey(cfg.Prefix), listsKey: wire.ListsKey(cfg.Prefix), channels: wire.WakeChannel(cfg.Prefix, ""),
	}
	if cfg.Cap > 0 {
		s.capText = wire.Micros(cfg.Cap)
	}
	if cfg.Only {
		s.flags = "1"
	}
	return s
}

// head is what differs from call to call.
type head struct {
	offset, sent, marker string
	subscribed           bool
}

// call makes one call of the script.
func (s *script) call(client rueidis.Client, index int, h head, entries []entry, locks int) rueidis.Completed {
	// The builder of EVALSHA would compute a cluster slot for every key.
	words := client.B().Arbitrary("EVALSHA", s.digest, strconv.Itoa(4+locks), s.registersKey, s.baseKey, s.hintKey, s.markerKey)
	for i := range entries {
		words = words.Args(entries[i].req.Keys()...)
	}
	flags := s.flags
	if h.subscribed {
		flags = "s" + flags
	}
	words = words.Args(h.offset, h.sent, h.marker, s.channels, s.capText, flags)
	for i := range entries {
		words = words.Args(entries[i].req.ArgsFor(1 << index)...)
	}
	return words.Build()
}
