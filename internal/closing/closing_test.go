package closing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestATallyIsZeroOnceEverybodyHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counter Counter
		counter.Start()
		end := make(chan struct{})
		counter.Run(func() { <-end })
		counter.Enter()
		counter.Leave()
		counter.Leave()
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, Before(ended, counter.Zero()), context.Canceled, "the goroutine runs")
		close(end)
		<-counter.Zero()
		require.NoError(t, Before(ended, counter.Zero()), "both, and nothing is left")
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
		time.AfterFunc(time.Hour+MinWait-1, func() { close(done) })
		assert.True(t, Await(ctx, done))
		assert.Equal(t, time.Hour+MinWait-1, time.Since(began))

		began = time.Now()
		assert.False(t, Await(ctx, nil))
		assert.Equal(t, MinWait, time.Since(began))
		require.ErrorIs(t, Before(ctx, nil), cause)
	})
}
