package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// This file is the input and the output of a Machine.

// Terms are the settings of a lease. A value does not change, so leases with the same terms
// share one; a lease whose TTL changes gets another one, see Input.Terms.
type Terms struct {
	Nodes        int           // 1 … MaxNodes
	TTL          time.Duration // the lease's TTL, without a lock delay on the nodes
	Drift        time.Duration // subtracted for different clock rates, see Drift
	SafetyMargin time.Duration // between the stop of work and the deadline, see SafetyMargin
	Early        time.Duration // how long before the stop a loss is found, see Early
	MaxLag       time.Duration // the most that Input.Lag adds to Early, see MaxLag
	Timeout      time.Duration // how long a renewal round waits for answers
	MaxHold      time.Duration // age at which the lease ends; 0 for none

	// For the caller, which arms the rounds.
	Interval time.Duration // between the starts of two rounds
	Slack    time.Duration // how much earlier a round may start, to go with others
}

// Keeps returns the instant until which a node keeps the key at least, if the node
// confirmed a request sent at sent.
func (t *Terms) Keeps(sent clock.Validity) clock.Validity { return sent.Add(t.TTL - t.Drift) }

// State is the state of a lease: held ⇄ at risk → lost | released.
type State uint8

const (
	// StateHeld means that the last round reached a quorum, and that one more node may
	// lose its data. A single node never has a margin: a quorum is enough there.
	StateHeld State = iota + 1
	// StateAtRisk means that the last round missed its quorum, or that another
	// client may be granted the lock when one more node loses its data.
	StateAtRisk
	// StateLost means that the lease ended without a release. It is final.
	StateLost
	// StateReleased means that the holder gave the lease back. It is final.
	StateReleased
)

// String returns the state as the golden cases spell it.
func (s State) String() string {
	return [...]string{"none", "held", "at-risk", "lost", "released"}[s]
}

// Reason says why a lease was lost.
type Reason uint8

const (
	// ReasonExpired means that no quorum confirmed in time.
	ReasonExpired Reason = iota + 1
	// ReasonRevoked means that a node denies the key, because the lease was revoked, and
	// that the other nodes are not a quorum.
	ReasonRevoked
	// ReasonSuspended means that the clock jumped past the stop, as after a
	// suspend.
	ReasonSuspended
	// ReasonMaxHold means that the lease reached the age Terms.MaxHold.
	ReasonMaxHold
	// ReasonTaken is ReasonRevoked for a node that has another owner's key, while no node shows a revocation.
	ReasonTaken
	// ReasonMissing is ReasonRevoked where the nodes have no key at all, or their clocks
	// have moved past its end.
	ReasonMissing
)

// Denied reports whether nodes have denied the key: another client may have it already.
func (r Reason) Denied() bool {
	return r == ReasonRevoked || r == ReasonTaken || r == ReasonMissing
}

// String returns the reason as the golden cases spell it.
func (r Reason) String() string {
	return [...]string{"none", "expired", "revoked", "suspended", "max-hold", "taken", "missing"}[r]
}

// Kind is a kind of Input.
type Kind uint8

const (
	// InputTick means that time has passed.
	InputTick Kind = iota + 1
	// InputBegin means that the caller requests a renewal round now, with another TTL if Terms says so.
	InputBegin
	// InputConfirmed means that Node confirmed our key to a request sent at At.
	InputConfirmed
	// InputMissing means that the key does not exist on Node.
	InputMissing
	// InputTaken means that the key on Node is another owner's.
	InputTaken
	// InputRevoked means that the lease was revoked on Node.
	InputRevoked
	// InputNoAnswer means that Node gave no usable answer to a request sent at At.
	InputNoAnswer
	// InputClockStep means that the clock of Node stepped forward, by at most By.
	InputClockStep
	// InputRelease means that the holder releases the lease.
	InputRelease
)

// Input is what happened.
type Input struct {
	Kind Kind
	Node int            // for InputConfirmed, InputMissing, InputTaken, InputRevoked, InputNoAnswer, InputClockStep
	At   clock.Validity // when the answered request was sent; for the same kinds but InputClockStep
	By   time.Duration  // for InputClockStep
	// Terms are, for InputBegin, the terms of the lease from this round on, and nil for no change; they differ in the
	// TTL and what follows from it. For an answer they are the terms of the request, and nil for the terms of the
	// grant.
	Terms *Terms
	// Since is for InputConfirmed: the requests that were sent to the node since this instant went over
	// the connection of the answer, which keeps their order.
	Since clock.Validity
	// NoVote is for InputConfirmed: the node does not vote, so its key may be one that it has not granted, see Stray.
	NoVote bool
	// Lag is the delay that the caller expects of its timers. The machine reports a
	// loss earlier by this delay, up to Terms.MaxLag. A smaller lag counts at once. A
	// larger one must not end a lease that is being confirmed. So it counts only with
	// an InputTick, or when a round has missed, and not while a round waits for its
	// quorum.
	Lag time.Duration
	// Jump means that the local clock jumped forward (a suspend, a step) since the last input. A loss found now then
	// has the reason ReasonSuspended.
	Jump bool
}

// Events is a set of events to report, in this order.
type Events uint8

const (
	// Renewed means that a quorum confirmed, or that the lease is no longer at
	// risk.
	Renewed Events = 1 << iota
	// AtRisk means that a round missed its quorum, or that the margin fell to 0.
	AtRisk
	// Ended means that the lease is lost.
	Ended
)

// Output is what must be done.
type Output struct {
	Begin     bool   // a round begins: extend on every node; without it, one is under way
	Heal      Set    // nodes on which to re-create the key
	Confirmed bool   // the round reached its quorum
	Missed    bool   // the round closed without a quorum: Arm the retry
	Silent    Set    // nodes that had not answered when the round closed
	Events    Events // to be reported
}
