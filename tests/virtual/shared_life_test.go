package virtual

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// readersOn returns how many readers of "job" a node has.
func readersOn(t *testing.T, n *quorumlocktest.Node) any {
	t.Helper()
	return int64(len(do(t, n, "ZRANGE", wire.ReadersKey(wire.LockKey(config.DefaultPrefix, "job")), "(0", "+inf", "BYSCORE").([]any)))
}

func TestSharedLeasesAreRenewedAndRestored(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c, quorumlock.WithTTL(20*time.Second))
		readers := []*quorumlock.Lease{acquireShared(t, a), acquireShared(t, a), acquireShared(t, b)}
		check := func(what string) {
			for _, l := range readers {
				require.NoError(t, l.Verify(background), what)
				require.NoError(t, l.Renew(background), what)
			}
			synctest.Wait()
			for i, n := range c.Nodes() {
				assert.EqualValues(t, 3, readersOn(t, n), "node %d: %s", i, what)
			}
		}
		for range 4 {
			time.Sleep(time.Minute)
			check("renewed")
		}
		key := wire.LockKey(config.DefaultPrefix, "job")
		do(t, c.Nodes()[0], "DEL", key)
		time.Sleep(10 * time.Second)
		check("a node has lost the lock")
		do(t, c.Nodes()[1], "DEL", wire.ReadersKey(key))
		time.Sleep(10 * time.Second)
		check("a node has lost its readers")
		c.Nodes()[2].FlushAll()
		time.Sleep(10 * time.Second)
		check("a node has lost everything")
		release(t, readers...)
		assert.Empty(t, left(t, c))
	})
}

// A process with many exclusive leases renews its shared leases in one request with them.
func TestSharedLeasesAreRenewedTogetherWithExclusiveOnes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for i := range 100 {
			acquire(t, m, fmt.Sprint("other-", i))
		}
		l, last := acquireShared(t, m), time.Now()
		for range 30 {
			e := <-l.Renewed()
			assert.LessOrEqual(t, time.Since(last), interval*11/10)
			assert.Equal(t, 1, e.Margin)
			last = time.Now()
		}
	})
}

// The process is cut off at any instant of its renewal round. A reader that leaves in between changes nothing.
func TestACrashedReaderKeepsAWriterOutUntilItsSharedLeaseHasEnded(t *testing.T) {
	for i := range 8 {
		after := time.Duration(i) * 2 * interval / 8
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				dead, other := managerFor(t, c, "dead"), manager(t, c)
				l, beside := acquireShared(t, dead), acquireShared(t, other, quorumlock.WithTTL(3*ttl))
				writer := asks(t, manager(t, c).Acquire)
				time.Sleep(after)
				c.Partition("dead")
				cut := time.Now()
				time.Sleep(time.Second)
				release(t, beside)
				got := <-writer
				assert.False(t, l.Valid())
				lost := <-l.Lost()
				assert.Equal(t, quorumlock.LostExpired, lost.Reason)
				assert.GreaterOrEqual(t, got.at.Sub(lost.ValidUntil), guard, "its work had the guard to stop")
				assert.LessOrEqual(t, got.at.Sub(cut), ttl+time.Second)
				assert.Greater(t, got.Token(), l.Token())
				release(t, got.Lease)
				c.Rejoin("dead")
			})
		})
	}
}

func TestALossOfASharedLeaseIsReportedBeforeAWriterGetsTheName(t *testing.T) {
	for _, nodes := range []int{1, 3, 5} {
		run(t, nodes, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := managerFor(t, c, "cut off")
			l := acquireShared(t, m)
			writer := asks(t, manager(t, c).Acquire)
			time.Sleep(10 * time.Second)
			require.NoError(t, l.Renew(background))
			renewed := time.Now()
			c.Partition("cut off", []int{0, 1, 2}[:nodes/2+1]...)
			lost := <-l.Lost()
			assert.Equal(t, quorumlock.LostExpired, lost.Reason)
			assert.Equal(t, valid-early, time.Since(renewed))
			require.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrLost)
			assert.Empty(t, writer)
			got := <-writer
			assert.GreaterOrEqual(t, got.at.Sub(lost.At), guard)
			_, err := m.TryAcquire(background, "job", quorumlock.Shared())
			require.Error(t, err)
			c.Rejoin("cut off")
			time.Sleep(2 * ttl)
			assert.NoError(t, got.Verify(background), "what is left of the reader has not touched it")
		})
	}
}

func TestAMaximumHoldEndsASharedLeaseForAWriterThatWaits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		began := time.Now()
		m := manager(t, c)
		l, beside := acquireShared(t, m, quorumlock.WithMaxHold(20*time.Second)), acquireShared(t, m)
		writer := asks(t, manager(t, c).Acquire)
		lost := <-l.Lost()
		assert.Equal(t, quorumlock.LostMaxHold, lost.Reason)
		assert.InDelta(t, 20*time.Second, time.Since(began), float64(time.Second))
		require.NoError(t, beside.Verify(background), "of that lease alone")
		release(t, beside)
		got := <-writer
		assert.GreaterOrEqual(t, got.at.Sub(lost.At), guard)
		assert.Less(t, got.at.Sub(lost.At), time.Second)
	})
}

