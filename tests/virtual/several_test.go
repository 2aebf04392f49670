package virtual

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// locks returns the names of the locks on all nodes, once all pending requests have arrived.
func locks(t *testing.T, c *quorumlocktest.Cluster) (names []string) {
	t.Helper()
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	for _, n := range c.Nodes() {
		for _, key := range do(t, n, "KEYS", config.DefaultPrefix+"*").([]any) {
			if name := strings.TrimPrefix(key.(string), config.DefaultPrefix); utf8.ValidString(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func TestSeveralFreeNamesCostOneRoundTrip(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, n := range c.Nodes() {
			n.Delay(20 * time.Millisecond) // each way
		}
		began := time.Now()
		all, err := m.AcquireAll(background, []string{"c", "a", "b", "a"})
		require.NoError(t, err)
		assert.Equal(t, 40*time.Millisecond, time.Since(began))
		var names []string
		for _, l := range all.All() {
			names = append(names, l.Name())
			assert.Positive(t, l.Token())
		}
		assert.Equal(t, []string{"c", "a", "b"}, names)
		assert.Equal(t, "b", all.Lease("b").Name())
		assert.Nil(t, all.Lease("d"))
		assert.True(t, all.Valid())
		began = time.Now()
		require.NoError(t, all.Release(background))
		assert.LessOrEqual(t, time.Since(began), 80*time.Millisecond, "the first request may leave before the others are posted")
		assert.False(t, all.Valid())
		require.ErrorIs(t, all.Err(), quorumlock.ErrReleased)
		require.ErrorIs(t, all.Release(background), quorumlock.ErrReleased)
		_, open := <-all.Lost()
		assert.False(t, open)
		assert.ErrorIs(t, context.Cause(all.Context()), quorumlock.ErrReleased)
		assert.Empty(t, locks(t, c))
	})
}

// A call waits in the queue of the first taken name, and holds only the names before it.
func TestACallThatWaitsForANameHoldsOnlyThoseBeforeIt(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b, other := manager(t, c), manager(t, c), manager(t, c)
		held := acquire(t, a, "b")
		var calls sync.WaitGroup
		var got *quorumlock.Leases
		calls.Go(func() {
			var err error
			got, err = b.AcquireAll(background, []string{"c", "b", "a"})
			assert.NoError(t, err)
		})
		time.Sleep(time.Second)
		synctest.Wait()
		_, err := other.TryAcquire(background, "a")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		l, err := other.TryAcquire(background, "c")
		require.NoError(t, err, "it was given back")
		require.NoError(t, l.Release(background))
		s, err := other.Inspect(background, "b")
		require.NoError(t, err)
		assert.Equal(t, 1, s.Waiters)

		began := time.Now()
		require.NoError(t, held.Release(background))
		calls.Wait()
		assert.LessOrEqual(t, time.Since(began), 50*time.Millisecond)
		assert.True(t, got.Valid())
		require.NoError(t, got.Release(background))
		assert.Empty(t, locks(t, c))
	})
}

func TestACallForSeveralNamesThatGivesUpLeavesNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c)
		acquire(t, a, "b")
		names := []string{"a", "b", "c"}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(background)
		time.AfterFunc(3*time.Second, func() { cancel(cause) })
		for claim, call := range map[string]func() (*quorumlock.Leases, error){
			"once": func() (*quorumlock.Leases, error) { return b.AcquireAll(background, names, quorumlock.WithWait(0)) },
			"for a time": func() (*quorumlock.Leases, error) {
				return b.AcquireAll(background, names, quorumlock.WithWait(time.Second))
			},
			"until a ctx": func() (*quorumlock.Leases, error) { return b.AcquireAll(ctx, names) },
		} {
			all, err := call()
			assert.Nil(t, all, claim)
			var held *quorumlock.HeldError
			require.ErrorAs(t, err, &held, claim)
			assert.Equal(t, "b", held.Name, claim)
			if claim == "until a ctx" {
				require.ErrorIs(t, err, cause)
			}
			synctest.Wait()
			assert.Equal(t, []string{"b", "b", "b"}, locks(t, c), claim)
		}
		require.NoError(t, b.Close(background))
		_, err := b.AcquireAll(background, names)
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

