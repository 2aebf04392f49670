package virtual

import (
	"context"
	"slices"
	"strings"
	"sync"
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

// next returns the next Status, which comes within the bound.
func next(t *testing.T, holdings <-chan quorumlock.Status, within time.Duration) quorumlock.Status {
	t.Helper()
	select {
	case h, open := <-holdings:
		require.True(t, open)
		return h
	case <-time.After(within):
		require.Fail(t, "nothing new")
		return quorumlock.Status{}
	}
}

// quiet checks that nothing is delivered for a time.
func quiet(t *testing.T, holdings <-chan quorumlock.Status, d time.Duration) {
	t.Helper()
	select {
	case h := <-holdings:
		assert.Fail(t, "something new", "%+v", h)
	case <-time.After(d):
	}
}

func TestObserveDeliversWhoHoldsANameAndThatNobodyDoes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b, o := manager(t, c, quorumlock.WithHolder("a")), manager(t, c, quorumlock.WithHolder("b")), manager(t, c)
		ctx, cancel := context.WithCancel(background)
		holdings, err := o.Observe(ctx, "job")
		require.NoError(t, err)
		const bound = config.DefaultObserveEvery + 600*time.Millisecond // an interval and a node timeout

		h := next(t, holdings, bound)
		assert.Equal(t, []any{"job", true, false}, []any{h.Name, h.Known, h.Held})
		assert.Zero(t, h.Holder)
		quiet(t, holdings, 5*time.Second)

		for _, m := range []*quorumlock.Manager{a, b} {
			l := acquire(t, m, "job")
			h = next(t, holdings, bound)
			require.True(t, h.Held)
			assert.Equal(t, map[*quorumlock.Manager]string{a: "a", b: "b"}[m], h.Holder.Label)
			assert.Equal(t, l.Token(), h.Token)
			assert.WithinDuration(t, time.Now().Add(ttl), h.Until, 2*time.Second)
			quiet(t, holdings, 3*ttl) // renewals change nothing
			require.NoError(t, l.Release(background))
			h = next(t, holdings, bound)
			assert.Equal(t, []any{true, false, int64(0)}, []any{h.Known, h.Held, h.Token})
		}
		cancel()
		_, open := <-holdings
		assert.False(t, open)
	})
}

func TestAnObserverLearnsThatNoMajorityAnswersAndThatItDoesAgain(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, o := manager(t, c), managerFor(t, c, "observer", quorumlock.WithObserveEvery(200*time.Millisecond))
		l := acquire(t, a, "job")
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		require.True(t, next(t, holdings, time.Second).Held)
		c.Partition("observer")
		h := next(t, holdings, 3*time.Second)
		assert.False(t, h.Known)
		assert.False(t, h.Held)
		require.ErrorIs(t, h.Err, quorumlock.ErrNoQuorum)
		c.Rejoin("observer")
		h = next(t, holdings, 5*time.Second)
		assert.True(t, h.Held)
		assert.Equal(t, l.Token(), h.Token)
		require.NoError(t, l.Release(background))
	})
}

// In its quarantine a node has no register below the end of the quarantine. That is not a token of the readers there, and
// the next writer, by the other nodes, has a smaller one.
func TestAQuarantineGivesReadersNoTokenOfTheFuture(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a := manager(t, c, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
		o := manager(t, c, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
		release(t, acquire(t, a, "job"))
		reader := acquireShared(t, a)
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		require.Equal(t, reader.Token(), next(t, holdings, time.Second).Token)
		c.Nodes()[2].Restart()
		quiet(t, holdings, 5*time.Second) // the reader is there, and its key is restored
		require.Equal(t, 3, holders(t, c, "job"))
		s, err := o.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, reader.Token(), s.Token)
		release(t, reader)
		writer := acquire(t, a, "job")
		defer release(t, writer)
		var h quorumlock.Status
		for h.Holder.Owner != writer.Owner() {
			h = next(t, holdings, 5*time.Second)
			require.True(t, h.Known)
		}
		assert.Equal(t, writer.Token(), h.Token)
		quiet(t, holdings, 5*time.Second)
	})
}

// Readers share one owner value, also when their leases were revoked: it comes back after a writer.
func TestAnObserverKnowsReadersThatWereRevoked(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, o := manager(t, c), manager(t, c)
		release(t, acquire(t, m, "job")) // the readers have a token
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		require.False(t, next(t, holdings, time.Second).Held)
		reader := acquireShared(t, m)
		require.True(t, next(t, holdings, 2*time.Second).Held)
		release(t, reader)
		writer := acquire(t, m, "job")
		require.Equal(t, writer.Owner(), next(t, holdings, 2*time.Second).Holder.Owner)
		time.Sleep(500 * time.Millisecond) // what follows comes between two polls
		release(t, writer)
		acquireShared(t, m)
		_, err = m.Revoke(background, "job", "why")
		require.NoError(t, err)
		h := next(t, holdings, 2*time.Second)
		assert.True(t, h.Known && h.Held, "%+v", h)
	})
}

