package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// With a headless service, a name with several addresses or a balancing proxy, the connections of different clients
// reach different servers, and each client would be granted the lock.

const leadsToSeveral = "this address leads to several servers"

func TestAnAddressThatLeadsToSeveralServersGivesNoVote(t *testing.T) {
	testkit.OnlyAddrs(t, "it has servers of its own")
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		for _, guard := range [][]quorumlock.Option{nil, {quorumlock.WithRestartGuard(15 * time.Second), quorumlock.WithTrustEmptyNodes()}} {
			for _, random := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d nodes, guard %v, random %v", nodes, guard != nil, random), func(t *testing.T) {
					t.Parallel()
					balanced(t, nodes, guard, random)
				})
			}
		}
	}
}

func balanced(t *testing.T, nodes int, guard []quorumlock.Option, random bool) {
	servers := redistest.Start(t, nodes+1)
	behind := []*redistest.Server{servers[0], servers[nodes]}
	proxy := redistest.NewProxy(t, servers[0].Addr())
	list := quorumlock.Addrs(append([]string{proxy.Addr()}, redistest.Addrs(servers[1:nodes])...)...)
	one := open(t, list, guard...)
	noticedBy := func(err error) bool { return err != nil && strings.Contains(err.Error(), leadsToSeveral) }
	noticed := func() bool { return noticedBy(one.Nodes()[0].Err) }
	l := testkit.Acquired(t, one, "job")
	proxy.Balance(random, servers[nodes].Addr(), servers[0].Addr())
	for range 2 {
		if random {
			break
		}
		// It needs an address of its own: a connection of the other client in between would take one of the two
		// servers.
		own := redistest.NewProxy(t, servers[0].Addr())
		own.Balance(false, servers[nodes].Addr(), servers[0].Addr())
		other, err := quorumlock.New(background, quorumlock.Addrs(append([]string{own.Addr()}, redistest.Addrs(servers[1:nodes])...)...), guard...)
		if err == nil { // New waits 250 ms for the node once the others have answered
			require.Equal(t, 3, nodes)
			require.Eventually(t, func() bool { err = other.Nodes()[0].Err; return noticedBy(err) }, time.Minute, 5*time.Millisecond)
			require.NoError(t, other.Close(background))
		}
		require.ErrorContains(t, err, "a headless service, a name with several addresses or a balancing proxy")
		require.ErrorContains(t, err, runID(behind[0]))
		require.ErrorContains(t, err, runID(behind[1]))
	}
	testkit.Renewed(t, l)
	testkit.Released(t, l)
	for tries := 0; !noticed(); tries++ { // each new connection is compared with another one
		require.Less(t, tries, 30)
		proxy.Reset()
		deadline := time.Now().Add(time.Second)
		for !noticed() && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	for named, tries := 0, 0; named < 20; tries++ {
		require.Less(t, tries, 60)
		l, err := one.TryAcquire(background, "after")
		switch {
		case nodes == 1 && !noticedBy(err):
			require.ErrorIs(t, err, quorumlock.ErrNoQuorum) // a connection is under way
		case nodes == 1:
			named++
		case err != nil && guard != nil: // the others may know the server behind the address as another node
			require.ErrorContains(t, err, "this one uses another list of 3")
			named++
		default:
			require.NoError(t, err, "the others are a majority")
			named++
		}
		assert.Zero(t, testkit.Locks(t, behind, "after"))
		if err == nil {
			testkit.Released(t, l)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if random || nodes > 1 {
		return // the others take 20 s as well
	}
	proxy.Retarget(servers[0].Addr())
	proxy.Reset()
	require.Eventually(t, func() bool { return one.Nodes()[0].Err == nil }, 2*time.Minute, 50*time.Millisecond, "the address is repaired")
}

// The address of a master that Sentinels or a cluster name may belong to a balancer, too.
func TestAMastersAddressThatLeadsToSeveralServersGivesNoVote(t *testing.T) {
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	master, _ := g.Master()
	owners := redistest.StartOwners(t, 2, redistest.Options{})
	for claim, k := range map[string]struct {
		option rueidis.ClientOption
		addr   string // of the master
		from   *redistest.Server
		to     *redistest.Server // some connections to it go there
	}{
		"of Sentinels": {quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...), g.Addrs()[master], g.Servers()[master], redistest.Start(t, 1)[0]},
		"of a cluster": {quorumlock.ClusterSlot(tag, owners[0].Addr()), owners[0].Addr(), owners[0], owners[1]},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			var balances atomic.Bool
			var turn atomic.Int64
			k.option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if addr == k.addr && balances.Load() && turn.Add(1)%2 == 1 {
					addr = k.to.Addr()
				}
				return d.DialContext(ctx, "tcp", addr)
			}
			m := open(t, []rueidis.ClientOption{k.option}, quorumlock.WithPrefix(tag+":"), quorumlock.WithTTL(2*time.Second),
				quorumlock.WithRestartGuard(2*time.Second+window), quorumlock.WithFailover(window))
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			testkit.Released(t, l)
			balances.Store(true) // the established connections stay where they are
			require.Eventually(t, func() bool {
				err := m.Nodes()[0].Err
				return err != nil && strings.Contains(err.Error(), leadsToSeveral) && strings.Contains(err.Error(), runID(k.from)) &&
					strings.Contains(err.Error(), runID(k.to))
			}, time.Minute, 5*time.Millisecond, "at the next look")
			_, err = m.TryAcquire(background, "job")
			require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		})
	}
}

// A failover to a replica and back leads the address to the first process again. The servers' replication data shows
// that there is no balancer: the first process has followed the second.
func TestAFailbackBehindOneAddressVotesAtOnce(t *testing.T) {
	testkit.OnlyAddrs(t, "it has servers of its own")
	t.Parallel()
	servers := redistest.Start(t, 2, "--repl-diskless-sync-delay", "0")
	follows := func(replica, of *redistest.Server) {
		host, port, _ := net.SplitHostPort(of.Addr())
		replica.MustDo("REPLICAOF", host, port)
		require.Eventually(t, func() bool {
			return strings.Contains(fmt.Sprint(replica.MustDo("INFO", "replication")), "master_link_status:up")
		}, 20*time.Second, 10*time.Millisecond)
	}
	follows(servers[1], servers[0])
	proxy := redistest.NewProxy(t, servers[0].Addr())
	m := open(t, quorumlock.Addrs(proxy.Addr()))
	for i := range 6 {
		old, next := servers[i%2], servers[1-i%2]
		testkit.Released(t, testkit.Acquired(t, m, "job"))
		next.MustDo("REPLICAOF", "NO", "ONE")
		proxy.Retarget(next.Addr())
		follows(old, next)
		began := time.Now()
		for {
			l, err := m.TryAcquire(background, "job")
			if err == nil {
				testkit.Released(t, l)
				break
			}
			require.NotContains(t, err.Error(), leadsToSeveral, "failover %d", i)
			require.Less(t, time.Since(began), 15*time.Second, "failover %d", i)
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("failover %d: voted after %v", i, time.Since(began).Round(time.Millisecond))
	}
}
