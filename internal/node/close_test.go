package node_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// fill makes a number of locks with one owner, and returns their releases.
func fill(server *redistest.Server, locks int, until time.Duration) (releases []*wire.Request) {
	server.MustDo("EVAL", "for i = 1, ARGV[1] do redis.call('SET', 'p:' .. (i - 1), ARGV[2] .. ' 0 - -') end", "0", fmt.Sprint(locks), ownerA)
	for i := range locks {
		releases = append(releases, release(fmt.Sprint("p:", i), ownerA, until))
	}
	return releases
}

// The bound on a lane is for acquisitions, not for the releases of a Manager that closes.
func TestCloseSendsMoreThanALaneHolds(t *testing.T) {
	const locks = 20_000
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	last := fill(server, locks, now()+time.Minute)
	var answers tally
	assert.True(t, n.Close(context.Background(), last, &answers), "in time")
	done, others := answers.counts()
	assert.Equal(t, []int{locks, 0}, []int{done, others})
	assert.EqualValues(t, 0, server.MustDo("DBSIZE"))
}

// A Manager with many leases releases many of them with one request.
func TestCloseSendsReleasesOfManyLocks(t *testing.T) {
	const locks = 50_000
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	fill(server, locks, 0)
	var last []*wire.Request
	for i := 0; i < locks; i += wire.MaxLocks {
		var some []string
		for j := i; j < min(i+wire.MaxLocks, locks); j++ {
			some = append(some, fmt.Sprint("p:", j))
		}
		last = append(last, releases(now()+time.Minute, some...))
	}
	var answers tally
	assert.True(t, n.Close(context.Background(), last, &answers), "in time")
	done, others := answers.counts()
	assert.Equal(t, []int{len(last), 0}, []int{done, others})
	assert.EqualValues(t, 0, server.MustDo("DBSIZE"))
}

func TestACloseThatIsCutShortReportsItAndAnswersEverything(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	server.Stop()
	defer server.Continue()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var answers tally
	req := release("p:x", ownerA, now()+time.Minute)
	assert.False(t, n.Close(ctx, []*wire.Request{req, req, req}, &answers))
	done, others := answers.counts()
	assert.Equal(t, []int{0, 3}, []int{done, others})
	assert.False(t, n.Post(req, &answers), "closed")
}

// Close continues although the batches together take longer than its patience.
func TestCloseGoesOnWhileTheNodeMakesProgress(t *testing.T) {
	const locks = 60_000
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	last := fill(server, locks, now()+time.Minute)
	proxy.Delay(120 * time.Millisecond) // each way: a batch takes 0.24 s, and there are many
	began := time.Now()
	var answers tally
	assert.True(t, n.Close(context.Background(), last, &answers))
	done, others := answers.counts()
	assert.Equal(t, []int{locks, 0}, []int{done, others})
	assert.Greater(t, time.Since(began), 1500*time.Millisecond, "longer than the limit without progress")
	assert.EqualValues(t, 0, server.MustDo("DBSIZE"))
}

func TestCloseGivesUpAfterASecondWithoutProgress(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	server.Stop()
	defer server.Continue()
	began := time.Now()
	var answers tally
	assert.False(t, n.Close(context.Background(), []*wire.Request{release("p:x", ownerA, now()+time.Minute)}, &answers))
	assert.Greater(t, time.Since(began), 900*time.Millisecond)
	assert.Less(t, time.Since(began), 4*time.Second)
	_, others := answers.counts()
	assert.Equal(t, 1, others)
}

// A node that is down has nothing to release, so Close does not wait for it.
func TestCloseDoesNotWaitForANodeThatIsDown(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	server.Kill()
	require.Eventually(t, func() bool { return n.Health().Err != nil }, 20*time.Second, time.Millisecond)
	began := time.Now()
	var answers tally
	assert.True(t, n.Close(context.Background(), []*wire.Request{release("p:x", ownerA, now()+time.Minute)}, &answers))
	assert.Less(t, time.Since(began), 900*time.Millisecond)
	assert.Equal(t, map[wire.Status]int{wire.NotApplied: 1}, answers.statuses)
}

// A Manager that closes does not need a lock.
func TestCloseSendsNoAcquisitions(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	proxy.Delay(50 * time.Millisecond)
	busy, asks := make(answers, 1), make(answers, 2)
	require.True(t, n.Post(wire.NewRead("p:job", clock.Steady(now()+time.Minute)), busy))
	require.Eventually(t, func() bool { return len(busy) == 0 }, time.Second, time.Millisecond)
	time.Sleep(10 * time.Millisecond) // the read is on its way
	require.True(t, n.Post(acquisition("p:job", ownerA, now()+time.Minute), asks))
	assert.True(t, n.Close(context.Background(), nil, nil))
	got := asks.Next(t)
	assert.Equal(t, wire.NotApplied, got.Status)
	assert.ErrorIs(t, got.Err, wire.ErrClosed)
	assert.EqualValues(t, 0, server.MustDo("EXISTS", "p:job"))
}
