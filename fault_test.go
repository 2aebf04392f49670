package quorumlock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestALeaseOutlivesAMinorityOfKilledNodesAndIsHealed(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			t.Parallel()
			m, servers := newManager(t, n, quorumlock.WithTTL(3*time.Second))
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			for _, s := range servers[:n/2] {
				s.Kill()
			}
			time.Sleep(4 * time.Second) // beyond the TTL
			require.True(t, l.Valid(), "%v", l.Err())
			for _, s := range servers[:n/2] {
				s.Restart()
			}
			eventually(t, "healed", func() bool { return locks(t, servers, "job") == n })
			require.NoError(t, l.Release(background))
		})
	}
}

func TestRefusedConnectionsAreReportedAtOnceAndAsSuch(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(30*time.Second), quorumlock.WithNodeTimeout(10*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	atRisk := l.AtRisk()
	servers[0].Kill()
	servers[1].Kill()
	began := time.Now()
	require.ErrorIs(t, l.Renew(background), quorumlock.ErrNoQuorum)
	assert.Less(t, time.Since(began), 5*time.Second, "a refused connection needs no timeout")
	risk := <-atRisk
	require.Len(t, risk.Nodes, 2)
	for _, node := range risk.Nodes {
		assert.NotContains(t, node.Error(), "no answer in time")
	}
}

func TestAFrozenMinorityDelaysNoCaller(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(4*time.Second))
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
	// With the node's timeout in each call it would take 2 × 200 × 400 ms.
	assert.Less(t, time.Since(began), 20*time.Second)
	time.Sleep(max(0, 5*time.Second-time.Since(began)))
	assert.True(t, l.Valid())
	servers[0].Continue()
	require.NoError(t, l.Release(background))
	eventually(t, "no key is left on the frozen node", func() bool {
		for _, key := range keys(t, servers) {
			if key == "quorumlock:long" || strings.HasPrefix(key, "quorumlock:quick") {
				return false
			}
		}
		return true
	})
}

