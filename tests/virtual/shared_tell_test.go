package virtual

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
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

// What callers, holders and operators learn about shared leases.

func TestAHolderOfASharedLeaseIsToldThatAWriterWaits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c), manager(t, c)
		first, second := acquireShared(t, a), acquireShared(t, b)
		wanted := []<-chan quorumlock.Wanted{first.Wanted(), second.Wanted()}
		for _, one := range wanted {
			_, ok := unread(one)
			assert.False(t, ok, "nobody waits")
		}
		ctx, leave := context.WithCancel(background)
		defer leave()
		go func() { _, _ = a.Acquire(ctx, "job") }() // in the process of one reader
		time.Sleep(interval * 11 / 10)
		for i, one := range wanted {
			got, _ := unread(one)
			assert.Equal(t, quorumlock.Wanted{Waiters: 1}, got, "reader %d, with its next renewal", i)
		}
		reader := asks(t, b.Acquire, quorumlock.Shared())
		time.Sleep(interval * 11 / 10)
		for _, one := range wanted {
			got, _ := unread(one)
			assert.Equal(t, quorumlock.Wanted{Waiters: 2}, got, "a reader behind the writer waits as well")
		}
		leave()
		third := <-reader
		time.Sleep(interval * 11 / 10)
		for _, one := range wanted {
			got, ok := unread(one)
			assert.True(t, ok)
			assert.Zero(t, got, "nobody waits any more")
		}
		release(t, first, second, third.Lease)
		for _, one := range wanted {
			_, open := <-one
			assert.False(t, open)
		}
	})
}

// The question also reaches a reader that comes after it, and no unrelated reader.
func TestAskReleaseReachesAllSharedLeases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b, operator := manager(t, c, quorumlock.WithHolder("a")), manager(t, c), manager(t, c, quorumlock.WithHolder("ops-1"))
		readers := []*quorumlock.Lease{acquireShared(t, a), acquireShared(t, a), acquireShared(t, b)}
		var wanted []<-chan quorumlock.Wanted
		for _, l := range readers {
			wanted = append(wanted, l.Wanted())
		}
		require.NoError(t, operator.AskRelease(background, "job", "deploy"))
		s, err := operator.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, "ops-1: deploy", s.Holder.Asked)
		assert.Equal(t, 3, s.Readers)
		readers = append(readers, acquireShared(t, b))
		wanted = append(wanted, readers[3].Wanted())
		time.Sleep(interval * 11 / 10)
		for i, one := range wanted {
			got, _ := unread(one)
			assert.Equal(t, quorumlock.Wanted{Asked: true, By: "ops-1", Reason: "deploy"}, got, "reader %d", i)
			require.NoError(t, readers[i].Verify(background), "it does what it likes")
		}
		release(t, readers...)
		later := acquireShared(t, a)
		again := later.Wanted()
		time.Sleep(2 * interval)
		_, ok := unread(again)
		assert.False(t, ok, "they were asked, and this one is not")
		release(t, later)
		assert.Empty(t, left(t, c))
	})
}

