package quorum

// Claim is one attempt to take a lease: its votes, and the fencing token
// minted from them.
//
// Each node that grants has advanced its own counter and answers the new
// value c. The token is t = max c over the first majority. It is granted only
// when a quorum of nodes stands exactly at t while this attempt owns them:
// those whose own c equals t, and those that took t by an owner-checked
// write-back. Then any later majority contains a node that was at t or above
// before it advanced, so every later token is larger. No clock is part of
// that argument.
//
// A node whose c is above t is a vote, but never one of the nodes at t: its
// counter passed t without this attempt owning t there.
type Claim struct {
	votes    Tally
	unfenced bool
	token    int64 // 0 until the first majority fixed it
	counters [MaxNodes]int64
	at       Set // nodes known to stand at token while owned by this attempt
	asked    Set // nodes that were asked to take the token
	refused  Set // asked, and the answer was no or did not come
}

// NewClaim returns an attempt on n nodes. Without fencing it has no token and
// is won by its votes alone.
func NewClaim(n int, fenced bool) Claim {
	return Claim{votes: NewTally(n), unfenced: !fenced}
}

// Grant records the vote of node i with its counter. It returns the nodes
// that have to be asked to take the token now, each of them once.
//
// A counter starts from a clock and only grows. One below 1 was put there by
// somebody else; it is no usable answer, and no token.
func (c *Claim) Grant(i int, counter int64) (raise Set) {
	if !c.unfenced && counter < 1 {
		c.votes.Fail(i)
		return 0
	}
	if !c.votes.Grant(i) || c.unfenced {
		return 0
	}
	c.counters[i] = counter
	if c.token != 0 {
		return c.place(i)
	}
	if c.votes.Granted().Len() < Size(int(c.votes.n)) {
		return 0
	}
	for j := range int(c.votes.n) {
		if c.votes.Granted().Has(j) {
			c.token = max(c.token, c.counters[j])
		}
	}
	for j := range int(c.votes.n) {
		if c.votes.Granted().Has(j) {
			raise |= c.place(j)
		}
	}
	return raise
}

// place files voter i by its counter, now that the token is fixed.
func (c *Claim) place(i int) (raise Set) {
	switch counter := c.counters[i]; {
	case counter == c.token:
		c.at = c.at.With(i)
	case counter < c.token:
		c.asked = c.asked.With(i)
		return Set(0).With(i)
	}
	return 0
}

// Refuse records that node i named another owner.
func (c *Claim) Refuse(i int) { c.votes.Refuse(i) }

// Fail records that node i gave no usable answer.
func (c *Claim) Fail(i int) { c.votes.Fail(i) }

// Raised records the answer of node i to the write-back: whether it took the
// token while this attempt owned it.
func (c *Claim) Raised(i int, ok bool) {
	switch {
	case !c.asked.Has(i) || c.refused.Has(i):
	case ok:
		c.at = c.at.With(i)
	default:
		c.refused = c.refused.With(i)
	}
}

// Expire ends the wait: every answer that is missing is a failure.
func (c *Claim) Expire() {
	c.votes.Expire()
	c.refused |= c.asked &^ c.at
}

// Token returns the fencing token: 0 before a majority granted, and without
// fencing.
func (c *Claim) Token() int64 { return c.token }

// Votes returns the tally of the attempt.
func (c *Claim) Votes() *Tally { return &c.votes }

// Outcome returns what the answers amount to.
func (c *Claim) Outcome() Outcome {
	votes := c.votes.Outcome()
	if votes != Won || c.unfenced {
		return votes
	}
	q := Size(int(c.votes.n))
	if c.at.Len() >= q {
		return Won
	}
	open := c.votes.Silent() | c.asked&^(c.at|c.refused)
	if c.at.Len()+open.Len() >= q {
		return Pending
	}
	return NoQuorum // the votes are there, a quorum for the token is not
}