// Several callers ask once for the same names at one instant, and one of them gets all. An error that shows in one of 25
// rounds is to be found, also under make mutants.
func TestOneOfThoseWhoAskOnceForTheSameNamesGetsThem(t *testing.T) {
	for far, rounds := range []int{240, 160} { // all equally near, or each nearest to another node
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			managers := []*quorumlock.Manager{managerFor(t, c, "a"), managerFor(t, c, "b"), managerFor(t, c, "c")}
			for i, m := range managers {
				require.NoError(t, m.Ready())
				for n := range managers {
					c.Distance(string(rune('a'+i)), time.Duration(1+far*((i+n)%3))*time.Millisecond, n)
				}
			}
			for range rounds {
				require.NoError(t, askOnce(t, managers, "x", "y").Release(background))
				for _, node := range c.Nodes() { // as if no client had queued for a minute
					do(t, node, "DEL", wire.HintKey(config.DefaultPrefix))
				}
				time.Sleep(200 * time.Millisecond)
			}
		})
	}
}

// askOnce has each Manager ask once, at one instant, and returns the leases of the only one that gets the names.
func askOnce(t *testing.T, managers []*quorumlock.Manager, names ...string) *quorumlock.Leases {
	t.Helper()
	won := make(chan *quorumlock.Leases, len(managers))
	var calls sync.WaitGroup
	for _, m := range managers {
		calls.Go(func() {
			all, err := m.AcquireAll(background, names, quorumlock.WithWait(0))
			if err == nil {
				won <- all
			} else {
				assert.ErrorIs(t, err, quorumlock.ErrHeld)
			}
		})
	}
	calls.Wait()
	require.Len(t, won, 1)
	return <-won
}

// A call for several names may have waited so long that its first leases have ended, or nearly so.
func TestACallForSeveralNamesReturnsLeasesThatAreOfUse(t *testing.T) {
	for _, wait := range []time.Duration{valid - 100*time.Millisecond, valid - ttl/20, 2 * ttl} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			a, b := manager(t, c), manager(t, c)
			held := acquire(t, a, "b")
			time.AfterFunc(wait, func() { assert.NoError(t, held.Release(background)) })
			all, err := b.AcquireAll(background, []string{"a", "b"}, quorumlock.WithoutRenewal())
			require.NoError(t, err)
			assert.GreaterOrEqual(t, all.Remaining(), ttl/10)
			require.NoError(t, all.Release(background))
		})
	}
}

func TestOfConcurrentReleasesOneReleases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		all, err := m.AcquireAll(background, []string{"a", "b", "c"})
		require.NoError(t, err)
		var calls sync.WaitGroup
		var released atomic.Int32
		for range 4 {
			calls.Go(func() {
				if err := all.Release(background); err == nil {
					released.Add(1)
				} else {
					assert.ErrorIs(t, err, quorumlock.ErrReleased)
				}
			})
		}
		calls.Wait()
		assert.EqualValues(t, 1, released.Load())
		assert.Empty(t, locks(t, c))
	})
}

// Close releases the leases of a waiting call at once, because nothing has used them.
func TestCloseKeepsNoNameOfACallThatWaits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c)
		acquire(t, a, "b")
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := b.AcquireAll(background, []string{"a", "b"}, quorumlock.WithMinHold(time.Minute))
			assert.ErrorIs(t, err, quorumlock.ErrClosed)
		})
		time.Sleep(time.Second)
		require.NoError(t, b.Close(background))
		calls.Wait()
		assert.Equal(t, []string{"b", "b", "b"}, locks(t, c))
	})
}

