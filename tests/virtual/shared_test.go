package virtual

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func acquireShared(t *testing.T, m *quorumlock.Manager, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(background, "job", append(opts, quorumlock.Shared())...)
	require.NoError(t, err)
	synctest.Wait() // late votes have arrived
	return l
}

// grant is a lease of "job", and the instant of its grant.
type grant struct {
	*quorumlock.Lease
	at time.Time
}

// asks has a Manager wait for "job", and returns a channel for its lease.
func asks(
	t *testing.T, call func(context.Context, string, ...quorumlock.AcquireOption) (*quorumlock.Lease, error), opts ...quorumlock.AcquireOption,
) <-chan grant {
	t.Helper()
	granted := make(chan grant, 1)
	go func() {
		if l, err := call(background, "job", opts...); err == nil {
			granted <- grant{l, time.Now()}
		}
	}()
	synctest.Wait()
	time.Sleep(100 * time.Millisecond) // its ticket is in the queues, even if it is the first waiter of its process
	return granted
}

// release releases leases.
func release(t *testing.T, leases ...*quorumlock.Lease) {
	t.Helper()
	for _, l := range leases {
		require.NoError(t, l.Release(background))
	}
	synctest.Wait()
}

// left returns the keys on all nodes that belong to a name.
func left(t *testing.T, c *quorumlocktest.Cluster) (keys []string) {
	t.Helper()
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	for _, n := range c.Nodes() {
		for _, key := range do(t, n, "KEYS", config.DefaultPrefix+"*").([]any) {
			if name := strings.TrimPrefix(key.(string), config.DefaultPrefix); name[0] != '\xff' {
				keys = append(keys, name)
			}
		}
	}
	return keys
}

// A readers' token is between the tokens of the writers before and after them.
func TestSharedLeasesOfANameAreHeldTogether(t *testing.T) {
	for _, nodes := range []int{1, 3, 5} {
		run(t, nodes, func(t *testing.T, c *quorumlocktest.Cluster) {
			a, b := manager(t, c), manager(t, c)
			before := acquire(t, a, "job")
			assert.False(t, before.Shared())
			release(t, before)
			readers := []*quorumlock.Lease{acquireShared(t, a), acquireShared(t, a), acquireShared(t, b)}
			for _, l := range readers {
				assert.True(t, l.Shared())
				assert.True(t, l.Valid())
				assert.Equal(t, "job", l.Name())
				assert.Equal(t, readers[0].Token(), l.Token(), "no writer came between")
				require.NoError(t, l.Verify(background))
			}
			assert.Greater(t, readers[0].Token(), before.Token())
			for _, m := range []*quorumlock.Manager{a, b} {
				_, err := m.TryAcquire(background, "job")
				require.ErrorIs(t, err, quorumlock.ErrHeld)
			}
			release(t, readers[1:]...)
			require.NoError(t, readers[0].Verify(background), "who leaves takes nobody along")
			_, err := b.TryAcquire(background, "job")
			require.ErrorIs(t, err, quorumlock.ErrHeld)
			release(t, readers[0])
			require.ErrorIs(t, readers[0].Release(background), quorumlock.ErrReleased)
			assert.Empty(t, left(t, c))
			after, err := b.TryAcquire(background, "job")
			require.NoError(t, err)
			assert.Greater(t, after.Token(), readers[0].Token())
			release(t, after)
			assert.Greater(t, acquireShared(t, a).Token(), after.Token())
		})
	}
}

// Registers differ after nodes were away. Readers have one token all the same, and the writer after them has a larger
// one, whichever nodes it asks.
func TestSharedLeasesHaveOneTokenOverRegistersThatDiffer(t *testing.T) {
	for slow := range 3 {
		for away := range 3 {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				largest := unlevel(t, c, m)
				for i, n := range c.Nodes() {
					n.Delay(10 * time.Millisecond)
					if i == slow {
						n.Delay(200 * time.Millisecond) // the other two are the majority
					}
				}
				var managers []*quorumlock.Manager
				for range 4 {
					m := manager(t, c)
					_, err := m.Inspect(background, "job") // the nodes are distant, and its workers know that from now on
					require.NoError(t, err)
					managers = append(managers, m)
				}
				began := time.Now()
				granted := make(chan *quorumlock.Lease, len(managers))
				for _, m := range managers {
					go func() {
						l, err := m.Acquire(background, "job", quorumlock.Shared())
						assert.NoError(t, err)
						granted <- l
					}()
				}
				var readers []*quorumlock.Lease
				for range managers {
					readers = append(readers, <-granted)
					assert.Equal(t, readers[0].Token(), readers[len(readers)-1].Token())
				}
				assert.LessOrEqual(t, time.Since(began), 60*time.Millisecond, "votes, and a node that is behind is aligned for all; a PING may be before")
				assert.LessOrEqual(t, readers[0].Token(), largest+1)
				time.Sleep(time.Second)
				release(t, readers...)
				time.Sleep(time.Second)
				c.Hang(away)
				writer := acquire(t, m, "job")
				assert.Greater(t, writer.Token(), readers[0].Token(), "node %d was slow, and node %d is away", slow, away)
				c.Resume(away)
			})
		}
	}
}

