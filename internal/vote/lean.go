package vote

import "strconv"

// Look is what a client reads behind a lean acquisition, in the same batch: MGET of the base, the hint and the marker,
// and TIME. It comes last, so it shows a loss of data, a queue or a step of the clock that came before the lock.
type Look struct {
	Base, Hint, Marker string // "" for a key that does not exist
	Clock              int64  // of the node, µs
}

// Counts reports whether a lock that a lean acquisition has made is a vote, as the usual script would have granted it:
// the data is the data that the client knows, the prefix has no queue, and the register has moved up to the proposal,
// also from the base. Without fencing the proposal is "0", and moves nothing.
func (l *Look) Counts(proposal, marker string) bool {
	if l.Hint != "" || l.Marker != marker {
		return false
	}
	if proposal == "0" || l.Base == "" {
		return true
	}
	base, err := strconv.ParseInt(l.Base, 10, 64)
	t, wrong := strconv.ParseInt(proposal, 10, 64)
	return err == nil && wrong == nil && base < t
}
