package clock

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestEachJumpMovesTheInstantsItShould(t *testing.T) {
	for _, c := range []struct {
		name             string
		boot, wall       time.Duration
		validity, steady time.Duration
	}{
		{name: "no jump"},
		{name: "wall clock set forward", wall: time.Minute, validity: time.Minute},
		{name: "wall clock set back", wall: -time.Minute},
		{name: "suspend", boot: time.Hour, wall: time.Hour, validity: time.Hour, steady: time.Hour},
		{name: "suspend, wall clock set back by as much", boot: time.Hour, validity: time.Hour, steady: time.Hour},
		{name: "suspend, wall clock set back by more", boot: time.Hour, wall: -time.Hour, validity: time.Hour, steady: time.Hour},
		{name: "suspend, wall clock set forward", boot: time.Hour, wall: 2 * time.Hour, validity: 2 * time.Hour, steady: time.Hour},
		{name: "suspend, wall clock set back by a part", boot: time.Hour, wall: time.Minute, validity: time.Hour, steady: time.Hour},
		{name: "boot clock that goes back", boot: -time.Hour},
		{name: "within the tolerance", boot: tolerance, wall: tolerance},
		{name: "at the edge of the tolerance, back", boot: -tolerance, wall: -tolerance},
	} {
		r := Reading{Mono: time.Second, Boot: time.Hour, Wall: time.Minute}
		clock := at(&r)
		r.Mono += time.Second
		r.Boot += time.Second + c.boot
		r.Wall += time.Second + c.wall
		for range 2 {
			validity, steady := clock.Both()
			assert.Equal(t, Validity(2*time.Second+c.validity), validity, "%s: validity", c.name)
			assert.Equal(t, Steady(2*time.Second+c.steady), steady, "%s: steady", c.name)
			assert.Equal(t, validity, clock.Now(), c.name)
			assert.Equal(t, steady, clock.Steady(), c.name)
			assert.Equal(t, c.validity, clock.Jumped(), c.name)
		}
	}
}

// The steps over a long time add up. Steps of the wall clock never affect the steady
// instant.
func TestJumpsAddUp(t *testing.T) {
	r := Reading{}
	c := at(&r)
	var suspended, stepped time.Duration
	for i := range 100 {
		r.Mono += time.Second
		r.Boot += time.Second
		r.Wall += time.Second
		switch by := time.Duration(i) * time.Minute; i % 4 {
		case 0:
			r.Boot += by
			r.Wall += by
			suspended += by
		case 1:
			r.Wall += by
			stepped += by
		case 2:
			r.Wall -= by
		}
		validity, steady := c.Both()
		assert.Equal(t, Validity(r.Mono+suspended+stepped), validity)
		assert.Equal(t, Steady(r.Mono+suspended), steady)
	}
}

// With the system's clocks, a look reads CLOCK_BOOTTIME only when the wall clock disagrees or the tick has ended. That
// finds every suspend at once, except one that the wall clock hides; that one is found after a tick.
func TestASuspendThatTheWallClockHidesIsFoundWithinATick(t *testing.T) {
	for _, wall := range []time.Duration{0, time.Hour, -time.Hour} {
		r := Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		c := at(&r)
		c.tick = bootTick
		c.Now() // starts the tick
		r.Boot += time.Hour
		r.Wall += wall
		hidden := time.Second
		if wall != 0 {
			hidden += time.Hour // the wall clock shows it at once
		}
		assert.Equal(t, Steady(hidden), c.Steady(), "wall clock %v", wall)
		r.Mono += bootTick
		r.Boot += bootTick
		r.Wall += bootTick
		validity, steady := c.Both()
		assert.Equal(t, Validity(time.Hour+time.Second+bootTick), validity, "wall clock %v", wall)
		assert.EqualValues(t, validity, steady, "wall clock %v", wall)
	}
}

