package quorum

// MaxToken is the largest fencing token. Redis and its scripts count in
// doubles, which are exact up to here.
const MaxToken = 1<<53 - 1

// Ballot is one attempt to take a lease: its votes, and the fencing token.
//
// Each node keeps a register for the name, which only grows. A node that grants
// the lock moves its register up to the proposal in the same atomic step. If its
// clock is far behind the proposal, it moves up to a bound set by that clock
// instead. A node whose register is already at or above that value still grants
// the lock. That node is ahead, and its register does not move.
//
// The ballot is won when this attempt has moved a quorum of nodes to the same
// value, the top. Any two quorums share a node, and a register moves strictly
// upwards. So no two attempts win with the same top, and the later one has the
// larger top. The argument uses no clock.
//
// The first quorum of votes fixes the top: the largest value that any of them
// moved to, or the next one after the largest value that any of them was ahead at.
// Nodes that voted below the top are then asked to raise their register to it,
// while they hold the lock for this attempt. A vote above the top cannot count
// for the token, but it counts as a vote.
//
// Registers are even numbers, and odd numbers are tokens of shared leases. A shared ballot moves no register by itself,
// because concurrent readers would race for the values. Its top is the largest register of the first quorum. Nodes
// below the top are raised to it, even if another reader has raised them in between. Its token is the top + 1: above
// the tokens of all earlier writers, and below the tokens of all later ones. Readers between the same two writers share
// it, unless a failed attempt of a writer has moved a register in between: then the later readers have a larger token.
type Ballot struct {
	votes    Tally
	fenced   bool
	shared   bool
	decided  bool  // the top is fixed
	proposal int64 // the top, once it is fixed
	highest  int64 // until then: the largest value that a vote moved to
	ahead    int64 // until then: the largest value that a vote was ahead at
	before   int64 // the largest value before the counted moves of the first quorum at the top
	at       Set   // votes at highest until the top is fixed, and at the top from then on
	asked    Set   // votes that were asked to raise their register
	refused  Set   // the asked votes that did not raise, or did not answer
}

// NextRegister returns the smallest value to which an attempt can move a register from v.
func NextRegister(v int64) int64 { return v | 1 + 1 }

// Register returns the largest value of a register that is not above v.
func Register(v int64) int64 { return v &^ 1 }

// NewBallot returns an attempt on n nodes, 1 ≤ n ≤ MaxNodes, that proposes the
// token proposal, an even number up to MaxToken. Without fencing it has no token and
// is won by its votes alone.
func NewBallot(n int, fenced bool, proposal int64) Ballot {
	b := Ballot{votes: NewTally(n), fenced: fenced}
	if fenced {
		b.proposal = proposal
	}
	return b
}

// NewSharedBallot returns an attempt to take a shared lease on n nodes.
func NewSharedBallot(n int, fenced bool) Ballot {
	return Ballot{votes: NewTally(n), fenced: fenced, shared: true}
}

// Grant records that node i granted the lock. The node moved its register from
// before up to moved. If moved is 0, the node is ahead and its register stays at
// before, as it always does for a shared lease. Grant returns the nodes to ask now to
// raise their register to Top, each node once.
//
// Values that no register can have count as a failure of the node. They come from
// a broken or a hostile node, and must not become a token.
func (b *Ballot) Grant(i int, moved, before int64) (raise Set) {
	if b.fenced && !b.plausible(moved, before) {
		b.votes.Fail(i)
		return 0
	}
	if !b.votes.Grant(i) || !b.fenced {
		return 0
	}
	if b.decided {
		return b.record(i, moved, before)
	}
	switch {
	case b.shared && before > b.highest:
		b.highest, b.at = before, Set(0).With(i)
	case b.shared && before == b.highest:
		b.at = b.at.With(i)
	case b.shared:
	case moved == 0:
		b.ahead = max(b.ahead, before)
	case moved > b.highest:
		b.highest, b.before, b.at = moved, before, Set(0).With(i)
	case moved == b.highest:
		b.before, b.at = max(b.before, before), b.at.With(i)
	}
	if b.votes.Granted().Len() < Size(int(b.votes.n)) {
		return 0
	}
	if b.shared {
		return b.align()
	}
	b.decided, b.proposal = true, b.highest
	if b.ahead >= b.highest {
		b.proposal, b.before, b.at = NextRegister(b.ahead), 0, 0
	}
	b.asked = b.votes.Granted() &^ b.at // all of them are below the top
	return b.asked
}

