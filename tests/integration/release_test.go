package integration

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// The work is shorter than a third of the TTL, so no renewal notices that the key has been taken.
func TestAReleaseSaysThatAnotherClientHasTheLock(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		servers := testkit.Start(t, n)
		mine, other := testkit.Connect(t, redistest.Addrs(servers)), testkit.Connect(t, redistest.Addrs(servers))
		take := func(name string) {
			testkit.Remove(servers, testkit.Prefix+name)
			testkit.Acquired(t, other, name)
		}
		for range 20 {
			l := testkit.Acquired(t, mine, "released")
			reached(t, servers, "released") // otherwise a node may have the key after all
			take("released")
			var lost *quorumlock.LostError
			require.ErrorAs(t, l.Release(background), &lost)
			assert.Len(t, lost.Nodes, n, "each node's answer")
			assert.Equal(t, lost, l.Err())
			assert.Equal(t, lost.Lost, <-l.Lost())
			testkit.Remove(servers, testkit.Prefix+"released")

			require.ErrorIs(t, mine.Do(background, "done", func(context.Context, *quorumlock.Lease) error {
				take("done")
				return nil
			}), quorumlock.ErrLost)
			testkit.Remove(servers, testkit.Prefix+"done")

			require.ErrorIs(t, mine.DoAll(background, []string{"first", "second"}, func(context.Context, *quorumlock.Leases) error {
				take("second")
				return nil
			}), quorumlock.ErrLost)
			testkit.Remove(servers, testkit.Prefix+"second")

			reader, err := mine.Acquire(background, "read", quorumlock.Shared())
			require.NoError(t, err)
			take("read")
			require.ErrorIs(t, reader.Release(background), quorumlock.ErrLost)
			testkit.Remove(servers, testkit.Prefix+"read")

			kept := testkit.Acquired(t, mine, "kept", quorumlock.WithMinHold(5*time.Second))
			take("kept")
			require.ErrorIs(t, kept.Release(background), quorumlock.ErrLost)
			testkit.Remove(servers, testkit.Prefix+"kept")
		}
	}
}

// reached waits until an acquisition has reached all servers: the last ones may be reached after it has returned.
func reached(t *testing.T, servers []*redistest.Server, name string) {
	t.Helper()
	testkit.Eventually(t, "the last node has the lock", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.MustDo("EXISTS", testkit.Prefix+name) == int64(0) })
	})
}

// The log, the subscription and the spans report the same loss as Release, once and at the end.
func TestALossThatAReleaseFindsIsReportedAsAnyOther(t *testing.T) {
	var log testkit.Buffer
	r := &recorder{}
	m, servers := testkit.Manager(t, 3, quorumlock.WithTracerProvider(r), quorumlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	ends := m.Subscribe(8, quorumlock.Lost{}, quorumlock.Released{})
	for range 2 {
		l := testkit.Acquired(t, m, "job")
		ctx, closed := l.Context(), l.Lost()
		reached(t, servers, "job")
		testkit.Remove(servers[:2], testkit.Prefix+"job")
		err := l.Release(ctx)
		require.ErrorIs(t, err, quorumlock.ErrLost)
		require.ErrorIs(t, context.Cause(ctx), quorumlock.ErrReleased, "the context had ended before the nodes answered")
		lost := <-closed
		assert.Equal(t, lost, <-ends.C())
		assert.Equal(t, l.Token(), lost.Token)
		assert.Len(t, lost.Nodes, 2)
		testkit.Eventually(t, "one line", func() bool { return strings.Count(log.String(), "a lease was lost") == 1 })
		assert.Contains(t, log.String(), string(lost.Reason))
		testkit.Eventually(t, "spans", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.ended) == 3 })
		assert.Contains(t, log.String(), "owner="+l.Owner())
		assert.Equal(t, l.Owner(), r.take(t, "quorumlock.acquire").attrs["quorumlock.owner"].AsString())
		release, hold := r.take(t, "quorumlock.release"), r.take(t, "quorumlock.hold")
		assert.Equal(t, "lost", release.attrs["quorumlock.outcome"].AsString())
		assert.Equal(t, l.Owner(), release.attrs["quorumlock.owner"].AsString())
		assert.Equal(t, l.Owner(), hold.attrs["quorumlock.owner"].AsString())
		assert.Equal(t, "lost", hold.attrs["quorumlock.outcome"].AsString())
		assert.NotEmpty(t, hold.attrs["quorumlock.reason"].AsString())
		r.ended = nil
		log = testkit.Buffer{}
	}
	testkit.Released(t, testkit.Acquired(t, m, "job"))
	assert.IsType(t, quorumlock.Released{}, <-ends.C())
}
