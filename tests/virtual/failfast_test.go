package virtual

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestWithFailFastACallWaitsForAHolderAndNotForNodes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, other, "job")
		time.AfterFunc(time.Minute, func() { assert.NoError(t, l.Release(background)) })
		began := time.Now()
		mine := acquire(t, m, "job", quorumlock.WithFailFast())
		assert.InDelta(t, 60, time.Since(began).Seconds(), 0.1)
		require.NoError(t, mine.Release(background))

		c.Kill(0, 1)
		time.Sleep(2 * time.Second)
		for name, call := range map[string]func() error{
			"Acquire": func() error { _, err := m.Acquire(background, "other", quorumlock.WithFailFast()); return err },
			"Do": func() error {
				return m.Do(background, "other", func(context.Context, *quorumlock.Lease) error { return nil },
					quorumlock.WithFailFast(), quorumlock.WithWait(time.Hour))
			},
			"Lead": func() error {
				return m.Lead(background, "other", func(context.Context, *quorumlock.Lease) error { return nil }, quorumlock.WithFailFast())
			},
		} {
			began = time.Now()
			require.ErrorIs(t, call(), quorumlock.ErrNoQuorum, name)
			assert.Less(t, time.Since(began), timeout, name)
		}
		began = time.Now()
		_, err := m.Acquire(background, "other", quorumlock.WithWait(time.Minute))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Equal(t, time.Minute, time.Since(began), "without the option a call waits for the nodes")
	})
}

// The first caller of a process also asks the nodes for the callers behind it.
func TestWithFailFastACallerBehindAnotherOfItsProcessFailsWithThatOnesAttempt(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		patientOnce(t, m, other) // from now on the callers of m queue
		acquire(t, other, "job")
		ctx, cancel := context.WithCancel(background)
		first, second, third := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		wait := func(result chan error, opts ...quorumlock.AcquireOption) {
			_, err := m.Acquire(ctx, "job", opts...)
			result <- err
		}
		go wait(first)
		synctest.Wait()
		go wait(second, quorumlock.WithFailFast())
		time.Sleep(2 * ttl)
		assert.Empty(t, second, "it waits for the holder")
		c.Kill(0, 1)
		require.ErrorIs(t, <-second, quorumlock.ErrNoQuorum)
		wait(third, quorumlock.WithFailFast())
		require.ErrorIs(t, <-third, quorumlock.ErrNoQuorum, "the caller before it has found so")
		assert.Empty(t, first, "it waits on")
		cancel()
		err := <-first
		require.ErrorIs(t, err, context.Canceled)
		assert.True(t, errors.Is(err, quorumlock.ErrNoQuorum), "%v", err)
	})
}

// Before a lease is passed on inside a process, the process asks the nodes whether others wait. If they are silent, the
// next caller learns that after the node timeout, and not only when the unused lease ends.
func TestTheCallerBehindALeaseLearnsThatTheNodesAreSilent(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const long = time.Minute
		m := manager(t, c, quorumlock.WithNodeTimeout(200*time.Millisecond))
		patientOnce(t, m, manager(t, c)) // from now on the callers of m queue
		held := acquire(t, m, "behind", quorumlock.WithTTL(long))
		ended := make(chan error, 1)
		go func() {
			_, err := m.Acquire(background, "behind", quorumlock.WithTTL(long), quorumlock.WithFailFast())
			ended <- err
		}()
		time.Sleep(100 * time.Millisecond)
		c.Hang(0, 1)
		began := time.Now()
		_ = held.Release(background)
		require.ErrorIs(t, <-ended, quorumlock.ErrNoQuorum)
		require.Less(t, time.Since(began), 500*time.Millisecond, "the question to the nodes, and the attempt")
		c.Resume(0, 1)
	})
}