// One reader is frozen at any instant of its renewal round, and the others live. No client gets the name before Until.
func TestRevokedSharedLeasesAreOverBeforeAnybodyGetsTheName(t *testing.T) {
	for i := range 10 {
		after := time.Duration(i) * 2 * interval / 10
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				frozen, lives, operator := managerFor(t, c, "frozen"), manager(t, c), manager(t, c, quorumlock.WithHolder("ops-1"))
				readers := []*quorumlock.Lease{acquireShared(t, frozen), acquireShared(t, lives), acquireShared(t, lives, quorumlock.WithTTL(ttl/2))}
				writer := asks(t, operator.Acquire)
				reader := asks(t, lives.Acquire, quorumlock.Shared())
				time.Sleep(after)
				c.Partition("frozen")
				began := time.Now()
				r, err := operator.Revoke(background, "job", "they hang")
				require.NoError(t, err)
				assert.Equal(t, 3, r.Marked)
				assert.LessOrEqual(t, r.Until.Sub(began), ttl+ttl/8+2*timeout+200*time.Millisecond)
				for _, l := range readers[1:] {
					lost := <-l.Lost()
					assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
					assert.Less(t, lost.At.Sub(began), interval*11/10)
					require.NotEmpty(t, lost.Nodes)
					require.ErrorContains(t, lost.Nodes[0], "lease was revoked: ops-1: they hang")
				}
				_, err = lives.TryAcquire(background, "job", quorumlock.Shared())
				require.ErrorIs(t, err, quorumlock.ErrHeld)
				again, err := operator.Revoke(background, "job", "they hang")
				require.NoError(t, err)
				assert.InDelta(t, 0, again.Until.Sub(r.Until), float64(100*time.Millisecond))
				got := <-writer
				assert.False(t, readers[0].Valid())
				assert.False(t, got.at.Before(r.Until), "granted %v before Until", r.Until.Sub(got.at))
				assert.Less(t, got.at.Sub(r.Until), time.Second)
				assert.False(t, (<-readers[0].Lost()).ValidUntil.After(r.Until))
				release(t, got.Lease)
				release(t, (<-reader).Lease)
				c.Rejoin("frozen")
				assert.Empty(t, left(t, c))
			})
		})
	}
}

// A killed reader is counted until its own lease has ended, however long others read.
func TestAReaderThatWasKilledIsNotCountedWhileOthersRead(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := managerFor(t, c, "killed"), manager(t, c)
		for range 3 {
			acquireShared(t, a)
		}
		second := acquireShared(t, b)
		c.Partition("killed")
		time.Sleep(ttl + time.Second)
		s, err := b.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, []int{1, 1, 1}, []int{s.Readers, len(s.Holders), s.Nodes[0].Readers})
		assert.Equal(t, second.Owner(), s.Holder.Owner)
		for s, err := range b.List(background, "") {
			require.NoError(t, err)
			assert.Equal(t, 1, s.Readers)
		}
		holdings, err := b.Observe(t.Context(), "job")
		require.NoError(t, err)
		assert.Equal(t, 1, (<-holdings).Readers)
		_, err = b.TryAcquire(background, "job")
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, 1, held.Readers)
		release(t, second)
		assert.Equal(t, 0, holders(t, c, "job"))
		c.Rejoin("killed")
	})
}

func TestInspectTellsOfSharedLeases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c, quorumlock.WithHolder("a")), manager(t, c, quorumlock.WithHolder("b"))
		first := acquireShared(t, a)
		time.Sleep(time.Second)
		second := acquireShared(t, b)
		writer := asks(t, b.Acquire)
		s, err := b.Inspect(background, "job")
		require.NoError(t, err)
		assert.True(t, s.Held)
		assert.Equal(t, []int{3, 2, 1}, []int{s.Votes, s.Readers, s.Waiters})
		require.Len(t, s.Holders, 2)
		assert.Equal(t, []string{"a", "b"}, []string{s.Holders[0].Label, s.Holders[1].Label}, "the longest first")
		assert.Equal(t, []string{first.Owner(), second.Owner()}, []string{s.Holders[0].Owner, s.Holders[1].Owner})
		assert.Contains(t, s.Holders, s.Holder)
		// A process that was killed as the third node had let it in.
		do(t, c.Nodes()[2], "ZADD", wire.ReadersKey(config.DefaultPrefix+"job"), strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10),
			wire.Compose(strings.Repeat("9", wire.OwnerLen), 0, "1 - killed"))
		killed, err := b.Inspect(background, "job")
		require.NoError(t, err)
		assert.Contains(t, killed.Holders, killed.Holder)
		do(t, c.Nodes()[2], "ZREM", wire.ReadersKey(config.DefaultPrefix+"job"), wire.Compose(strings.Repeat("9", wire.OwnerLen), 0, "1 - killed"))
		assert.Equal(t, time.Second, s.Holders[1].Since.Sub(s.Holders[0].Since))
		assert.InDelta(t, ttl, s.TTL, float64(2*time.Second))
		assert.Equal(t, second.Token()-1, s.Fence, "the register has not moved")
		for _, n := range s.Nodes {
			assert.Equal(t, 2, n.Readers)
			assert.Contains(t, s.Holders, n.Holder)
			text, err := json.Marshal(n)
			require.NoError(t, err)
			assert.Contains(t, string(text), `"readers":2`)
		}
		held, err := list(background, b, "")
		require.NoError(t, err)
		assert.Equal(t, []string{"job"}, held, "the keys beside it are no names")

		do(t, c.Nodes()[0], "DEL", config.DefaultPrefix+"job")
		s, err = b.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, []int{2, 2, 2}, []int{s.Votes, s.Readers, len(s.Holders)})
		assert.True(t, s.Held)
		release(t, first, second)
		release(t, (<-writer).Lease)
		s, err = b.Inspect(background, "job")
		require.NoError(t, err)
		assert.False(t, s.Held)
		assert.Zero(t, s.Readers)
		assert.Empty(t, s.Holders)
	})
}

