package quorum

import (
	"math"
	"time"
)

// Never is the instant that does not come.
const Never = time.Duration(math.MaxInt64)

// Terms are what a lease was granted under. They do not change during its
// life, so leases with the same terms share one value.
type Terms struct {
	Nodes   int           // 1 … MaxNodes
	TTL     time.Duration // what the holder counts on; a lock delay on the nodes is not part of it
	Drift   time.Duration // given up for clock rates, see Drift
	Guard   time.Duration // between the stop of work and the deadline, see Guard
	Early   time.Duration // between the telling of a loss and the stop, see Early
	MaxLag  time.Duration // the most that Input.Lag adds to Early, see MaxLag
	Timeout time.Duration // how long a renewal round waits for answers
	MaxHold time.Duration // age at which the lease ends; 0 for none
}

// Keeps returns the instant until which a node keeps the key at least, when
// it confirmed a request sent at sent.
func (t *Terms) Keeps(sent time.Duration) time.Duration { return sent + t.TTL - t.Drift }

// State of a lease: Held ⇄ AtRisk → Lost | Released.
type State uint8

const (
	// Holding: the last round reached a quorum and one more node may fail.
	Holding State = iota + 1
	// Risky: the last round missed its quorum, or the next node that loses
	// its data may let somebody else in.
	Risky
	// Lost is final, and so is Released.
	Lost
	// Released by its holder.
	Released
)

// String returns the state as the golden cases spell it.
func (s State) String() string {
	switch s {
	case Holding:
		return "held"
	case Risky:
		return "at-risk"
	case Lost:
		return "lost"
	case Released:
		return "released"
	default:
		return "invalid"
	}
}

// Reason says why a lease was lost.
type Reason uint8

const (
	// Expired: no quorum confirmed in time.
	Expired Reason = iota + 1
	// Revoked: a node said that the key is gone or another's, or that its
	// clock has moved past the key's end, and without it no quorum is left.
	Revoked
	// Suspended: the clock jumped past the stop, as after a suspend.
	Suspended
	// HeldTooLong: the lease reached Terms.MaxHold.
	HeldTooLong
)

// String returns the reason as the golden cases spell it.
func (r Reason) String() string {
	switch r {
	case Expired:
		return "expired"
	case Revoked:
		return "revoked"
	case Suspended:
		return "suspended"
	case HeldTooLong:
		return "max-hold"
	default:
		return "invalid"
	}
}

// Kind is a kind of Input.
type Kind uint8

const (
	// Tick: time has passed.
	Tick Kind = iota + 1
	// Begin: the caller wants a round now.
	Begin
	// Kept: Node confirmed our key to a request sent at At.
	Kept
	// Gone: Node said that the key does not exist.
	Gone
	// Foreign: Node said that the key is somebody else's.
	Foreign
	// Mute: Node gave no usable answer to a request sent at At.
	Mute
	// Stepped: the clock of Node was found stepped forward by By at the most.
	Stepped
	// Release: the holder gives the lease back.
	Release
)

// Input is what happened.
type Input struct {
	Kind Kind
	Node int           // for Kept, Gone, Foreign, Mute, Stepped
	At   time.Duration // when the answered request was sent; for the same kinds but Stepped
	By   time.Duration // for Stepped
	// Lag is how late the caller has to expect to be at its wakes. By so much
	// earlier the loss is found, up to Terms.MaxLag. Less of it counts at once.
	// More must not take a lease that is being confirmed: it counts with a Tick,
	// and not while a round waits for its quorum.
	Lag time.Duration
	// Jump says that the clock went forward by itself (suspend, a step) since
	// the last input, which makes a loss found now a Suspended one.
	Jump bool
}

// Events is a set of things to tell, in this order.
type Events uint8

const (
	// Renewed: a quorum confirmed, or the lease is no longer at risk.
	Renewed Events = 1 << iota
	// AtRisk: a round missed its quorum, or the margin fell to 0.
	AtRisk
	// Ended: the lease is lost.
	Ended
)

