package virtual

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Partitions, hangs and delays of random nodes, for minutes each. No grant ever
// contradicts the validity that another lease reports.
func TestNeverTwoValidLeasesThroughManyFaults(t *testing.T) {
	for seed, n := range []int{3, 5} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			random := rand.New(rand.NewPCG(uint64(seed), uint64(n)))
			var (
				mu     sync.Mutex
				held   *quorumlock.Lease
				last   int64
				grants int
			)
			ctx, cancel := context.WithTimeout(background, time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for i := range 3 {
				client := fmt.Sprint("client-", i)
				m := managerFor(t, c, client, quorumlock.WithTTL(time.Second))
				all.Go(func() {
					for ctx.Err() == nil {
						l, err := m.Acquire(ctx, "job")
						if err != nil {
							continue
						}
						mu.Lock()
						if held != nil && held.Valid() && l.Valid() {
							assert.Fail(t, "two valid leases", "seed %d: tokens %d and %d", seed, held.Token(), l.Token())
						}
						assert.Greater(t, l.Token(), last, "seed %d", seed)
						held, last = l, l.Token()
						grants++
						hold := time.Duration(random.Int64N(int64(5 * time.Second)))
						mu.Unlock()
						select {
						case <-l.Done():
						case <-time.After(hold):
							_ = l.Release(background)
						}
					}
				})
			}
			for ctx.Err() == nil {
				mu.Lock()
				node, client := random.IntN(n), fmt.Sprint("client-", random.IntN(3))
				fault, lasts := random.IntN(5), time.Duration(random.Int64N(int64(3*time.Second)))
				mu.Unlock()
				switch fault {
				case 0:
					c.Nodes()[node].Hang()
					time.Sleep(lasts)
					c.Nodes()[node].Resume()
				case 1:
					c.Nodes()[node].CutReplies()
					time.Sleep(lasts)
					c.Nodes()[node].Heal()
				case 2:
					c.Partition(client)
					time.Sleep(lasts)
					c.Rejoin(client)
				case 3:
					c.Partition(client, node)
					time.Sleep(lasts)
					c.Rejoin(client)
				case 4:
					c.Nodes()[node].Delay(lasts / 20)
					time.Sleep(lasts)
					c.Nodes()[node].Heal()
				}
				time.Sleep(lasts / 3)
			}
			all.Wait()
			assert.Greater(t, grants, 20)
			t.Logf("n=%d seed=%d: %d grants", n, seed, grants)
		})
	}
}
