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
		r := Reading{}
		c := at(&r)
		r = Reading{Mono: time.Second, Boot: time.Hour + time.Second, Wall: wall}
		assert.Equal(t, time.Hour+time.Second, c.Now(), "wall clock at %v", wall)
	}
}
