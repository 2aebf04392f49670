package virtual

import (
	"context"
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

func TestASilentMajorityMeansAtRiskThenLostByTheStopExactly(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			l := acquire(t, manager(t, c), "job")
			renewed := <-l.Renewed()
			stop := time.Now().Add(valid)
			for _, node := range c.Nodes()[:n/2+1] {
				node.Cut()
			}
			risk := <-l.AtRisk()
			assert.LessOrEqual(t, time.Until(stop), valid-interval*9/10, "not before a round, nor after its timeout")
			assert.GreaterOrEqual(t, time.Until(stop), valid-interval*11/10-timeout)
			assert.Equal(t, time.Until(stop), risk.Remaining)
			assert.NotEmpty(t, risk.Nodes)
			assert.True(t, l.Valid())

			lost := <-l.Lost()
			assert.Equal(t, early, time.Until(stop), "reported so early that a late timer is still in time")
			assert.Equal(t, quorumlock.LostExpired, lost.Reason)
			assert.True(t, lost.At.Add(early).Equal(renewed.ValidUntil))
			assert.True(t, lost.ValidUntil.Equal(lost.At))
			assert.Len(t, lost.Nodes, n/2+1)
			assert.False(t, l.Valid())
		})
	}
}

func TestTheEndIsReportedInTheOrderThatReadersRelyOn(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		ctx := l.Context()
		lost, done, renewed, atRisk := l.Lost(), l.Done(), l.Renewed(), l.AtRisk()
		isClosed := func() bool {
			for range 2 { // one value may be waiting
				select {
				case _, open := <-renewed:
					if !open {
						for range atRisk { // this ends, because atRisk is closed too
						}
						return true
					}
				default:
					return false
				}
			}
			return false
		}
		for _, node := range c.Nodes() {
			node.FlushAll()
		}
		var all sync.WaitGroup
		all.Go(func() {
			<-ctx.Done()
			assert.ErrorIs(t, l.Err(), quorumlock.ErrLost)
			assert.Equal(t, l.Err(), context.Cause(ctx))
			assert.True(t, isClosed())
		})
		all.Go(func() {
			<-done
			assert.Error(t, ctx.Err())
		})
		all.Go(func() {
			v, open := <-lost
			assert.True(t, open)
			assert.Equal(t, quorumlock.LostMissing, v.Reason)
			<-done // closed before
			_, open = <-lost
			assert.False(t, open, "exactly one")
		})
		all.Wait()
	})
}

func TestAReleaseClosesLostWithoutAValue(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		lost := l.Lost()
		require.NoError(t, l.Release(background))
		_, open := <-lost
		assert.False(t, open)
		assert.ErrorIs(t, context.Cause(l.Context()), quorumlock.ErrReleased, "asked for after the end")
		<-l.Done()
		_, open = <-l.Renewed()
		assert.False(t, open)
	})
}

func TestASlowReaderOfEventsGetsTheLatestAndTheNumberOfMissedOnes(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(2)
		l := acquire(t, m, "job")
		renewed := l.Renewed()
		time.Sleep(time.Minute)
		c.Nodes()[0].FlushAll()
		<-l.Done()
		require.NoError(t, m.Close(background))
		var last quorumlock.Event
		n := 0
		for e := range events.C() {
			if _, ok := e.(quorumlock.NodeChanged); !ok {
				last = e
			}
			n++
		}
		assert.Equal(t, 2, n)
		assert.IsType(t, quorumlock.Lost{}, last)
		assert.GreaterOrEqual(t, events.Dropped(), uint64(15))
		e, open := <-renewed
		assert.True(t, open, "the latest renewal was kept")
		assert.Less(t, time.Since(e.ValidUntil), time.Duration(0))
	})
}

// Another client asks continuously. It is granted the lock at that instant, or later by the drift that the holder
// allows for, and not before.
func TestALossSaysWhenAnotherClientMayHoldTheLock(t *testing.T) {
	for _, delay := range []time.Duration{0, 3 * time.Second} {
		for name, lose := range map[string]func(*quorumlocktest.Cluster){
			"expired":  func(c *quorumlocktest.Cluster) { c.Partition("holder") },
			"too long": func(*quorumlocktest.Cluster) {},
		} {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				holder, other := managerFor(t, c, "holder"), managerFor(t, c, "other")
				l := acquire(t, holder, "job", quorumlock.WithLockDelay(delay), quorumlock.WithMaxHold(20*time.Second))
				lose(c)
				lost := <-l.Lost()
				assert.True(t, lost.AnotherFrom.After(lost.At), name)
				for {
					next, err := other.TryAcquire(background, "job")
					if err == nil {
						assert.GreaterOrEqual(t, time.Since(lost.AnotherFrom), time.Duration(0), "%s, %v", name, delay)
						assert.LessOrEqual(t, time.Since(lost.AnotherFrom), drift+10*time.Millisecond, "%s, %v", name, delay)
						require.NoError(t, next.Release(background))
						break
					}
					time.Sleep(max(time.Millisecond, min(time.Until(lost.AnotherFrom)-time.Second, 100*time.Millisecond)))
				}
				c.Rejoin("holder")
			})
		}
	}
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job", quorumlock.WithLockDelay(time.Minute))
		flush(t, c, "job", 0, 1, 2)
		lost := <-l.Lost()
		assert.Equal(t, lost.At, lost.AnotherFrom, "it may have been there for long")
	})
}

// Each reason has its own name. The majority of the evidence does not decide: a revocation, or another owner's key,
// explains the rest.
func TestALossSaysWhetherTheKeyIsGoneTakenOrRevoked(t *testing.T) {
	for want, lose := range map[quorumlock.LostReason]func(*testing.T, *quorumlocktest.Cluster, *quorumlock.Manager){
		quorumlock.LostMissing: func(t *testing.T, c *quorumlocktest.Cluster, _ *quorumlock.Manager) {
			t.Helper()
			flush(t, c, "job", 0, 1)
		},
		quorumlock.LostTaken: func(t *testing.T, c *quorumlocktest.Cluster, _ *quorumlock.Manager) {
			t.Helper()
			flush(t, c, "job", 0)
			do(t, c.Nodes()[1], "SET", config.DefaultPrefix+"job", "another's")
		},
		quorumlock.LostRevoked: func(t *testing.T, c *quorumlocktest.Cluster, operator *quorumlock.Manager) {
			t.Helper()
			go func() { _, _ = operator.Revoke(background, "job", "it hangs") }()
			synctest.Wait()
			flush(t, c, "job", 0)
		},
	} {
		for name, ask := range map[string]func(*quorumlock.Lease) error{
			"renewal": func(l *quorumlock.Lease) error { return l.Renew(background) },
			"verify":  func(l *quorumlock.Lease) error { return l.Verify(background) },
			"release": func(l *quorumlock.Lease) error { return l.Release(background) },
		} {
			if want == quorumlock.LostRevoked && name == "release" {
				continue // no other client can have had it, so it isn't a loss
			}
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				l := acquire(t, manager(t, c), "job")
				lose(t, c, manager(t, c))
				var lost *quorumlock.LostError
				require.ErrorAs(t, ask(l), &lost, "%v, by %s", want, name)
				assert.Equal(t, want, lost.Reason, "by %s", name)
			})
		}
	}
}
