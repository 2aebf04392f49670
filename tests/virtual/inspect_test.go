package virtual

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// waits returns a function that makes calls wait for a name, and one that stops them.
func waits(t *testing.T) (call func(m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption), stop func()) {
	ctx, cancel := context.WithCancel(background)
	var calls sync.WaitGroup
	return func(m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) {
			calls.Go(func() {
				_, err := m.Acquire(ctx, name, opts...)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}, func() {
			cancel()
			calls.Wait()
		}
}

// The clocks of the nodes differ, from ours and from each other.
func TestInspectShowsWhoWaitsSinceWhenAndForWhat(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.StepClock(-time.Hour)
		c.StepClock(100*time.Millisecond, 2)
		m, a, b := manager(t, c), manager(t, c), manager(t, c)
		inspect := func(m *quorumlock.Manager) quorumlock.Status {
			s, err := m.Inspect(background, "job")
			require.NoError(t, err)
			return s
		}
		acquire(t, m, "job")
		assert.Nil(t, inspect(m).Queue)
		call, stop := waits(t)
		defer stop()
		began := time.Now()
		call(a, "job")
		time.Sleep(time.Second)
		call(a, "job") // behind the other call, in the process
		time.Sleep(time.Second)
		call(b, "job", quorumlock.Shared())
		time.Sleep(40 * time.Second)

		s := inspect(m)
		require.Equal(t, 2, s.Waiters)
		require.Len(t, s.Queue, 2)
		first, second := s.Queue[0], s.Queue[1]
		assert.WithinDuration(t, began, first.Since, time.Millisecond, "on our clock")
		assert.WithinDuration(t, began.Add(2*time.Second), second.Since, time.Millisecond)
		assert.Equal(t, []bool{false, true}, []bool{first.Shared, second.Shared})
		assert.Regexp(t, "^[0-9a-f]{16}$", first.Process)
		assert.NotEqual(t, first.Process, second.Process)
		assert.False(t, first.Own || second.Own)
		own := inspect(b).Queue
		assert.Equal(t, []bool{false, true}, []bool{own[0].Own, own[1].Own})
		assert.Equal(t, first.Process, own[0].Process)

		for s, err := range m.List(background, "") {
			require.NoError(t, err)
			assert.Equal(t, 2, s.Waiters)
			assert.Nil(t, s.Queue, "a list asks for no tickets")
		}
		c.Cut(0)
		time.Sleep(time.Second)
		assert.Len(t, inspect(m).Queue, 2, "two nodes are enough")
		c.Heal(0)
	})
}

func TestInspectShowsTheFirstEightOfAQueue(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		acquire(t, m, "job", quorumlock.Permits(2))
		acquire(t, m, "job", quorumlock.Permits(2))
		call, stop := waits(t)
		defer stop()
		began := time.Now()
		for range 10 {
			call(manager(t, c), "job", quorumlock.Permits(2))
			time.Sleep(time.Second)
		}
		s, err := m.Inspect(background, "job", quorumlock.Permits(2))
		require.NoError(t, err)
		assert.Equal(t, 10, s.Waiters)
		require.Len(t, s.Queue, 8)
		for i, w := range s.Queue {
			assert.Equal(t, 2, w.Permits)
			assert.WithinDuration(t, began.Add(time.Duration(i)*time.Second), w.Since, time.Millisecond)
		}
		for _, slot := range s.Slots {
			assert.Nil(t, slot.Queue)
		}
	})
}
