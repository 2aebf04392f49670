package quorum

import (
	"github.com/quorumlock/quorumlock/internal/clock"
)

// Holds reports whether node i keeps the key at now, as far as the machine knows.
func (m *Machine) Holds(i int, now clock.Validity) bool { return m.window[i] > now }

// SetWindow replaces what a machine knows of its keys.
func SetWindow(m *Machine, w Window[clock.Validity]) { m.window = w }

// Round returns the instant at which the current or last round began, whether it is open,
// and whether its majority was reported.
func (m *Machine) Round() (began clock.Validity, open, announced bool) {
	return m.began, m.open, m.announced
}

// Earlier returns how many TTLs of requests from before the last change the machine remembers.
func (m *Machine) Earlier() int { return len(m.earlier()) }
