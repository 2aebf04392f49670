//go:build unix

package contest_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A contestant that does not lock would be the fastest.
func TestEveryContestantExcludesASecondClientUntilItReleases(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		servers := redistest.Start(t, nodes)
		for _, name := range contest.ForNodes(nodes) {
			t.Run(name+", N="+strconv.Itoa(nodes), func(t *testing.T) {
				c, ok := contest.Named(name)
				require.True(t, ok)
				connect := func() contest.Client {
					client, err := c.Connect(t.Context(), redistest.Addrs(servers), contest.Settings{TTL: 10 * time.Second, Poll: time.Millisecond})
					require.NoError(t, err)
					return client
				}
				first, second := connect(), connect()
				held, err := first.Lock(t.Context(), name)
				require.NoError(t, err)

				ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
				defer cancel()
				_, err = second.Lock(ctx, name)
				require.Error(t, err, "it is held")

				require.NoError(t, held.Release(t.Context()))
				ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				held, err = second.Lock(ctx, name)
				require.NoError(t, err, "it was released")
				require.NoError(t, held.Release(t.Context()))
			})
		}
	}
}

func TestSaturateCompletesPairsAndLeavesNoLock(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	c, ok := contest.Named(contest.Sockets)
	require.True(t, ok)
	client, err := c.Connect(t.Context(), redistest.Addrs(servers), contest.Settings{TTL: time.Minute})
	require.NoError(t, err)
	saturator, ok := client.(contest.Saturator)
	require.True(t, ok)

	held, err := client.Lock(t.Context(), "b")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var ones, twos, others atomic.Int64
	require.NoError(t, saturator.Saturate(ctx, []string{"a", "b", "c", "d"}, func(pairs int64) {
		switch pairs {
		case 1:
			ones.Add(1) // of "a" and "b", the second is held
		case 2:
			twos.Add(1)
		default:
			others.Add(1)
		}
		if ones.Load() > 0 && twos.Load() > 0 {
			cancel()
		}
	}))
	assert.Positive(t, ones.Load())
	assert.Positive(t, twos.Load())
	assert.Zero(t, others.Load())
	require.NoError(t, held.Release(t.Context()))
	for _, s := range servers {
		assert.Equal(t, int64(0), s.MustDo("DBSIZE"))
	}
}