// A follower that reads slowly gets the latest.
func TestAnObserverThatReadsSlowlyGetsTheLatest(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, o := manager(t, c), manager(t, c, quorumlock.WithObserveEvery(50*time.Millisecond))
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		var last int64
		for range 5 {
			l := acquire(t, a, "job")
			last = l.Token()
			time.Sleep(200 * time.Millisecond)
			require.NoError(t, l.Release(background))
			time.Sleep(200 * time.Millisecond)
		}
		l := acquire(t, a, "job")
		time.Sleep(200 * time.Millisecond)
		h := next(t, holdings, time.Nanosecond)
		assert.Equal(t, l.Token(), h.Token)
		assert.Greater(t, h.Token, last)
		require.NoError(t, l.Release(background))
	})
}

func TestAllObserversOfANameShareOnePoll(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, o := manager(t, c), manager(t, c)
		l := acquire(t, a, "job")
		const observers = 10_000
		reads := reading(c.Nodes()[0])
		all := make([]<-chan quorumlock.Status, observers)
		for i := range all {
			var err error
			all[i], err = o.Observe(background, "job")
			require.NoError(t, err)
		}
		time.Sleep(10*time.Second + 500*time.Millisecond)
		assert.Equal(t, 11, reads())
		for _, holdings := range all {
			assert.True(t, next(t, holdings, time.Nanosecond).Held)
		}
		require.NoError(t, l.Release(background))
		require.NoError(t, o.Close(background))
		for _, holdings := range all {
			for range holdings {
			}
		}
		_, err := o.Observe(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

// reading counts the reads of the job that a node gets from now on.
func reading(n *quorumlocktest.Node) (count func() int) {
	reads := 0
	n.Fail(func(args []string) bool {
		if slices.Contains(args, "read") && slices.Contains(args, wire.LockKey(config.DefaultPrefix, "job")) {
			reads++
		}
		return false
	}, "")
	return func() int {
		n.Fail(nil, "")
		return reads
	}
}

func TestObserveRefusesWhatCannotBeUsed(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, d := range []time.Duration{0, -time.Second, 49 * time.Millisecond, time.Minute + 1} {
			_, err := quorumlock.New(background, c.Options(), quorumlock.WithObserveEvery(d))
			require.ErrorIs(t, err, quorumlock.ErrInvalid, "%v", d)
		}
		_, err := m.Observe(background, "")
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		_, err = m.Observe(nil, "job") //nolint:staticcheck // what a nil context is answered
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
	})
}

// The holder has died, and the next interval is far in the future.
func TestAnObserverLooksWhenTheHoldersKeysEnd(t *testing.T) {
	for _, late := range []time.Duration{0, 10 * time.Millisecond} { // the first poll, in each direction
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			dead, o := managerFor(t, c, "dead"), manager(t, c, quorumlock.WithObserveEvery(time.Minute))
			acquire(t, dead, "job", quorumlock.WithoutRenewal())
			c.Partition("dead")
			delay := func(d time.Duration) {
				for _, n := range c.Nodes() {
					n.Delay(d)
				}
			}
			delay(late)
			holdings, err := o.Observe(background, "job")
			require.NoError(t, err)
			h := next(t, holdings, time.Second)
			require.True(t, h.Held)
			delay(0)
			until := h.Until
			h = next(t, holdings, ttl+10*time.Millisecond)
			assert.Equal(t, []bool{true, false}, []bool{h.Known, h.Held})
			assert.WithinDuration(t, until, h.AsOf, 2*late+10*time.Millisecond)
		})
	}
}

func TestCloseDoesNotWaitForAPoll(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		o := manager(t, c)
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		next(t, holdings, time.Second)
		c.Hang()
		time.Sleep(config.DefaultObserveEvery)
		began := time.Now()
		require.NoError(t, o.Close(background))
		assert.Less(t, time.Since(began), 50*time.Millisecond)
		_, open := <-holdings
		assert.False(t, open, "no observer hears that the holder is unknown")
	})
}

// The nodes reserve a free lock for the head of the queue for a while.
func TestAReservationIsNoHolder(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		o := manager(t, c)
		for _, n := range c.Nodes() {
			do(t, n, "SET", wire.LockKey(config.DefaultPrefix, "job"), strings.Repeat("a", wire.TicketLen)+" w ")
		}
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		h := next(t, holdings, time.Second)
		assert.Equal(t, []bool{true, false}, []bool{h.Known, h.Held})
		assert.Zero(t, h.Holder)
	})
}

// A context that has ended, and one that ends at once.
func TestAnObservationEndsWithItsContext(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		o := manager(t, c)
		ctx, cancel := context.WithCancel(background)
		cancel()
		for range 100 {
			holdings, err := o.Observe(ctx, "job")
			require.NoError(t, err)
			for range holdings {
			}
		}
		synctest.Wait() // for the polls that had begun
		reads := reading(c.Nodes()[0])
		time.Sleep(5 * time.Second)
		assert.Zero(t, reads(), "nobody observes the name any more")
	})
}

