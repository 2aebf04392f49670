package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// This file handles a change of a lease's TTL. Each request that a node runs sets the end of the key to
// the TTL of that request from then on. So a request with a shorter TTL takes away what a longer TTL has
// given, and the machine counts on
//
//   - no more than a shorter TTL gives, from before the first request with it is sent;
//   - a longer TTL on a node that has confirmed it, once no earlier request can run there; when a
//     majority has confirmed it in one round, that TTL is in force.

const (
	// settled is how long after a change an earlier request may be sent: it may wait for the answers to others. A
	// connection that hangs is given up before that.
	settled = 30 * time.Second
	// clockError bounds the client's error about a node's clock, by which the node judges the age of a request: about
	// one round trip.
	clockError = time.Second
)

// change is what a Machine knows of the TTLs of its lease. The next change makes another one.
type change struct {
	granted *Terms // with which the lease was granted
	// asked are the terms of the requests since the change. They are in force, unless they are longer and no
	// majority has confirmed them.
	asked   *Terms
	at      clock.Validity
	earlier []earlier     // what earlier requests that may still run ask for, each TTL once
	longest time.Duration // the longest TTL of any request
}

// earlier is what the requests asked for until an instant.
type earlier struct {
	terms *Terms
	until clock.Validity
}

// Terms returns what is in force: no node is counted on for longer than its TTL.
func (m *Machine) Terms() *Terms { return m.terms }

// Changed reports whether the lease was asked for with another TTL than it was granted with.
func (m *Machine) Changed() bool { return m.change != nil }

// Longest returns the longest TTL that the lease was asked for with: no node keeps the key for longer.
func (m *Machine) Longest() time.Duration {
	if m.change == nil {
		return m.terms.TTL
	}
	return m.change.longest
}

// asked returns the terms of the requests since the last change.
func (m *Machine) asked() *Terms {
	if m.change == nil {
		return m.terms
	}
	return m.change.asked
}

// earlier returns what requests from before the last change that may still run ask for.
func (m *Machine) earlier() []earlier {
	if m.change == nil {
		return nil
	}
	return m.change.earlier
}

// changed returns the instant of the last change; 0 for none.
func (m *Machine) changed() clock.Validity {
	if m.change == nil {
		return 0
	}
	return m.change.at
}

// changeTo makes the rounds from now on ask for t. Their first request is not sent yet.
func (m *Machine) changeTo(now clock.Validity, t *Terms) {
	for i, until := range m.window {
		m.window[i] = max(min(until, t.Keeps(now)), -t.Keeps(now)) // below 0 is −until, see HeldUntil
	}
	was := earlier{m.asked(), now}
	c := &change{granted: was.terms, asked: t, at: now, earlier: []earlier{was}, longest: max(m.Longest(), t.TTL)}
	if m.change != nil {
		c.granted = m.change.granted
		for _, e := range m.change.earlier {
			if e.terms.TTL != was.terms.TTL && now < e.runsUntil(Never) {
				c.earlier = append(c.earlier, e)
			}
		}
	}
	m.change = c
	if t.TTL <= m.terms.TTL {
		m.terms, m.lag = t, min(m.lag, t.MaxLag)
	}
}

// termsOf returns the terms of the request that was answered.
func (m *Machine) termsOf(in *Input) *Terms {
	switch {
	case in.Terms != nil:
		return in.Terms
	case m.change != nil:
		return m.change.granted
	}
	return m.terms
}

// current reports whether an answer belongs to the current round. An earlier request may be sent after a change.
func (m *Machine) current(in Input) bool {
	return in.At >= m.began && m.termsOf(&in).TTL == m.asked().TTL
}

// kept returns the instant until which a node that has confirmed the key keeps it at least. Requests that were sent
// since may have run, and others may still run.
func (m *Machine) kept(in Input) clock.Validity {
	until := min(m.termsOf(&in).Keeps(in.At), m.asked().Keeps(in.At))
	for _, e := range m.earlier() {
		if in.At < e.until || m.overtakes(e, in) {
			until = min(until, e.terms.Keeps(in.At))
		}
	}
	return until
}

// Overtaken reports whether a request with a shorter TTL may still run on a node that has confirmed a longer
// one, because it was sent over another connection. Such an answer does not count for the round.
func (m *Machine) Overtaken(in Input) bool {
	for _, e := range m.earlier() {
		if m.overtakes(e, in) {
			return true
		}
	}
	return false
}

// overtakes reports whether one of the earlier requests may run on a node after the answered one, and asks for less.
func (m *Machine) overtakes(e earlier, in Input) bool {
	return e.terms.TTL < m.termsOf(&in).TTL && in.Since > m.born && in.At < e.runsUntil(in.Since)
}

// runsUntil returns how long one of these requests may run, if it was sent over a connection from before since: a
// node runs no renewal that is older than its TTL.
func (e *earlier) runsUntil(since clock.Validity) clock.Validity {
	return min(e.until.Add(settled), since).Add(e.terms.TTL + e.terms.Drift + clockError)
}