// Later readers wait behind the writer, which gets the name when the last earlier reader leaves.
func TestAWriterThatWaitsBarsLaterSharedLeases(t *testing.T) {
	for _, nodes := range []int{1, 3, 5} {
		run(t, nodes, func(t *testing.T, c *quorumlocktest.Cluster) {
			a, b, w := manager(t, c), manager(t, c), manager(t, c)
			first, second := acquireShared(t, a), acquireShared(t, b)
			writer := asks(t, w.Acquire)
			here, there := asks(t, a.Acquire, quorumlock.Shared()), asks(t, b.Acquire, quorumlock.Shared())
			_, err := b.TryAcquire(background, "job", quorumlock.Shared())
			require.ErrorIs(t, err, quorumlock.ErrHeld, "a writer waits")
			time.Sleep(2 * ttl)
			release(t, first)
			time.Sleep(2 * ttl)
			assert.Empty(t, writer)
			assert.Empty(t, here)
			assert.Empty(t, there)

			released := time.Now()
			release(t, second)
			got := <-writer
			assert.Less(t, got.at.Sub(released), 5*time.Millisecond)
			assert.Greater(t, got.Token(), second.Token())
			time.Sleep(2 * ttl)
			assert.Empty(t, here)
			assert.Empty(t, there)
			released = time.Now()
			release(t, got.Lease)
			for _, waiting := range []<-chan grant{here, there} {
				reader := <-waiting
				assert.Less(t, reader.at.Sub(released), 5*time.Millisecond)
				assert.Greater(t, reader.Token(), got.Token())
				defer release(t, reader.Lease)
			}
		})
	}
}

// A batch of readers, a writer, and the next batch: each gets the name at once and together.
func TestSharedLeasesBetweenTwoWritersAreGrantedTogether(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		// One batch is on the wire at a time, so a poll that has just been sent delays a release by up to a round trip.
		// These managers do not poll.
		rarely := quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(15 * time.Second) })
		managers := []*quorumlock.Manager{manager(t, c, rarely), manager(t, c, rarely), manager(t, c, rarely)}
		for _, n := range c.Nodes() {
			n.Delay(5 * time.Millisecond)
		}
		const turn = 45 * time.Millisecond // one-way delays: a look for other waiters, a release, a message, and requests in two batches
		writer := acquire(t, managers[0], "job")
		batch := func() (waiting []<-chan grant) {
			for i := range 24 {
				waiting = append(waiting, asks(t, managers[i%3].Acquire, quorumlock.Shared()))
			}
			return waiting
		}
		var waiting [2][]<-chan grant
		waiting[0] = batch()
		next := asks(t, managers[1].Acquire)
		waiting[1] = batch()
		for i, readers := range waiting {
			time.Sleep(time.Second)
			released := time.Now()
			release(t, writer)
			var all []*quorumlock.Lease
			first, last := turn, time.Duration(0)
			for _, one := range readers {
				got := <-one
				all = append(all, got.Lease)
				first, last = min(first, got.at.Sub(released)), max(last, got.at.Sub(released))
				assert.LessOrEqual(t, got.at.Sub(released), turn)
				assert.Equal(t, all[0].Token(), got.Token())
				assert.Greater(t, got.Token(), writer.Token())
			}
			assert.LessOrEqual(t, last-first, 20*time.Millisecond, "within two round trips of each other")
			time.Sleep(time.Second)
			assert.Empty(t, next)
			if i == 1 {
				release(t, all...)
				break
			}
			for _, later := range waiting[1] {
				assert.Empty(t, later, "a writer is before them")
			}
			release(t, all[1:]...)
			released = time.Now()
			release(t, all[0])
			got := <-next
			assert.LessOrEqual(t, got.at.Sub(released), turn)
			writer = got.Lease
		}
		assert.Empty(t, left(t, c))
	})
}

// A writer that dies in the queue bars no reader, however long the earlier readers stay.
func TestAWriterThatDiesWhileItWaitsBarsNoSharedLease(t *testing.T) {
	queue := wire.QueueKey(wire.LockKey(config.DefaultPrefix, "job"))
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c)
		acquireShared(t, a)
		dead, err := quorumlock.New(background, c.OptionsFor("dead"))
		require.NoError(t, err)
		writer := asks(t, dead.Acquire)
		c.Partition("dead")
		require.NoError(t, dead.Close(background)) // no node learns of it
		c.Rejoin("dead")                           // its connections are reset, as at the end of a process
		assert.Empty(t, writer)
		for _, n := range c.Nodes() { // Inspect leaves the dead out
			require.EqualValues(t, 1, do(t, n, "ZCARD", queue))
		}
		_, err = b.Acquire(background, "job", quorumlock.Shared(), quorumlock.WithWait(time.Second))
		require.NoError(t, err)
		_, err = b.TryAcquire(background, "job", quorumlock.Shared())
		require.NoError(t, err)
	})
}

