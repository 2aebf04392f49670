package election

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

// usually returns rules like the production rules, with shorter times.
func usually(ttl, minReign time.Duration) rules {
	return rules{ttl: ttl, minReign: minReign, margin: 1, every: 5 * time.Second, window: minute, mostDoubts: doubts}
}

// withBug plants a bug. Some are in the rules that the decisions get, the others in the model's edges.
func (s schedule) withBug(b bug) schedule {
	s.bug = b
	return s
}

// coreRules returns the rules of the candidates, which a bug may have changed. The oracles use the schedule's rules.
func (s *schedule) coreRules() rules {
	r := s.rules
	r.checks = s.checks
	switch s.bug {
	case noMinReign:
		r.minReign = 0
	case lastValue:
		r.window = time.Second
	case noDoublings:
		r.mostDoubts = 0
	}
	return r
}

// constant returns a preference that never changes.
func constant(v int) func(time.Duration) int { return func(time.Duration) int { return v } }

// swinging returns a preference that alternates between two values, for half a period each.
func swinging(low, high int, period, phase time.Duration) func(time.Duration) int {
	return func(at time.Duration) int {
		if (at+phase)%period < period/2 {
			return low
		}
		return high
	}
}

// noisy returns a preference that changes at random among n values, each two seconds.
func noisy(low, n int, seed uint64) func(time.Duration) int {
	return func(at time.Duration) int {
		return low + rand.New(rand.NewPCG(seed, uint64(at/(2*time.Second)))).IntN(n)
	}
}

// random returns a schedule with any of the faults and settings that there are.
func random(seed uint64) schedule {
	rng := rand.New(rand.NewPCG(seed, 0))
	pick := func(from, to int) int { return from + rng.IntN(to-from+1) }
	seconds := func(from, to int) time.Duration { return time.Duration(pick(from, to)) * time.Second }
	r := usually(seconds(2, 10), 0)
	r.minReign = 3*r.ttl + seconds(0, 120)
	r.margin, r.every = pick(1, 3), seconds(1, 5)
	s := schedule{seed: seed, candidates: pick(2, 6), rules: r, crashWin: -1, faults: rng.IntN(3) > 0, checks: rng.IntN(3) == 0, stable: rng.IntN(3) == 0}
	if rng.IntN(6) == 0 {
		s.old = pick(1, s.candidates-1)
	}
	if rng.IntN(3) == 0 {
		s.rules.leadAnyway = seconds(1, 60)
	}
	if rng.IntN(4) == 0 {
		s.crashWin = 0
	}
	equal := rng.IntN(5) == 0
	for i := range s.candidates {
		like, v := constant(7), pick(0, 20)
		switch kind := rng.IntN(3); {
		case equal:
		case s.stable, kind == 0:
			like = constant(v)
		case kind == 1:
			like = swinging(v, pick(0, 20), seconds(10, 1200), seconds(0, 1200))
		default:
			like = noisy(v, pick(1, 9), rng.Uint64())
		}
		switch {
		case i == s.crashWin:
			like = constant(50)
		case rng.IntN(10) == 0:
			like = nil
		}
		s.likes = append(s.likes, like)
		period, phase, part := seconds(4, 600), seconds(0, 600), seconds(0, 200)
		s.sick = append(s.sick, func(at time.Duration) bool { return (at+phase)%period < part })
		s.ignores = append(s.ignores, rng.IntN(6) == 0)
	}
	s.busy = 20 * r.minReign
	s.span = s.busy + 20*r.minReign + 2*time.Minute
	return s
}

func TestRandomSchedulesKeepTheBounds(t *testing.T) {
	var yields, unhealthy, changes, faulty, old, silent, stable, most int
	n := testkit.Seeds(t, 1000, 120)
	for seed := range uint64(n) {
		s := random(seed)
		w := newWorld(s)
		w.run()
		w.judgeEnd()
		if w.worst != "" {
			t.Fatal(w.worst)
		}
		yields, unhealthy, changes = yields+w.count(ErrYielded), unhealthy+w.count(ErrUnhealthy), changes+len(w.changes)
		most = max(most, w.count(ErrYielded))
		for _, seen := range []struct {
			is    bool
			count *int
		}{{s.faults, &faulty}, {s.old > 0, &old}, {slices.ContainsFunc(s.likes, func(like func(time.Duration) int) bool { return like == nil }), &silent}, {s.stable, &stable}} {
			if seen.is {
				*seen.count++
			}
		}
	}
	t.Logf("%d schedules, %d with faults, %d with older candidates, %d with candidates without a preference, %d with stable preferences: %d reigns, %d yields (most in one %d, bound 40), %d unhealthy",
		n, faulty, old, silent, stable, changes, yields, most, unhealthy)
	for _, seen := range []int{yields, unhealthy, changes, faulty, old, silent, stable} {
		assert.Positive(t, seen, "the schedules prove nothing about it")
	}
}

// crashes returns a schedule in which a favourite crashes after each win. It changes the leader less and less often.
func crashes(seed uint64) schedule {
	s := schedule{seed: seed, candidates: 3, rules: usually(10*time.Second, 10*time.Minute), crashWin: 2, stable: true}
	s.likes = []func(time.Duration) int{constant(1), constant(1), constant(9)}
	s.ignores = make([]bool, 3)
	s.busy, s.span = 10*time.Hour, 10*time.Hour
	return s
}

