package quorum_test

import (
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"testing/quick"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

var quickConfig = &quick.Config{MaxCount: 20_000}

// ballot is the answers of 1 … 5 nodes to one attempt, in the order of
// arrival, with repetitions.
type ballot struct {
	N     int
	Votes []vote
	Over  int // the attempt expires before this vote
}

// Generate makes a ballot whose counters are close to each other, and now and
// then not usable.
func (ballot) Generate(r *rand.Rand, _ int) reflect.Value {
	b := ballot{N: 1 + r.Intn(5)}
	for range r.Intn(3*b.N + 1) {
		v := vote{node: r.Intn(b.N), what: granted + r.Intn(unraised), counter: 5 + int64(r.Intn(4))}
		if r.Intn(2) == 0 {
			v.what = granted
		}
		if r.Intn(20) == 0 {
			v.counter = int64(r.Intn(3)) - 1
		}
		b.Votes = append(b.Votes, v)
	}
	b.Over = len(b.Votes)
	if b.Over > 0 && r.Intn(3) == 0 {
		b.Over = r.Intn(b.Over)
	}
	return reflect.ValueOf(b)
}

func TestTallyAgreesWithEveryFuture(t *testing.T) {
	same := func(b ballot) bool {
		tally, answers := quorum.NewTally(b.N), make([]int, b.N)
		before := quorum.Pending
		for i, v := range b.Votes {
			if i == b.Over {
				tally.Expire()
				for j, a := range answers {
					if a == silent {
						answers[j] = failed
					}
				}
			}
			first := answers[v.node] == silent
			var counted bool
			switch v.what {
			case granted:
				counted = tally.Grant(v.node)
			case taken:
				counted = tally.Refuse(v.node)
			case failed:
				counted = tally.Fail(v.node)
			default:
				continue
			}
			if first {
				answers[v.node] = v.what
			}
			got := tally.Outcome()
			if counted != first || got != dumbTally(answers) {
				t.Logf("answers %v: got %v, every future says %v", answers, got, dumbTally(answers))
				return false
			}
			if before != quorum.Pending && got != before &&
				!(b.N%2 == 0 && before == quorum.NoQuorum && got == quorum.Held) {
				t.Logf("answers %v: %v was decided, and became %v", answers, before, got)
				return false
			}
			before = got
		}
		return true
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestTallyKnowsEverySmallBallot(t *testing.T) {
	for n := 1; n <= 6; n++ {
		answers := make([]int, n)
		for {
			tally := quorum.NewTally(n)
			for i, a := range answers {
				switch a {
				case granted:
					tally.Grant(i)
				case taken:
					tally.Refuse(i)
				case failed:
					tally.Fail(i)
				}
			}
			if got, want := tally.Outcome(), dumbTally(answers); got != want {
				t.Errorf("answers %v: got %v, every future says %v", answers, got, want)
			}
			if !increment(answers, failed) {
				break
			}
		}
	}
}

// increment counts up in base limit+1, and reports false at the end.
func increment(digits []int, limit int) bool {
	for i := range digits {
		if digits[i] < limit {
			digits[i]++
			return true
		}
		digits[i] = 0
	}
	return false
}

func TestClaimAgreesWithItsHistory(t *testing.T) {
	same := func(b ballot) bool {
		claim, dumb := quorum.NewClaim(b.N, true), &dumbClaim{n: b.N}
		var asked []int // every node asked so far
		won := false
		for i, v := range b.Votes {
			if i == b.Over {
				claim.Expire()
				dumb.over = true
			}
			var raise quorum.Set
			switch v.what {
			case granted:
				raise = claim.Grant(v.node, v.counter)
			case taken:
				claim.Refuse(v.node)
			case failed:
				claim.Fail(v.node)
			default:
				claim.Raised(v.node, v.what == raised)
			}
			if !dumb.over {
				dumb.votes = append(dumb.votes, v)
			}
			for j := range b.N {
				if raise.Has(j) {
					if slices.Contains(asked, j) {
						t.Logf("node %d asked twice", j)
						return false
					}
					asked = append(asked, j)
				}
			}
			slices.Sort(asked)
			if claim.Token() != dumb.token() || claim.Outcome() != dumb.outcome() || !slices.Equal(asked, dumb.asked()) {
				t.Logf("after vote %d: got %v token=%d asked=%v, history says %v token=%d asked=%v", i,
					claim.Outcome(), claim.Token(), asked, dumb.outcome(), dumb.token(), dumb.asked())
				return false
			}
			if won && claim.Outcome() != quorum.Won {
				t.Logf("after vote %d: won, and then %v", i, claim.Outcome())
				return false
			}
			won = claim.Outcome() == quorum.Won
		}
		return true
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestClaimIsWonOnlyWhereAQuorumStandsAtTheToken(t *testing.T) {
	// Said again, without the helper that answers for the token: a won claim
	// has a quorum of nodes whose counter was the token, or that confirmed it.
	holds := func(b ballot) bool {
		claim := quorum.NewClaim(b.N, true)
		counters, stood := map[int]int64{}, map[int]bool{}
		for _, v := range b.Votes {
			switch _, answered := counters[v.node]; v.what {
			case granted:
				if !answered {
					counters[v.node] = v.counter
				}
				claim.Grant(v.node, v.counter)
			case raised:
				stood[v.node] = true
				claim.Raised(v.node, true)
			}
			if claim.Outcome() != quorum.Won {
				continue
			}
			at := 0
			for i, c := range counters {
				if c == claim.Token() || c < claim.Token() && stood[i] {
					at++
				}
			}
			if at < dumbQuorum(b.N) {
				return false
			}
		}
		return true
	}
	if err := quick.Check(holds, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestUnfencedClaimIsItsTally(t *testing.T) {
	same := func(b ballot) bool {
		claim, tally := quorum.NewClaim(b.N, false), quorum.NewTally(b.N)
		for _, v := range b.Votes {
			switch v.what {
			case granted:
				if claim.Grant(v.node, v.counter) != 0 {
					return false
				}
				tally.Grant(v.node)
			case taken:
				claim.Refuse(v.node)
				tally.Refuse(v.node)
			case failed:
				claim.Fail(v.node)
				tally.Fail(v.node)
			}
			if claim.Outcome() != tally.Outcome() || claim.Token() != 0 || *claim.Votes() != tally {
				return false
			}
		}
		return true
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestDeadlineIsTheLastInstantWithAQuorumAndFreeTheFirstWithAnother(t *testing.T) {
	same := func(raw []uint8) bool {
		window := make(quorum.Window, 1+len(raw)%quorum.MaxNodes)
		for i := range window {
			if i < len(raw) {
				window[i] = time.Duration(raw[i]) * time.Second
			}
		}
		before := slices.Clone(window)
		sorted := slices.Sorted(slices.Values(window))
		qth := sorted[len(sorted)-dumbQuorum(len(sorted))]
		d := window.Deadline()
		free, by := 0, window.Free()
		for _, until := range window {
			if until <= by {
				free++
			}
		}
		first := free >= dumbQuorum(len(window)) && sorted[dumbQuorum(len(window))-1] == by
		return d == dumbDeadline(window) && d == qth && first && slices.Equal(window, before)
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestFreedByIsTheFirstInstantWithSoManyKeysGone(t *testing.T) {
	first := func(raw []uint8, want int8) bool {
		ends := make([]time.Duration, len(raw))
		finite := 0
		for i, r := range raw {
			ends[i] = quorum.Never
			if r >= 64 {
				ends[i] = time.Duration(r) * time.Second
				finite++
			}
		}
		before := slices.Clone(ends)
		got := quorum.FreedBy(ends, int(want))
		gone := func(by time.Duration) (n int) {
			for _, e := range before {
				if e <= by {
					n++
				}
			}
			return n
		}
		k := min(max(int(want), 1), finite)
		if k == 0 {
			return got == 0
		}
		return gone(got) >= k && gone(got-1) < k && slices.Equal(ends, before)
	}
	if err := quick.Check(first, quickConfig); err != nil {
		t.Error(err)
	}
}

func TestMarginCountsLossesUntilAnotherQuorum(t *testing.T) {
	for n := 1; n <= quorum.MaxNodes; n++ {
		if quorum.Size(n) != dumbQuorum(n) {
			t.Errorf("quorum of %d: got %d, want %d", n, quorum.Size(n), dumbQuorum(n))
		}
		if quorum.All(n).Len() != n {
			t.Errorf("all of %d nodes are %d", n, quorum.All(n).Len())
		}
		for held := 0; held <= n; held++ {
			if got, want := quorum.Margin(n, held), dumbMargin(n, held); got != want {
				t.Errorf("%d of %d held: got margin %d, want %d", held, n, got, want)
			}
		}
	}
}

func TestDriftAndGuardLeaveTimeToWork(t *testing.T) {
	leaves := func(ms uint32) bool {
		ttl := 100*time.Millisecond + time.Duration(ms)*time.Millisecond%(24*time.Hour)
		drift, guard := quorum.Drift(ttl, 0.01), quorum.Guard(ttl)
		return drift > ttl/100 && guard >= ttl/50 && guard <= ttl/5 &&
			ttl-drift-guard > ttl/2
	}
	if err := quick.Check(leaves, quickConfig); err != nil {
		t.Error(err)
	}
}
