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
	assert.Equal(t, time.Second, c.Now())
	assert.Zero(t, c.Jumped())
}

func TestSuspendCountsAsElapsed(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Second, Boot: time.Hour + time.Second, Wall: time.Hour + time.Second}
	assert.Equal(t, time.Hour+time.Second, c.Now())
	assert.Equal(t, time.Hour, c.Jumped(), "counted once, though two clocks tell it")
	assert.Equal(t, time.Hour+time.Second, c.Now(), "and not again at the next look")
}

func TestWallClockSetForwardCountsAsElapsed(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r.Wall = time.Minute
	assert.Equal(t, time.Minute, c.Now())
}

func TestWallClockSetBackNeverTurnsTimeBack(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Minute, Boot: time.Minute, Wall: time.Minute}
	before := c.Now()
	r.Wall = -time.Hour
	assert.Equal(t, before, c.Now())
	r.Wall += 30 * time.Minute
	assert.Equal(t, before+30*time.Minute, c.Now(), "a later step forward is not hidden by the one back")
}

func TestSlewBelowToleranceIsNotAJump(t *testing.T) {
	r := Reading{}
	c := at(&r)
	r = Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second + tolerance}
	assert.Equal(t, time.Second, c.Now())
}

// A thread that is held between two readings sees the later clock further on.
// Every look of a clock makes several readings, and each of them may be torn.
func TestTornReadingIsNotAJump(t *testing.T) {
	for torn := range 8 {
		i, now := 0, time.Second
		c := From(func() Reading {
			r := Reading{Mono: now, Boot: now, Wall: now}
			if i == torn {
				now += time.Second
				r.Mono = now
			}
			i++
			return r
		})
		last := c.Steady()
		for range 8 {
			validity, steady := c.Both()
			assert.Equal(t, now, validity, "reading %d is torn", torn)
			assert.Equal(t, now, steady, "reading %d is torn", torn)
			assert.GreaterOrEqual(t, steady, last)
			last = steady
		}
		assert.Zero(t, c.Jumped(), "reading %d is torn", torn)
	}
}

func TestInABubbleOnlyTheBubblesClockCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		start := c.Now()
		time.Sleep(time.Hour)
		assert.Equal(t, time.Hour, c.Now()-start)
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
