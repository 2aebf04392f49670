package ensemble

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
)

func TestStepsAreRememberedForAsLongAsAnAttemptTakes(t *testing.T) {
	c := &Steps{}
	var steps []*Step
	for i, at := range []time.Duration{0, 59 * time.Second, 61 * time.Second} {
		steps = append(steps, &Step{Node: i % 2, At: clock.Steady(at)})
		c.Add(steps[i])
		if i == 1 {
			assert.Equal(t, steps, c.recent, "an attempt under a long TTL may have begun before both")
		}
	}
	assert.Equal(t, steps[1:], c.recent)
	assert.Equal(t, steps[2], c.last(0))
	assert.Equal(t, steps[1], c.last(1))
	assert.Nil(t, c.last(2))
}