func judgeCrashes(w *world) {
	if w.worst != "" {
		return
	}
	if len(w.yields) < 7 {
		w.violated("%d yields", len(w.yields))
		return
	}
	for i, y := range w.yields {
		if least := w.rules.minReign << min(i, doubts); y.reign < least || y.reign > least+3*time.Minute {
			w.violated("yield %d after a reign of %v, and not of %v", i, y.reign, least)
			return
		}
	}
}

func TestAFavouriteThatCrashesAfterEachWinIsTriedLessAndLessOften(t *testing.T) {
	for seed := range uint64(2) {
		w := newWorld(crashes(seed))
		w.run()
		judgeCrashes(w)
		require.Empty(t, w.worst)
		if seed == 0 {
			t.Logf("changes an hour: %.1f", float64(len(w.changes)-1)/w.span.Hours())
		}
	}
}

// steady is a fleet without faults, whose preferences do not change.
func steady(seed uint64) schedule {
	rng := rand.New(rand.NewPCG(seed, 2))
	s := schedule{seed: seed, candidates: 2 + rng.IntN(7), rules: usually(10*time.Second, 2*time.Minute), crashWin: -1, stable: true}
	for range s.candidates {
		s.likes, s.ignores = append(s.likes, constant(rng.IntN(9))), append(s.ignores, rng.IntN(6) == 0)
	}
	s.busy, s.span = 20*s.rules.minReign, 40*s.rules.minReign
	return s
}

func TestOneYieldAndTheBestLeads(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(steady(seed))
		w.run()
		w.judgeEnd()
		require.Empty(t, w.worst)
	}
}

func TestEqualAndNoisyCandidatesDoNotYield(t *testing.T) {
	for seed := range uint64(10) {
		s := steady(seed)
		for i := range s.likes {
			s.likes[i] = constant(7)
			if seed%2 == 1 {
				s.likes[i] = noisy(0, 10, seed*100+uint64(i))
			}
		}
		s.busy = s.span
		w := newWorld(s)
		w.run()
		require.Empty(t, w.worst)
		require.Empty(t, w.yields)
	}
}

// sickness returns a fleet of three whose health swings together, with a period of 30 s.
func sickness(seed uint64, leadAnyway time.Duration) schedule {
	s := schedule{seed: seed, candidates: 3, rules: usually(10*time.Second, 10*time.Minute), crashWin: -1, checks: true}
	s.rules.leadAnyway = leadAnyway
	for range s.candidates {
		s.likes, s.ignores = append(s.likes, constant(1)), append(s.ignores, false)
		s.sick = append(s.sick, func(at time.Duration) bool { return at%(30*time.Second) < 15*time.Second })
	}
	s.busy, s.span = 10*time.Hour, 10*time.Hour
	return s
}

func TestHealthThatSwingsChangesTheLeaderWithinItsBound(t *testing.T) {
	for _, leadAnyway := range []time.Duration{0, time.Minute} {
		w := newWorld(sickness(1, leadAnyway))
		w.run()
		require.Empty(t, w.worst)
		t.Logf("LeadAnyway %v: %.1f changes an hour, %.0f %% of the time without a leader", leadAnyway, float64(len(w.changes)-1)/w.span.Hours(), 100*float64(w.alone)/float64(w.span))
	}
}

func TestSwingingPreferencesYieldWithinTheBound(t *testing.T) {
	s := schedule{seed: 1, candidates: 4, rules: usually(10*time.Second, 10*time.Minute), crashWin: -1}
	for i := range s.candidates {
		period := time.Duration(4+5*i) * time.Minute
		s.likes, s.ignores = append(s.likes, swinging(i, 10+i, period, time.Duration(i)*time.Minute)), append(s.ignores, false)
	}
	s.busy, s.span = 10*time.Hour, 10*time.Hour
	w := newWorld(s)
	w.run()
	require.Empty(t, w.worst)
	t.Logf("%.1f yields an hour", float64(len(w.yields))/w.span.Hours())
	assert.Greater(t, len(w.yields), 10)
}

// Each planted bug is found, in schedules that hold without it.
func TestTheSimulationFindsPlantedBugs(t *testing.T) {
	judged := func(s schedule, judge func(*world)) string {
		w := newWorld(s)
		w.run()
		judge(w)
		return w.worst
	}
	end := (*world).judgeEnd
	for _, plant := range []struct {
		bug   bug
		name  string
		from  uint64 // the seed to begin with: most bugs are found at once, and some are rare
		play  func(uint64) schedule
		judge func(*world)
	}{
		{oneQueue, "one queue", 0, steady, end},
		{noMinReign, "no MinReign", 0, random, end},
		{lastValue, "the last value for the minute", 0, random, end},
		{noDoublings, "no doublings of MinReign", 0, crashes, judgeCrashes},
		{returnsLate, "a release before Lead's return", 0, steady, end},
		{oneAsk, "asks without a number", 0, random, end},
		{skipsWaiters, "no waiter", 690, random, end},
		{nextIsDeaf, "next is never left for a better one", 0, steady, end},
		{nextIsSick, "next is never left by an unhealthy one", 0, random, end},
	} {
		found, seed := "", plant.from
		for ; seed < plant.from+2000 && found == ""; seed++ {
			require.Empty(t, judged(plant.play(seed), plant.judge))
			found = judged(plant.play(seed).withBug(plant.bug), plant.judge)
		}
		assert.NotEmpty(t, found, plant.name)
		t.Logf("%s: %s", plant.name, found)
	}
}