// A minimum hold keeps the names of a call that got them, but not the names that a call gave back.
func TestAMinimumHoldKeepsNoNameThatWasGivenBack(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c)
		held := acquire(t, a, "b")
		names := []string{"a", "b", "c"}
		_, err := b.AcquireAll(background, names, quorumlock.WithMinHold(time.Minute), quorumlock.WithWait(0))
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		synctest.Wait()
		assert.Equal(t, []string{"b", "b", "b"}, locks(t, c))
		require.NoError(t, held.Release(background))
		all, err := b.AcquireAll(background, names, quorumlock.WithMinHold(time.Minute))
		require.NoError(t, err)
		require.NoError(t, all.Release(background))
		for _, name := range names {
			_, err := a.TryAcquire(background, name)
			require.ErrorIs(t, err, quorumlock.ErrHeld)
		}
	})
}

func TestTheLossOfOneLeaseEndsAllOfTheCall(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		all, err := m.AcquireAll(background, []string{"a", "b", "c"})
		require.NoError(t, err)
		ctx, cancel := all.WithContext(background)
		defer cancel()
		began := time.Now()
		c.ForceLost(t, all.Lease("b"))
		<-ctx.Done() // no code looks at the leases themselves
		synctest.Wait()
		assert.LessOrEqual(t, time.Since(began), timeout)
		var lost *quorumlock.LostError
		require.ErrorAs(t, all.Err(), &lost)
		assert.Equal(t, "b", lost.Name)
		assert.Equal(t, "b", (<-all.Lost()).Name)
		require.ErrorIs(t, context.Cause(ctx), quorumlock.ErrLost)
		for _, name := range []string{"a", "c"} {
			require.ErrorIs(t, all.Lease(name).Err(), quorumlock.ErrReleased, name)
			_, err := m.TryAcquire(background, name)
			require.ErrorIs(t, err, quorumlock.ErrHeld, "the work under it may still be stopping")
		}
		time.Sleep(guard + 10*time.Millisecond)
		for _, name := range []string{"a", "c"} {
			l, err := m.TryAcquire(background, name)
			require.NoError(t, err)
			require.NoError(t, l.Release(background))
		}
		require.ErrorIs(t, all.Release(background), quorumlock.ErrLost)
		assert.Zero(t, all.Remaining())
	})
}

// A caller of the same process that waits for one of the names gets it when the guard has passed. So does a caller of
// another process if the Manager is closed in between.
func TestAfterALossTheOtherNamesStayTakenInTheProcessAndThroughClose(t *testing.T) {
	const delay = 2 * time.Second
	for _, closes := range []bool{false, true} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m, other := manager(t, c), manager(t, c)
			all, err := m.AcquireAll(background, []string{"a", "b"}, quorumlock.WithLockDelay(delay))
			require.NoError(t, err)
			waiter := m
			if closes {
				waiter = other
			}
			var calls sync.WaitGroup
			var took time.Duration
			began := time.Now()
			calls.Go(func() {
				l, err := waiter.Acquire(background, "a")
				took = time.Since(began)
				if assert.NoError(t, err) {
					assert.NoError(t, l.Release(background))
				}
			})
			time.Sleep(time.Second)
			began = time.Now()
			c.ForceLost(t, all.Lease("b"))
			<-all.Done()
			if closes {
				require.NoError(t, m.Close(background))
			}
			calls.Wait()
			assert.GreaterOrEqual(t, took, guard+delay)
			assert.LessOrEqual(t, took, ttl+delay+time.Second)
			if !closes {
				assert.LessOrEqual(t, took, guard+delay+time.Second)
			}
		})
	}
}

// A lease that is lost while its call waits for another name is acquired again, and the call does not return before it
// holds all.
func TestALeaseThatIsLostWhileItsCallWaitsIsAcquiredAgain(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c)
		held := acquire(t, a, "b")
		var calls sync.WaitGroup
		calls.Go(func() {
			all, err := b.AcquireAll(background, []string{"a", "b"})
			if assert.NoError(t, err) {
				assert.True(t, all.Valid())
				assert.NoError(t, all.Release(background))
			}
		})
		time.Sleep(time.Second)
		c.ForceLostByName(t, b, "a")
		first := acquire(t, a, "a")
		require.NoError(t, held.Release(background))
		time.Sleep(time.Second)
		_, err := a.TryAcquire(background, "b")
		require.NoError(t, err, "the call has given it back: it waits for a")
		require.NoError(t, first.Release(background))
		time.Sleep(time.Second)
		require.NoError(t, a.Close(background))
		calls.Wait()
	})
}

