package election

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAnAskIsReadAsItWasWritten(t *testing.T) {
	for _, value := range []int{0, 7, -3, math.MinInt, math.MaxInt} {
		a := ask{asked: true, value: value, number: math.MaxUint64, id: "0a1b2c3d"}
		read, ok := parseAsk(a.String())
		assert.True(t, ok)
		assert.Equal(t, a, read)
		assert.LessOrEqual(t, len(a.String()), 256, "the bound of AskRelease")
	}
	for _, text := range []string{"", "please", "spread1 1 2 x", "election1 1 2", "election1 x 2 id", "election1 1 -2 id", "election1 1 2 id more", "election2 1 2 id"} {
		_, ok := parseAsk(text)
		assert.False(t, ok, text)
	}
}

func TestThreeResultsInARowChangeTheHealth(t *testing.T) {
	h := health{every: time.Second}
	now := time.Duration(0)
	result := func(ok bool) {
		h.begin(now)
		h.end(now, ok)
		now += time.Second
	}
	assert.False(t, h.ok, "before the first result")
	for i, step := range []struct{ result, healthy bool }{
		{true, true}, {false, true}, {false, true}, {true, true}, {false, true}, {false, true}, {false, false},
		{true, false}, {true, false}, {false, false}, {true, false}, {true, false}, {true, true},
	} {
		result(step.result)
		assert.Equal(t, step.healthy, h.ok, "result %d", i)
	}
}

// A check that returns late is an error, and a check that hangs is one in each deadline. If the process was stopped in
// the meantime, that counts as one.
func TestALateCheckIsAnError(t *testing.T) {
	h := health{every: time.Second, known: true, ok: true}
	h.begin(0)
	h.end(time.Second, true)
	assert.Equal(t, 1, h.row)
	h.begin(2 * time.Second)
	h.overdue(time.Minute)
	assert.Equal(t, 2, h.row, "one, after a stop")
	h.overdue(time.Minute + time.Second/2)
	h.end(time.Minute+time.Second/2, true)
	assert.Equal(t, 2, h.row, "it was counted")
	h.begin(2 * time.Minute)
	h.overdue(2*time.Minute + time.Second)
	assert.False(t, h.ok)
}

func TestValuesCountForAMinute(t *testing.T) {
	p := preferences{window: minute}
	_, ok := p.least()
	assert.False(t, ok)
	p.add(0, 5)
	p.add(time.Second, -5)
	p.add(2*time.Second, 1)
	least, _ := p.least()
	greatest, _ := p.greatest()
	assert.Equal(t, []int{-5, 5}, []int{least, greatest})
	p.trim(minute + time.Second)
	greatest, _ = p.greatest()
	assert.Equal(t, 1, greatest)
	p.trim(minute + 3*time.Second)
	_, ok = p.greatest()
	assert.False(t, ok, "a Preference that blocks says nothing after a minute")
}

// The first reign that is seen may have begun long before. An unknown holder ends no reign.
func TestShortReignsAreCounted(t *testing.T) {
	const r = 10 * time.Minute
	reign := func(owner string) sight { return sight{known: true, held: owner != "", owner: owner} }
	s := reigns{short: r / 2, forgotten: forgets * r, most: doubts, lastShort: before}
	s.see(reign("a"), 0)
	s.see(reign("b"), time.Second)
	assert.Zero(t, s.doubts(time.Second))
	s.see(sight{}, 2*time.Minute)
	s.see(reign("b"), 4*time.Minute)
	s.see(reign(""), 7*time.Minute)
	assert.Zero(t, s.doubts(7*time.Minute), "b led for longer than half of R")
	now := 8 * time.Minute
	for want := range 6 {
		assert.Equal(t, min(want, doubts), s.doubts(now))
		s.see(reign("c"), now)
		s.see(reign(""), now+time.Second)
		s.see(reign("d"), now+2*time.Second) // a restart of all counts once
		s.see(reign(""), now+3*time.Second)
		now += r
	}
	assert.Equal(t, doubts, s.doubts(now-r+forgets*r))
	assert.Zero(t, s.doubts(now+forgets*r))
}

// A leader does not yield to an ask that only an overflow makes better.
func TestTheMarginDoesNotOverflow(t *testing.T) {
	for _, step := range []struct {
		own, asker int
		yields     bool
	}{{math.MinInt, math.MaxInt, true}, {math.MaxInt, math.MinInt, false}, {math.MinInt, math.MinInt + 1, true}, {math.MaxInt, math.MaxInt, false}, {3, 5, true}, {5, 3, false}} {
		r := usually(time.Second, 3*time.Second)
		c := newCandidate(r, func() uint64 { return 1 }, "me")
		c.step(event{what: preferred, value: step.own}, 0)
		c.step(event{what: granted, lease: nextLease}, 0)
		c.step(event{what: granted, lease: nameLease}, 0)
		assert.Equal(t, leading, c.state)
		c.step(event{what: wanted, lease: nameLease, waiters: 1, ask: ask{value: step.asker, number: 1, id: "x"}.String()}, time.Second)
		assert.Equal(t, leading, c.state, "before MinReign")
		c.step(event{what: ticked}, 3*time.Second)
		assert.Equal(t, step.yields, c.state == yielding, "%+v", step)
	}
}
