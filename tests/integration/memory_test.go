package integration

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A Manager lives as long as its process, so it must keep no memory of calls and leases that have ended, whatever the
// nodes have done.
func TestEndedCallsAndLeasesLeaveNothingInMemory(t *testing.T) {
	const many = 200
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(time.Second))
	type value [64]byte
	var mu sync.Mutex
	var values []weak.Pointer[value]
	together := func(phase string, call func(ctx context.Context, name string)) {
		var calls sync.WaitGroup
		for i := range many {
			calls.Go(func() {
				v := new(value)
				mu.Lock()
				values = append(values, weak.Make(v))
				mu.Unlock()
				call(context.WithValue(context.Background(), value{}, v), fmt.Sprint(phase, i))
			})
		}
		calls.Wait()
	}
	use := func(ctx context.Context, name string) {
		if l, err := m.TryAcquire(ctx, name); err == nil {
			_ = l.Release(ctx)
		}
	}
	together("healthy ", use)
	together("lost ", func(ctx context.Context, name string) {
		for _, s := range servers { // so the call gets a ticket
			s.MustDo("SET", testkit.Prefix+name, "somebody", "PX", "300")
		}
		l, err := m.Acquire(ctx, name)
		if !assert.NoError(t, err) {
			return
		}
		for l.Err() == nil { // a round in between finds a majority and heals the other nodes
			for _, s := range servers {
				s.MustDo("DEL", testkit.Prefix+name)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	for _, s := range servers[1:] {
		s.Stop()
	}
	together("silence ", use)
	for _, s := range servers[1:] {
		s.Continue()
	}
	servers[2].Kill()
	together("one is down ", use)
	testkit.Eventually(t, "nothing stays in memory", func() bool {
		for range 3 { // pools keep objects for two collections
			runtime.GC()
		}
		return !slices.ContainsFunc(values, func(v weak.Pointer[value]) bool { return v.Value() != nil })
	})
}

// After contention a Manager must not use more memory for each lease.
func TestALeaseCostsNoMoreMemoryOnceItsManagerHasMetContention(t *testing.T) {
	testkit.OnlyNightly(t, "it measures memory, which takes 20,000 leases")
	const leases, most = 10_000, 700
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(time.Minute))
	perLease := func(what string) {
		before := heap()
		all := make([]*quorumlock.Lease, leases)
		var callers sync.WaitGroup
		for c := range 100 {
			callers.Go(func() {
				for i := c; i < leases; i += 100 {
					l, err := m.Acquire(background, fmt.Sprint(what, i))
					if !assert.NoError(t, err) {
						return
					}
					all[i] = l
				}
			})
		}
		callers.Wait()
		for _, s := range servers {
			testkit.Eventually(t, "all votes are in", func() bool { return s.MustDo("DBSIZE").(int64) >= leases })
		}
		testkit.Eventually(t, fmt.Sprintf("a lease %s costs at most %d B", what, most), func() bool {
			cost := (heap() - before) / leases
			t.Logf("%s: %d B a lease", what, cost)
			return cost <= most
		})
		for _, l := range all {
			testkit.Released(t, l)
		}
	}
	perLease("without contention")
	other := testkit.Connect(t, redistest.Addrs(servers))
	l := testkit.Acquired(t, other, "job")
	ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, err := m.Acquire(ctx, "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	testkit.Released(t, l)
	perLease("after contention")
}

// heap returns the bytes of live objects.
func heap() int64 {
	var stats runtime.MemStats
	for range 3 { // pools keep objects for two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
