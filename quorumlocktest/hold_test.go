package quorumlocktest_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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

func TestWithWaitBoundsTheWaitAndNotTheWork(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, other, "job")
		for range 2 { // alone, and then in the queue of the process
			began := time.Now()
			_, err := m.Acquire(background, "job", quorumlock.WithWait(3*time.Second))
			require.ErrorIs(t, err, quorumlock.ErrHeld)
			var held *quorumlock.HeldError
			require.ErrorAs(t, err, &held)
			assert.Equal(t, l.Owner(), held.Holder.Owner)
			assert.NotErrorIs(t, err, context.DeadlineExceeded, "no context has ended")
			assert.Regexp(t, `; waited 3(\.\d+)?s$`, err.Error())
			assert.InDelta(t, 3*time.Second, time.Since(began), float64(100*time.Millisecond))
		}
		began := time.Now()
		_, err := m.Acquire(background, "job", quorumlock.WithWait(0))
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.Less(t, time.Since(began), 10*time.Millisecond, "WithWait(0) asks once")

		_, err = m.Acquire(background, "job", quorumlock.WithWait(-time.Second))
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		_, err = m.TryAcquire(background, "job", quorumlock.WithWait(time.Second))
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		require.NoError(t, l.Release(background))

		require.NoError(t, m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			time.Sleep(time.Minute)
			_, bounded := ctx.Deadline()
			assert.False(t, bounded)
			return ctx.Err()
		}, quorumlock.WithWait(time.Second)))

		for _, n := range c.Nodes()[:2] {
			n.Kill()
		}
		_, err = m.Acquire(background, "job", quorumlock.WithWait(time.Second))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	})
}

// The name stays taken until the lease would have reached the minimum age, whether
// Release or Close ended it.
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
				virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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

// The waiter was refused with a TTL that the release has shortened since.
func TestAWaiterIsWokenWhenTheMinimumIsOver(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithMinHold(time.Second))
		l := acquire(t, m, "job")
		time.Sleep(time.Second)
		require.NoError(t, l.Release(background))
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"))
	})
}

// Two other clients have asked at the same instant, and release what they were granted.
func TestTryAcquireAsksAgainWhenTheVotesWereSplit(t *testing.T) {
	virtual(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		split := func(px string) {
			for i, owner := range []string{"a", "a", "b", "b"} {
				admin(t, c.Nodes()[i], "SET", quorumlock.DefaultPrefix+"job", strings.Repeat(owner, 32)+" 0 1795344466720373 - ", "PX", px)
			}
		}
		split("2")
		l, err := m.TryAcquire(background, "job")
		require.NoError(t, err)
		require.NoError(t, l.Release(background))
		split("60000")
		began := time.Now()
		_, err = m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.Less(t, time.Since(began), 100*time.Millisecond)
		synctest.Wait()
		v, err := c.Nodes()[4].Do("EXISTS", quorumlock.DefaultPrefix+"job")
		require.NoError(t, err)
		assert.EqualValues(t, 0, v, "its own vote is released")
	})
}

// logOf returns a Manager, and a function that returns its log of warnings.
func logOf(t *testing.T, c *quorumlocktest.Cluster) (*quorumlock.Manager, func() string) {
	t.Helper()
	var mu sync.Mutex
	var log bytes.Buffer
	m := manager(t, c, quorumlock.WithLogger(slog.New(slog.NewTextHandler(&lockedWriter{&mu, &log}, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	return m, func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func TestALeaseThatIsNeverCheckedIsWarnedAboutOnce(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, log := logOf(t, c)
		watched := acquire(t, m, "watched")
		assert.True(t, watched.Valid())
		time.Sleep(10 * time.Minute)
		assert.Empty(t, log(), "the program asks for its validity")
		acquire(t, m, "forgotten")
		acquire(t, m, "also forgotten")
		time.Sleep(50 * time.Second)
		assert.Empty(t, log())
		time.Sleep(10 * time.Minute)
		assert.Regexp(t, `(?s)^[^\n]*never asked whether it is still valid[^\n]*forgotten[^\n]*\n$`, log(), "once")
	})
}

func TestACallerThatMayWaitForItselfIsWarnedAboutOnce(t *testing.T) {
	for name, queued := range map[string]bool{"the first refusal of the Manager": false, "in the queue of the process": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m, log := logOf(t, c)
				if queued {
					patientOnce(t, m, manager(t, c))
				}
				l := acquire(t, m, "job")
				assert.True(t, l.Valid())
				_, err := m.Acquire(background, "job", quorumlock.WithWait(ttl/2))
				var held *quorumlock.HeldError
				require.ErrorAs(t, err, &held)
				assert.True(t, held.Self)
				assert.Contains(t, err.Error(), "(this very Manager)")
				assert.Empty(t, log(), "the lease may be another caller's, and end soon")
				for range 2 {
					_, err = m.Acquire(background, "job", quorumlock.WithWait(3*ttl))
					require.ErrorAs(t, err, &held)
				}
				assert.Regexp(t, `(?s)^[^\n]*not reentrant[^\n]*job[^\n]*\n$`, log(), "once")
			})
		})
	}
}

// patientOnce has a Manager meet contention.
func patientOnce(t *testing.T, m, other *quorumlock.Manager) {
	t.Helper()
	l := acquire(t, other, "contended")
	_, err := m.Acquire(background, "contended", quorumlock.WithWait(100*time.Millisecond))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.NoError(t, l.Release(background))
}

func TestAnotherManagersLeaseIsNotOurs(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
			admin(t, n, "SET", quorumlock.DefaultPrefix+"theirs", "somebody else", "XX", "KEEPTTL")
		}
		assert.False(t, self("theirs"), "another client has the lock, and our Manager has not noticed yet")
	})
}

func TestACallUnderDoOfTheSameNameFailsAtOnce(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
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
