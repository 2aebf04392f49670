package virtual

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// unread returns the value that a channel has ready, and whether there is one.
func unread[T any](c <-chan T) (v T, ok bool) {
	synctest.Wait()
	select {
	case v, ok = <-c:
	default:
	}
	return v, ok
}

func TestAHolderLearnsWhoWaitsForItsLease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		mine, theirs := manager(t, c), manager(t, c)
		l := acquire(t, mine, "job")
		wanted := l.Wanted()
		assert.Equal(t, wanted, l.Wanted(), "one channel")
		_, ok := unread(wanted)
		assert.False(t, ok, "nobody waits")

		here, leaveHere := context.WithCancel(background)
		go func() { _, _ = mine.Acquire(here, "job") }()
		got, _ := unread(wanted)
		assert.Equal(t, quorumlock.Wanted{Waiters: 1}, got, "a caller of this process, at once")

		there, leaveThere := context.WithCancel(background)
		go func() { _, _ = theirs.Acquire(there, "job") }()
		_, ok = unread(wanted)
		assert.False(t, ok, "the other process is known with the next renewal")
		time.Sleep(interval * 11 / 10)
		got, _ = unread(wanted)
		assert.Equal(t, quorumlock.Wanted{Waiters: 2}, got)
		time.Sleep(interval * 11 / 10)
		_, ok = unread(wanted)
		assert.False(t, ok, "nothing has changed")

		leaveThere()
		time.Sleep(interval * 11 / 10)
		got, _ = unread(wanted)
		assert.Equal(t, quorumlock.Wanted{Waiters: 1}, got)
		leaveHere()
		got, ok = unread(wanted)
		assert.True(t, ok)
		assert.Equal(t, quorumlock.Wanted{}, got, "nobody any more")

		require.NoError(t, l.Release(background))
		_, open := <-wanted
		assert.False(t, open)
		_, open = <-l.Wanted()
		assert.False(t, open, "asked for after the end")
	})
}

// The holder may ask for the channel late.
func TestAHolderThatAsksLateLearnsWhoWaits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		ctx, leave := context.WithCancel(background)
		defer leave()
		next := make(chan *quorumlock.Lease, 1)
		go func() {
			l, _ := m.Acquire(ctx, "job")
			next <- l
			_, _ = m.Acquire(ctx, "job")
		}()
		time.Sleep(time.Second)
		got, _ := unread(l.Wanted())
		assert.Equal(t, quorumlock.Wanted{Waiters: 1}, got)

		require.NoError(t, l.Release(background))
		passedOn := <-next
		synctest.Wait()
		got, _ = unread(passedOn.Wanted())
		assert.Equal(t, quorumlock.Wanted{Waiters: 1}, got, "the next lease on the same lock")
	})
}

// The lock of a name is another one than its slots.
func TestPermitsAreNeitherAskedForNorTakenAway(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, asker := manager(t, c), manager(t, c)
		l := acquire(t, holder, "job", quorumlock.Permits(2))
		wanted := l.Wanted()
		require.NoError(t, asker.AskRelease(background, "job", "deploy"))
		r, err := asker.Revoke(background, "job", "deploy")
		require.NoError(t, err)
		assert.Zero(t, r)
		time.Sleep(5 * ttl)
		assert.True(t, l.Valid())
		_, ok := unread(wanted)
		assert.False(t, ok)
	})
}

func TestAnAskReachesTheHolderOfNowAlone(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, asker := manager(t, c), manager(t, c, quorumlock.WithHolder("ops-1"))
		require.NoError(t, asker.AskRelease(background, "job", "nobody is asked"))
		l := acquire(t, holder, "job")
		wanted := l.Wanted()
		require.NoError(t, asker.AskRelease(background, "job", "deploy"))
		require.NoError(t, asker.AskRelease(background, "job", "deploy at noon"))
		time.Sleep(interval * 11 / 10)
		got, _ := unread(wanted)
		assert.Equal(t, quorumlock.Wanted{Asked: true, By: "ops-1", Reason: "deploy at noon"}, got)
		s, err := asker.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, "ops-1: deploy at noon", s.Holder.Asked)
		assert.Empty(t, s.Holder.Revoked)

		time.Sleep(5 * ttl)
		assert.True(t, l.Valid(), "it does what it likes")
		assert.Equal(t, 3, holders(t, c, "job"))
		assert.Len(t, l.Lost(), 0)
		require.NoError(t, l.Verify(background))
		require.NoError(t, l.Release(background))
		later := acquire(t, holder, "job")
		wanted = later.Wanted()
		time.Sleep(2 * interval)
		_, ok := unread(wanted)
		assert.False(t, ok)
	})
}

