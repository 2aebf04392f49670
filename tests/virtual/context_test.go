package virtual

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// parent ends a millisecond before the contexts that follow it, which any context does within microseconds.
type parent struct{ context.Context }

func (parent) Value(any) any { return nil }

func (p parent) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(p.Context, func() {
		time.Sleep(time.Millisecond)
		f()
	})
}

func TestACallWhoseContextEndsBeforeItsWaitReturnsTheContextsError(t *testing.T) {
	for name, call := range map[string]func(*quorumlock.Manager, context.Context) error{
		"Acquire": func(m *quorumlock.Manager, ctx context.Context) error {
			_, err := m.Acquire(ctx, "job", quorumlock.WithWait(time.Minute))
			return err
		},
		"AcquireAll": func(m *quorumlock.Manager, ctx context.Context) error {
			_, err := m.AcquireAll(ctx, []string{"job", "other"}, quorumlock.WithWait(time.Minute))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				for _, n := range c.Nodes() {
					n.Delay(50 * time.Millisecond)
				}
				ctx, cancel := context.WithCancel(background)
				time.AfterFunc(10*time.Millisecond, cancel)
				err := call(m, parent{ctx})
				require.ErrorIs(t, err, context.Canceled)
				assert.NotErrorIs(t, err, quorumlock.ErrClosed)
			})
		})
	}
}

// The release of a lease ends its contexts. A call about another lock is cut off by that as by any other end of its context.
func TestTheContextOfAReleasedLeaseCutsOffCallsAboutOtherLocks(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		first, other := acquire(t, m, "first"), acquire(t, m, "other")
		ctx := first.Context()
		release(t, first)
		c.Hang()
		began := time.Now()
		_, inspected := m.Inspect(ctx, "other")
		_, slots := m.Inspect(ctx, "slots", quorumlock.Permits(2))
		_, revoked := m.Revoke(ctx, "other", "it is stuck")
		all := map[string]error{
			"Inspect": inspected, "Inspect of permits": slots, "Verify": other.Verify(ctx),
			"AskRelease": m.AskRelease(ctx, "other", "please"), "Revoke": revoked,
		}
		for status, err := range m.InspectAll(ctx, []string{"other"}) {
			all["InspectAll "+status.Name] = err
		}
		assert.Zero(t, time.Since(began), "no call waits for the nodes")
		assert.Len(t, all, 6)
		for call, err := range all {
			require.ErrorIs(t, err, quorumlock.ErrNoQuorum, call)
			require.ErrorIs(t, err, context.Canceled, call)
			require.ErrorIs(t, err, quorumlock.ErrReleased, call)
			assert.ErrorContains(t, err, "stopped waiting for answers: context canceled (quorumlock: lease released)", call)
		}
		c.Resume()
	})
}

// A call that ends a lease ends the contexts of that lease before the nodes have answered, and its caller may have given it one
// of these: inside Do there is no other. The call waits for the nodes as with another context.
func TestACallThatEndsALeaseIsNotCutOffByTheContextThatItEnds(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for name, end := range map[string]func(context.Context, *quorumlock.Lease) error{
			"Release": func(ctx context.Context, l *quorumlock.Lease) error { return l.Release(ctx) },
			"Detach": func(ctx context.Context, l *quorumlock.Lease) error {
				_, err := l.Detach(ctx, time.Minute)
				return err
			},
		} {
			for silent := range 2 {
				l := acquire(t, m, name)
				for _, n := range c.Nodes() {
					n.Delay(10 * time.Millisecond)
				}
				if silent == 1 {
					c.Hang()
				}
				err := end(l.Context(), l)
				require.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrReleased, name)
				if silent == 0 {
					require.NoError(t, err, name)
				} else {
					require.ErrorIs(t, err, quorumlock.ErrNoQuorum, name)
					assert.NotErrorIs(t, err, context.Canceled, "%s: it has waited for the node timeout", name)
				}
				c.Resume()
				for _, n := range c.Nodes() {
					n.Delay(0)
				}
				time.Sleep(2 * ttl) // what is left has expired
			}
		}
	})
}

// The call has not ended a context that had ended before, so such a context cuts it off, also if another lease's release has
// ended it.
func TestACallThatEndsALeaseIsCutOffByTheContextOfAnother(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		first := acquire(t, m, "first")
		ctx := first.Context()
		release(t, first)
		for call, end := range map[string]func(*quorumlock.Lease) error{
			"Release": func(l *quorumlock.Lease) error { return l.Release(ctx) },
			"Detach": func(l *quorumlock.Lease) error {
				_, err := l.Detach(ctx, time.Minute)
				return err
			},
			"Downgrade": func(l *quorumlock.Lease) error {
				_, err := l.Downgrade(ctx)
				return err
			},
		} {
			l := acquire(t, m, call)
			c.Hang()
			began := time.Now()
			err := end(l)
			assert.Zero(t, time.Since(began), call)
			require.ErrorIs(t, err, context.Canceled, call)
			require.ErrorIs(t, err, quorumlock.ErrReleased, "%s: by the cause of the context", call)
			assert.ErrorIs(t, l.Err(), quorumlock.ErrReleased, call)
			c.Resume()
		}
		all, err := m.AcquireAll(background, []string{"a", "b"})
		require.NoError(t, err)
		c.Hang()
		began := time.Now()
		require.ErrorIs(t, all.Release(ctx), context.Canceled)
		assert.Zero(t, time.Since(began))
		c.Resume()
	})
}
