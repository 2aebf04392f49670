package quorumlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A6: the quarantine has to outlast how far a grant may move a register, and the window.
func TestAGrantMovesARegisterNoFurtherThanTheGuardOutlasts(t *testing.T) {
	for most, c := range map[time.Duration]config{
		2 * time.Second:        {},
		time.Second:            {guarded: true, guard: 4 * time.Second},
		250 * time.Millisecond: {guarded: true, guard: 6 * time.Second, failover: 5 * time.Second},
		0:                      {unfenced: true, guarded: true, guard: time.Minute},
	} {
		assert.Equal(t, most, c.registerCap(), "guard %v, window %v", c.guard, c.failover)
	}
}
