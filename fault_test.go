package quorumlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// The holder of many leases is cut off from every node while a competitor
// that is not cut off wants each of them: the loss of each has to be told
// before the competitor is granted it, 100 of 100.
func TestAPartitionedHolderKnowsBeforeItsSuccessorIsGranted(t *testing.T) {
	const leases, rounds = 25, 4
	for _, n := range []int{3, 5} {
		servers := redistest.Start(t, n)
		proxies, addrs := proxied(t, servers)
		holder := connect(t, addrs, quorumlock.WithTTL(time.Second))
		competitor := connect(t, redistest.Addrs(servers), quorumlock.WithTTL(time.Second))
		for round := range rounds {
			ctx, cancel := context.WithTimeout(background, time.Minute)
			type end struct{ lost, granted time.Time }
			ends := make([]end, leases)
			held := make([]*quorumlock.Lease, leases)
			var all sync.WaitGroup
			for i := range leases {
				name := fmt.Sprintf("job-%d-%d", round, i)
				l, err := holder.Acquire(ctx, name)
				require.NoError(t, err)
				held[i] = l
				lost := l.Lost()
				all.Go(func() {
					<-lost
					ends[i].lost = time.Now()
				})
				all.Go(func() {
					next, err := competitor.Acquire(ctx, name)
					ends[i].granted = time.Now()
					if assert.NoError(t, err) {
						assert.False(t, l.Valid(), "valid beside its successor")
						assert.Greater(t, next.Token(), l.Token())
						assert.NoError(t, next.Release(ctx))
					}
				})
				time.Sleep(7 * time.Millisecond) // so that the cut finds each at another phase
			}
			for _, p := range proxies {
				p.Swallow()
			}
			all.Wait()
			cancel()
			for i, e := range ends {
				assert.True(t, e.lost.Before(e.granted), "n=%d round %d lease %d: told %v after the grant",
					n, round, i, e.lost.Sub(e.granted))
				var lost *quorumlock.LostError
				require.ErrorAs(t, held[i].Err(), &lost)
				assert.Contains(t, []quorumlock.LostReason{quorumlock.LostExpired, quorumlock.LostSuspended}, lost.Reason)
				assert.Len(t, lost.Nodes, n, "every node's silence is evidence")
			}
			for _, p := range proxies {
				p.Heal()
			}
			// The holder has to find its nodes again before the next round.
			eventually(t, "reconnected", func() bool {
				l, err := holder.TryAcquire(background, "probe")
				return err == nil && l.Release(background) == nil
			})
		}
	}
}

func TestALeaseOutlivesAMinorityOfKilledNodesAndIsHealed(t *testing.T) {
	for _, n := range []int{3, 5} {
		m, servers := newManager(t, n, quorumlock.WithTTL(time.Second))
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		for _, s := range servers[:n/2] {
			s.Kill()
		}
		time.Sleep(1500 * time.Millisecond) // beyond the TTL
		require.True(t, l.Valid(), "%v", l.Err())
		for _, s := range servers[:n/2] {
			s.Restart()
		}
		eventually(t, "healed", func() bool { return locks(t, servers, "job") == n })
		require.NoError(t, l.Release(background))
	}
}

func TestRefusedConnectionsAreToldAtOnceAndAsSuch(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(30*time.Second), quorumlock.WithNodeTimeout(10*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	atRisk := l.AtRisk()
	servers[0].Kill()
	servers[1].Kill()
	began := time.Now()
	require.ErrorIs(t, l.Renew(background), quorumlock.ErrNoQuorum)
	assert.Less(t, time.Since(began), 5*time.Second, "a refusal is an answer: no timeout to wait for")
	risk := <-atRisk
	require.Len(t, risk.Nodes, 2)
	for _, node := range risk.Nodes {
		assert.NotContains(t, node.Error(), "no answer in time")
	}
}

func TestAFrozenMinorityCostsNobodyTime(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(2*time.Second))
	l, err := m.Acquire(background, "long")
	require.NoError(t, err)
	servers[0].Stop()
	began := time.Now()
	const calls = 200
	for i := range calls {
		quick, err := m.TryAcquire(background, fmt.Sprintf("quick-%d", i))
		require.NoError(t, err)
		require.NoError(t, quick.Release(background))
	}
	// With the node's timeout in each call it would take 2 × 200 × 200 ms.
	assert.Less(t, time.Since(began), 20*time.Second)
	time.Sleep(max(0, 2500*time.Millisecond-time.Since(began)))
	assert.True(t, l.Valid())
	servers[0].Continue()
	require.NoError(t, l.Release(background))
	eventually(t, "nothing is left on the node that was frozen", func() bool {
		for _, key := range keys(t, servers) {
			if key == "quorumlock:long" || len(key) < 20 && key[:16] == "quorumlock:quick" {
				return false
			}
		}
		return true
	})
}

