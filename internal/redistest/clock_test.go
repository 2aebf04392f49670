//go:build unix

package redistest

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAStepForwardEndsTTLsAtOnceAndAStepBackLengthensThem(t *testing.T) {
	t.Parallel()
	s := StartWith(t, 1, Options{Clock: true})[0]
	for range 100 { // at any point of the server's work
		require.Equal(t, "OK", s.MustDo("SET", "lock", "A", "NX", "PX", "30000"))
		s.StepClock(time.Minute)
		require.Equal(t, "OK", s.MustDo("SET", "lock", "B", "NX", "PX", "30000"))
		s.StepClock(-time.Minute)
		require.Greater(t, s.MustDo("PTTL", "lock"), int64(80_000))
		require.Equal(t, "B", s.MustDo("GET", "lock"))
		s.MustDo("DEL", "lock")
	}
}

func TestAStepMovesTheTimeThatTheServerTellsByExactlyThat(t *testing.T) {
	t.Parallel()
	servers := StartWith(t, 2, Options{Clock: true})
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour, time.Hour, 40 * 365 * 24 * time.Hour, time.Microsecond} {
		before, other := wallTime(servers[0]), wallTime(servers[1])
		asked := time.Now()
		servers[0].StepClock(step)
		moved, others := wallTime(servers[0]).Sub(before), wallTime(servers[1]).Sub(other)
		took := time.Since(asked) + time.Second // the first reading was a little earlier
		assert.GreaterOrEqual(t, moved, step)
		assert.LessOrEqual(t, moved, step+took)
		assert.LessOrEqual(t, others, took, "each has a clock of its own")
	}
}

func TestAStepLeavesTheMonotonicClockAlone(t *testing.T) {
	t.Parallel()
	s := StartWith(t, 1, Options{Clock: true})[0]
	s.StepClock(-2 * time.Hour)
	// No client reads the key, so the server's timer must find it expired. That timer would stop for two hours if its
	// clock had been stepped too.
	s.MustDo("SET", "k", "v", "PX", "1")
	eventually(t, func() bool { return s.Info("stats", "expired_keys") == 1 })
}

func TestARestartedServerKeepsItsSteppedClock(t *testing.T) {
	t.Parallel()
	s := StartWith(t, 1, Options{Clock: true})[0]
	s.StepClock(24 * time.Hour)
	s.Kill()
	s.StepClock(24 * time.Hour)
	s.Restart()
	assert.WithinDuration(t, time.Now().Add(48*time.Hour), wallTime(s), time.Minute)
}

func TestOnlyAServerWithAClockOfItsOwnCanBeStepped(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.StepClock(time.Second) }), "Options.Clock")
	assert.WithinDuration(t, time.Now(), wallTime(s), time.Minute)
}

func TestWithoutACompilerTheClockIsSkippedButNotInCI(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CI", "true")
	assert.Contains(t, failure(t, func(tb testing.TB) { newWallClock(tb, t.TempDir()) }), "install gcc")
	t.Setenv("CI", "")
	assert.Contains(t, skipped(t, func(tb testing.TB) { newWallClock(tb, t.TempDir()) }), "install gcc")
}

// wallTime returns the time of the server's wall clock.
func wallTime(s *Server) time.Time {
	parts := s.MustDo("TIME").([]any)
	seconds, _ := strconv.ParseInt(parts[0].(string), 10, 64)
	micros, _ := strconv.ParseInt(parts[1].(string), 10, 64)
	return time.Unix(seconds, micros*1000)
}