func TestInspectListsSixteenSharedLeasesAtMost(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for range 40 {
			acquireShared(t, m)
			time.Sleep(10 * time.Millisecond)
		}
		s, err := m.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, 40, s.Readers)
		assert.Len(t, s.Holders, 16)
	})
}

// Readers that come and go count as one holder.
func TestObserveTellsOfSharedLeases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b, o := manager(t, c, quorumlock.WithHolder("a")), manager(t, c, quorumlock.WithHolder("b")), manager(t, c)
		const bound = config.DefaultObserveEvery + timeout
		holdings, err := o.Observe(background, "job")
		require.NoError(t, err)
		assert.False(t, next(t, holdings, bound).Held)
		writer := acquire(t, a, "job")
		h := next(t, holdings, bound)
		assert.Zero(t, h.Readers)
		assert.GreaterOrEqual(t, h.Token, writer.Token())
		before := h.Token
		first, err := writer.Downgrade(background)
		require.NoError(t, err)
		h = next(t, holdings, bound)
		assert.Equal(t, []any{true, true, 1, "a"}, []any{h.Known, h.Held, h.Readers, h.Holder.Label})
		assert.GreaterOrEqual(t, h.Token, first.Token())
		assert.Greater(t, h.Token, before)
		second := acquireShared(t, b)
		quiet(t, holdings, 5*time.Second)
		release(t, first)
		quiet(t, holdings, 5*time.Second)
		release(t, second)
		assert.False(t, next(t, holdings, bound).Held)
		last := acquire(t, b, "job")
		after := next(t, holdings, bound)
		assert.Greater(t, last.Token(), h.Token, "compare with at most")
		assert.Equal(t, []any{"b", 0}, []any{after.Holder.Label, after.Readers})
	})
}

func TestErrorsNameTheHoldersOfSharedLeases(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c, quorumlock.WithHolder("a")), manager(t, c)
		text := func(m *quorumlock.Manager) string {
			_, err := m.TryAcquire(background, "job")
			var held *quorumlock.HeldError
			require.ErrorAs(t, err, &held)
			assert.Positive(t, held.RetryAfter)
			return err.Error()
		}
		first := acquireShared(t, a)
		assert.Equal(t, `quorumlock: "job" is held by reader "a"; the lease expires in 9s unless renewed`, text(b))
		assert.Equal(t, `quorumlock: "job" is held by reader "a" (this Manager); the lease expires in 9s unless renewed`, text(a))
		time.Sleep(time.Second)
		second := acquireShared(t, b)
		assert.Equal(t, `quorumlock: "job" is held by a reader with owner "`+second.Owner()+`" and 1 other; the lease expires in 9s unless renewed`, text(a))
		for _, n := range c.Nodes() { // each reader has a majority of them
			value := do(t, n, "ZRANGE", config.DefaultPrefix+"job\xffs", "0", "0").([]any)[0].(string)
			do(t, n, "ZREM", config.DefaultPrefix+"job\xffs", value)
			for range 10 {
				assert.Contains(t, text(a), "and 1 other", "the nodes that show most")
			}
			do(t, n, "ZADD", config.DefaultPrefix+"job\xffs", strconv.FormatInt(time.Now().Add(ttl).UnixMilli(), 10), value)
		}
		third := acquireShared(t, b)
		assert.Contains(t, text(a), ` and 2 others; the lease expires in `)
		release(t, first, second)
		ctx, giveUp := context.WithCancel(background)
		var writes sync.WaitGroup
		writes.Go(func() { _, _ = b.Acquire(ctx, "job") })
		time.Sleep(time.Second)
		_, err := a.TryAcquire(background, "job", quorumlock.Shared())
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.Contains(t, err.Error(), `"`+third.Owner()+`", and a writer waits for the name; the lease expires in `)
		giveUp()
		writes.Wait()
		release(t, third)
		writer := acquire(t, a, "job")
		_, err = b.TryAcquire(background, "job", quorumlock.Shared())
		assert.Equal(t, `quorumlock: "job" is held by "a"; the lease expires in 9s unless renewed`, err.Error())
		release(t, writer)
		l, err := b.TryAcquire(background, "job", quorumlock.Shared())
		require.NoError(t, err)
		release(t, l)
	})
}

