package balance

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Members whose TTLs differ are safe, and quiet in the end. But an ask reaches the holder after a third of the holder's
// TTL, when an asker with a shorter TTL may have left: so it takes longer.
func TestMembersWithUnequalTTLsAreEvenInTheEnd(t *testing.T) {
	slow := 0
	seeds := testkit.Count(1000, 60)
	for seed := range uint64(seeds) {
		o := schedule(seed, options{}, 3*time.Second, 10*time.Second, 30*time.Second)
		if o.took > 2*o.ttl {
			slow++
			o.took = 0
		}
		if c := o.complaint(); c != "" {
			t.Errorf("seed %d: %s", seed, c)
		}
	}
	t.Logf("%d of %d schedules took longer than two of the longest TTL", slow, seeds)
	assert.Less(t, slow, seeds/4)
}

// A deploy terminates one member after the other. A name of the one that leaves has a runner again within a second of the
// return of its function, but for one departure in a thousand: several members may want the same name.
func TestNamesOfAMemberThatLeavesRunAgainSoon(t *testing.T) {
	var gaps []time.Duration
	late, departures := 0, testkit.Count(20_000, 500)
	for seed := range uint64(departures) {
		w := newWorld(seed, options{})
		w.departure()
		gaps = append(gaps, w.drops...)
		if slices.Max(w.drops) >= time.Second {
			late++
		}
	}
	slices.Sort(gaps)
	t.Logf("%d names without a runner: median %v, 99 %% %v, most %v; a second or more after %d of %d departures",
		len(gaps), gaps[len(gaps)/2], gaps[len(gaps)*99/100], gaps[len(gaps)-1], late, departures)
	assert.LessOrEqual(t, late, departures/1000)
	assert.Less(t, gaps[len(gaps)*99/100], 900*time.Millisecond)
}

// The longest list. A member asks for 64 names at a time, so a member that joins needs several TTLs for its 909.
func TestTenThousandNames(t *testing.T) {
	w := newWorld(1, options{})
	names := list(10_000)
	all := func() []string { return names }
	for range 10 {
		w.join("g", longTTL, names)
	}
	took, err := w.settle("g", all, 10*time.Minute)
	require.NoError(t, err)
	t.Logf("start: even after %v, %d looks", took, w.looks)
	w.run(3 * longTTL)
	w.moves, w.looks = 0, 0
	w.join("g", longTTL, names)
	took, err = w.settle("g", all, 20*time.Minute)
	require.NoError(t, err)
	t.Logf("a member joins: even after %v, %d moves, %d looks", took, w.moves, w.looks)
	assert.LessOrEqual(t, w.moves, 911)
	w.run(3 * longTTL)
	w.looks, w.counts = 0, 0
	w.procs[0].kill()
	took, err = w.settle("g", all, 20*time.Minute)
	require.NoError(t, err)
	t.Logf("a member is killed: even after %v, %d looks", took, w.looks)
	w.run(3 * longTTL)
	w.moves, w.looks, w.counts = 0, 0, 0
	w.run(10 * time.Minute)
	assert.Zero(t, w.moves)
	t.Logf("idle: %.2f looks and counts a second and member", float64(w.looks+w.counts)/600/10)
	assert.Less(t, float64(w.looks+w.counts)/600/10, 1.6)
}