func TestLooksWithinATickCompareNothingButTheWallClock(t *testing.T) {
	var r Reading
	readings := 0
	c := From(func() Reading { readings++; return r })
	c.tick = bootTick
	c.Now()
	readings = 0
	for range 1000 {
		r.Mono += bootTick / 1000
		r.Boot += bootTick / 1000
		r.Wall += bootTick / 1000
		c.Now()
	}
	// Each look reads once; the only look past the tick reads twice more.
	assert.Equal(t, 1000+2, readings)
}

func TestInABubbleBothInstantsFollowTheBubblesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		validity, steady := c.Both()
		assert.EqualValues(t, validity, steady)
		time.Sleep(24 * time.Hour)
		validity2, steady2 := c.Both()
		assert.Equal(t, Validity(24*time.Hour), validity2-validity)
		assert.Equal(t, Steady(24*time.Hour), steady2-steady)
		assert.Zero(t, c.Jumped())
	})
}

// Readers look while clocks jump. No reader may see an instant before one that another
// reader has already seen.
func TestNeitherInstantEverGoesBack(t *testing.T) {
	lazy := From(jumpy())
	lazy.tick = 50 * time.Microsecond
	for name, c := range map[string]*Clock{"every clock each time": From(jumpy()), "with a tick": lazy, "the system": New()} {
		var validity, steady atomic.Int64 // the latest seen by any reader
		var readers sync.WaitGroup
		for range 8 {
			readers.Go(func() {
				for range 5000 {
					v0, s0 := validity.Load(), steady.Load()
					v, s := c.Both()
					if int64(v) < v0 || int64(s) < s0 || int64(s) > int64(v) {
						t.Errorf("%s: %v after %v, steady %v after %v", name, v, time.Duration(v0), s, time.Duration(s0))
						return
					}
					raise(&validity, int64(v))
					raise(&steady, int64(s))
				}
			})
		}
		readers.Wait()
		if name != "the system" {
			assert.Greater(t, c.Jumped(), time.Minute, "%s: the clocks did jump", name)
		}
	}
}

// jumpy returns clocks, for any number of readers, that jump at one of twenty readings.
func jumpy() func() Reading {
	var mu sync.Mutex // a reading is one point in time
	rng, r := rand.New(rand.NewPCG(1, 2)), Reading{}
	return func() Reading {
		mu.Lock()
		defer mu.Unlock()
		r.Mono += time.Microsecond
		r.Boot += time.Microsecond
		r.Wall += time.Microsecond
		by := time.Duration(rng.IntN(int(time.Second)))
		switch rng.IntN(80) {
		case 0:
			r.Boot += by
			r.Wall += by
		case 1:
			r.Wall += by
		case 2:
			r.Wall -= by
		case 3:
			r.Boot += by
		}
		return r
	}
}

func raise(to *atomic.Int64, v int64) {
	for old := to.Load(); old < v && !to.CompareAndSwap(old, v); old = to.Load() {
	}
}

// The cost of a look. "every clock under a lock" is the cost if each look reads
// CLOCK_BOOTTIME instead of once a tick. "time.Now" is the lower bound for a look at two
// clocks.
func BenchmarkLook(b *testing.B) {
	c := New()
	start := time.Now()
	each := New()
	each.tick = 0
	for _, look := range []struct {
		name string
		look func() time.Duration
	}{
		{"time.Now", func() time.Duration { return time.Since(start) }},
		{"now", func() time.Duration { return time.Duration(c.Now()) }},
		{"both", func() time.Duration { v, s := c.Both(); return time.Duration(v) + time.Duration(s) }},
		{"every clock under a lock", func() time.Duration {
			each.mu.Lock()
			defer each.mu.Unlock()
			r := each.reading(each.jumps.Load())
			return max(r.Boot, r.Mono, r.Wall)
		}},
	} {
		b.Run(look.name, func(b *testing.B) {
			for b.Loop() {
				look.look()
			}
		})
		b.Run(look.name+", in parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					look.look()
				}
			})
		})
	}
}
