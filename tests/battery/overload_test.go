package battery

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// roundTrip is the round trip between the clients and every node in the rows below.
const roundTrip = 80 * time.Millisecond

// farManager returns a Manager that is a round trip away from every server.
func farManager(t *testing.T, servers []*redistest.Server, trip time.Duration, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	proxies, addrs := testkit.Proxied(t, servers)
	for _, p := range proxies {
		p.Delay(trip / 2)
	}
	return testkit.Connect(t, addrs, opts...)
}

// More callers ask than the nodes can answer in time, and they ask again at once. Renewals must not queue behind them,
// and the nodes must not spend their capacity on answers to callers that have given up.
func TestAcquisitionsStarveNoRenewal(t *testing.T) {
	eachNight(t)
	const ttl, few = 2 * time.Second, 100
	many := 3000
	if raced() {
		many = 500 // with more callers the race detector stalls this process, instead of the nodes
	}
	lasting := time.Duration(count(60, 4)) * time.Second
	r := newRow(t, fmt.Sprintf("%d callers, %v away, TTL %v, N=3", many, roundTrip, ttl))
	servers := redistest.Start(t, 3)
	m := farManager(t, servers, roundTrip, quorumlock.WithTTL(ttl))
	held, err := m.Acquire(t.Context(), "held")
	require.NoError(t, err)
	least := held.Remaining()
	watching, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		for watching.Err() == nil && held.Err() == nil {
			least = min(least, held.Remaining())
			time.Sleep(5 * time.Millisecond)
		}
	})
	fewGrants, fewRefused := crowdOfCallers(m, few, min(lasting, 10*time.Second))
	manyGrants, manyRefused := crowdOfCallers(m, many, lasting)
	stop()
	watch.Wait()
	r.figure(fmt.Sprintf("the lease held meanwhile: %v (it had %v left at the least)", text(held.Err()), brief(least)), "kept", held.Err() == nil)
	r.figure(fmt.Sprintf("granted to %d callers %.0f/s (%d refused), to %d callers %.0f/s (%d refused)",
		few, fewGrants, fewRefused, many, manyGrants, manyRefused), "at least 80 %", manyGrants >= .8*fewGrants)
	require.NoError(t, held.Release(t.Context()))
}

func text(err error) string {
	if err == nil {
		return "kept"
	}
	return err.Error()
}

// crowdOfCallers has this number of callers acquire and release names of their own, each again 10 ms after a refusal.
// It returns the grants per second, and the number of refusals.
func crowdOfCallers(m *quorumlock.Manager, callers int, lasting time.Duration) (rate float64, refused int64) {
	var grants, no atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(lasting)
	for i := range callers {
		all.Go(func() {
			name := fmt.Sprint("crowd-", i)
			for time.Now().Before(end) {
				l, err := m.TryAcquire(context.Background(), name)
				if err != nil {
					no.Add(1)
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if time.Now().Before(end) {
					grants.Add(1)
				}
				_ = l.Release(context.Background()) // confirmed late under such a load
			}
		})
	}
	all.Wait()
	return float64(grants.Load()) / lasting.Seconds(), no.Load()
}

// One client is so far away that its answers always come after its node timeout. It can
// never hold the lease, and must not cost the others their turns.
func TestADistantClientTakesNoTurns(t *testing.T) {
	eachNight(t)
	const ttl, distance, near = time.Second, 130 * time.Millisecond, 3
	rounds, lasting := count(6, 3), time.Duration(count(5000, 1000))*time.Millisecond
	r := newRow(t, fmt.Sprintf("a client %v away among %d near ones, TTL %v, N=3", distance, near, ttl))
	servers := redistest.Start(t, 3)
	var managers []*quorumlock.Manager
	for range near {
		managers = append(managers, testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl)))
	}
	distant := farManager(t, servers, distance, quorumlock.WithTTL(ttl))
	contend := func(with bool) (grants int, longest time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), lasting)
		defer cancel()
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, m := range managers {
			all.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					l, err := m.Acquire(ctx, "job")
					if err != nil {
						return
					}
					mu.Lock()
					grants, longest = grants+1, max(longest, time.Since(began))
					mu.Unlock()
					time.Sleep(time.Millisecond)
					_ = l.Release(context.Background())
				}
			})
		}
		if with {
			all.Go(func() {
				for ctx.Err() == nil {
					if l, err := distant.Acquire(ctx, "job"); err == nil {
						_ = l.Release(context.Background())
					}
				}
			})
		}
		all.Wait()
		return grants, longest
	}
	contend(true) // all clients have met contention
	var alone, among int
	var longest time.Duration
	for range rounds {
		n, _ := contend(false)
		alone += n
		n, wait := contend(true)
		among, longest = among+n, max(longest, wait)
	}
	part := float64(among) / float64(alone)
	bar := .7 // few short rounds on a busy machine
	if full {
		bar = .9
	}
	r.figure(fmt.Sprintf("grants to the near ones %d without it, %d with it: %.0f %%", alone, among, 100*part), atLeastInFull("at least 90 %"), part >= bar)
	r.figure(fmt.Sprintf("longest wait of a near one %v", brief(longest)), limit(500*time.Millisecond), longest <= limitOf(500*time.Millisecond))
	refused := 0
	const tries = 50
	patiently(t, "the lock is free", func() bool { return holding(servers, "job") == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for ctx.Err() == nil {
			if l, err := distant.Acquire(ctx, "job"); err == nil {
				_ = l.Release(context.Background())
			}
		}
	}()
	for range tries {
		time.Sleep(time.Duration(count(100, 20)) * time.Millisecond)
		l, err := managers[0].TryAcquire(t.Context(), "job")
		if err != nil {
			refused++
			continue
		}
		_ = l.Release(t.Context())
	}
	cancel()
	<-gone
	r.figure(fmt.Sprintf("attempts of a near one refused while it asks alone %d/%d", refused, tries), "less than half", refused < tries/2)
}