// grantTo has a Manager wait for "job", and returns a channel for the instant of the grant.
func grantTo(m *quorumlock.Manager) <-chan time.Time {
	granted := make(chan time.Time, 1)
	go func() {
		if l, err := m.Acquire(background, "job"); err == nil {
			granted <- time.Now()
			_ = l.Release(background)
		}
	}()
	synctest.Wait()
	return granted
}

func TestARevokedHolderThatLivesIsOverWithItsNextRenewal(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, operator := manager(t, c), manager(t, c, quorumlock.WithHolder("ops-1"))
		l := acquire(t, holder, "job")
		wanted := l.Wanted()
		granted := grantTo(operator)
		time.Sleep(time.Second)
		began := time.Now()
		r, err := operator.Revoke(background, "job", "it hangs")
		require.NoError(t, err)
		assert.Equal(t, l.Owner(), r.Holder.Owner)
		assert.Equal(t, 3, r.Marked)
		s, err := operator.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, "ops-1: it hangs", s.Holder.Revoked)
		assert.True(t, s.Held)

		lost := <-l.Lost()
		assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
		for w := range wanted {
			assert.False(t, w.Asked, "a revocation is no request")
		}
		require.NotEmpty(t, lost.Nodes)
		for _, n := range lost.Nodes {
			require.ErrorContains(t, n, "lease was revoked: ops-1: it hangs")
		}
		at := <-granted
		assert.Less(t, at.Sub(began), interval+time.Second)
		assert.GreaterOrEqual(t, at.Sub(lost.At), guard, "its work had the guard to stop")
		assert.True(t, at.Before(r.Until))
	})
}

// The holder is frozen at any instant of its renewal round: it neither renews nor releases.
func TestNobodyIsGrantedTheNameOfARevokedHolderBeforeItIsOver(t *testing.T) {
	instants := testkit.Count(50, 10)
	for i := range instants {
		after := time.Duration(i) * 2 * interval / time.Duration(instants)
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				holder, operator := managerFor(t, c, "holder"), manager(t, c)
				l := acquire(t, holder, "job")
				granted := grantTo(operator)
				time.Sleep(after)
				c.Partition("holder")
				r, err := operator.Revoke(background, "job", "it hangs")
				require.NoError(t, err)
				at := <-granted
				assert.False(t, l.Valid())
				assert.False(t, at.Before(r.Until), "granted %v before Until", r.Until.Sub(at))
				assert.Less(t, at.Sub(r.Until), time.Second)
				assert.False(t, (<-l.Lost()).ValidUntil.After(r.Until))
				c.Rejoin("holder")
			})
		})
	}
}

// The lock was read shortly before its end, and the holder renews it before the mark arrives. The marks must outlive
// that renewal on every node.
func TestARevocationOutlivesARenewalThatCameBetween(t *testing.T) {
	for _, late := range []int{1, 2, 3} { // nodes that mark after the renewal
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				holder, operator := managerFor(t, c, "holder"), managerFor(t, c, "operator")
				l := acquire(t, holder, "job", quorumlock.WithoutRenewal())
				granted := grantTo(manager(t, c))
				time.Sleep(ttl - time.Second)
				for i := range late {
					c.Distance("operator", 100*time.Millisecond, i)
				}
				revoked := make(chan quorumlock.Revocation, 1)
				go func() {
					r, err := operator.Revoke(background, "job", "")
					assert.NoError(t, err)
					revoked <- r
				}()
				time.Sleep(250 * time.Millisecond) // the reads are back, and the marks are on their way to the far nodes
				for ; late < 3; time.Sleep(time.Millisecond) {
					if v, _ := do(t, c.Nodes()[2], "GET", config.DefaultPrefix+"job").(string); strings.HasPrefix(v, "x ") {
						break
					}
				}
				err := l.Renew(background)
				assert.Equal(t, late >= 2, err == nil, "%v", err)
				c.Partition("holder")
				r := <-revoked
				at := <-granted
				assert.False(t, l.Valid())
				assert.False(t, at.Before(r.Until), "granted %v before Until", r.Until.Sub(at))
				assert.Less(t, at.Sub(r.Until), 2*time.Second)
				assert.False(t, (<-l.Lost()).ValidUntil.After(r.Until))
				c.Rejoin("holder")
			})
		})
	}
}

