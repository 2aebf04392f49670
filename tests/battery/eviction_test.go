package battery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// One node is under memory pressure and evicts keys. Under the guard it does not vote, so an eviction cannot lead to a
// second lease. Without the guard it can.
func TestANodeThatEvictsCausesNoSecondLease(t *testing.T) {
	const policy = "allkeys-lru"
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("%s pressure on one node, guard on, N=%d", policy, n))
		servers := redistest.Start(t, n)
		victim := servers[0]
		guard := []quorumlock.Option{quorumlock.WithTTL(amnesiaTTL), quorumlock.WithRestartGuard(amnesiaGuard)}

		proxies, addrs := testkit.Proxied(t, servers)
		for _, p := range proxies[quorum.Size(n):] {
			p.Refuse()
		}
		bare := testkit.Connect(t, addrs, guard...)
		holder, competitor := testkit.Connect(t, redistest.Addrs(servers), guard...), testkit.Connect(t, redistest.Addrs(servers), guard...)
		victim.Fill(policy, nil)
		late := testkit.Connect(t, redistest.Addrs(servers), guard...)
		patiently(t, "the node is checked", func() bool { return late.Nodes()[0].Version != "" })
		err := late.Nodes()[0].Err
		r.figure(fmt.Sprintf("New refuses it by the name of the policy: %v", err != nil && strings.Contains(err.Error(), policy)), "true",
			err != nil && strings.Contains(err.Error(), policy))
		for _, m := range []*quorumlock.Manager{bare, holder, competitor} { // no lease is held yet, so the next check finds the policy
			patiently(t, "the policy is found", func() bool {
				s, err := m.Inspect(t.Context(), "anything")
				return err == nil && s.Nodes[0].Warning != nil
			})
		}
		tries, granted, named, stalled := count(100, 5), 0, 0, 0
		for i := 0; i < tries+stalled && stalled < tries; i++ {
			l, err := bare.TryAcquire(t.Context(), fmt.Sprint("bare-", i))
			var short *quorumlock.QuorumError
			switch {
			case err == nil:
				granted++
				require.NoError(t, l.Release(t.Context()))
			case errors.As(err, &short) && short.Nodes[0].Node == 0 && short.Nodes[0].Misconfigured && strings.Contains(err.Error(), policy):
				named++
			case errors.As(err, &short) && slices.ContainsFunc(short.Nodes, func(e *quorumlock.NodeError) bool { return e.Node == 1 }):
				stalled++ // the node without a fault did not answer in time: the machine is busy
			default:
				t.Logf("try %d: %v", i, err)
			}
		}
		r.figure(fmt.Sprintf("leases granted with its vote %d/%d; refused by the name of the policy %d", granted, tries, named), "0, all",
			granted == 0 && named == tries)

		for _, shared := range []bool{false, true} {
			evictions(t, n, servers, holder, competitor, policy, shared)
		}
	})
}

// evictions has one node drop locks, with the guard and without it, while two clients want a lease, or one of the two
// reads.
func evictions(t *testing.T, n int, servers []*redistest.Server, holder, competitor *quorumlock.Manager, policy string, shared bool) {
	t.Helper()
	under := policy + " pressure on one node"
	if shared {
		under += ", one of the two reads"
	}
	r := newRow(t, fmt.Sprintf("%s, guard on, N=%d", under, n))
	var tally amnesiacs
	for range count(30, 2) {
		pressed(t, servers[0], servers[len(servers)-1], draw(holder, competitor, shared), policy, &tally)
	}
	r.figure(fmt.Sprintf("overlaps %d in %d rounds, in which it dropped a lock", tally.overlaps.Load(), tally.rounds.Load()), "0",
		tally.overlaps.Load() == 0)

	teeth := newRow(t, fmt.Sprintf("%s, holder with a bare majority, guard off, N=%d", under, n))
	dropped := amnesia{shared: shared, lose: func(w *amnesiaWorld, victim int, _ int64) {
		s, key := w.servers[victim], config.DefaultPrefix+w.job
		held := s.MustDo("GET", key)
		if held == nil {
			return // the server is full since the round before, and has already dropped it
		}
		s.Fill(policy, func() bool { return s.MustDo("GET", key) != held })
	}}
	least := count(10, 2)
	off := dropped.rounds(t, n, false, func(off *amnesiacs) bool {
		done := off.rounds.Load()
		return done < int64(least) || off.overlaps.Load() == 0 && done < 100
	})
	teeth.figure(fmt.Sprintf("overlaps %d in %d rounds", off.overlaps.Load(), off.rounds.Load()), "at least 1: the test has teeth",
		off.overlaps.Load() > 0)
}

