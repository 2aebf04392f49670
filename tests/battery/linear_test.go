//go:build linux

package battery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// contention describes a number of clients that want a few locks, for a while.
type contention struct {
	nodes, clients, locks int
	lasting, ttl          time.Duration
	enough                int // if not 0: this number of holds ends it earlier
	seed                  uint64
	faults                bool
	shared                float64 // this part of the leases
}

// contend lets clients contend on real servers, and returns the holds. Each client is a Manager with its own
// connections. With faults, clients are cut off from a minority or from all nodes, replies are lost and packets are
// delayed. Nodes are killed and started empty, or stopped, one at a time.
func contend(t *testing.T, c contention) []hold {
	t.Helper()
	guard := c.ttl
	servers := guardedServers(t, c.nodes, guard)
	grid := proxyGrid(t, c.clients, servers)
	ctx, cancel := context.WithTimeout(t.Context(), c.lasting)
	defer cancel()
	var mu sync.Mutex
	var holds []hold
	var running sync.WaitGroup
	for i := range c.clients {
		m, err := quorumlock.New(t.Context(), quorumlock.Addrs(proxyAddrs(grid[i])...),
			quorumlock.WithTTL(c.ttl), quorumlock.WithRestartGuard(guard))
		require.NoError(t, err)
		defer func() { assert.NoError(t, m.Close(context.Background())) }()
		rng := rand.New(rand.NewPCG(c.seed, uint64(i)))
		running.Go(func() {
			for ctx.Err() == nil {
				h, err := contendOnce(ctx, m, i, fmt.Sprintf("%d-%s", c.seed, lockName(rng.IntN(c.locks))), c.shared, rng)
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				if h != nil {
					mu.Lock()
					if holds = append(holds, *h); len(holds) == c.enough {
						cancel()
					}
					mu.Unlock()
				}
			}
		})
	}
	if c.faults {
		running.Go(func() { disturbNodes(ctx, c, servers) })
		running.Go(func() { disturbClients(ctx, c, grid) })
	}
	running.Wait()
	return holds
}

