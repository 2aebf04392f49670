package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A late wake is remembered for at least five and at most ten seconds. It counts twice:
// once for the wake that finds a loss, and once for the goroutine that waits for the
// report.
func TestLagRemembersTheWorstOfTheLastSeconds(t *testing.T) {
	const ms = time.Millisecond
	var l quorum.Lag
	assert.Zero(t, l.Expect(clock.Validity(time.Hour)))
	for _, step := range []struct {
		now, late, expect time.Duration
	}{
		{time.Hour, 3 * ms, 6 * ms}, // the first period begins with the first wake
		{time.Hour + time.Second, 40 * ms, 80 * ms},
		{time.Hour + 2*time.Second, 1 * ms, 80 * ms},
		{time.Hour + 4999*ms, 1 * ms, 80 * ms},
		{time.Hour + 5000*ms, 2 * ms, 80 * ms}, // from the previous period
		{time.Hour + 9999*ms, 1 * ms, 80 * ms},
		{time.Hour + 10000*ms, 1 * ms, 4 * ms},
		{time.Hour + 20000*ms, 0, 0}, // no wake in between
		{time.Hour + 20001*ms, 0, 0},
	} {
		l.Saw(clock.Validity(step.now), step.late)
		assert.Equal(t, step.expect, l.Expect(clock.Validity(step.now)), "at %v", step.now)
	}
}

// Without a lease there are no wakes, and the memory must fade anyway.
func TestLagFadesByItself(t *testing.T) {
	const ms = time.Millisecond
	var l quorum.Lag
	l.Saw(clock.Validity(time.Hour), 30*ms)
	l.Saw(clock.Validity(time.Hour+5*time.Second), 10*ms)
	assert.Equal(t, 60*ms, l.Expect(clock.Validity(time.Hour+9999*ms)))
	assert.Equal(t, 20*ms, l.Expect(clock.Validity(time.Hour+10*time.Second)))
	assert.Equal(t, 20*ms, l.Expect(clock.Validity(time.Hour+14999*ms)))
	assert.Zero(t, l.Expect(clock.Validity(time.Hour+15*time.Second)))
}

func TestMaxLagLeavesRoomForARound(t *testing.T) {
	for _, c := range []struct{ ttl, spare, want time.Duration }{
		{10 * time.Second, 4 * time.Second, time.Second},
		{10 * time.Second, 300 * time.Millisecond, 200 * time.Millisecond},
		{10 * time.Second, -time.Second, 0},
	} {
		assert.Equal(t, c.want, quorum.MaxLag(c.ttl, c.spare))
	}
}
