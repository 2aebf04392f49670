package quorum

import "time"

// Holds reports whether node i keeps the key at now, as far as is known.
func (m *Machine) Holds(i int, now time.Duration) bool { return m.window[i] > now }