// contendOnce asks for a lock, holds it for a while, and ends the hold: usually by a release or a loss, now and then by
// waiting for the loss of a lease that isn't renewed.
func contendOnce(ctx context.Context, m *quorumlock.Manager, client int, lock string, shared float64, rng *rand.Rand) (*hold, error) {
	acquire := m.Acquire
	if shared > 0 && rng.Float64() < shared { // checked first: histories without readers stay as seeded
		acquire = testkit.With(m.Acquire, quorumlock.Shared())
	}
	var opts []quorumlock.AcquireOption
	abandoned := rng.Float64() < 0.02
	if abandoned {
		opts = append(opts, quorumlock.WithoutRenewal())
	}
	// Mostly a short wait: the backoff of a call grows to half a second, and a new call
	// starts with short pauses. Short calls also show more about the order of tokens.
	patience := time.Duration(5+rng.IntN(40)) * time.Millisecond
	if rng.Float64() < 0.1 {
		patience *= 10
	}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := now()
	l, err := acquire(patient, lock, opts...)
	switch {
	case errors.Is(err, quorumlock.ErrHeld), errors.Is(err, quorumlock.ErrNoQuorum), patient.Err() != nil && err != nil:
		return nil, nil //nolint:nilnil // not granted is not an error here
	case err != nil:
		return nil, err
	}
	g := newTenure(l, client, began)
	until := g.h.Granted.after(time.Duration(rng.Int64N(int64(5 * time.Millisecond))))
	if rng.Float64() < 0.05 {
		until = g.h.Granted.after(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
	}
	for g.valid() && (now() < until || abandoned) {
		select {
		case <-l.Done():
		case <-time.After(time.Millisecond):
		}
	}
	if err := g.release(context.Background()); err != nil {
		return nil, err
	}
	return &g.h, nil
}

// pauseFor sleeps for d, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// disturbNodes kills or stops one node after another until ctx ends. It disturbs a node only after the quarantine of
// the previous one. So at most one node at a time has forgotten anything, as the fault model requires.
func disturbNodes(ctx context.Context, c contention, servers []*redistest.Server) {
	rng := rand.New(rand.NewPCG(c.seed, 1<<32))
	for ctx.Err() == nil {
		pauseFor(ctx, time.Duration(rng.Int64N(int64(c.ttl))))
		node := servers[rng.IntN(c.nodes)]
		lasting := time.Duration(rng.Int64N(int64(c.ttl * 3 / 2)))
		if rng.IntN(2) == 0 {
			node.Stop()
			pauseFor(ctx, lasting)
			node.Continue()
		} else {
			node.Kill()
			pauseFor(ctx, lasting/4)
			node.Restart()
			pauseFor(ctx, c.ttl+c.ttl/10)
		}
	}
}

// disturbClients puts one fault after another between a client and its nodes until ctx
// ends, and removes them all at the end.
func disturbClients(ctx context.Context, c contention, grid [][]*redistest.Proxy) {
	rng := rand.New(rand.NewPCG(c.seed, 1<<33))
	for ctx.Err() == nil {
		pauseFor(ctx, time.Duration(rng.Int64N(int64(c.ttl/4))))
		client, node := grid[rng.IntN(c.clients)], rng.IntN(c.nodes)
		lasting := time.Duration(rng.Int64N(int64(c.ttl * 3 / 2)))
		switch fault := rng.IntN(6); fault {
		case 0, 1, 2: // all nodes are cut off twice as often as a minority
			cut := client
			if fault == 0 {
				cut = client[:c.nodes/2]
			}
			for _, p := range cut {
				p.Swallow()
			}
			pauseFor(ctx, lasting)
			for _, p := range cut {
				p.Heal()
			}
		case 3:
			client[node].DropReply(isScript)
		case 4:
			client[node].Reset()
		case 5:
			client[node].Delay(time.Duration(rng.Int64N(int64(c.ttl))))
			pauseFor(ctx, lasting)
			client[node].Delay(0)
		}
	}
}

// isScript matches the calls that acquire, renew and release.
func isScript(cmd []string) bool { return len(cmd) > 0 && cmd[0] == "EVALSHA" }

// Row 19: the observations of eight clients under faults form a possible history of one mutex with growing tokens.
func TestHistoriesOfContendingClientsAreLinearizable(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) { histories(t, n, "histories of 8 clients under faults", 0) })
}

// The same, with more than half of the leases shared. The other leases exclude all others, as a mutex does.
func TestHistoriesOfReadersAndWritersAreLinearizable(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		histories(t, n, "histories of 8 clients that read and write, under faults", .6)
	})
}

func histories(t *testing.T, n int, title string, shared float64) {
	t.Helper()
	r := newRow(t, fmt.Sprintf("%s, N=%d", title, n))
	var all []hold
	ends := map[string]int{}
	histories, operations := 0, 0
	var illegal []string
	rounds := count(20, 3)
	for round := range rounds {
		holds := contend(t, contention{
			nodes: n, clients: 8, locks: 2, lasting: 2500 * time.Millisecond, ttl: 400 * time.Millisecond,
			seed: uint64(1000*n + round), faults: true, shared: shared,
		})
		h, o, bad := linearizable(holds)
		histories, operations, illegal = histories+h, operations+o, append(illegal, bad...)
		all = append(all, holds...)
	}
	for i := range all {
		ends[all[i].End]++
	}
	seen, wrong := overlaps(all), disorders(all)
	for _, complaint := range slices.Concat(seen, wrong, illegal) {
		t.Log(complaint)
	}
	t.Logf("N=%d: ends of leases: %v", n, ends)
	r.figure(fmt.Sprintf("linearizable %d/%d, %d operations", histories-len(illegal), histories, operations),
		fmt.Sprintf("%d/%d", 2*rounds, 2*rounds), len(illegal) == 0 && histories == 2*rounds)
	r.figure(fmt.Sprintf("overlaps %d, token errors %d of %d holds", len(seen), len(wrong), len(all)), "0, 0",
		len(seen) == 0 && len(wrong) == 0)
	if shared > 0 {
		r.together(all)
	}
	lost := len(all) - ends[released]
	r.figure(fmt.Sprintf("%d of the leases were lost", lost), atLeastInFull("> 0"), lost > 0 || !full)
}
