//go:build unix

package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAllPartsAreWorkedOnUnderOneToken(t *testing.T) {
	nodes := redistest.Addrs(redistest.Start(t, 3))
	var sum atomic.Int64
	require.NoError(t, run(t.Context(), nodes, []string{"a", "b"}, func(_ context.Context, _ string, token int64) error {
		if !sum.CompareAndSwap(0, token) {
			sum.Add(-token)
		}
		return nil
	}))
	assert.Zero(t, sum.Load(), "both had the same token")
}

func TestOnePartThatFailsStopsTheOthers(t *testing.T) {
	nodes := redistest.Addrs(redistest.Start(t, 3))
	failed := errors.New("no disk")
	err := run(t.Context(), nodes, []string{"a", "b"}, func(ctx context.Context, part string, _ int64) error {
		if part == "a" {
			return failed
		}
		<-ctx.Done()
		return nil
	})
	require.ErrorIs(t, err, failed)
}

func TestALostLeaseStopsAllParts(t *testing.T) {
	servers := redistest.Start(t, 3)
	err := run(t.Context(), redistest.Addrs(servers), []string{"a", "b"}, func(ctx context.Context, part string, _ int64) error {
		if part == "a" {
			servers[0].Kill()
			servers[1].Kill()
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}, quorumlock.WithTTL(time.Second))
	require.ErrorIs(t, err, quorumlock.ErrLost)
}
