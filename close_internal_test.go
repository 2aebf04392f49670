package quorumlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAWaitForAGroupCanEndEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var group sync.WaitGroup
		end := make(chan struct{})
		group.Go(func() { <-end })
		done := drained(&group)
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, before(ended, done), context.Canceled, "the goroutine runs")
		close(end)
		<-done
		require.NoError(t, before(ended, done), "both, and nothing is left")
	})
}

// Usually a signal has ended the context, and the locks should be released all the same.
func TestAWaitWhoseContextHasEndedGetsAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("told to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		done := make(chan struct{})
		time.AfterFunc(time.Hour, func() { cancel(cause) })
		time.AfterFunc(time.Hour+minCloseWait-1, func() { close(done) })
		assert.True(t, await(ctx, done))
		assert.Equal(t, time.Hour+minCloseWait-1, time.Since(began))

		began = time.Now()
		assert.False(t, await(ctx, nil))
		assert.Equal(t, minCloseWait, time.Since(began))
		require.ErrorIs(t, before(ctx, nil), cause)
	})
}
