package quorumlocktest_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// nodes runs a test over n nodes in virtual time.
func nodes(t *testing.T, n int, test func(*testing.T, *quorumlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, quorumlocktest.Start(t, n)) })
}

func acquired(t *testing.T, m *quorumlock.Manager, name string) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(context.Background(), name)
	require.NoError(t, err)
	synctest.Wait() // late votes have arrived
	return l
}

func TestForceLostEndsThatLeaseAndNoOther(t *testing.T) {
	for _, opts := range [][]quorumlock.AcquireOption{nil, {quorumlock.WithoutRenewal()}, {quorumlock.WithHolder("me")}} {
		nodes(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := c.Manager(t, quorumlock.WithPrefix("app:"))
			l, err := m.Acquire(context.Background(), "job", opts...)
			require.NoError(t, err)
			other := acquired(t, m, "other")
			c.ForceLost(t, l)
			assert.Equal(t, quorumlock.LostTaken, (<-l.Lost()).Reason)
			require.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrLost)
			assert.True(t, other.Valid())
			_, err = m.TryAcquire(context.Background(), "job")
			require.ErrorIs(t, err, quorumlock.ErrHeld, "the name stays taken until the lock expires")
		})
	}
}

func TestForceLostEndsSharedLeasesAndPermits(t *testing.T) {
	nodes(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := c.Manager(t)
		reader, err := m.Acquire(context.Background(), "job", quorumlock.Shared())
		require.NoError(t, err)
		beside, err := m.Acquire(context.Background(), "job", quorumlock.Shared())
		require.NoError(t, err)
		permit, err := m.Acquire(context.Background(), "job", quorumlock.Permits(2))
		require.NoError(t, err)
		other, err := m.Acquire(context.Background(), "job", quorumlock.Permits(2))
		require.NoError(t, err)
		synctest.Wait()
		c.ForceLost(t, permit)
		assert.Equal(t, quorumlock.LostTaken, (<-permit.Lost()).Reason)
		assert.True(t, other.Valid(), "another slot")
		assert.True(t, reader.Valid())
		c.ForceLost(t, reader)
		assert.Equal(t, quorumlock.LostTaken, (<-reader.Lost()).Reason)
		<-beside.Lost()
		_, err = m.TryAcquire(context.Background(), "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld, "the name stays taken until the lock expires")
	})
}

// An example of a user's test: the job must stop when its lease is lost.
func TestMyJobStopsWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		m := cluster.Manager(t)
		steps, stopped := 0, make(chan error, 1)
		leases := make(chan *quorumlock.Lease, 1)
		go func() {
			stopped <- m.Do(t.Context(), "my-job", func(ctx context.Context, l *quorumlock.Lease) error {
				leases <- l
				for ; ctx.Err() == nil; steps++ { // the behaviour under test
					time.Sleep(100 * time.Millisecond)
				}
				return nil
			})
		}()
		l := <-leases
		time.Sleep(time.Minute)
		cluster.ForceLost(t, l)
		require.ErrorIs(t, <-stopped, quorumlock.ErrLost)
		assert.InDelta(t, 600, steps, 1)
	})
}

func TestFaultsOfTheWholeClusterAreOneLine(t *testing.T) {
	for name, fault := range map[string]struct {
		begin, fix func(*quorumlocktest.Cluster)
		reason     quorumlock.LostReason
	}{
		"kill": {func(c *quorumlocktest.Cluster) { c.Kill() }, func(c *quorumlocktest.Cluster) { c.Restart() }, quorumlock.LostExpired},
		"hang": {func(c *quorumlocktest.Cluster) { c.Hang() }, func(c *quorumlocktest.Cluster) { c.Resume() }, quorumlock.LostExpired},
		"cut":  {func(c *quorumlocktest.Cluster) { c.Cut(0, 1) }, func(c *quorumlocktest.Cluster) { c.Heal() }, quorumlock.LostExpired},
		"step": {func(c *quorumlocktest.Cluster) { c.StepClock(time.Minute) }, func(*quorumlocktest.Cluster) {}, quorumlock.LostMissing},
	} {
		t.Run(name, func(t *testing.T) {
			nodes(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := c.Manager(t)
				l := acquired(t, m, "job")
				fault.begin(c)
				assert.Equal(t, fault.reason, (<-l.Lost()).Reason)
				fault.fix(c)
				next, err := m.Acquire(context.Background(), "job", quorumlock.WithWait(time.Hour))
				require.NoError(t, err)
				require.NoError(t, next.Release(context.Background()))
			})
		})
	}
}

func TestForceLostByNameEndsTheLeaseOfCodeThatShowsNone(t *testing.T) {
	nodes(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := c.Manager(t, quorumlock.WithPrefix("app:"))
		other := acquired(t, m, "other-my-job") // a name that ends in the same way
		stopped, began := make(chan error, 1), make(chan struct{})
		go func() {
			stopped <- m.Do(t.Context(), "my-job", func(ctx context.Context, _ *quorumlock.Lease) error {
				close(began)
				<-ctx.Done()
				return nil
			})
		}()
		<-began
		c.ForceLostByName(t, m, "my-job")
		var lost *quorumlock.LostError
		require.ErrorAs(t, <-stopped, &lost)
		assert.Equal(t, quorumlock.LostTaken, lost.Reason)
		assert.True(t, other.Valid())
	})
}

// recorder is the tb of a test that ends before the test that it is part of.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	lines    []string
	cleanups []func()
	ended    bool
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Log(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.Errorf("log after the end of the test, which panics: %v", args)
	}
	r.lines = append(r.lines, fmt.Sprint(args...))
}

func (r *recorder) end() {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

func TestTheKitLogsToTheTestAndNeverAfterItsEnd(t *testing.T) {
	nodes(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		r := &recorder{TB: t}
		m := c.Manager(r)
		l := acquired(t, m, "job")
		c.ForceLost(t, l)
		c.Nodes()[0].Kill()
		synctest.Wait()
		r.end()
		c.Nodes()[1].Kill()
		time.Sleep(time.Minute)
		text := strings.Join(r.lines, "\n")
		assert.Contains(t, text, `level=WARN msg="quorumlock: a lease was lost: its context has ended, and others may get the lock" name=job`)
		assert.NotContains(t, text, "time=")
		for _, line := range r.lines {
			assert.NotContains(t, line, "\n")
		}

		var own bytes.Buffer
		quiet := &recorder{TB: t}
		single := quorumlocktest.Start(t, 1)
		m = single.Manager(quiet, quorumlock.WithLogger(slog.New(slog.NewTextHandler(&own, nil))))
		single.ForceLost(t, acquired(t, m, "job"))
		quiet.end()
		assert.Contains(t, own.String(), "a lease was lost", "WithLogger wins")
		assert.Empty(t, quiet.lines)
	})
}
