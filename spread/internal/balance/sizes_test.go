package balance

import (
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