func TestAMinimumHoldOfASharedLeaseKeepsWritersOutAndNoReader(t *testing.T) {
	const least = 5 * time.Second
	for name, end := range map[string]func(*quorumlock.Manager, *quorumlock.Lease) error{
		"Release": func(_ *quorumlock.Manager, l *quorumlock.Lease) error { return l.Release(background) },
		"Close":   func(m *quorumlock.Manager, _ *quorumlock.Lease) error { return m.Close(background) },
	} {
		for _, life := range []time.Duration{2 * time.Second, 30 * time.Second} {
			t.Run(name+", TTL "+life.String(), func(t *testing.T) {
				run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
					m, other := manager(t, c, quorumlock.WithMinHold(least), quorumlock.WithTTL(life)), manager(t, c)
					began := time.Now()
					l := acquireShared(t, m)
					time.Sleep(10 * time.Millisecond)
					require.NoError(t, end(m, l))
					assert.Less(t, time.Since(began), time.Second)
					writer := asks(t, other.Acquire)
					time.Sleep(time.Second)
					_, err := other.TryAcquire(background, "job", quorumlock.Shared())
					require.ErrorIs(t, err, quorumlock.ErrHeld, "a writer waits")
					got := <-writer
					assert.InDelta(t, least, got.at.Sub(began), float64(200*time.Millisecond))
					release(t, got.Lease)

					l = acquireShared(t, other, quorumlock.WithMinHold(least))
					began = time.Now()
					release(t, l)
					release(t, acquireShared(t, other))
					_, err = other.TryAcquire(background, "job")
					require.ErrorIs(t, err, quorumlock.ErrHeld)
					time.Sleep(least + 100*time.Millisecond - time.Since(began))
					assert.Empty(t, left(t, c))
				})
			})
		}
	}
}

func TestSharedLeasesWithoutFencingHaveNoToken(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c, quorumlock.WithoutFencing()), manager(t, c, quorumlock.WithoutFencing())
		first, second := acquireShared(t, a), acquireShared(t, b)
		assert.Zero(t, first.Token())
		writer := asks(t, a.Acquire)
		reader := asks(t, b.Acquire, quorumlock.Shared())
		time.Sleep(time.Minute)
		assert.Empty(t, writer)
		assert.Empty(t, reader)
		require.NoError(t, second.Verify(background))
		release(t, first, second)
		got := <-writer
		below, err := got.Downgrade(background)
		require.NoError(t, err)
		assert.Zero(t, below.Token())
		release(t, below, (<-reader).Lease)
		for _, n := range c.Nodes() {
			assert.EqualValues(t, 0, do(t, n, "EXISTS", wire.RegistersKey(config.DefaultPrefix)))
		}
		assert.Empty(t, left(t, c))
	})
}

// Each reader of a Manager is released once, and a function of DoShared has the guard's time to return.
func TestCloseReleasesSharedLeases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		events := m.Subscribe(100)
		readers := []*quorumlock.Lease{acquireShared(t, m), acquireShared(t, m), acquireShared(t, m)}
		goOn, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
				<-goOn
				return nil
			}, quorumlock.Shared())
		}()
		writer := asks(t, other.Acquire)
		waiting := make(chan error, 1)
		go func() {
			_, err := m.Acquire(background, "job", quorumlock.Shared())
			waiting <- err
		}()
		time.Sleep(time.Second)
		closed := make(chan error, 1)
		go func() { closed <- m.Close(background) }()
		require.ErrorIs(t, <-waiting, quorumlock.ErrClosed)
		synctest.Wait() // Close ends the waiting calls first
		for _, l := range readers {
			require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		}
		time.Sleep(guard / 2)
		assert.Empty(t, writer, "a function still runs")
		for _, n := range c.Nodes() {
			assert.EqualValues(t, 1, readersOn(t, n))
		}
		close(goOn)
		require.ErrorIs(t, <-done, quorumlock.ErrClosed)
		require.NoError(t, <-closed)
		ended := time.Now()
		assert.Less(t, (<-writer).at.Sub(ended), 10*time.Millisecond)
		began, ends := 0, 0
		for e := range events.C() {
			switch e := e.(type) {
			case quorumlock.Acquired:
				assert.True(t, e.Shared)
				began++
			case quorumlock.Released:
				ends++
			}
		}
		assert.Equal(t, []int{4, 4}, []int{began, ends})
		_, err := m.Acquire(background, "job", quorumlock.Shared())
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

// Two readers see different registers. The one that is near raises a node further, just before the other's raise.
func TestAReaderThatAnotherHasOvertakenAsksOnceMoreAtOnce(t *testing.T) {
	shared := quorumlock.Shared()
	for name, ask := range map[string]func(*quorumlock.Manager) (*quorumlock.Lease, error){
		"TryAcquire": func(m *quorumlock.Manager) (*quorumlock.Lease, error) { return m.TryAcquire(background, "job", shared) },
		"Acquire": func(m *quorumlock.Manager) (*quorumlock.Lease, error) {
			return m.Acquire(background, "job", shared, quorumlock.WithFailFast())
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				mine, other := managerFor(t, c, "mine"), managerFor(t, c, "other")
				for i, at := range []int64{14000, 10000, 12000} {
					setRegister(t, c.Nodes()[i], at)
				}
				c.Distance("mine", 10*time.Millisecond)
				c.Distance("mine", 50*time.Millisecond, 0)
				c.Distance("other", 5*time.Millisecond)
				c.Distance("other", 50*time.Millisecond, 2)
				near := make(chan grant, 1)
				go func() {
					l, err := other.TryAcquire(background, "job", shared)
					assert.NoError(t, err)
					near <- grant{l, time.Now()}
				}()
				began := time.Now()
				far, err := ask(mine)
				require.NoError(t, err)
				assert.Less(t, time.Since(began), 150*time.Millisecond)
				assert.EqualValues(t, 14001, far.Token())
				assert.EqualValues(t, 14001, (<-near).Token())
			})
		})
	}
}
