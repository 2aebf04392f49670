package quorumlock_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
)

func BenchmarkAcquireRelease(b *testing.B) {
	for _, n := range []int{1, 3, 5} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			m, _ := newManager(b, n)
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
				m, _ := newManager(b, n)
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

// BenchmarkHeldLeases holds 10,000 leases and reports what each costs in
// memory, and what all cost in goroutines and in CPU for renewing.
func BenchmarkHeldLeases(b *testing.B) {
	const leases = 10_000
	m, _ := newManager(b, 3)
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
		time.Sleep(quorumlock.DefaultTTL) // three renewals of each
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
