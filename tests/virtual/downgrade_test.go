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
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestDowngradeToASharedLeaseLetsReadersInAndNoWriter(t *testing.T) {
	for _, nodes := range []int{1, 3, 5} {
		run(t, nodes, func(t *testing.T, c *quorumlocktest.Cluster) {
			m, other := manager(t, c), manager(t, c)
			l := acquire(t, m, "job")
			readers := []<-chan grant{asks(t, other.Acquire, quorumlock.Shared()), asks(t, m.Acquire, quorumlock.Shared())}
			writers := []<-chan grant{asks(t, other.Acquire), asks(t, m.Acquire)}
			later := asks(t, other.Acquire, quorumlock.Shared())
			time.Sleep(time.Second)
			began := time.Now()
			below, err := l.Downgrade(background)
			require.NoError(t, err)
			assert.Less(t, time.Since(began), time.Millisecond)
			require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
			require.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrReleased)
			_, open := <-l.Lost()
			assert.False(t, open, "nothing was lost")
			require.ErrorIs(t, l.Release(background), quorumlock.ErrReleased)
			assert.True(t, below.Shared())
			assert.Greater(t, below.Token(), l.Token())
			for _, waiting := range readers {
				got := <-waiting
				assert.Less(t, got.at.Sub(began), 5*time.Millisecond)
				assert.Equal(t, below.Token(), got.Token())
				release(t, got.Lease)
			}
			time.Sleep(3 * ttl) // it is renewed
			require.NoError(t, below.Verify(background))
			assert.Empty(t, later)
			for _, waiting := range writers {
				assert.Empty(t, waiting)
			}
			release(t, below)
			for _, waiting := range writers {
				got := <-waiting
				assert.Greater(t, got.Token(), below.Token())
				release(t, got.Lease)
			}
			release(t, (<-later).Lease)
			assert.Empty(t, left(t, c))
		})
	}
}

// The context of Do ends with its lease, which this call ends itself.
func TestDowngradeToASharedLeaseInsideDo(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		for range 3 {
			require.NoError(t, m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
				below, err := l.Downgrade(ctx)
				require.NoError(t, err)
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), quorumlock.ErrReleased)
				again, err := other.TryAcquire(background, "job", quorumlock.Shared())
				require.NoError(t, err)
				time.Sleep(2 * ttl)
				require.NoError(t, below.Verify(background))
				release(t, below, again)
				return nil
			}))
			l := acquire(t, m, "job")
			below, err := l.Downgrade(l.Context())
			require.NoError(t, err)
			release(t, below)
			assert.Empty(t, left(t, c))
		}
	})
}

// The third node has not received the request for the shared lease yet, and still has the exclusive lock.
func TestASharedLeaseThatIsReleasedRightAfterADowngradeLeavesNothing(t *testing.T) {
	for slow := range 3 {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			l := acquire(t, m, "job")
			c.Nodes()[slow].Delay(30 * time.Millisecond)
			require.NoError(t, l.Renew(background)) // on its way to that node, and later requests wait behind it
			below, err := l.Downgrade(background)
			require.NoError(t, err)
			require.NoError(t, below.Release(background))
			time.Sleep(time.Second)
			assert.Empty(t, left(t, c))
		})
	}
}

// A node that misses the call still has the exclusive lock: the next renewal makes it a reader's.
func TestDowngradeToASharedLeaseWithANodeThatHangs(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		l := acquire(t, m, "job")
		writer := asks(t, other.Acquire)
		c.Cut(2)
		below, err := l.Downgrade(background)
		require.NoError(t, err)
		synctest.Wait() // the request to that node is lost
		c.Heal(2)
		time.Sleep(time.Second)
		value, _ := do(t, c.Nodes()[2], "GET", wire.LockKey(config.DefaultPrefix, "job")).(string)
		require.Contains(t, value, l.Owner()+" ", "it has lost the request")
		time.Sleep(2 * interval)
		for i, n := range c.Nodes() {
			assert.EqualValues(t, 1, readersOn(t, n), "node %d", i)
		}
		require.NoError(t, below.Verify(background))
		time.Sleep(time.Minute)
		assert.Empty(t, writer)
		release(t, below)
		release(t, (<-writer).Lease)
		assert.Empty(t, left(t, c))
	})
}