// Output is what has to be done.
type Output struct {
	Begin     bool   // a round begins: extend on every node; without it, one is under way
	Heal      Set    // nodes on which to re-create the key
	Confirmed bool   // the round reached its quorum
	Missed    bool   // the round closed without a quorum: Arm the retry
	Silent    Set    // nodes that had not answered when the round closed
	Events    Events // to be told
}

// Machine is the life of one granted lease. It is not safe for concurrent
// use.
type Machine struct {
	terms   *Terms
	window  Window
	ceiling time.Duration // the end by MaxHold
	next    time.Duration // when the next round is due; Never without renewal
	lag     time.Duration // added to Early

	// The current round. The acquisition is round zero: its late votes are
	// answers like any other.
	began    time.Duration
	answered Set
	good     Set
	open     bool
	told     bool // its quorum was announced
	gone     Set  // nodes that have lost the key and are still to be healed

	missed bool
	thin   bool // margin 0, and n > 1: alone, one node never has a margin
	state  State
	reason Reason
}

// NewMachine returns the machine of a lease whose attempt began at began and
// was granted by voters; every voter counts as sent at began. The window is
// the caller's to allocate, terms.Nodes long, and the machine's from then on.
func NewMachine(terms *Terms, window Window, began time.Duration, voters, answered Set) Machine {
	m := Machine{
		terms: terms, window: window, ceiling: Never, next: Never,
		began: began, open: true, told: true, answered: answered, good: voters,
		state: Holding,
	}
	if terms.MaxHold > 0 && terms.MaxHold < Never-began {
		m.ceiling = began + terms.MaxHold
	}
	for i := range window {
		window[i] = 0
		if voters.Has(i) {
			window[i] = terms.Keeps(began)
		}
	}
	return m
}

// State returns the state of the lease.
func (m *Machine) State() State { return m.state }

// Reason returns why the lease was lost; invalid unless it was.
func (m *Machine) Reason() Reason { return m.reason }

// Stop returns S, the instant at which work has to stop. It moves forward,
// and back only by a definite "not yours" or a node's clock that was stepped.
func (m *Machine) Stop() time.Duration {
	return min(m.window.Deadline()-m.terms.Guard, m.ceiling)
}

// End returns when the loss is found by whoever looks: early, so that it is
// told by the stop although timers are late. Age is not a matter of safety.
func (m *Machine) End() time.Duration { return min(m.keys(), m.ceiling) }

// keys is the end for the sake of the keys.
func (m *Machine) keys() time.Duration {
	return m.window.Deadline() - m.terms.Guard - m.terms.Early - m.lag
}

// Deadline returns D, until which a quorum keeps the key.
func (m *Machine) Deadline() time.Duration { return m.window.Deadline() }

// Margin returns how many of the nodes that keep the key at now may lose
// their data before somebody else can be granted the lease.
func (m *Machine) Margin(now time.Duration) int {
	return Margin(m.terms.Nodes, m.window.Held(now))
}

// SetLag is Input.Lag for a lease that was just granted.
func (m *Machine) SetLag(lag time.Duration) { m.lag = min(lag, m.terms.MaxLag) }

// Arm sets the instant at which the next round is due.
func (m *Machine) Arm(at time.Duration) { m.next = at }

// Due reports whether a round is due at now.
func (m *Machine) Due(now time.Duration) bool { return m.live() && !m.open && m.next <= now }

// Confirmed returns how many nodes have confirmed the current or last round.
func (m *Machine) Confirmed() int { return m.good.Len() }

// Wake returns the next instant at which the machine needs a Tick or a round.
func (m *Machine) Wake() time.Duration {
	if !m.live() {
		return Never
	}
	wake := m.End()
	if m.open {
		wake = min(wake, m.began+m.terms.Timeout)
	} else {
		wake = min(wake, m.next)
	}
	return wake
}

