package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// The whole way on real servers, with one of three down: a request to yield, and then a revocation.
func TestAHolderIsAskedAndThenRevoked(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(3*time.Second))
	operator := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithHolder("ops"))
	l := testkit.Acquired(t, m, "job")
	servers[2].Kill()
	next := make(chan *quorumlock.Lease, 1)
	go func() {
		l, err := operator.Acquire(t.Context(), "job")
		assert.NoError(t, err)
		next <- l
	}()
	testkit.Confirmed(t, func(ctx context.Context) error { return operator.AskRelease(ctx, "job", "deploy") })
	testkit.Eventually(t, "the holder knows who asks, and how many wait", func() bool {
		select {
		case w := <-l.Wanted():
			return w == quorumlock.Wanted{Waiters: 1, Asked: true, By: "ops", Reason: "deploy"}
		default:
			return false
		}
	})
	require.NoError(t, l.Err())
	var r quorumlock.Revocation
	testkit.Confirmed(t, func(ctx context.Context) (err error) { r, err = operator.Revoke(ctx, "job", "it hangs"); return err })
	assert.Equal(t, l.Owner(), r.Holder.Owner)
	assert.Equal(t, 2, r.Marked)
	lost := <-l.Lost()
	assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
	l = <-next
	require.NotNil(t, l)
	require.NoError(t, l.Err(), "the revocation does not hit the next holder")
	time.Sleep(min(time.Until(r.Until), 5*time.Second) + time.Second)
	require.NoError(t, l.Err())
	testkit.Released(t, l)
}
