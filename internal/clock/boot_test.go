package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A machine whose wall clock was set back when it woke, or that has no battery-backed
// clock: only the time since boot shows that it slept.
func TestSuspendCountsWhateverTheWallClockSays(t *testing.T) {
	for _, wall := range []time.Duration{0, time.Second, -time.Hour} {
		r := Reading{}
		c := at(&r)
		r = Reading{Mono: time.Second, Boot: time.Hour + time.Second, Wall: wall}
		assert.Equal(t, Validity(time.Hour+time.Second), c.Now(), "wall clock at %v", wall)
	}
}

// Real time that passes between two instants of a bubble, as on a busy machine, is not
// the bubble's time.
func TestInABubbleTheSystemsClockDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		start, ok := bootTime()
		if !ok {
			t.Skip("no CLOCK_BOOTTIME on this system")
		}
		for now := start; now < start+5*tolerance; now, _ = bootTime() {
		}
		time.Sleep(2 * bootTick)
		assert.Zero(t, c.Jumped())
		validity, steady := c.Both()
		assert.Equal(t, Validity(2*bootTick+1), validity)
		assert.EqualValues(t, validity, steady)
	})
}
