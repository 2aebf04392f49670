package main

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inProcess is an asynq.RedisConnOpt for a node inside this process.
type inProcess struct{ *quorumlocktest.Cluster }

func (c inProcess) MakeRedisClient() any {
	node := c.Options()[0]
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // go-redis looks a name up, also if Dialer does not need it
		Dialer: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return node.DialCtxFn(ctx, addr, &net.Dialer{}, nil)
		},
	})
}

// enqueued returns how many tasks have been enqueued.
func (c inProcess) enqueued(t *testing.T) int {
	t.Helper()
	n, err := c.Nodes()[0].Do("LLEN", "asynq:{default}:pending")
	require.NoError(t, err)
	return int(n.(int64))
}

func TestTwoSchedulersEnqueueEachTaskOnceAndTheSecondTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, queue := quorumlocktest.Start(t, 3), inProcess{quorumlocktest.Start(t, 1)}
		ctx, stop := context.WithCancel(t.Context())
		var processes sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			processes.Go(func() { assert.ErrorIs(t, run(ctx, locks.OptionsFor(name), queue), context.Canceled) })
			time.Sleep(100 * time.Millisecond) // a leads
		}
		time.Sleep(10 * time.Second)
		assert.Equal(t, 10, queue.enqueued(t), "two schedulers would have enqueued twenty")
		locks.Partition("a")
		time.Sleep(time.Minute)
		before := queue.enqueued(t)
		assert.Less(t, before, 71, "nobody leads for a part of a minute, and never two")
		assert.Greater(t, before, 50)
		time.Sleep(10 * time.Second)
		assert.Equal(t, before+10, queue.enqueued(t), "b has taken over")
		locks.Rejoin("a")
		stop()
		processes.Wait()
	})
}