// After an error no lease is held, and nothing keeps the name.
func TestADowngradeToASharedLeaseThatFailsReleasesTheName(t *testing.T) {
	for what, fault := range map[string]func(c *quorumlocktest.Cluster){
		"cut off": func(c *quorumlocktest.Cluster) { c.Partition("holder", 0, 1) },
		"hanging": func(c *quorumlocktest.Cluster) { c.Hang(0, 1) },
		"silent":  func(c *quorumlocktest.Cluster) { c.Nodes()[0].CutReplies(); c.Nodes()[1].CutReplies() },
	} {
		t.Run(what, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m, other := managerFor(t, c, "holder"), manager(t, c)
				l := acquire(t, m, "job")
				fault(c)
				below, err := l.Downgrade(background)
				require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
				assert.Nil(t, below)
				assert.Contains(t, err.Error(), `quorumlock: downgrade "job": the lease is released; `)
				require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
				c.Rejoin("holder")
				c.Resume(0, 1)
				c.Heal(0, 1)
				began := time.Now()
				got, err := other.Acquire(background, "job")
				require.NoError(t, err)
				assert.LessOrEqual(t, time.Since(began), ttl)
				release(t, got)
				time.Sleep(2 * ttl)
				assert.Empty(t, left(t, c))
			})
		})
	}
}

// A writer whose keys were lost learns that another client has the name now.
func TestADowngradeToASharedLeaseThatFindsAnotherHolderSaysThatTheLeaseWasLost(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l, other := acquire(t, manager(t, c), "job"), manager(t, c)
		flush(t, c, "job", 0, 1, 2)
		next := acquire(t, other, "job")
		_, err := l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		var lost *quorumlock.LostError
		require.ErrorAs(t, err, &lost)
		assert.Equal(t, quorumlock.LostTaken, lost.Reason)
		assert.Equal(t, l.Token(), lost.Token)
		require.NoError(t, next.Release(background))
	})
}

func TestADowngradeToASharedLeaseIsRefusedWithTheReason(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		reader := acquireShared(t, m)
		var invalid *quorumlock.InvalidError
		_, err := reader.Downgrade(background)
		require.ErrorAs(t, err, &invalid)
		assert.Equal(t, `quorumlock: Downgrade a shared lease or a permit of "job": needs an exclusive lease; use the lease as it is`, err.Error())
		require.NoError(t, reader.Verify(background), "it stays as it is")
		_, err = reader.Detach(background, time.Minute)
		require.ErrorAs(t, err, &invalid)
		require.NoError(t, reader.Verify(background))
		release(t, reader)

		l := acquire(t, m, "job")
		_, err = l.Downgrade(nil) //nolint:staticcheck // that is the point
		require.ErrorAs(t, err, &invalid)
		require.NoError(t, l.Verify(background), "it stays as it is")
		release(t, l)
		_, err = l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrReleased)

		l = acquire(t, m, "job")
		c.ForceLost(t, l)
		_, err = l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrLost)
		time.Sleep(ttl)

		l = acquire(t, m, "job")
		ended, cancel := context.WithCancel(background)
		cancel()
		_, err = l.Downgrade(ended)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		assert.Empty(t, left(t, c))

		l = acquire(t, m, "job", quorumlock.WithMinHold(time.Hour))
		errTooLong := errors.New("too long")
		ended, cancel = context.WithTimeoutCause(background, 50*time.Millisecond, errTooLong)
		defer cancel()
		time.Sleep(time.Second)
		_, err = l.Downgrade(ended)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errTooLong)
		require.NotErrorIs(t, err, context.Canceled)
		synctest.Wait()
		assert.Empty(t, left(t, c), "a downgrade that fails ends the minimum")

		l = acquire(t, m, "job")
		ended, cancel = context.WithTimeoutCause(background, 50*time.Millisecond, errTooLong)
		defer cancel()
		for _, n := range c.Nodes()[:2] {
			n.Delay(time.Second)
		}
		_, err = l.Downgrade(ended)
		require.ErrorIs(t, err, context.DeadlineExceeded, "while it asks the nodes")
		require.ErrorIs(t, err, errTooLong)
		require.NotErrorIs(t, err, context.Canceled)
		for _, n := range c.Nodes()[:2] {
			n.Delay(0)
		}
		time.Sleep(2 * ttl)

		l = acquire(t, m, "job")
		for _, n := range c.Nodes()[:2] { // another client has taken the nodes in between
			do(t, n, "SET", config.DefaultPrefix+"job", "another's", "PX", "60000")
		}
		_, err = l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		synctest.Wait()
		assert.Equal(t, 2, holders(t, c, "job"))

		l = acquire(t, m, "other")
		require.NoError(t, m.Close(background))
		_, err = l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrReleased, "by Close")
	})
}

// The keys may end while the requests are on their way, and a writer may come and go before they arrive.
func TestADowngradeThatArrivesAfterTheEndOfTheLeaseGrantsNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := managerFor(t, c, "m", quorumlock.WithNodeTimeout(2*time.Second)), managerFor(t, c, "other")
		l := acquire(t, m, "job", quorumlock.WithoutRenewal())
		time.Sleep(l.Remaining() - 100*time.Millisecond)
		for _, n := range c.Nodes() {
			n.Delay(500 * time.Millisecond)
		}
		_, err := l.Downgrade(background)
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		for _, n := range c.Nodes() {
			n.Heal()
		}
		time.Sleep(5 * time.Second)
		next := acquire(t, other, "job")
		require.NoError(t, next.Release(background))
	})
}
