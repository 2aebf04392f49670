//go:build unix

package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTwoSchedulersEnqueueEachTaskOnce(t *testing.T) {
	nodes := redistest.Addrs(redistest.Start(t, 3))
	queue := redistest.Start(t, 1)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { assert.ErrorIs(t, run(ctx, nodes, queue.Addr()), context.DeadlineExceeded) })
	}
	wg.Wait()
	enqueued := queue.MustDo("LLEN", "asynq:{default}:pending")
	assert.Contains(t, []any{int64(1), int64(2), int64(3), int64(4)}, enqueued, "at most four whole seconds are in 3.5 s; two schedulers would make six")
}
