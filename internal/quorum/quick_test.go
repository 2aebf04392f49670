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

// poll has the answers of 1 … 5 nodes to one attempt, in the order of arrival, with
// repetitions.
type poll struct {
	N        int
	Proposal int64
	Votes    []vote
	Over     int // the attempt expires before this vote
}

// Generate makes a poll whose registers are close to each other, and sometimes not
// usable. Often all nodes move to the proposal.
func (poll) Generate(r *rand.Rand, _ int) reflect.Value {
	p := poll{N: 1 + r.Intn(5), Proposal: 10}
	agree := r.Intn(3) == 0
	for range r.Intn(3*p.N + 1) {
		v := vote{node: r.Intn(p.N), what: granted + r.Intn(unraised), moved: p.Proposal}
		if r.Intn(2) == 0 {
			v.what = granted
		}
		switch {
		case agree:
		case r.Intn(3) == 0:
			v.moved = 0
		case r.Intn(2) == 0:
			v.moved -= int64(r.Intn(4))
		}
		v.before = v.moved - 1 - int64(r.Intn(5))
		if v.moved == 0 || v.what != granted {
			v.before = 5 + int64(r.Intn(8))
		}
		switch r.Intn(40) {
		case 0:
			v.moved, v.before = int64(r.Intn(3))-1, int64(r.Intn(3))-1
		case 1:
			v.moved = quorum.MaxToken + int64(r.Intn(3)) - 1
		case 2:
			v.before = quorum.MaxToken + int64(r.Intn(3)) - 1
		}
		p.Votes = append(p.Votes, v)
	}
	p.Over = len(p.Votes)
	if p.Over > 0 && r.Intn(3) == 0 {
		p.Over = r.Intn(p.Over)
	}
	return reflect.ValueOf(p)
}

func TestTallyAgreesWithEveryFuture(t *testing.T) {
	same := func(b poll) bool {
		tally, answers := quorum.NewTally(b.N), make([]int, b.N)
		before := quorum.OutcomePending
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
			if before != quorum.OutcomePending && got != before &&
				!(b.N%2 == 0 && before == quorum.OutcomeNoQuorum && got == quorum.OutcomeHeld) {
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

func TestDeadlineIsTheLastInstantWithAQuorumAndFreeTheFirstWithAnother(t *testing.T) {
	same := func(raw []uint8) bool {
		window := make(quorum.Window[time.Duration], 1+len(raw)%quorum.MaxNodes)
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
			ends[i] = quorum.Endless
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

func TestDriftAndSafetyMarginLeaveTimeToWork(t *testing.T) {
	leaves := func(ms uint32) bool {
		ttl := 100*time.Millisecond + time.Duration(ms)*time.Millisecond%(24*time.Hour)
		drift, margin := quorum.Drift(ttl, 0.01), quorum.SafetyMargin(ttl)
		return drift > ttl/100 && margin >= ttl/50 && margin <= ttl/5 &&
			ttl-drift-margin > ttl/2
	}
	if err := quick.Check(leaves, quickConfig); err != nil {
		t.Error(err)
	}
}
