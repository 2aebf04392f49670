package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Eight clients take random pairs of five names while a server is killed and comes back. No client waits forever, no
// name has two holders, and every client makes progress. The battery's row is a minute long.
func TestClientsThatTakeRandomPairsOfNames(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	addrs := redistest.Addrs(servers)
	var holders [5]atomic.Int32
	var turns [8]atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for p := range turns {
		m := testkit.Connect(t, addrs, quorumlock.WithTTL(3*time.Second))
		draw := rand.New(rand.NewPCG(uint64(p), 7))
		clients.Go(func() {
			for ctx.Err() == nil {
				pair := draw.Perm(5)[:2]
				err := m.DoAll(ctx, []string{fmt.Sprint("name ", pair[0]), fmt.Sprint("name ", pair[1])}, func(context.Context, *quorumlock.Leases) error {
					for _, name := range pair {
						assert.EqualValues(t, 1, holders[name].Add(1))
					}
					time.Sleep(2 * time.Millisecond)
					for _, name := range pair {
						holders[name].Add(-1)
					}
					turns[p].Add(1)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					assert.ErrorIs(t, err, quorumlock.ErrLost)
				}
			}
		})
	}
	workThroughARestart(t, servers[0], 5, turns[:])
	cancel()
	clients.Wait()
	m := testkit.Connect(t, addrs)
	leases, err := m.AcquireAll(t.Context(), []string{"name 0", "name 1", "name 2", "name 3", "name 4"})
	require.NoError(t, err)
	require.NoError(t, leases.Release(t.Context()))
}

// workThroughARestart kills a server under clients, and restarts it. Before, during and after the outage the clients
// work until each has had this number of further turns, however long that takes.
func workThroughARestart(t *testing.T, s *redistest.Server, more int32, turns []atomic.Int32) {
	t.Helper()
	work := func(when string) {
		enough := make([]int32, len(turns))
		for i := range turns {
			enough[i] = turns[i].Load() + more
		}
		testkit.Eventually(t, "turns "+when, func() bool {
			for i := range turns {
				if turns[i].Load() < enough[i] {
					return false
				}
			}
			return true
		})
	}
	work("before the kill")
	s.Kill()
	work("with a server down")
	s.Restart()
	work("after the restart")
}

// One span for the call, and one below it for the name that it waited for, with a link to the holder.
func TestTheSpanOfACallForSeveralNamesShowsWhichOneItWaitedFor(t *testing.T) {
	r := &recorder{}
	m, servers := testkit.Manager(t, 3, quorumlock.WithTracerProvider(r))
	other := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTracerProvider(r))
	holding, holder := r.Start(background, "holder")
	l, err := other.Acquire(holding, "b")
	require.NoError(t, err)
	r.mu.Lock()
	r.ended = nil
	r.mu.Unlock()
	time.AfterFunc(200*time.Millisecond, func() { assert.NoError(t, l.Release(context.WithoutCancel(holding))) })

	ctx, caller := r.Start(background, "caller")
	all, err := m.AcquireAll(ctx, []string{"a", "b", "c"})
	require.NoError(t, err)
	together, waited := r.take(t, "quorumlock.acquire_all"), r.take(t, "quorumlock.acquire")
	assert.Equal(t, caller.SpanContext().SpanID(), together.parent.SpanID())
	assert.Equal(t, []string{"a", "b", "c"}, together.attrs["quorumlock.names"].AsStringSlice())
	assert.Equal(t, "ok", together.attrs["quorumlock.outcome"].AsString())
	assert.Equal(t, together.context.SpanID(), waited.parent.SpanID())
	assert.Equal(t, "b", waited.attrs["quorumlock.name"].AsString())
	assert.GreaterOrEqual(t, waited.attrs["quorumlock.wait.duration"].AsFloat64(), 0.1)
	require.NotEmpty(t, waited.links)
	assert.Equal(t, holder.SpanContext().TraceID(), waited.links[0].SpanContext.TraceID())
	s, err := m.Inspect(background, "a")
	require.NoError(t, err)
	assert.Contains(t, s.Holder.TraceParent, together.context.SpanID().String(), "those who wait behind it find the call")
	require.NoError(t, all.Release(background))
	_, err = m.AcquireAll(ctx, []string{"a", "b"}, quorumlock.WithWait(0))
	require.NoError(t, err)
}

// Calls for one or for three of six names, by 32 callers in 8 processes that work for 10 ms. It measures how long they
// wait, and which share of the names' time is work. ADR 42 has figures.
func BenchmarkHotNames(b *testing.B) {
	const names, callers, work = 6, 32, 10 * time.Millisecond
	for _, wanted := range []int{1, 3} {
		b.Run(strconv.Itoa(wanted), func(b *testing.B) {
			addrs := redistest.Addrs(testkit.Start(b, 3))
			var managers []*quorumlock.Manager
			for range 8 {
				managers = append(managers, testkit.Connect(b, addrs))
			}
			waits := make([]time.Duration, b.N)
			var next atomic.Int64
			var all sync.WaitGroup
			b.ResetTimer()
			for i := range callers {
				all.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						var of []string
						for _, k := range rand.Perm(names)[:wanted] {
							of = append(of, strconv.Itoa(k))
						}
						began := time.Now()
						l, err := managers[i%len(managers)].AcquireAll(b.Context(), of)
						if !assert.NoError(b, err) {
							return
						}
						waits[n-1] = time.Since(began)
						time.Sleep(work)
						assert.NoError(b, l.Release(b.Context()))
					}
				})
			}
			all.Wait()
			took := b.Elapsed()
			slices.Sort(waits)
			b.ReportMetric(float64(b.N)/took.Seconds(), "calls/s")
			b.ReportMetric(float64(waits[b.N/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(waits[b.N*9/10].Milliseconds()), "p90-ms")
			b.ReportMetric(100*float64(b.N*wanted)*work.Seconds()/(names*took.Seconds()), "%work")
		})
	}
}