// align fixes the top of a shared ballot. An odd register is an old client's, or the base of a
// node, and no reader's token may equal it.
func (b *Ballot) align() (raise Set) {
	b.decided, b.proposal = true, Register(b.highest+1)
	if b.proposal > b.highest {
		b.at = 0
	}
	b.asked = b.votes.Granted() &^ b.at
	return b.asked
}

// plausible reports whether a register can have moved from before up to moved. With
// moved 0 it reports whether a register can be ahead at before and still be raised.
func (b *Ballot) plausible(moved, before int64) bool {
	switch {
	case b.shared:
		return moved == 0 && 0 <= before && before < MaxToken-1
	case moved == 0:
		return 1 <= before && before < MaxToken-1
	}
	return 0 <= before && before < moved && moved <= MaxToken
}

// record records the vote of node i, which arrived after the top was fixed.
func (b *Ballot) record(i int, moved, before int64) (raise Set) {
	switch {
	case moved == b.proposal, b.shared && before == b.proposal:
		b.count(i, before)
	case max(moved, before) < b.proposal:
		raise = raise.With(i)
		b.asked |= raise
	}
	return raise
}

// count adds node i, which moved from before, to the nodes at the top. The first
// quorum decides which tokens are usable. Later nodes do not change b.before, so
// the result of Tokens does not change after the ballot is won.
func (b *Ballot) count(i int, before int64) {
	if b.at.Len() < Size(int(b.votes.n)) {
		b.before = max(b.before, before)
	}
	b.at = b.at.With(i)
}

// Refuse records that node i named another owner.
func (b *Ballot) Refuse(i int) { b.votes.Refuse(i) }

// Fail records that node i gave no usable answer.
func (b *Ballot) Fail(i int) { b.votes.Fail(i) }

// Raised records the first answer of node i to the raise. ok means that its register moved from before up to Top while
// the node held the lock for this attempt; for a shared lease it may have been there already. An answer that was not
// requested changes nothing.
func (b *Ballot) Raised(i int, before int64, ok bool) {
	switch {
	case !b.asked.Has(i) || b.at.Has(i) || b.refused.Has(i):
	case ok && b.shared && 0 <= before && before <= b.proposal, ok && !b.shared && b.plausible(b.proposal, before):
		b.count(i, before)
	default:
		b.refused = b.refused.With(i)
	}
}

// Expire ends the wait. Every missing answer, to a vote or to a raise, counts as a
// failure.
func (b *Ballot) Expire() {
	b.votes.Expire()
	b.refused |= b.asked &^ b.at
}

// Top returns the top. It is the proposal until the first quorum of votes fixes
// another value, and 0 without fencing.
func (b *Ballot) Top() int64 { return b.proposal }

// Tokens returns the first and the last usable token of a block of block tokens that ends at the top. Fewer are usable
// if the register of a counted node was inside the block before it moved; the token that follows that register may be a
// reader's. A shared ballot has one token, the top + 1. Both are 0 without fencing and until the ballot is won.
func (b *Ballot) Tokens(block int64) (first, last int64) {
	switch {
	case b.at.Len() < Size(int(b.votes.n)) || !b.decided:
		return 0, 0
	case b.shared:
		return b.proposal + 1, b.proposal + 1
	}
	return min(max(NextRegister(b.before), b.proposal-max(block, 1)+1), b.proposal), b.proposal
}

// Votes returns the tally of the attempt.
func (b *Ballot) Votes() *Tally { return &b.votes }

// Outcome returns what the answers amount to.
func (b *Ballot) Outcome() Outcome {
	votes := b.votes.Outcome()
	if votes != OutcomeWon || !b.fenced {
		return votes
	}
	q := Size(int(b.votes.n))
	if b.at.Len() >= q {
		return OutcomeWon
	}
	open := b.votes.Silent() | b.Asked()
	if b.at.Len()+open.Len() >= q {
		return OutcomePending
	}
	return OutcomeNoQuorum // a quorum voted, but no quorum can reach the token
}

// Overtaken reports whether a shared ballot has its votes, and no quorum can reach its top: other readers have raised
// nodes further, before its own raise. They aim at registers that it has not seen yet.
func (b *Ballot) Overtaken() bool {
	return b.shared && b.votes.Outcome() == OutcomeWon && b.Outcome() == OutcomeNoQuorum
}

// Asked returns the nodes that were asked to raise their register, and have not answered.
func (b *Ballot) Asked() Set { return b.asked &^ (b.at | b.refused) }

// Counted returns the nodes that this attempt has moved to the token.
func (b *Ballot) Counted() Set {
	if !b.decided {
		return 0
	}
	return b.at
}