func TestFlushingAMinorityIsHealedAndAMajorityIsALoss(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(3*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	eventually(t, "all votes are in", func() bool { return locks(t, servers, "job") == 3 })
	servers[2].MustDo("FLUSHALL")
	eventually(t, "healed", func() bool { return locks(t, servers, "job") == 3 })
	require.True(t, l.Valid())
	lost := forgotten(t, l, servers[:2])
	assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
	assert.Len(t, lost.Nodes, 2)
	eventually(t, "the remaining keys are released", func() bool { return locks(t, servers, "job") == 0 })
}

func TestAFailedAttemptLeavesNoKeys(t *testing.T) {
	servers := redistest.Start(t, 3)
	proxies, addrs := proxied(t, servers)
	m := connect(t, addrs, quorumlock.WithTTL(time.Hour)) // no key expires during the test
	t.Run("replies lost on a majority", func(t *testing.T) {
		for _, p := range proxies[:2] {
			p.DropReply(func(cmd []string) bool { return len(cmd) > 3 && cmd[0] == "EVALSHA" })
		}
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.NotErrorIs(t, err, quorumlock.ErrHeld, "an attempt's own key is no contention")
		eventually(t, "released", func() bool { return locks(t, servers, "job") == 0 })
	})
	t.Run("cancelled during the attempt", func(t *testing.T) {
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
		time.Sleep(200 * time.Millisecond) // the late grants have arrived
		eventually(t, "released", func() bool { return locks(t, servers, "job") == 0 })
	})
	t.Run("another owner on a majority", func(t *testing.T) {
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
	// The marker exists, but trusting empty nodes must not hide a restart.
	var log transcript
	strict := connect(t, redistest.Addrs(servers), append(guard[:2:2], quorumlock.WithLogger(log.logger()))...)
	l, err := strict.Acquire(background, "job", quorumlock.WithoutRenewal())
	require.NoError(t, err)
	require.NoError(t, m.Close(background))
	restarted := time.Now()
	servers[0].Restart()
	servers[1].Restart()
	// Both nodes of the majority have forgotten the lease. Without the guard another
	// client could be granted the lock now.
	var quarantined time.Duration
	var next *quorumlock.Lease
	eventually(t, "the nodes vote after the quarantine", func() bool {
		s, _ := strict.Inspect(background, "job") // no majority while it reconnects
		quarantined = max(quarantined, s.Nodes[0].QuarantinedFor)
		next, err = strict.TryAcquire(background, "job")
		return err == nil
	})
	assert.GreaterOrEqual(t, time.Since(restarted), 3*time.Second)
	assert.Positive(t, quarantined)
	assert.Greater(t, next.Token(), l.Token())
	eventually(t, "the log has the start and the end of the quarantine", func() bool {
		_, after, quarantined := strings.Cut(log.String(), "node in quarantine: it votes when that ends")
		return quarantined && strings.Contains(after, "quorumlock: node votes")
	})
}

// A Manager lives as long as its process, so it must keep no memory of calls and leases
// that have ended, whatever the nodes did meanwhile.
func TestEndedCallsAndLeasesLeaveNothingInMemory(t *testing.T) {
	const many = 200
	m, servers := newManager(t, 3, quorumlock.WithTTL(time.Second))
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
		l, err := m.Acquire(ctx, name)
		if !assert.NoError(t, err) {
			return
		}
		for l.Err() == nil { // a round in between finds a majority and heals the other nodes
			for _, s := range servers {
				s.MustDo("DEL", quorumlock.DefaultPrefix+name)
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
	eventually(t, "nothing stays in memory", func() bool {
		for range 3 { // pools keep objects for two collections
			runtime.GC()
		}
		return !slices.ContainsFunc(values, func(v weak.Pointer[value]) bool { return v.Value() != nil })
	})
}

// A new client that trusts empty nodes writes a marker after a data loss. Managers that
// knew the data notice it: they ignore the node's votes until no lease can have been
// forgotten.
func TestAMarkerThatATrustingClientWroteAfterALossIsNoticed(t *testing.T) {
	const longest = 4 * time.Second
	guard := []quorumlock.Option{
		quorumlock.WithTTL(2 * time.Second), quorumlock.WithRestartGuard(longest), quorumlock.WithTrustEmptyNodes(),
	}
	m, servers := newManager(t, 3, guard...)
	markers := func() (all []any) {
		for _, s := range servers {
			all = append(all, s.MustDo("GET", markerKey))
		}
		return all
	}
	l, err := m.Acquire(background, "job", quorumlock.WithoutRenewal())
	require.NoError(t, err)
	before := markers()
	for _, s := range servers {
		s.MustDo("FLUSHALL")
	}
	connect(t, redistest.Addrs(servers), guard...)
	flushed := time.Now()
	for i, marker := range markers() {
		assert.NotEqual(t, before[i], marker, "the same process, and other data")
	}
	_, err = m.TryAcquire(background, "job")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum, "the former holder is unknown: %v", err)
	var next *quorumlock.Lease
	eventually(t, "the nodes vote after the quarantine", func() bool {
		next, err = m.TryAcquire(background, "job")
		return err == nil
	})
	assert.GreaterOrEqual(t, time.Since(flushed), longest-time.Second)
	assert.Greater(t, next.Token(), l.Token())
}

// Many leases are lost at once. Their remaining keys are deleted on every node as soon as
// that node answers again.
func TestTheKeysOfManyLeasesLostAtOnceAreReleased(t *testing.T) {
	const many = 9000
	servers := redistest.Start(t, 3)
	proxies, addrs := proxied(t, servers)
	m := connect(t, addrs, quorumlock.WithTTL(6*time.Second), quorumlock.WithNodeTimeout(2*time.Second), quorumlock.WithLockDelay(time.Hour))
	leases := make([]*quorumlock.Lease, many)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := i; j < many; j += 64 {
				l, err := m.Acquire(background, fmt.Sprint("job-", j))
				if !assert.NoError(t, err) {
					return
				}
				leases[j] = l
			}
		})
	}
	all.Wait()
	left := func() (n int64) {
		for _, s := range servers {
			n += s.MustDo("DBSIZE").(int64)
		}
		return n
	}
	eventually(t, "all votes are in", func() bool { return left() >= 3*many })
	for _, p := range proxies[1:] {
		p.Swallow()
	}
	for _, l := range leases {
		<-l.Done()
		require.ErrorIs(t, l.Err(), quorumlock.ErrLost)
	}
	time.Sleep(time.Second) // the keys are released when the guard has passed
	for _, p := range proxies[1:] {
		p.Heal()
	}
	eventually(t, "released everywhere, long before the keys expire", func() bool {
		return len(keysBut(t, servers, "\xff")) == 0
	})
}
