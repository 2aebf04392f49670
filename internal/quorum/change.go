package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// This file has what happens when a lease gets another TTL. A node sets the end of the key with each
// request that it runs, to the TTL of that request from then on. So a request with a shorter TTL takes away
// what one with a longer TTL has given, and the machine counts on
//
//   - no more than a shorter TTL gives, from before the first request with it is sent;
//   - a longer TTL on a node that has confirmed it, where no request from before can run any more; when
//     a majority has in one round, that TTL is in force.

const (
	// settled is how long after a change a request from before may be sent: it may wait for the answers
	// to others, and a connection that hangs is given up before that.
	settled = 30 * time.Second
	// clockError bounds how wrong the client may know a node's clock, by which the node judges the age of
	// a request: about one round trip.
	clockError = time.Second
)

// change is what a Machine knows of the TTLs of its lease.
type change struct {
	born    clock.Validity // when the attempt that was granted began
	granted *Terms         // with which the lease was granted
	// asked are the terms of the requests since the last change. They are in force, unless they are longer
	// and no majority has confirmed them.
	asked   *Terms
	changed clock.Validity // the last change; 0 for none
	shorter *Terms         // the shortest of the requests from before it that may still run; nil without a change
}

// Terms returns what is in force: no node is counted on for longer than its TTL.
func (m *Machine) Terms() *Terms { return m.terms }

// changeTo has the rounds from now on ask for t. Their first request is not sent yet.
func (m *Machine) changeTo(now clock.Validity, t *Terms) {
	for i, until := range m.window {
		m.window[i] = max(min(until, t.Keeps(now)), -t.Keeps(now)) // below 0 is −until, see HeldUntil
	}
	if m.shorter == nil || m.shorter.TTL > m.asked.TTL || now >= m.runsUntil(now) {
		m.shorter = m.asked
	}
	m.asked, m.changed = t, now
	if t.TTL <= m.terms.TTL {
		m.terms, m.lag = t, min(m.lag, t.MaxLag)
	}
}

// terms returns those of the request that was answered.
func (in *Input) terms(c *change) *Terms {
	if in.Terms == nil {
		return c.granted
	}
	return in.Terms
}

// current reports whether an answer is one to the current round. A request from before a change may be
// sent after it.
func (m *Machine) current(in Input) bool {
	return in.At >= m.began && in.terms(&m.change).TTL == m.asked.TTL
}

// kept returns the instant until which a node keeps the key at least that has confirmed it.
func (m *Machine) kept(in Input) clock.Validity {
	until := min(in.terms(&m.change).Keeps(in.At), m.asked.Keeps(in.At)) // requests since may have run
	if m.Overtaken(in) {
		until = min(until, m.shorter.Keeps(in.At))
	}
	return until
}

// Overtaken reports whether a request with a shorter TTL may still run on a node that has confirmed a longer
// one, because it was sent over another connection. Such an answer does not count for the round.
func (m *Machine) Overtaken(in Input) bool {
	return m.shorter != nil && m.shorter.TTL < in.terms(&m.change).TTL && in.Since > m.born && in.At < m.runsUntil(in.Since)
}

// runsUntil returns until when a request from before the last change may run that was sent over a connection
// from before since: a node runs no renewal that is older than its TTL.
func (m *Machine) runsUntil(since clock.Validity) clock.Validity {
	return min(m.changed.Add(settled), since).Add(m.shorter.TTL + m.shorter.Drift + clockError)
}
