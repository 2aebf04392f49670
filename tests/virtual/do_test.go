package virtual

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestACallUnderDoOfTheSameNameFailsAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		var outside context.Context
		require.NoError(t, m.Do(background, "outer", func(ctx context.Context, _ *quorumlock.Lease) error {
			return m.Do(ctx, "inner", func(ctx context.Context, _ *quorumlock.Lease) error {
				for _, name := range []string{"outer", "inner"} {
					_, err := m.Acquire(ctx, name)
					var held *quorumlock.HeldError
					if assert.ErrorAs(t, err, &held) {
						assert.True(t, held.Self)
						assert.Equal(t, name, held.Name)
						assert.Contains(t, err.Error(), "not reentrant")
					}
				}
				outside = context.WithoutCancel(ctx)
				l, err := m.Acquire(ctx, "another")
				if assert.NoError(t, err) {
					assert.NoError(t, l.Release(ctx))
				}
				return nil
			})
		}))
		l, err := m.Acquire(outside, "outer")
		require.NoError(t, err, "the outer lease has ended")
		require.NoError(t, l.Release(background))
	})
}

func TestDoReportsThatCloseEndedItsLease(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		err := m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			go func() { _ = m.Close(background) }()
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, quorumlock.ErrClosed)
		_, err = m.Inspect(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

func TestLeadReturnsTheErrorOfTheWorkWhenItsContextEnds(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		ctx, cancel := context.WithCancel(background)
		err := manager(t, c).Lead(ctx, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			cancel()
			<-ctx.Done()
			return fmt.Errorf("row 17 not written: %w", ctx.Err())
		})
		require.ErrorContains(t, err, "row 17")
		require.ErrorIs(t, err, context.Canceled)
	})
}