// When a writer gives up, the readers behind it are let in.
func TestAWriterThatGivesUpLetsSharedLeasesIn(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b, w := manager(t, c), manager(t, c), manager(t, c)
		first := acquireShared(t, a)
		ctx, cancel := context.WithCancel(background)
		gone := make(chan error, 1)
		go func() {
			_, err := w.Acquire(ctx, "job")
			gone <- err
		}()
		time.Sleep(time.Second)
		here, there := asks(t, a.Acquire, quorumlock.Shared()), asks(t, b.Acquire, quorumlock.Shared())
		time.Sleep(time.Second)
		assert.Empty(t, here)
		left := time.Now()
		cancel()
		var held *quorumlock.HeldError
		require.ErrorAs(t, <-gone, &held)
		assert.Equal(t, 1, held.Readers)
		for _, waiting := range []<-chan grant{here, there} {
			got := <-waiting
			assert.Less(t, got.at.Sub(left), 10*time.Millisecond)
			release(t, got.Lease)
		}
		release(t, first)
	})
}

// Many processes read and write at random, while one node after the other is away.
func TestSharedLeasesNeverMeetAWriter(t *testing.T) {
	sizes := []int{3, 1, 5}
	for _, nodes := range sizes[:testkit.Count(len(sizes), 1)] {
		run(t, nodes, func(t *testing.T, c *quorumlocktest.Cluster) {
			ctx, cancel := context.WithTimeout(background, 4*time.Second)
			defer cancel()
			var mu sync.Mutex
			reads, writes, most, turns := 0, 0, 0, 0
			var clients sync.WaitGroup
			for p := range 9 {
				m := manager(t, c, quorumlock.WithTTL(2*time.Second))
				kind, readers, writers := quorumlock.Shared(), 1, 0
				if p%3 == 0 {
					kind, readers, writers = quorumlock.Kind{}, 0, 1
				}
				use := func(by int) {
					mu.Lock()
					defer mu.Unlock()
					reads, writes = reads+by*readers, writes+by*writers
					most = max(most, reads)
					turns++
					assert.False(t, writes > 1 || writes == 1 && reads > 0, "%d readers and %d writers", reads, writes)
				}
				for range 2 {
					clients.Go(func() {
						for i := 0; ctx.Err() == nil; i++ {
							err := m.Do(ctx, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
								use(1)
								defer use(-1)
								time.Sleep(time.Duration(1+(7*p+i)%11) * 3 * time.Millisecond)
								return nil
							}, kind)
							if ctx.Err() == nil {
								assert.NoError(t, err)
							}
						}
					})
				}
			}
			if nodes > 1 {
				for i := range 2 {
					time.Sleep(time.Second)
					c.Hang(i)
					time.Sleep(time.Duration(300*(i+1)) * time.Millisecond)
					c.Resume(i)
				}
			}
			clients.Wait()
			assert.Greater(t, turns, 200)
			assert.Greater(t, most, 2, "they read together")
			assert.Empty(t, left(t, c))
		})
	}
}

// A writer whose process is stopped while it waits keeps its connections. It does not bar readers for all of that time.
func TestAWriterThatIsStoppedWhileItWaitsBarsReadersForSeconds(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		first := acquireShared(t, manager(t, c))
		stopped := asks(t, managerFor(t, c, "stopped").Acquire)
		time.Sleep(time.Second)
		c.Partition("stopped")
		began := time.Now()
		for range 3 { // it bars them all together
			reader, err := manager(t, c).Acquire(background, "job", quorumlock.Shared(), quorumlock.WithWait(25*time.Second))
			require.NoError(t, err)
			release(t, reader)
		}
		assert.Less(t, time.Since(began), 10*time.Second)
		assert.Greater(t, time.Since(began), 2*time.Second, "it may have been late")

		c.Rejoin("stopped")
		time.Sleep(10 * time.Second)
		later := asks(t, manager(t, c).Acquire, quorumlock.Shared())
		time.Sleep(time.Second)
		assert.Empty(t, later, "it has its place again")
		release(t, first)
		got := <-stopped
		release(t, got.Lease)
		release(t, (<-later).Lease)
	})
}

// A live writer bars later readers for as long as it waits, even if it polls rarely.
func TestAWriterThatLivesBarsReadersForAsLongAsItWaits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		first := acquireShared(t, manager(t, c))
		rarely := quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(15 * time.Second) })
		writer := asks(t, manager(t, c, rarely).Acquire)
		time.Sleep(time.Second)
		later := asks(t, manager(t, c).Acquire, quorumlock.Shared())
		for range 30 {
			time.Sleep(time.Second)
			_, err := manager(t, c).TryAcquire(background, "job", quorumlock.Shared())
			require.ErrorIs(t, err, quorumlock.ErrHeld)
		}
		assert.Empty(t, later)
		assert.Empty(t, writer)
		release(t, first)
		release(t, (<-writer).Lease)
		release(t, (<-later).Lease)
	})
}
