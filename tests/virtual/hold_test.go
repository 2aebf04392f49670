package virtual

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The name stays taken until the lease would have reached the minimum age, whether Release or Close ended it.
func TestAReleaseBeforeTheMinimumLeavesTheNameTaken(t *testing.T) {
	const least = 5 * time.Second
	for name, end := range map[string]func(*quorumlock.Manager, *quorumlock.Lease) error{
		"Release": func(_ *quorumlock.Manager, l *quorumlock.Lease) error { return l.Release(background) },
		"Close":   func(m *quorumlock.Manager, _ *quorumlock.Lease) error { return m.Close(background) },
		"Release and Close": func(m *quorumlock.Manager, l *quorumlock.Lease) error {
			return errors.Join(l.Release(background), m.Close(background))
		},
	} {
		for _, ttl := range []time.Duration{2 * time.Second, 30 * time.Second} {
			t.Run(name+", TTL "+ttl.String(), func(t *testing.T) {
				run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
					m, other := manager(t, c, quorumlock.WithTTL(ttl), quorumlock.WithMinHold(least)), manager(t, c)
					granted := time.Now()
					l := acquire(t, m, "job")
					first := l.Token()
					time.Sleep(10 * time.Millisecond)
					require.NoError(t, end(m, l))
					assert.False(t, l.Valid())
					assert.Less(t, time.Since(granted), time.Second, "the caller does not wait for the minimum")

					time.Sleep(least - 100*time.Millisecond - time.Since(granted))
					_, err := other.TryAcquire(background, "job")
					require.ErrorIs(t, err, quorumlock.ErrHeld)
					next, err := other.Acquire(background, "job")
					require.NoError(t, err)
					assert.Greater(t, next.Token(), first)
					assert.InDelta(t, least, time.Since(granted), float64(200*time.Millisecond))
					require.NoError(t, next.Release(background))
				})
			})
		}
	}
}

func TestCallersOfOneProcessWaitForTheMinimumAsWell(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithMinHold(time.Second))
		began := time.Now()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				l, err := m.Acquire(background, "job")
				if assert.NoError(t, err) {
					assert.NoError(t, l.Release(background))
				}
			})
		}
		all.Wait()
		assert.InDelta(t, 3*time.Second, time.Since(began), float64(300*time.Millisecond), "a second between two grants")
	})
}

// When the waiter was refused, it learned a TTL that the release has shortened since.
func TestAWaiterIsWokenWhenTheMinimumIsOver(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithMinHold(3*time.Second))
		waiting := patient(t, c, manager(t, c))
		granted := time.Now()
		l := acquire(t, m, "job")
		got := make(chan time.Duration, 1)
		go func() {
			next, err := waiting.Acquire(background, "job")
			if assert.NoError(t, err) {
				got <- time.Since(granted)
				assert.NoError(t, next.Release(background))
			}
		}()
		synctest.Wait()
		require.NoError(t, l.Release(background))
		assert.InDelta(t, 3*time.Second, <-got, float64(50*time.Millisecond))
		synctest.Wait()
	})
}

func TestALeaseOfTheMinimumAgeIsReleasedAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithMinHold(time.Second))
		l := acquire(t, m, "job")
		time.Sleep(time.Second)
		require.NoError(t, l.Release(background))
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"))
	})
}

func TestAnotherManagersLeaseIsNotOurs(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		self := func(name string) bool {
			_, err := m.TryAcquire(background, name)
			var held *quorumlock.HeldError
			require.ErrorAs(t, err, &held)
			return held.Self
		}
		early := acquire(t, m, "early")
		theirs := acquire(t, other, "theirs")
		assert.False(t, self("theirs"))
		assert.True(t, self("early"), "it was granted before the first refusal")
		acquire(t, m, "late")
		assert.True(t, self("late"))
		require.NoError(t, early.Release(background))
		acquire(t, other, "early")
		assert.False(t, self("early"), "a former lease is not ours")
		require.NoError(t, theirs.Release(background))
		acquire(t, m, "theirs")
		assert.True(t, self("theirs"))
		for _, n := range c.Nodes() {
			do(t, n, "SET", config.DefaultPrefix+"theirs", "somebody else", "XX", "KEEPTTL")
		}
		assert.False(t, self("theirs"), "another client has the lock, and our Manager has not noticed yet")
	})
}
