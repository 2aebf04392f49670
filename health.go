package quorumlock

import (
	"encoding/json"
	"time"
)

// Nodes returns the state of each node from memory, for a health endpoint for example. It
// sends no request and never blocks.
func (m *Manager) Nodes() []NodeStatus {
	all := make([]NodeStatus, len(m.nodes))
	for i := range all {
		all[i] = m.nodeStatus(i)
	}
	return all
}

// Ready returns nil while a majority of the nodes votes, so that names can be acquired: for a
// readiness probe. It reads memory, sends no request and never blocks.
//
// It returns ErrNoQuorum (a *QuorumError with each node that does not vote, and RetryAfter if
// quarantines are the only reason), and ErrClosed after Close has begun. A lease that is held
// may be valid all the same: do not restart a program because it is not ready. With
// WithRestartGuard, nodes that are new are in quarantine, and a Manager is not ready, for the
// time of the guard.
func (m *Manager) Ready() error {
	if m.ending() {
		return ErrClosed
	}
	votes, errs := 0, make([]error, len(m.nodes))
	for i := range m.nodes {
		if s := m.nodeStatus(i); s.Voting {
			votes++
		} else {
			errs[i] = s.Err
		}
	}
	if votes >= m.quorum() {
		return nil
	}
	return &QuorumError{
		Op: "ready", Need: m.quorum(), Got: votes, of: len(m.nodes), Nodes: m.nodeErrors(errs), RetryAfter: m.quarantined(),
	}
}

// MarshalJSON returns the status for a health endpoint or a log: the keys addr, master,
// version, voting, quarantined_ms, error, warning, round_trip_ms and clock_offset_ms, and in
// Inspect's answer holder, ttl_ms and fence. Durations are numbers of milliseconds with their
// fractions, and errors are texts, "" for none. master, holder, ttl_ms and fence are left out
// where there is none. The keys stay as they are; new ones may come.
func (s NodeStatus) MarshalJSON() ([]byte, error) {
	out := struct {
		Addr        string   `json:"addr"`
		Master      string   `json:"master,omitempty"`
		Version     string   `json:"version"`
		Voting      bool     `json:"voting"`
		Quarantined float64  `json:"quarantined_ms"`
		Error       string   `json:"error"`
		Warning     string   `json:"warning"`
		RoundTrip   float64  `json:"round_trip_ms"`
		ClockOffset float64  `json:"clock_offset_ms"`
		Holder      *Holder  `json:"holder,omitempty"`
		TTL         *float64 `json:"ttl_ms,omitempty"`
		Fence       int64    `json:"fence,omitempty"`
	}{
		Addr: s.Addr, Master: s.Master, Version: s.Version, Voting: s.Voting, Quarantined: milliseconds(s.QuarantinedFor),
		Error: textOf(s.Err), Warning: textOf(s.Warning),
		RoundTrip: milliseconds(s.RoundTrip), ClockOffset: milliseconds(s.ClockOffset), Fence: s.Fence,
	}
	if s.Holder != (Holder{}) {
		out.Holder = &s.Holder
		if ttl := milliseconds(s.TTL); ttl >= 0 {
			out.TTL = &ttl
		}
	}
	return json.Marshal(out)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// textOf returns the text of an error, "" for none.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