// Nothing has changed since the others got the holder. The last answers are fresh enough, or the answers of the next
// interval are still on their way.
func TestAnObserverThatComesLaterGetsTheHolderAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, o := manager(t, c), manager(t, c)
		l := acquire(t, a, "job")
		first, err := o.Observe(background, "job")
		require.NoError(t, err)
		require.True(t, next(t, first, time.Second).Held)
		time.Sleep(config.DefaultObserveEvery / 2)
		for _, n := range c.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		for _, within := range []time.Duration{time.Nanosecond, 100 * time.Millisecond} {
			later, err := o.Observe(background, "job")
			require.NoError(t, err)
			h := next(t, later, within)
			assert.Equal(t, l.Token(), h.Token)
			assert.LessOrEqual(t, time.Since(h.AsOf), config.DefaultObserveEvery)
			time.Sleep(config.DefaultObserveEvery/2 + time.Millisecond)
		}
		quiet(t, first, 10*time.Second)
		require.NoError(t, l.Release(background))
	})
}

// Another program sets its lock for a few milliseconds, again and again.
func TestAnObserverPausesHoweverSoonKeysEnd(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		o := manager(t, c, quorumlock.WithObserveEvery(time.Minute))
		ctx, cancel := context.WithCancel(background)
		var setting sync.WaitGroup
		for _, n := range c.Nodes() {
			setting.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
					do(t, n, "SET", wire.LockKey(config.DefaultPrefix, "job"), "x", "PX", "10")
				}
			})
		}
		time.Sleep(5 * time.Millisecond) // every node has it
		reads := reading(c.Nodes()[0])
		_, err := o.Observe(ctx, "job")
		require.NoError(t, err)
		time.Sleep(time.Second)
		assert.InDelta(t, 20, reads(), 2)
		cancel()
		setting.Wait()
	})
}

// The nodes have lost their data, and an old copy came back.
func TestAFormerHolderIsNotDelivered(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, o := manager(t, c), manager(t, c)
		l := acquire(t, a, "job")
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		require.True(t, next(t, holdings, time.Second).Held)
		require.NoError(t, l.Release(background))
		require.False(t, next(t, holdings, 2*time.Second).Held)
		for _, n := range c.Nodes() {
			do(t, n, "SET", wire.LockKey(config.DefaultPrefix, "job"), wire.Compose(strings.Repeat("b", wire.OwnerLen), l.Token()-1, "1 - former"))
		}
		h := next(t, holdings, 3*time.Second)
		assert.False(t, h.Known)
		require.ErrorContains(t, h.Err, "smaller token")
	})
}

// The request stands in the lock's own value, and not in the reader's.
func TestAnObserverSeesThatReadersAreAskedToRelease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, o := manager(t, c), manager(t, c, quorumlock.WithHolder("ops"))
		reader := acquireShared(t, m)
		require.NoError(t, o.AskRelease(background, "job", "deploy"))
		statuses, err := o.Observe(background, "job")
		require.NoError(t, err)
		h := next(t, statuses, time.Second)
		assert.Equal(t, reader.Owner(), h.Holder.Owner)
		assert.Equal(t, "ops: deploy", h.Holder.Asked)
		s, err := o.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, s.Holder, h.Holder)
	})
}

func TestInspectAndObserveSayTheSame(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, o := manager(t, c, quorumlock.WithHolder("a")), managerFor(t, c, "observer")
		for range 2 { // free, and held
			statuses, err := o.Observe(background, "job")
			require.NoError(t, err)
			h := next(t, statuses, time.Second)
			s, err := o.Inspect(background, "job")
			require.NoError(t, err)
			assert.True(t, h.Known)
			said := func(s quorumlock.Status) []any {
				return []any{s.Known, s.Held, s.Holder, s.Votes, s.Readers, s.Token, s.Waiters, s.Err}
			}
			assert.Equal(t, said(h), said(s))
			assert.WithinDuration(t, h.Until, s.Until, 10*time.Millisecond)
			assert.WithinDuration(t, time.Now(), s.AsOf, 10*time.Millisecond)
			if s.Held {
				assert.Equal(t, s.AsOf.Add(s.TTL), s.Until)
				assert.Equal(t, h.AsOf.Add(h.TTL), h.Until)
				break
			}
			acquire(t, a, "job", quorumlock.WithoutRenewal())
			require.True(t, next(t, statuses, 2*time.Second).Held)
		}
		c.Partition("observer", 2)
		do(t, c.Nodes()[1], "DEL", wire.LockKey(config.DefaultPrefix, "job"))
		s, err := o.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, []any{false, false, 1, "a", int64(0)}, []any{s.Known, s.Held, s.Votes, s.Holder.Label, s.Token}, "the silent node decides it")
	})
}