func TestDoAllRunsUnderAllItsNames(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		names := []string{"a", "b"}
		mine := errors.New("mine")
		err := m.DoAll(background, names, func(ctx context.Context, all *quorumlock.Leases) error {
			for _, name := range names {
				_, err := m.Acquire(ctx, name)
				require.ErrorIs(t, err, quorumlock.ErrHeld)
			}
			_, err := m.AcquireAll(ctx, []string{"z", "b"})
			require.ErrorIs(t, err, quorumlock.ErrHeld)
			require.NoError(t, ctx.Err())
			require.True(t, all.Valid())
			return mine
		})
		require.ErrorIs(t, err, mine)
		assert.Empty(t, locks(t, c))

		err = m.DoAll(background, names, func(ctx context.Context, all *quorumlock.Leases) error {
			c.ForceLost(t, all.Lease("a"))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, quorumlock.ErrLost)

		closed := make(chan error, 1)
		go func() {
			closed <- m.DoAll(background, names, func(ctx context.Context, _ *quorumlock.Leases) error {
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		require.NoError(t, m.Close(background))
		require.ErrorIs(t, <-closed, quorumlock.ErrClosed)
		require.ErrorIs(t, m.DoAll(background, names, nil), quorumlock.ErrInvalid)
	})
}

func TestSeveralNamesAreCheckedAsOneIs(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		var many []string
		for i := range quorum.MaxSeveral + 1 {
			many = append(many, fmt.Sprint(i))
		}
		for _, names := range [][]string{nil, {}, {"a", ""}, {"\xff"}, many} {
			_, err := m.AcquireAll(background, names)
			require.ErrorIs(t, err, quorumlock.ErrInvalid, "%q", names)
		}
		_, err := m.AcquireAll(nil, []string{"a"}) //nolint:staticcheck // it is what is tested
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		_, err = m.AcquireAll(background, []string{"a"}, quorumlock.WithTTL(time.Nanosecond))
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		all, err := m.AcquireAll(background, many[1:])
		require.NoError(t, err)
		require.NoError(t, all.Release(background))
	})
}

// Eight processes take random pairs of five names. None waits forever, no name has two holders, and each gets its
// share.
func TestProcessesThatTakeRandomPairsDoNotBlockEachOther(t *testing.T) {
	long := testkit.Count(60, 15) // s
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var holders [5]atomic.Int32
		var turns [8]int
		var processes sync.WaitGroup
		ctx, cancel := context.WithTimeout(background, time.Duration(long)*time.Second)
		defer cancel()
		for p := range turns {
			m := manager(t, c)
			draw := rand.New(rand.NewPCG(uint64(p), 7))
			processes.Go(func() {
				for ctx.Err() == nil {
					pair := draw.Perm(5)[:2]
					names := []string{fmt.Sprint("name ", pair[0]), fmt.Sprint("name ", pair[1])}
					err := m.DoAll(ctx, names, func(context.Context, *quorumlock.Leases) error {
						for _, name := range pair {
							assert.EqualValues(t, 1, holders[name].Add(1))
						}
						time.Sleep(20 * time.Millisecond)
						for _, name := range pair {
							holders[name].Add(-1)
						}
						turns[p]++
						return nil
					})
					if err != nil {
						assert.ErrorIs(t, err, context.DeadlineExceeded)
					}
				}
			})
		}
		processes.Wait()
		t.Log(turns)
		assert.LessOrEqual(t, slices.Max(turns[:]), 2*slices.Min(turns[:]))
		assert.Greater(t, slices.Min(turns[:]), 5*long/3)
	})
}