func TestARevocationNeverHitsALaterHolder(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, operator := manager(t, c), managerFor(t, c, "operator")
		l := acquire(t, holder, "job")
		c.Distance("operator", 100*time.Millisecond)
		failed := make(chan error, 1)
		go func() {
			r, err := operator.Revoke(background, "job", "it hangs")
			assert.Zero(t, r)
			failed <- err
		}()
		time.Sleep(250 * time.Millisecond) // the nodes were read
		require.NoError(t, l.Release(background))
		later := acquire(t, holder, "job")
		require.NoError(t, <-failed, "the lease of then is over")
		time.Sleep(3 * ttl)
		assert.True(t, later.Valid())
		s, err := operator.Inspect(background, "job")
		require.NoError(t, err)
		assert.Empty(t, s.Holder.Revoked)
		require.NoError(t, later.Release(background))
	})
}

// Otherwise each call would keep the lock for another two node timeouts.
func TestARevocationThatIsRepeatedDoesNotKeepTheName(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, operator := managerFor(t, c, "holder"), manager(t, c)
		l := acquire(t, holder, "job")
		granted := grantTo(operator)
		c.Partition("holder")
		first, err := operator.Revoke(background, "job", "")
		require.NoError(t, err)
		for len(granted) == 0 {
			time.Sleep(300 * time.Millisecond)
			again, err := operator.Revoke(background, "job", "")
			require.NoError(t, err)
			if again.Holder.Owner == l.Owner() {
				assert.InDelta(t, 0, again.Until.Sub(first.Until), float64(100*time.Millisecond))
			}
		}
		assert.InDelta(t, 0, (<-granted).Sub(first.Until), float64(500*time.Millisecond))
		c.Rejoin("holder")
	})
}

func TestARevocationNeedsAMajority(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, operator := manager(t, c), managerFor(t, c, "operator")
		l := acquire(t, holder, "job")
		c.Partition("operator", 0, 1)
		r, err := operator.Revoke(background, "job", "")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Zero(t, r)
		require.ErrorIs(t, operator.AskRelease(background, "job", ""), quorumlock.ErrNoQuorum)
		c.Rejoin("operator")
		time.Sleep(time.Second)

		// One node marks, and the holder continues with the others.
		marks := func(args []string) bool { return slices.Contains(args, "mark") }
		c.Nodes()[0].Fail(marks, "LOADING not now")
		c.Nodes()[1].Fail(marks, "LOADING not now")
		r, err = operator.Revoke(background, "job", "")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Equal(t, 1, r.Marked)
		assert.Zero(t, r.Until)
		time.Sleep(3 * ttl)
		assert.True(t, l.Valid())
		c.Nodes()[0].Fail(nil, "")
		c.Nodes()[1].Fail(nil, "")

		// One node has lost the key, and one does not answer: the holder may have a majority.
		do(t, c.Nodes()[0], "DEL", config.DefaultPrefix+"job")
		c.Partition("operator", 1)
		r, err = operator.Revoke(background, "job", "")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Zero(t, r)
		c.Rejoin("operator")
		time.Sleep(2 * interval) // the holder has healed it

		c.Kill(2)
		r, err = operator.Revoke(background, "job", "")
		require.NoError(t, err, "one of three is down")
		assert.Equal(t, 2, r.Marked)
		assert.Equal(t, quorumlock.LostRevoked, (<-l.Lost()).Reason)
		c.Restart(2)
	})
}

func TestNotesAreRefusedWithTheFix(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		r, err := m.Revoke(background, "free", "")
		require.NoError(t, err)
		assert.Zero(t, r, "nobody holds it")
		for _, n := range c.Nodes() {
			do(t, n, "SET", config.DefaultPrefix+"foreign", "another program's value", "PX", "60000")
		}
		for _, call := range []struct {
			ctx          context.Context
			name, reason string
		}{
			{background, "", ""}, {background, "job", "\xff"}, {background, "job", strings.Repeat("x", 257)}, {background, "foreign", ""}, {nil, "job", ""},
		} {
			var invalid *quorumlock.InvalidError
			_, err := m.Revoke(call.ctx, call.name, call.reason)
			require.ErrorAs(t, err, &invalid, "%q", call.name)
			assert.NotEmpty(t, invalid.Fix)
			require.ErrorAs(t, m.AskRelease(call.ctx, call.name, call.reason), &invalid)
		}
		require.NoError(t, m.AskRelease(background, "job", strings.Repeat("x", 256)))
		require.NoError(t, m.Close(background))
		_, err = m.Revoke(background, "job", "")
		require.ErrorIs(t, err, quorumlock.ErrClosed)
		require.ErrorIs(t, m.AskRelease(background, "job", ""), quorumlock.ErrClosed)
	})
}
