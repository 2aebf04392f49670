package virtual

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
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
			assert.Equal(t, quorumlock.LostRevoked, v.Reason)
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
