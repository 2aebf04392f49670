package quorumlock_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func BenchmarkAcquireRelease(b *testing.B) {
	for _, n := range []int{1, 3, 5} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			m, _ := testkit.Manager(b, n)
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				l, err := m.Acquire(ctx, "bench")
				if err != nil {
					b.Fatal(err)
				}
				if err := l.Release(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAcquireReleaseParallel(b *testing.B) {
	for _, n := range []int{1, 3, 5} {
		for _, callers := range []int{64, 512} {
			b.Run(fmt.Sprintf("nodes=%d/callers=%d", n, callers), func(b *testing.B) {
				m, _ := testkit.Manager(b, n)
				ctx := context.Background()
				b.ReportAllocs()
				b.SetParallelism(callers / runtime.GOMAXPROCS(0))
				names := make(chan string, 2*callers)
				for i := range cap(names) {
					names <- "bench-" + strconv.Itoa(i)
				}
				b.RunParallel(func(pb *testing.PB) {
					name := <-names
					for pb.Next() {
						l, err := m.Acquire(ctx, name)
						if err != nil {
							b.Error(err)
							return
						}
						if err := l.Release(ctx); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkHeldLeases holds 10,000 leases. It reports the memory for each lease, and the
// goroutines and the CPU time that all renewals need.
func BenchmarkHeldLeases(b *testing.B) {
	const leases = 10_000
	m, _ := testkit.Manager(b, 3)
	ctx := context.Background()
	for b.Loop() {
		before, goroutines := heap(), runtime.NumGoroutine()
		held := make([]*quorumlock.Lease, leases)
		for i := range held {
			l, err := m.Acquire(ctx, "held-"+strconv.Itoa(i))
			if err != nil {
				b.Fatal(err)
			}
			held[i] = l
		}
		time.Sleep(10 * time.Second) // three renewals of each
		used := heap() - before - leases*8
		for _, l := range held {
			if !l.Valid() {
				b.Fatal("lost a lease", l.Err())
			}
		}
		b.ReportMetric(float64(used)/leases, "B/lease")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines-more")
		for _, l := range held {
			if err := l.Release(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func heap() int64 {
	var s runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// BenchmarkHandOver has eight Managers, like eight processes, that all want one lock
// without a pause. It measures the overhead of a critical section.
func BenchmarkHandOver(b *testing.B) {
	const managers = 8
	for _, n := range []int{1, 3, 5} {
		for _, hold := range []time.Duration{0, 5 * time.Millisecond} {
			b.Run(fmt.Sprintf("nodes=%d/hold=%v", n, hold), func(b *testing.B) {
				ctx := context.Background()
				first, servers := testkit.Manager(b, n)
				all := []*quorumlock.Manager{first}
				for len(all) < managers {
					all = append(all, testkit.Connect(b, redistest.Addrs(servers)))
				}
				var left atomic.Int64
				left.Store(int64(b.N))
				var held atomic.Int64
				var done sync.WaitGroup
				for _, s := range servers {
					s.MustDo("CONFIG", "RESETSTAT")
				}
				b.ResetTimer()
				for _, m := range all {
					done.Go(func() {
						for left.Add(-1) >= 0 {
							l, err := m.Acquire(ctx, "bench")
							if err != nil {
								b.Error(err)
								return
							}
							granted := time.Now()
							if hold > 0 {
								time.Sleep(hold)
							}
							held.Add(int64(time.Since(granted)))
							if err := l.Release(ctx); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				done.Wait()
				b.StopTimer()
				scripts := 0
				for _, s := range servers {
					scripts += testkit.ScriptCalls(b, s)
				}
				b.ReportMetric(float64(scripts)/float64(n)/float64(b.N), "scripts/node/op")
				b.ReportMetric((float64(b.Elapsed())-float64(held.Load()))/float64(b.N), "ns-between/op")
			})
		}
	}
}
