package wire

import (
	_ "embed"
	"strconv"
)

// Lean is the script for a lone operation: an acquire without a ticket, or a release; lua/lean.lua says what it does.
//
//go:embed lua/lean.lua
var Lean string

// Look is what a client reads behind a lean acquisition, in the same batch: MGET of the base, the hint and the marker,
// and TIME. It comes last, so it shows a loss of data, a queue or a step of the clock that came before the lock.
type Look struct {
	Base, Hint, Marker string // "" for a key that does not exist
	Clock              int64  // of the node, µs
}

// Counts reports whether a lock that a lean acquisition has made is a vote, as the usual script would have granted it:
// the data is what the client knows, the prefix has no queue, and the register has moved to the proposal, above the base and
// not far ahead of the node's clock. ahead is how far, µs; 0 without fencing.
func (l *Look) Counts(proposal string, ahead int64, marker string) bool {
	if l.Hint != "" || l.Marker != marker {
		return false
	}
	if ahead == 0 {
		return true
	}
	base, missing := int64(0), l.Base == ""
	t, err := strconv.ParseInt(proposal, 10, 64)
	if err == nil && !missing {
		base, err = strconv.ParseInt(l.Base, 10, 64)
	}
	return err == nil && base < t && t <= l.Clock+ahead
}
