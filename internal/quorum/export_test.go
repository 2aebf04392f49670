package quorum

import "time"

// Holds reports whether node i keeps the key at now, as far as is known.
func (m *Machine) Holds(i int, now time.Duration) bool { return m.window[i] > now }

// Round returns the instant at which the current or last round began, whether
// it is open, and whether it has had its quorum.
func (m *Machine) Round() (began time.Duration, open, told bool) { return m.began, m.open, m.told }