func TestFlushingAMinorityIsHealedAndAMajorityIsALoss(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	eventually(t, "all votes are in", func() bool { return locks(t, servers, "job") == 3 })
	servers[2].MustDo("FLUSHALL")
	eventually(t, "healed", func() bool { return locks(t, servers, "job") == 3 })
	require.True(t, l.Valid())
	servers[0].MustDo("FLUSHALL")
	servers[1].MustDo("FLUSHALL")
	lost := <-l.Lost()
	assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
	assert.Len(t, lost.Nodes, 2)
	eventually(t, "the rest is released", func() bool { return locks(t, servers, "job") == 0 })
}

func TestAnAttemptThatCameToNothingLeavesNoKeys(t *testing.T) {
	servers := redistest.Start(t, 3)
	proxies, addrs := proxied(t, servers)
	m := connect(t, addrs, quorumlock.WithTTL(time.Hour)) // nothing goes by itself
	t.Run("replies lost on a majority", func(t *testing.T) {
		for _, p := range proxies[:2] {
			p.DropReply(func(cmd []string) bool { return len(cmd) > 3 && cmd[0] == "EVALSHA" })
		}
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.NotErrorIs(t, err, quorumlock.ErrHeld, "its own key is not somebody else's")
		eventually(t, "released", func() bool { return locks(t, servers, "job") == 0 })
	})
	t.Run("cancelled on the way", func(t *testing.T) {
		for _, p := range proxies {
			p.Delay(50 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
		defer cancel()
		_, err := m.Acquire(ctx, "job")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, p := range proxies {
			p.Delay(0)
		}
		time.Sleep(200 * time.Millisecond) // the late grants have come
		eventually(t, "released", func() bool { return locks(t, servers, "job") == 0 })
	})
	t.Run("a majority names another", func(t *testing.T) {
		for _, s := range servers[:2] {
			s.MustDo("SET", "quorumlock:split", "somebody")
		}
		_, err := m.TryAcquire(background, "split")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		eventually(t, "the third is free again", func() bool { return locks(t, servers[2:], "split") == 0 })
	})
}

func TestARestartedNodeDoesNotVoteUnderTheGuard(t *testing.T) {
	servers := redistest.Start(t, 3)
	guard := []quorumlock.Option{
		quorumlock.WithTTL(time.Second), quorumlock.WithRestartGuard(3 * time.Second), quorumlock.WithTrustEmptyNodes(),
	}
	m := connect(t, redistest.Addrs(servers), guard...)
	// The marker is there, but trust in empty nodes must not cover a restart.
	strict := connect(t, redistest.Addrs(servers), guard[:2]...)
	l, err := strict.Acquire(background, "job", quorumlock.WithoutRenewal())
	require.NoError(t, err)
	require.NoError(t, m.Close(background))
	servers[0].Restart()
	servers[1].Restart()
	// Both nodes of a majority have forgotten the lease; without the guard
	// somebody else could be granted it now.
	assert.Never(t, func() bool {
		second, err := strict.TryAcquire(background, "job")
		return err == nil && second != nil
	}, 500*time.Millisecond, 20*time.Millisecond)
	s, err := strict.Inspect(background, "job")
	require.NoError(t, err)
	assert.Positive(t, s.Nodes[0].QuarantinedFor)
	next, err := strict.Acquire(background, "job")
	require.NoError(t, err, "and after the quarantine all is well")
	assert.Greater(t, next.Token(), l.Token())
}
