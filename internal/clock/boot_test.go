package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A machine whose wall clock was set back when it woke, or has none that runs
// on: the time since boot alone tells that it slept.
func TestSuspendCountsWhateverTheWallClockSays(t *testing.T) {
	for _, wall := range []time.Duration{0, time.Second, -time.Hour} {
		r := reading{}
		c := at(&r)
		r = reading{mono: time.Second, boot: time.Hour + time.Second, wall: wall}
		assert.Equal(t, time.Hour+time.Second, c.Now(), "wall clock at %v", wall)
	}
}