// pressed has the holder hold a lease, the competitor ask for it continuously, and the victim evict it.
func pressed(t *testing.T, victim, other *redistest.Server, ask pair, policy string, tally *amnesiacs) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	held, err := ask.holder(ctx, "job")
	require.NoError(t, err)
	var competing sync.WaitGroup
	competing.Go(func() {
		for ctx.Err() == nil {
			next, err := ask.competitor(ctx, "job")
			if err == nil {
				overlap(held, next, tally)
				_ = next.Release(ctx)
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
		t.Error("the competitor is not granted the lease")
	})
	key := config.DefaultPrefix + held.Name()
	// The node does not vote, so a heal must not restore a key that would be a vote. This key stands for one from
	// before the node began to evict.
	victim.MustDo("SET", key, fmt.Sprint(other.MustDo("GET", key)), "PX", "60000")
	victim.Fill(policy, func() bool { return victim.MustDo("EXISTS", key) == int64(0) })
	time.Sleep(50 * time.Millisecond) // time for the competitor to find it free
	if err := held.Release(ctx); err != nil {
		t.Error("the lease was lost: ", err)
	}
	competing.Wait()
	tally.rounds.Add(1)
}

// The policy changes while leases are held. The next renewal notices the first evicted key.
func TestANodeThatBeginsToEvictIsReportedWithinOneInterval(t *testing.T) {
	const ttl = 3 * time.Second
	const interval = ttl / 3
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("one node begins to evict under live leases, guard on, N=%d", n))
		servers := redistest.Start(t, n)
		victim := servers[0]
		m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl), quorumlock.WithRestartGuard(ttl))
		changes := m.Subscribe(1000)
		var late []time.Duration
		lost := 0
		rounds := count(30, 1)
		for range rounds {
			// A change is reported again only after the report of its repair.
			patiently(t, "all nodes vote", func() bool {
				s, err := m.Inspect(t.Context(), "anything")
				return err == nil && s.Nodes[0].Warning == nil && everybodyVotes(m, n)
			})
			l, err := m.Acquire(t.Context(), "job")
			require.NoError(t, err)
			for len(changes.C()) > 0 {
				<-changes.C()
			}
			key := config.DefaultPrefix + l.Name()
			patiently(t, "all nodes have the lock", func() bool { // a node that connects late lacks it at first, and the margin is 0
				return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.MustDo("EXISTS", key) != int64(1) })
			})
			// The time runs from the moment when the key is gone, because no client can notice it earlier. The key may
			// soon be restored.
			var began time.Time
			victim.Fill("allkeys-random", func() bool { // with an LRU policy, renewed keys would be evicted last
				began = time.Now()
				return victim.MustDo("EXISTS", key) == int64(0)
			})
			for reported := false; !reported; {
				select {
				case e := <-changes.C():
					change, ok := e.(quorumlock.NodeChanged)
					reported = ok && change.Node == 0 && change.Err != nil && strings.Contains(change.Err.Error(), "cannot see evictions")
				case <-time.After(30 * time.Second):
					t.Fatal("the eviction is not reported")
				}
			}
			late = append(late, time.Since(began))
			if errors.Is(l.Release(t.Context()), quorumlock.ErrLost) { // a busy machine may not confirm it in time
				lost++
			}
			victim.MustDo("CONFIG", "SET", "maxmemory", "0")
			victim.MustDo("CONFIG", "SET", "maxmemory-policy", "noeviction")
			victim.MustDo("EVAL", "for _, key in ipairs(redis.call('KEYS', 'redistest:*')) do redis.call('DEL', key) end", "0")
		}
		// The jitter lengthens an interval by up to a tenth, and the reply takes time.
		bar := interval*11/10 + 20*time.Millisecond
		r.figure(fmt.Sprintf("reported after the first lock was dropped: %s, in %d rounds", spread(late), rounds),
			fmt.Sprintf("max interval with its jitter + round trip, %v", brief(bar)), at(1, late) <= min(limitOf(bar), 5*time.Second)) // the check every 10 s does not count
		r.figure(fmt.Sprintf("leases lost %d/%d", lost, rounds), "0", lost == 0)
	})
}
