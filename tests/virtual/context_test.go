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
