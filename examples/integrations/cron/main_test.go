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

func TestOneOfTwoProcessesRunsTheJobsAndTheOtherTakesOver(t *testing.T) {
	nodes := redistest.Addrs(redistest.Start(t, 3))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	second, stopSecond := context.WithCancel(ctx)
	defer stopSecond()

	type entry struct {
		process int
		token   int64
	}
	ran := make(chan entry, 100)
	var wg sync.WaitGroup
	start := func(ctx context.Context, process int) {
		wg.Go(func() {
			assert.ErrorIs(t, run(ctx, nodes, func(_ context.Context, token int64) { ran <- entry{process, token} }), context.Canceled)
		})
	}
	start(first, 1)
	a := <-ran
	start(second, 2)
	assert.Equal(t, a, <-ran)
	assert.Equal(t, a, <-ran)
	stopFirst()
	b := <-ran
	if b == a { // a job that had begun before
		b = <-ran
	}
	assert.Equal(t, 2, b.process)
	assert.Greater(t, b.token, a.token)
	stopSecond()
	wg.Wait()
}
