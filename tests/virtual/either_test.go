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
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestAContextOfALeaseAndARequestEndsWithWhicheverIsFirst(t *testing.T) {
	type key struct{}
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		timedOut := errors.New("the client has gone")
		request, stop := context.WithTimeoutCause(context.WithValue(background, key{}, "value"), time.Minute, timedOut)
		defer stop()
		until, _ := request.Deadline()

		work, cancel := l.WithContext(request)
		assert.Equal(t, "value", work.Value(key{}))
		deadline, _ := work.Deadline()
		assert.Equal(t, until, deadline)
		require.NoError(t, work.Err())
		cancel()
		require.ErrorIs(t, work.Err(), context.Canceled)
		require.NoError(t, request.Err())
		assert.True(t, l.Valid(), "neither ends with the work")

		work, cancel = l.WithContext(request)
		defer cancel()
		c.ForceLost(t, l)
		synctest.Wait()
		var lost *quorumlock.LostError
		require.ErrorAs(t, context.Cause(work), &lost, "the lease was first")

		over, cancel := l.WithContext(background)
		defer cancel()
		require.ErrorIs(t, context.Cause(over), quorumlock.ErrLost, "at once, if the lease is over")

		second := acquire(t, m, "second")
		work, cancel = second.WithContext(request)
		defer cancel()
		<-request.Done()
		<-work.Done()
		require.ErrorIs(t, context.Cause(work), timedOut, "the request was first")
		require.NoError(t, second.Release(background))
		synctest.Wait()
		assert.Equal(t, timedOut, context.Cause(work), "the first cause stays")
	})
}
