package quorum_test

import (
	"reflect"
	"slices"
	"testing"
	"testing/quick"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// take gives one vote to a ballot, and returns the nodes to be raised.
func take(b *quorum.Ballot, v vote) quorum.Set {
	switch v.what {
	case granted:
		return b.Grant(v.node, v.moved, v.before)
	case taken:
		b.Refuse(v.node)
	case failed:
		b.Fail(v.node)
	default:
		b.Raised(v.node, v.before, v.what == raised)
	}
	return 0
}

func TestBallotAgreesWithItsHistory(t *testing.T) {
	const block = 4
	same := func(p poll) bool {
		b, dumb := quorum.NewBallot(p.N, true, p.Proposal), &dumbBallot{n: p.N, proposal: p.Proposal}
		var asked []int // every node asked so far
		won := false
		for i, v := range p.Votes {
			if i == p.Over {
				b.Expire()
				dumb.over = true
			}
			raise := take(&b, v)
			if !dumb.over {
				dumb.votes = append(dumb.votes, v)
			}
			for j := range p.N {
				if raise.Has(j) {
					if slices.Contains(asked, j) {
						t.Logf("node %d asked twice", j)
						return false
					}
					asked = append(asked, j)
				}
			}
			slices.Sort(asked)
			top, _ := dumb.top()
			if b.Top() != top || b.Outcome() != dumb.outcome() || !slices.Equal(asked, dumb.asked()) {
				t.Logf("after vote %d: got %v token=%d asked=%v, history says %v token=%d asked=%v", i,
					b.Outcome(), b.Top(), asked, dumb.outcome(), top, dumb.asked())
				return false
			}
			first, last := b.Tokens(block)
			if wantFirst, wantLast := dumb.tokens(block); first != wantFirst || last != wantLast {
				t.Logf("after vote %d: tokens %d..%d, history says %d..%d", i, first, last, wantFirst, wantLast)
				return false
			}
			if won && b.Outcome() != quorum.OutcomeWon {
				t.Logf("after vote %d: won, and then %v", i, b.Outcome())
				return false
			}
			won = b.Outcome() == quorum.OutcomeWon
			if (last != 0) != won {
				t.Logf("after vote %d: %v, with tokens up to %d", i, b.Outcome(), last)
				return false
			}
		}
		return true
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

// The same rule without the helper that fixes the top. A won ballot has a majority of
// nodes that this attempt moved to its token. None of its tokens is also possible in a
// majority of other votes.
func TestBallotIsWonOnlyWhereAQuorumWasMovedToTheTop(t *testing.T) {
	holds := func(p poll) bool {
		b := quorum.NewBallot(p.N, true, p.Proposal)
		moved, below := map[int]map[int64]int64{}, map[int]bool{} // node → value moved to → value before
		for _, v := range p.Votes {
			fresh := b.Votes().Silent().Has(v.node)
			open := below[v.node]
			raise := take(&b, v)
			for j := range p.N {
				below[j] = below[j] || raise.Has(j)
			}
			switch {
			case v.what == granted && fresh && v.moved > 0:
				moved[v.node] = map[int64]int64{v.moved: v.before}
			case v.what == raised && open && moved[v.node] == nil:
				moved[v.node] = map[int64]int64{}
				fallthrough
			case v.what == raised && open:
				if _, twice := moved[v.node][b.Top()]; !twice {
					moved[v.node][b.Top()] = v.before
				}
			}
			first, last := b.Tokens(100)
			if b.Outcome() != quorum.OutcomeWon {
				continue
			}
			at := 0
			for _, values := range moved {
				if before, ok := values[last]; ok && before < first && before >= 0 {
					at++
				}
			}
			if last != b.Top() || at < dumbQuorum(p.N) {
				return false
			}
		}
		return true
	}
	if err := quick.Check(holds, quickConfig); err != nil {
		t.Error(err)
	}
}

// The register of a counted node is the top. So on that node, the token of an earlier writer is below the reader's, and
// the token of a later writer is above it.
func TestAReadersTokenIsBehindAQuorumOfEqualRegisters(t *testing.T) {
	holds := func(p poll) bool {
		b := quorum.NewSharedBallot(p.N, true)
		at, shown := map[int]int64{}, []int64(nil) // node → its register when it last counted for the top
		for _, v := range p.Votes {
			fresh, open := b.Votes().Silent().Has(v.node), b.Asked().Has(v.node)
			if v.what == granted {
				v.moved = 0
			}
			take(&b, v)
			switch {
			case v.what == granted && fresh && b.Votes().Granted().Has(v.node):
				at[v.node] = v.before
				if len(shown) < dumbQuorum(p.N) {
					shown = append(shown, v.before)
				}
			case v.what == raised && open && v.before >= 0 && v.before <= b.Top():
				at[v.node] = b.Top()
			}
			if b.Outcome() != quorum.OutcomeWon {
				continue
			}
			first, token := b.Tokens(100)
			equal := 0
			for _, register := range at {
				if register == token-1 {
					equal++
				}
			}
			if first != token || token%2 == 0 || equal < dumbQuorum(p.N) || slices.Max(shown) > token {
				t.Logf("token %d, registers %v", token, at)
				return false
			}
		}
		return true
	}
	if err := quick.Check(holds, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestUnfencedBallotIsItsTally(t *testing.T) {
	same := func(p poll) bool {
		b, tally := quorum.NewBallot(p.N, false, p.Proposal), quorum.NewTally(p.N)
		for _, v := range p.Votes {
			if take(&b, v) != 0 {
				return false
			}
			switch v.what {
			case granted:
				tally.Grant(v.node)
			case taken:
				tally.Refuse(v.node)
			case failed:
				tally.Fail(v.node)
			}
			first, last := b.Tokens(1)
			if b.Outcome() != tally.Outcome() || b.Top() != 0 || first != 0 || last != 0 || *b.Votes() != tally {
				return false
			}
		}
		return true
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

// An attempt embeds its ballot, and a Manager has thousands of attempts.
func TestBallotIsSmallAndDoesNotAllocate(t *testing.T) {
	if size := reflect.TypeFor[quorum.Ballot]().Size(); size > 80 {
		t.Errorf("a ballot is %d bytes long", size)
	}
	b := quorum.NewBallot(5, true, 100)
	if n := testing.AllocsPerRun(100, func() {
		b = quorum.NewBallot(5, true, 100)
		b.Grant(0, 100, 7)
		b.Grant(1, 0, 200)
		b.Grant(2, 90, 7)
		b.Raised(1, 200, true)
		b.Expire()
		_ = b.Outcome()
		_, _ = b.Tokens(10)
	}); n != 0 {
		t.Errorf("a ballot allocates %v times", n)
	}
}

// Each request to several nodes goes through a set, so that must cost nothing.
func TestASetYieldsItsNodesInOrderAndAllocatesNothing(t *testing.T) {
	set := quorum.Set(0).With(2).With(0).With(quorum.MaxNodes - 1)
	if all := slices.Collect(set.All()); !slices.Equal(all, []int{0, 2, quorum.MaxNodes - 1}) {
		t.Error(all)
	}
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		for i := range set.All() {
			if sum += i; i == 2 {
				break
			}
		}
	}); n != 0 || sum != 101*2 {
		t.Errorf("it allocates %v times, sum %d", n, sum)
	}
}
