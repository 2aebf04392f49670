//go:build unix

package redistest

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSpinningEndsWithItsTest(t *testing.T) {
	var during time.Duration
	t.Run("spins", func(t *testing.T) {
		Spin(t, 4)
		before := cpuTime(t)
		time.Sleep(3 * soon)
		during = cpuTime(t) - before
	})
	assert.Greater(t, during, soon, "of 300 ms, on a machine that does other things too")
	// At the end of all tests goleak checks that the goroutines have ended.
}

func TestFillEvictsWhatThePolicyMayTake(t *testing.T) {
	t.Parallel()
	for policy, mortal := range map[string]bool{
		"allkeys-lru": true, "allkeys-random": true, "volatile-lru": true, "volatile-ttl": true, "noeviction": false,
	} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := Start(t, 1)[0]
			s.MustDo("SET", "lock", "v", "PX", "60000")
			evicted := s.Fill(policy, func() bool { return s.MustDo("EXISTS", "lock") == int64(0) })
			assert.Equal(t, mortal, evicted)
			assert.Equal(t, mortal, s.MustDo("EXISTS", "lock") == int64(0))
			assert.Equal(t, []any{"maxmemory-policy", policy}, s.MustDo("CONFIG", "GET", "maxmemory-policy"))
			_, err := s.Do("SET", "more", "v")
			if strings.HasPrefix(policy, "allkeys") {
				require.NoError(t, err)
			}
			if policy == "noeviction" {
				require.ErrorContains(t, err, "OOM")
			}
		})
	}
}

func TestFillGoesOnFromAFullServerAndKeepsItsLimit(t *testing.T) {
	t.Parallel()
	s := Start(t, 1, "--maxmemory", "8mb")[0]
	assert.False(t, s.Fill("noeviction", nil))
	assert.False(t, s.Fill("noeviction", nil))
	assert.True(t, s.Fill("allkeys-lru", nil))
	assert.Equal(t, int64(8<<20), s.Info("memory", "maxmemory"))
	assert.Greater(t, s.MustDo("DBSIZE"), int64(1000))
}

// cpuTime returns the processor time that this process has used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