// Step takes one input at now and returns what has to be done. Instants never
// go back from one call to the next.
//
// The end is looked at before the input: an answer that is processed too
// late cannot bring a lease back, and a release that comes too late finds the
// lease lost.
func (m *Machine) Step(now time.Duration, in Input) Output {
	var out Output
	if !m.live() {
		return out
	}
	lag := min(in.Lag, m.terms.MaxLag)
	if lag < m.lag || in.Kind == Tick && !m.waiting() {
		m.lag = lag
	}
	if m.lapsed(now, in.Jump, &out) {
		return out
	}
	current := in.At >= m.began
	switch in.Kind {
	case Release:
		m.state = Released
		return out
	case Begin:
		if m.open && !m.told && now < m.began+m.terms.Timeout {
			break // the round under way is as good: ending it would look like a miss
		}
		m.close(&out)
		m.open, m.told, m.began = true, false, now
		m.answered, m.good, m.gone = 0, 0, 0
		out.Begin = true
	case Kept:
		m.window[in.Node] = max(m.window[in.Node], m.terms.Keeps(in.At))
		m.gone = m.gone.Without(in.Node)
		if current {
			m.answered, m.good = m.answered.With(in.Node), m.good.With(in.Node)
		}
	case Gone, Foreign:
		if m.window[in.Node] > m.terms.Keeps(in.At) {
			break // an older answer than the one that confirmed the key
		}
		m.window[in.Node] = 0
		if current {
			m.answered, m.good = m.answered.With(in.Node), m.good.Without(in.Node)
		}
		if now >= m.End() { // it was ahead before this answer
			m.lose(Revoked, &out)
			return out
		}
		m.gone = m.gone.Without(in.Node)
		if in.Kind == Gone {
			m.gone = m.gone.With(in.Node)
		}
	case Stepped:
		// Keys expire by the node's clock, so this one is gone so much earlier,
		// or gone already: a round now asks every node, and its answers heal.
		if m.window[in.Node] == 0 {
			break
		}
		if m.window[in.Node] -= in.By; m.window[in.Node] <= now {
			m.window[in.Node] = 0
			if m.next != Never {
				m.next = now
			}
		}
		if now >= m.End() {
			m.lose(Revoked, &out)
			return out
		}
	case Mute:
		if current {
			m.answered = m.answered.With(in.Node)
		}
	}
	m.settle(now, &out)
	if out.Missed && !m.waiting() {
		m.lag = lag
	}
	return out
}

// waiting reports whether a round may still reach its quorum.
func (m *Machine) waiting() bool { return m.open && !m.told }

func (m *Machine) live() bool { return m.state == Holding || m.state == Risky }

// lapsed ends the lease when its time has come.
func (m *Machine) lapsed(now time.Duration, jump bool, out *Output) bool {
	if now < m.End() {
		return false
	}
	keys := m.keys()
	switch {
	case now < keys:
		m.lose(HeldTooLong, out)
	case jump:
		m.lose(Suspended, out)
	case m.ceiling <= keys:
		m.lose(HeldTooLong, out)
	default:
		m.lose(Expired, out)
	}
	return true
}

func (m *Machine) lose(why Reason, out *Output) {
	m.state, m.reason = Lost, why
	out.Events = Ended
}

// settle announces what the answers so far have changed.
func (m *Machine) settle(now time.Duration, out *Output) {
	if m.open {
		if !m.told && m.good.Len() >= Size(m.terms.Nodes) {
			m.told, m.missed = true, false
			out.Confirmed = true
			out.Events |= Renewed
		}
		if m.answered == All(m.terms.Nodes) || now >= m.began+m.terms.Timeout {
			m.close(out)
		}
	}
	if m.told || !m.open {
		// Not before the round has spoken: healing node after node while a
		// majority has lost the key would hide that somebody else may have
		// held it in between.
		out.Heal, m.gone = m.gone, 0
	}
	thin := m.terms.Nodes > 1 && m.Margin(now) <= 0
	switch {
	case m.thin && !thin:
		m.thin = false
		if !m.missed {
			out.Events |= Renewed
		}
	case thin && !m.thin && !m.open:
		// Only once the round is over: a vote on its way is not a risk.
		m.thin = true
		out.Events |= AtRisk
	}
	if m.missed || m.thin {
		m.state = Risky
	} else {
		m.state = Holding
	}
}

// close ends the current round.
func (m *Machine) close(out *Output) {
	if !m.open {
		return
	}
	m.open = false
	out.Silent = All(m.terms.Nodes) &^ m.answered
	if m.told {
		return
	}
	m.missed = true
	out.Missed = true
	out.Events |= AtRisk
}
