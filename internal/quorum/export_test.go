package quorum

import "time"

// Holds reports whether node i keeps the key at now, as far as the machine knows.
func (m *Machine) Holds(i int, now time.Duration) bool { return m.window[i] > now }

// Round returns the instant at which the current or last round began, whether it is open,
// and whether its majority was reported.
func (m *Machine) Round() (began time.Duration, open, announced bool) {
	return m.began, m.open, m.announced
}
