package quorum_test

import (
	"slices"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file decides a ballot a second time, like dumb_test.go for the rest.

// vote is one answer in the order of arrival.
type vote struct {
	node          int
	what          int   // granted, taken, failed; or the answer to a raise: raised, unraised
	moved, before int64 // granted, moved 0: ahead; raised: before only
}

const (
	raised = failed + 1 + iota
	unraised
)

// usable reports whether a register can have made the move that the vote shows.
func (v vote) usable(top int64) bool {
	const exact = 9007199254740991
	switch {
	case v.what == granted && v.moved == 0:
		return v.before > 0 && v.before <= exact-2
	case v.what == granted:
		return v.moved > 0 && v.moved <= exact && v.before >= 0 && v.moved-v.before > 0
	default:
		return v.before >= 0 && top-v.before > 0
	}
}

// dumbBallot reads the whole list of answers anew for each question.
type dumbBallot struct {
	n        int
	proposal int64
	votes    []vote
	over     bool // expired: no further answers
}

// answers returns the first answer of each node, and the votes in the order of arrival.
func (d *dumbBallot) answers() (answers []int, order []vote) {
	answers = make([]int, d.n)
	for _, v := range d.votes {
		if v.what > failed || answers[v.node] != silent {
			continue
		}
		if v.what == granted && !v.usable(0) {
			v.what = failed
		}
		answers[v.node] = v.what
		if v.what == granted {
			order = append(order, v)
		}
	}
	if d.over {
		for i, a := range answers {
			if a == silent {
				answers[i] = failed
			}
		}
	}
	return answers, order
}

// top returns the token, and whether it is fixed: a quorum has voted.
func (d *dumbBallot) top() (int64, bool) {
	_, order := d.answers()
	if len(order) < dumbQuorum(d.n) {
		return d.proposal, false
	}
	first := order[:dumbQuorum(d.n)]
	agreed := true
	for _, v := range first {
		agreed = agreed && v.moved == d.proposal
	}
	if agreed {
		return d.proposal, true
	}
	var candidates []int64
	for _, v := range first {
		if v.moved == 0 {
			candidates = append(candidates, v.before+1)
		} else {
			candidates = append(candidates, v.moved)
		}
	}
	top := slices.Max(candidates)
	if !slices.ContainsFunc(first, func(v vote) bool { return v.moved == top }) {
		top = following(top - 1)
	}
	return top, true
}

// following returns the first even number after v: odd ones are tokens of readers.
func following(v int64) int64 {
	for v++; v%2 != 0; {
		v++
	}
	return v
}

// asked returns the nodes whose registers are below the top.
func (d *dumbBallot) asked() []int {
	var nodes []int
	top, fixed := d.top()
	_, order := d.answers()
	for _, v := range order {
		register := v.moved
		if v.moved == 0 {
			register = v.before
		}
		if fixed && register < top {
			nodes = append(nodes, v.node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// at returns the nodes that were moved to the top, by the first move or by a raise, and
// the nodes that were asked but have not answered.
func (d *dumbBallot) at() (at, open []int) {
	top, fixed := d.top()
	_, order := d.answers()
	for _, v := range order {
		if fixed && v.moved == top {
			at = append(at, v.node)
		}
	}
	for _, i := range d.asked() {
		switch answer, _ := d.raise(i); answer {
		case raised:
			at = append(at, i)
		case silent:
			if !d.over {
				open = append(open, i)
			}
		}
	}
	return at, open
}

// raise returns the first answer of node i to the raise, after the request for it, and
// the value before.
func (d *dumbBallot) raise(i int) (answer int, before int64) {
	past := dumbBallot{n: d.n, proposal: d.proposal}
	for _, v := range d.votes {
		if v.node == i && v.what > failed && slices.Contains(past.asked(), i) {
			if top, _ := past.top(); v.what == raised && !v.usable(top) {
				return unraised, 0
			}
			return v.what, v.before
		}
		past.votes = append(past.votes, v)
	}
	return silent, 0
}

// tokens goes back to the moment at which the ballot was won. It removes from the block
// every token that a node counted by then may have seen.
func (d *dumbBallot) tokens(block int64) (first, last int64) {
	for k := range d.votes {
		past := dumbBallot{n: d.n, proposal: d.proposal, votes: d.votes[:k+1]}
		if past.outcome() != quorum.OutcomeWon {
			continue
		}
		top, _ := past.top()
		at, _ := past.at()
		_, order := past.answers()
		first := top
		for first > 1 && top-first+1 < block {
			first--
		}
		for _, i := range at {
			for _, v := range order {
				if v.node == i && v.moved == top {
					first = max(first, following(v.before))
				}
			}
			if answer, before := past.raise(i); answer == raised {
				first = max(first, following(before))
			}
		}
		return min(first, top), top
	}
	return 0, 0
}

func (d *dumbBallot) outcome() quorum.Outcome {
	answers, _ := d.answers()
	if votes := dumbTally(answers); votes != quorum.OutcomeWon {
		return votes
	}
	// Try every future: each silent node reaches the top or not, and so does each node
	// that was asked.
	at, open := d.at()
	unsure := len(open) + count(answers, silent)
	q := dumbQuorum(d.n)
	best, worst := len(at)+unsure, len(at)
	switch {
	case worst >= q:
		return quorum.OutcomeWon
	case best < q:
		return quorum.OutcomeNoQuorum
	default:
		return quorum.OutcomePending
	}
}