// A call inside would wait behind a waiting writer, and so for its own caller.
func TestACallInsideASharedLeaseOfTheNameFailsAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		inside := func(t *testing.T, ctx context.Context, readers int) {
			began := time.Now()
			for what, call := range map[string]func() error{
				"Acquire":        func() error { _, err := m.Acquire(ctx, "job"); return err },
				"a reader":       func() error { _, err := m.Acquire(ctx, "job", quorumlock.Shared()); return err },
				"a reader, once": func() error { _, err := m.TryAcquire(ctx, "job", quorumlock.Shared()); return err },
				"Do of a reader": func() error {
					return m.Do(ctx, "job", func(context.Context, *quorumlock.Lease) error { return nil }, quorumlock.Shared())
				},
				"AcquireAll": func() error { _, err := m.AcquireAll(ctx, []string{"a", "job"}); return err },
			} {
				var held *quorumlock.HeldError
				require.ErrorAs(t, call(), &held, what)
				assert.True(t, held.Self, what)
				assert.Equal(t, readers, held.Readers, what)
			}
			require.NoError(t, m.Do(ctx, "another", func(context.Context, *quorumlock.Lease) error { return nil }, quorumlock.Shared()))
			l, err := other.Acquire(ctx, "another", quorumlock.Shared())
			require.NoError(t, err)
			release(t, l)
			assert.Less(t, time.Since(began), time.Millisecond)
		}
		require.NoError(t, m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
			assert.True(t, l.Shared())
			inside(t, ctx, 1)
			return l.Verify(ctx)
		}, quorumlock.Shared()))
		require.NoError(t, m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
			inside(t, ctx, 0)
			return l.Verify(ctx)
		}))
		assert.ErrorIs(t, m.Do(background, "job", nil, quorumlock.Shared()), quorumlock.ErrInvalid)
		assert.Empty(t, left(t, c))
	})
}

// The recipe for a reader that wants to write: no other writer has written between its read and its write.
func TestASecondNameOfAllWritersReplacesTheUpgradeOfASharedLease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		version := 0
		write := func(m *quorumlock.Manager) error { // every writer does this
			return m.Do(background, "job/intent", func(ctx context.Context, _ *quorumlock.Lease) error {
				reader, err := m.Acquire(ctx, "job", quorumlock.Shared())
				if err != nil {
					return err
				}
				seen := version
				time.Sleep(10 * time.Millisecond) // it decides to write
				if err := reader.Release(ctx); err != nil {
					return err
				}
				return m.Do(ctx, "job", func(context.Context, *quorumlock.Lease) error {
					assert.Equal(t, seen, version)
					version++
					return nil
				})
			})
		}
		done := make(chan error, 4)
		for range 4 {
			m := manager(t, c)
			go func() {
				var err error
				for i := 0; i < 10 && err == nil; i++ {
					err = write(m)
				}
				done <- err
			}()
		}
		for range 4 {
			require.NoError(t, <-done)
		}
		assert.Equal(t, 40, version)
		synctest.Wait()
	})
}
