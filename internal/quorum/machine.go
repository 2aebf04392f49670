package quorum

import (
	"math"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

const (
	// Never is an instant after every other one.
	Never = clock.Validity(math.MaxInt64)
	// Endless is the life of a key without an end.
	Endless = time.Duration(math.MaxInt64)
)

// Machine is the life of one granted lease. It is not safe for concurrent
// use.
type Machine struct {
	terms  *Terms // in force
	window Window[clock.Validity]
	born   clock.Validity // when the attempt that was granted began
	next   clock.Validity // when the next round is due; Never without renewal
	lag    time.Duration  // added to Early
	change *change        // the last one of the TTL; nil for none, as most leases have

	// The current round. The acquisition is round zero: its late votes count as
	// answers.
	began     clock.Validity
	answered  Set
	good      Set
	open      bool
	announced bool // its quorum was reported
	missing   Set  // nodes that have lost the key and need a heal

	// Nodes that have confirmed the key; and of these, by their latest answers, the nodes that have another owner's
	// key, and the nodes that show a revocation.
	had, taken, revoked Set

	missed bool
	thin   bool // margin 0, and n > 1: a single node never has a margin
	state  State
	reason Reason
}

// NewMachine returns the machine of a lease whose attempt began at began and was
// granted by voters. Every voter's request counts as sent at began. The caller
// allocates the window, terms.Nodes long. The machine owns it from then on.
func NewMachine(terms *Terms, window Window[clock.Validity], began clock.Validity, voters, answered Set) Machine {
	m := Machine{
		terms: terms, window: window, born: began, next: Never,
		began: began, open: true, announced: true, answered: answered, good: voters, had: voters,
		state: StateHeld,
	}
	clear(window)
	for i := range voters.All() {
		window[i] = terms.Keeps(began)
	}
	return m
}

// State returns the state of the lease.
func (m *Machine) State() State { return m.state }

// Reason returns why the lease was lost. It is invalid unless the lease is lost.
func (m *Machine) Reason() Reason { return m.reason }

// Stop returns S, the instant at which work must stop. It moves forward. It moves back only if a node denies our key, a
// node's clock steps, or the TTL becomes shorter; and by the growth of the safety margin when a longer TTL is in force.
func (m *Machine) Stop() clock.Validity {
	return min(m.window.Deadline().Add(-m.terms.SafetyMargin), m.ceiling())
}

// End returns the first instant at which Step declares the lease lost. It is before the
// stop, so that late timers still report the loss by the stop. MaxHold is not early, because
// safety does not depend on the age of a lease.
func (m *Machine) End() clock.Validity { return min(m.keys(), m.ceiling()) }

// ceiling returns when MaxHold ends the lease. No change of the TTL changes it.
func (m *Machine) ceiling() clock.Validity {
	if m.terms.MaxHold > 0 && m.terms.MaxHold < Never.Sub(m.born) {
		return m.born.Add(m.terms.MaxHold)
	}
	return Never
}

// keys returns the end without regard to MaxHold.
func (m *Machine) keys() clock.Validity {
	return m.window.Deadline().Add(-m.terms.SafetyMargin - m.terms.Early - m.lag)
}

// Deadline returns D, until which a quorum keeps the key.
func (m *Machine) Deadline() clock.Validity { return m.window.Deadline() }

// Margin returns how many of the nodes that keep the key at now may lose their data
// before another client can get the lease.
func (m *Machine) Margin(now clock.Validity) int {
	return Margin(m.terms.Nodes, m.window.Held(now))
}

// SetLag sets the lag of a lease that was just granted, see Input.Lag.
func (m *Machine) SetLag(lag time.Duration) { m.lag = min(lag, m.terms.MaxLag) }

// Arm sets the instant at which the next round is due.
func (m *Machine) Arm(at clock.Validity) { m.next = at }

// Due reports whether a round is due at now.
func (m *Machine) Due(now clock.Validity) bool { return m.live() && !m.open && m.next <= now }

// Confirmed returns how many nodes have confirmed the current or last round.
func (m *Machine) Confirmed() int { return m.good.Len() }

// Wake returns the next instant at which the machine needs an InputTick or a
// round.
func (m *Machine) Wake() clock.Validity {
	if !m.live() {
		return Never
	}
	wake := m.End()
	if m.open {
		wake = min(wake, m.began.Add(m.terms.Timeout))
	} else {
		wake = min(wake, m.next)
	}
	return wake
}

// Step takes one input at now and returns what must be done. now never decreases
// from one call to the next.
//
// Step checks the end before the input. So an answer that is processed too late
// cannot revive a lease, and a release that comes too late finds the lease lost.
func (m *Machine) Step(now clock.Validity, in Input) Output {
	var out Output
	if !m.live() {
		return out
	}
	lag := min(in.Lag, m.terms.MaxLag)
	if lag < m.lag || in.Kind == InputTick && !m.Waiting() {
		m.lag = lag
	}
	if m.lapsed(now, in.Jump, &out) {
		return out
	}
	current := m.current(in)
	switch in.Kind {
	case InputRelease:
		m.state = StateReleased
		return out
	case InputBegin:
		m.begin(now, in, &out)
	case InputConfirmed:
		if m.Stray(now, in) {
			if current {
				m.answered = m.answered.With(in.Node)
			}
			break
		}
		m.window[in.Node] = max(m.window[in.Node], m.kept(in))
		m.missing = m.missing.Without(in.Node)
		m.had, m.taken, m.revoked = m.had.With(in.Node), m.taken.Without(in.Node), m.revoked.Without(in.Node)
		if current {
			m.answered = m.answered.With(in.Node)
			if !m.Overtaken(in) {
				m.good = m.good.With(in.Node)
			}
		}
	case InputMissing, InputTaken, InputRevoked:
		if m.denied(now, in) {
			m.lose(m.denial(), &out)
			return out
		}
	case InputClockStep:
		if m.stepped(now, in) {
			m.lose(m.denial(), &out)
			return out
		}
	case InputNoAnswer:
		if current {
			m.answered = m.answered.With(in.Node)
		}
	}
	m.evaluate(now, &out)
	if out.Missed && !m.Waiting() {
		m.lag = lag
	}
	return out
}

// begin begins a round.
func (m *Machine) begin(now clock.Validity, in Input, out *Output) {
	other := in.Terms != nil && in.Terms.TTL != m.asked().TTL
	if m.Waiting() && now < m.began.Add(m.terms.Timeout) {
		if !other {
			return // the round under way serves as well, and ending it would look like a miss
		}
		m.open = false // no miss either: the new round takes its place
	}
	if other {
		m.changeTo(now, in.Terms)
	}
	m.close(out)
	m.open, m.announced, m.began = true, false, now
	m.answered, m.good, m.missing = 0, 0, 0
	out.Begin = true
}

// lostAt returns the window entry of a node that does not have our key. It is 0, or, if the
// node lost the key too early, −until: the entry then does not count as held, and HeldUntil
// can still return the instant until which the node should have kept the key.
func (m *Machine) lostAt(in Input, now clock.Validity) clock.Validity {
	until := m.window[in.Node]
	switch {
	case in.Kind != InputMissing || until > 0 && until <= now:
		return 0
	case until > 0:
		return -until
	default:
		return until
	}
}

// denied records that a node does not have our key, and reports whether no quorum is left.
func (m *Machine) denied(now clock.Validity, in Input) bool {
	if m.window[in.Node] > m.asked().Keeps(max(in.At, m.changed())) {
		return false // this answer is older than the one that confirmed the key
	}
	m.window[in.Node] = m.lostAt(in, now)
	m.taken, m.revoked = m.taken.Without(in.Node), m.revoked.Without(in.Node)
	switch {
	case !m.had.Has(in.Node): // a competitor's
	case in.Kind == InputTaken:
		m.taken = m.taken.With(in.Node)
	case in.Kind == InputRevoked:
		m.revoked = m.revoked.With(in.Node)
	}
	if in.At >= m.began {
		m.answered, m.good = m.answered.With(in.Node), m.good.Without(in.Node)
	}
	if now >= m.End() { // before this answer the end was after now
		return true
	}
	m.missing = m.missing.Without(in.Node)
	if in.Kind == InputMissing {
		m.missing = m.missing.With(in.Node)
	}
	return false
}

// denial returns why too few nodes have the key.
func (m *Machine) denial() Reason {
	switch {
	case m.revoked != 0:
		return ReasonRevoked
	case m.taken != 0:
		return ReasonTaken
	}
	return ReasonMissing
}

// stepped records that a node's clock has stepped forward, and reports whether no quorum
// is left. Keys expire by the node's clock, so the step ends this one earlier. If the key
// has ended, a round is due now: it asks every node, and its answers show what to heal.
func (m *Machine) stepped(now clock.Validity, in Input) bool {
	until := m.window[in.Node]
	if until <= 0 {
		return false
	}
	if m.window[in.Node] = until.Add(-in.By); m.window[in.Node] <= now {
		m.window[in.Node] = 0
		if until > now {
			m.window[in.Node] = -until // gone before its time, see HeldUntil
		}
		if m.next != Never {
			m.next = now
		}
	}
	return now >= m.End()
}

// HeldUntil returns the instant until which a node has our key, or would have it if it had
// not lost the key early; 0 if the node had no key. A node in quarantine heals a key up to
// this instant only: beyond it the heal would be a new vote for the lease, and such a node
// may have forgotten another client's vote.
func (m *Machine) HeldUntil(node int) clock.Validity { return max(m.window[node], -m.window[node]) }

// Stray reports whether a node that does not vote confirms a key that counts no longer, or never did: a late request has
// made it. To count it would be a new vote for the lease, and such a node may have forgotten another client's vote.
func (m *Machine) Stray(now clock.Validity, in Input) bool {
	return in.NoVote && m.HeldUntil(in.Node) <= now
}

// Began returns when the current or last round began.
func (m *Machine) Began() clock.Validity { return m.began }

// Waiting reports whether a round may still reach its quorum.
func (m *Machine) Waiting() bool { return m.open && !m.announced }

func (m *Machine) live() bool { return m.state == StateHeld || m.state == StateAtRisk }

// lapsed ends the lease if now is at or after its end, and reports whether it
// did.
func (m *Machine) lapsed(now clock.Validity, jump bool, out *Output) bool {
	if now < m.End() {
		return false
	}
	keys := m.keys()
	switch {
	case now < keys:
		m.lose(ReasonMaxHold, out)
	case jump:
		m.lose(ReasonSuspended, out)
	case m.ceiling() <= keys:
		m.lose(ReasonMaxHold, out)
	default:
		m.lose(ReasonExpired, out)
	}
	return true
}

func (m *Machine) lose(why Reason, out *Output) {
	m.state, m.reason = StateLost, why
	out.Events = Ended
}

// evaluate reports the changes that follow from the answers so far.
func (m *Machine) evaluate(now clock.Validity, out *Output) {
	if m.open {
		if !m.announced && m.good.Len() >= Size(m.terms.Nodes) {
			m.announced, m.missed = true, false
			m.terms = m.asked()
			out.Confirmed = true
			out.Events |= Renewed
		}
		if m.answered == All(m.terms.Nodes) || now >= m.began.Add(m.terms.Timeout) {
			m.close(out)
		}
	}
	if m.announced || !m.open {
		// Heal only after the round's outcome. If a majority has lost the key, another
		// client may have held the lock in between. Heals before the outcome would
		// restore a majority, and no client would notice.
		out.Heal, m.missing = m.missing, 0
	}
	thin := m.terms.Nodes > 1 && m.Margin(now) <= 0
	switch {
	case m.thin && !thin:
		m.thin = false
		if !m.missed {
			out.Events |= Renewed
		}
	case thin && !m.thin && !m.open:
		// Wait for the end of the round: a vote still under way is not a risk.
		m.thin = true
		out.Events |= AtRisk
	}
	if m.missed || m.thin {
		m.state = StateAtRisk
	} else {
		m.state = StateHeld
	}
}

// close ends the current round.
func (m *Machine) close(out *Output) {
	if !m.open {
		return
	}
	m.open = false
	out.Silent = All(m.terms.Nodes) &^ m.answered
	if m.announced {
		return
	}
	m.missed = true
	out.Missed = true
	out.Events |= AtRisk
}
