package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// at returns a clock whose three readings the test sets.
func at(r *Reading) *Clock {
	return From(func() Reading { return *r })
}

func TestNowFollowsTheMonotonicClock(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
	assert.Equal(t, Validity(time.Second), c.Now())
	assert.Zero(t, c.Jumped())
}

func TestSuspendCountsAsElapsed(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Second, Boot: time.Hour + time.Second, Wall: time.Hour + time.Second}
	assert.Equal(t, Validity(time.Hour+time.Second), c.Now())
	assert.Equal(t, time.Hour, c.Jumped(), "counted once, although two clocks show it")
	assert.Equal(t, Validity(time.Hour+time.Second), c.Now(), "not counted again at the next look")
}

func TestWallClockSetForwardCountsAsElapsed(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r.Wall = time.Minute
	assert.Equal(t, Validity(time.Minute), c.Now())
}

func TestWallClockSetBackNeverTurnsTimeBack(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Minute, Boot: time.Minute, Wall: time.Minute}
	before := c.Now()
	r.Wall = -time.Hour
	assert.Equal(t, before, c.Now())
	r.Wall += 30 * time.Minute
	assert.Equal(t, before.Add(30*time.Minute), c.Now(), "a later step forward is not hidden by the one back")
}

func TestSlewBelowToleranceIsNotAJump(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second + tolerance}
	assert.Equal(t, Validity(time.Second), c.Now())
}

// If a thread is held between two readings, the later clock shows a later time. Every
// look makes several readings. The thread may be held within or before each of them, and
// the wall clock may have been set at that moment.
func TestTornReadingIsNotAJump(t *testing.T) {
	for _, held := range []string{"within", "before", "before and within"} {
		for _, step := range []time.Duration{0, time.Hour, -time.Hour} {
			for torn := range 8 {
				c := From(tornAt(torn, held, step))
				last := c.Steady()
				for range 8 {
					validity, steady := c.Both()
					assert.GreaterOrEqual(t, steady, last)
					assert.Equal(t, c.Jumped(), time.Duration(validity)-time.Duration(steady), "the boot clock made no jump")
					last = steady
				}
				jumped := max(step, 0)
				if torn < 2 {
					jumped = 0 // the wall clock was set while the clock was created
				}
				by := (c.Jumped() - jumped).Abs()
				assert.LessOrEqual(t, by, tolerance, "%s reading %d, wall clock set by %v", held, torn, step)
			}
		}
	}
}

// tornAt returns clocks with one torn reading: the monotonic clock is read a second after
// the others, or all of them are a second late, or both.
func tornAt(torn int, held string, step time.Duration) func() Reading {
	i, now, wall := 0, time.Second, time.Second
	return func() Reading {
		if i == torn {
			wall += step
			if held != "within" {
				now += time.Second
				wall += time.Second
			}
		}
		r := Reading{Mono: now, Boot: now, Wall: wall}
		if i == torn && held != "before" {
			now += time.Second
			wall += time.Second
			r.Mono = now
		}
		i++
		return r
	}
}

func TestInABubbleOnlyTheBubblesClockCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		start := c.Now()
		time.Sleep(time.Hour)
		assert.Equal(t, Validity(time.Hour), c.Now()-start)
		assert.Zero(t, c.Jumped())
	})
}

func TestSystemClockAdvancesAndDoesNotJump(t *testing.T) {
	c := New()
	last := c.Now()
	for range 1000 {
		now := c.Now()
		assert.GreaterOrEqual(t, now, last)
		last = now
	}
	assert.Zero(t, c.Jumped())
	assert.WithinDuration(t, time.Now(), c.Time(c.Now()), time.Second)
}
