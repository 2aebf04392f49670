package battery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Subscriptions with room for one event, and the channels of 200 leases, are made and never read, while leases are
// renewed, at risk, safe again, released and lost.
func TestUnreadEventsDelayNothing(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		const leases, ttl = 200, time.Second
		rounds := count(20, 1)
		r := newRow(t, fmt.Sprintf("nobody reads the events, N=%d", n))
		servers := redistest.Start(t, n)
		proxies, addrs := testkit.Proxied(t, servers)
		var calls, late, closes []time.Duration
		var dropped uint64
		reported, all, first := 0, 0, ""
		for round := range rounds {
			m, err := quorumlock.New(context.Background(), quorumlock.Addrs(addrs...), quorumlock.WithTTL(ttl))
			require.NoError(t, err)
			subs := []*quorumlock.Subscription{m.Subscribe(0), m.Subscribe(1), m.Subscribe(1)}
			timed := func(call func() error) {
				began := time.Now()
				err := call()
				calls = append(calls, time.Since(began))
				// On a busy machine a lease may have been lost. This test checks only that the calls return.
				if err != nil && !errors.Is(err, quorumlock.ErrNoQuorum) && !errors.Is(err, quorumlock.ErrLost) {
					t.Error(err)
				}
			}
			live := make([]*quorumlock.Lease, leases)
			for i := range live {
				timed(func() (err error) {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					defer cancel()
					live[i], err = m.Acquire(ctx, fmt.Sprintf("job-%d-%d", round, i))
					return err
				})
				require.NotNil(t, live[i])
				live[i].Lost()
				live[i].Renewed()
				live[i].AtRisk()
			}
			time.Sleep(ttl / 2) // renewed
			for _, p := range proxies[:quorum.Size(n)] {
				p.Refuse()
			}
			time.Sleep(ttl / 10) // at risk, if their round is due
			for _, p := range proxies {
				p.Heal()
			}
			time.Sleep(ttl / 2) // safe again
			for _, l := range live[:leases/2] {
				timed(func() error { return l.Release(context.Background()) })
			}
			live, released := live[leases/2:], live[:leases/2]
			for _, l := range live {
				timed(func() error { return l.Renew(context.Background()) })
			}
			for _, p := range proxies {
				p.Swallow()
			}
			time.Sleep(20 * time.Millisecond) // earlier answers have been handled
			var mu sync.Mutex
			var watchers sync.WaitGroup
			for _, l := range live {
				now, left := time.Now(), l.Remaining()
				if left <= 0 {
					continue
				}
				stop := now.Add(left)
				watchers.Go(func() {
					<-l.Done()
					<-l.Context().Done()
					mu.Lock()
					defer mu.Unlock()
					late = append(late, time.Since(stop))
				})
			}
			watchers.Wait()
			for _, l := range append(live, released...) {
				all++
				if ok, err := endOf(l); ok {
					reported++
				} else if first == "" {
					first = fmt.Sprint(l.Name(), ": ", err)
				}
			}
			for _, l := range live {
				if !errors.Is(l.Err(), quorumlock.ErrLost) {
					t.Errorf("%s is not lost: %v", l.Name(), l.Err())
				}
			}
			for _, s := range subs {
				dropped += s.Dropped()
			}
			began := time.Now()
			require.NoError(t, m.Close(context.Background()))
			closes = append(closes, time.Since(began))
			for _, p := range proxies {
				p.Heal()
			}
		}
		r.figure(fmt.Sprintf("ends reported by Done, context and Lost %d/%d", reported, all), "all", reported == all)
		if first != "" {
			t.Log("the first that was not reported: ", first)
		}
		r.figure("Done and context after S: "+spread(late), limit(quorum.SafetyMargin(ttl)), at(1, late) <= limitOf(quorum.SafetyMargin(ttl)))
		r.figure(fmt.Sprintf("%d calls: %s", len(calls), spread(calls)), limit(75*time.Millisecond), at(1, calls) <= limitOf(75*time.Millisecond))
		r.figure("Close, with nodes that do not answer: "+spread(closes), limit(1500*time.Millisecond), at(1, closes) <= limitOf(1500*time.Millisecond))
		r.figure(fmt.Sprintf("events that gave way %d", dropped), "some: nobody read", dropped > 0)
	})
}
