package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Checks of the nodes' identity: there are as many servers as addresses, all are masters, and none may lose a lock.

// refusedNode requires that New refuses a node, and that the error has the node's number,
// its address, all of texts and the remedy.
func refusedNode(t *testing.T, nodes []rueidis.ClientOption, texts ...string) {
	t.Helper()
	var err error
	testkit.Eventually(t, "all greeted", func() bool {
		var m *quorumlock.Manager
		if m, err = quorumlock.New(background, nodes); err == nil {
			// A node that was too slow is down, and is checked when it connects. No
			// refused node may have been accepted.
			s, _ := m.Inspect(background, "job")
			assert.True(t, slices.ContainsFunc(s.Nodes, func(n quorumlock.NodeStatus) bool { return n.Err != nil }), "all of them vote")
			require.NoError(t, m.Close(background))
			return t.Failed()
		}
		return errors.Is(err, quorumlock.ErrInvalid)
	})
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	var invalid *quorumlock.InvalidError
	require.ErrorAs(t, err, &invalid)
	assert.NotEmpty(t, invalid.Fix)
	assert.Contains(t, err.Error(), invalid.Fix)
	assert.Contains(t, err.Error(), "node ")
	for _, text := range texts {
		assert.Contains(t, err.Error(), text)
	}
}

// unix returns a node at a Unix socket.
func unix(path string) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: []string{path},
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", addr)
		},
	}
}

func TestOneServerUnderTwoAddressesIsNamedAtTheStart(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about what one server is")
	servers := redistest.StartWith(t, 3, redistest.Options{Socket: true})
	addrs := redistest.Addrs(servers)
	_, port, _ := strings.Cut(addrs[0], ":")
	vip := redistest.NewProxy(t, addrs[0])
	const same = "same server"
	for _, c := range []struct {
		claim string
		last  rueidis.ClientOption
		text  string
	}{
		{"the same text", quorumlock.Addrs(addrs[0])[0], "is the same as node 0"},
		{"localhost", quorumlock.Addrs("localhost:" + port)[0], same},
		{"another spelling of the address", quorumlock.Addrs("[::ffff:127.0.0.1]:" + port)[0], same},
		{"a Unix socket by a dial function", unix(servers[0].SocketAddr()), same},
		{"a Unix socket", quorumlock.Addrs(servers[0].SocketAddr())[0], same},
		{"the URL of a Unix socket", quorumlock.Addrs("unix://" + servers[0].SocketAddr())[0], same},
		{"a virtual address", quorumlock.Addrs(vip.Addr())[0], same},
	} {
		t.Run(c.claim, func(t *testing.T) {
			for range 3 { // the order of the connections varies
				refusedNode(t, append(quorumlock.Addrs(addrs...), c.last), c.text, addrs[0], c.last.InitAddress[0])
			}
		})
	}
	t.Run("both behind virtual addresses", func(t *testing.T) {
		other := redistest.NewProxy(t, addrs[0])
		refusedNode(t, quorumlock.Addrs(vip.Addr(), addrs[1], other.Addr()), same, vip.Addr(), other.Addr())
	})
	t.Run("each of them is accepted alone", func(t *testing.T) {
		m := open(t, append(quorumlock.Addrs("localhost:"+port, addrs[1]), unix(servers[2].SocketAddr())), patient()...)
		l := testkit.Acquired(t, m, "job")
		testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
		testkit.Released(t, l)
	})
}

func TestNodesAreReachedByUnixSockets(t *testing.T) {
	testkit.OnlyAddrs(t, "it has addresses of its own")
	servers := redistest.StartWith(t, 3, redistest.Options{Socket: true})
	path := func(i int) string { return servers[i].SocketAddr() }
	m := open(t, quorumlock.Addrs(path(0), "unix://"+path(1), servers[2].Addr()), patient()...)
	l := testkit.Acquired(t, m, "job")
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	assert.Equal(t, path(0), m.Nodes()[0].Addr)
	testkit.Released(t, l)

	refusedNode(t, quorumlock.Addrs(path(0), path(1), "unix://"+strings.Replace(path(0), "/", "//", 1)), "is the same as node 0")
	secure := quorumlock.Addrs(path(0))
	secure[0].TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	refusedNode(t, secure, "does not speak TLS on a Unix socket")
	for _, addr := range []string{"run/redis.sock", "unix://run/redis.sock", "unix://user:secret@/run/redis.sock", path(0) + "," + path(1), path(0) + " "} {
		_, err := quorumlock.New(t.Context(), quorumlock.Addrs(addr))
		require.ErrorIs(t, err, quorumlock.ErrInvalid, addr)
		assert.NotContains(t, err.Error(), "secret")
	}
	_, err := quorumlock.New(t.Context(), quorumlock.Addrs(path(0)+".none"))
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	assert.ErrorContains(t, err, path(0)+".none")
}

// nodeEvents is a subscription's last event about each node.
type nodeEvents struct {
	mu   sync.Mutex
	last map[int]quorumlock.NodeChanged
}

// listen records a Manager's events about its nodes.
func listen(m *quorumlock.Manager) *nodeEvents {
	s, all := m.Subscribe(1000), &nodeEvents{last: map[int]quorumlock.NodeChanged{}}
	go func() { // ends with the Manager
		for e := range s.C() {
			if changed, ok := e.(quorumlock.NodeChanged); ok {
				all.mu.Lock()
				all.last[changed.Node] = changed
				all.mu.Unlock()
			}
		}
	}()
	return all
}

// await waits until the last event about a node has a text, "" for no error.
func (a *nodeEvents) await(t *testing.T, node int, text string) quorumlock.NodeChanged {
	t.Helper()
	var last quorumlock.NodeChanged
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		last = a.last[node]
		return text == "" && last.Err == nil || text != "" && last.Err != nil && strings.Contains(last.Err.Error(), text)
	}, 3*time.Minute, 5*time.Millisecond, "node %d: %q", node, text) // a node may be watched for 20 s, and again if a busy machine breaks a connection
	return last
}

// A virtual address moves to the server of another node. Every reconnection detects it,
// and the node votes again as soon as the address moves back.
func TestANodeWhoseAddressMovesOntoAnotherNodeDoesNotVote(t *testing.T) {
	testkit.OnlyNightly(t, "it waits for 20 s")
	testkit.OnlyAddrs(t, "it is about what one server is")
	t.Parallel()
	rounds := testkit.Count(6, 1) // a node that was another server is watched for 20 s
	servers := redistest.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	var log transcript
	m := open(t, quorumlock.Addrs(addrs...), patient(quorumlock.WithLogger(log.logger()))...)
	all := listen(m)
	for range rounds {
		proxies[1].Retarget(servers[0].Addr())
		proxies[1].Reset()
		changed := all.await(t, 1, "same server")
		assert.Equal(t, addrs[1], changed.Addr)
		assert.ErrorContains(t, changed.Err, addrs[0], "the other node")
		assert.ErrorContains(t, changed.Err, "list each server once", "the remedy")
		l := testkit.Acquired(t, m, "job")
		require.ErrorContains(t, statusOf(t, m, 1).Err, "same server")
		testkit.Released(t, l)

		proxies[1].Retarget(servers[1].Addr())
		proxies[1].Reset()
		all.await(t, 1, "")
	}
	assert.Contains(t, log.String(), "node grants no locks")
	assert.Contains(t, log.String(), "same server")
}

// statusOf returns a node's status. It ignores the error of Inspect.
func statusOf(t *testing.T, m *quorumlock.Manager, node int) quorumlock.NodeStatus {
	t.Helper()
	s, _ := m.Inspect(background, "job")
	require.Greater(t, len(s.Nodes), node)
	return s.Nodes[node]
}

// One server is left behind two addresses. No lock may be granted, however often the
// address moves and whichever Manager asks.
func TestOneServerBehindTwoAddressesIsNeverAQuorum(t *testing.T) {
	testkit.OnlyNightly(t, "it waits for 40 s")
	testkit.OnlyAddrs(t, "it is about what one server is")
	t.Parallel()
	rounds := testkit.Count(10, 2)
	servers := redistest.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := open(t, quorumlock.Addrs(addrs...), patient()...)
	all := listen(m)
	for round := range rounds {
		name := fmt.Sprintf("job-%d", round)
		proxies[2].Refuse()
		proxies[1].Retarget(servers[0].Addr())
		proxies[1].Reset()
		// From here on every request can reach at most one server.
		var asking sync.WaitGroup
		for i := range 4 {
			asking.Go(func() {
				for j := range 25 {
					_, err := m.TryAcquire(background, fmt.Sprintf("%s-%d-%d", name, i, j))
					assert.ErrorIs(t, err, quorumlock.ErrNoQuorum, "one server is no quorum")
				}
			})
		}
		asking.Wait()
		all.await(t, 1, "same server")
		proxies[1].Retarget(servers[1].Addr())
		proxies[1].Reset()
		proxies[2].Heal()
		all.await(t, 1, "")
		all.await(t, 2, "")
	}
	testkit.Eventually(t, "the attempts leave no keys", func() bool {
		for _, key := range testkit.Keys(t, servers) {
			if !strings.Contains(key, "\xff") {
				return false
			}
		}
		return true
	})
}

func TestAReplicaOfAnotherNodeIsNamedAtTheStart(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about what one server is")
	t.Parallel()
	servers := redistest.Start(t, 3, "--repl-diskless-sync-delay", "0")
	addrs := redistest.Addrs(servers)
	replicate(t, servers[2], servers[0])
	for range 3 {
		refusedNode(t, quorumlock.Addrs(addrs[2]), addrs[2], "replica", "list the master")
		m := open(t, quorumlock.Addrs(addrs...), patient()...)
		testkit.Eventually(t, "two of three are enough, and the replica does not vote", func() bool {
			err := m.Nodes()[2].Err
			return err != nil && strings.Contains(err.Error(), "replica") && strings.Contains(err.Error(), "list the master") && m.Ready() == nil
		})
	}
	// After its promotion the replica is a separate server again, but with old data.
	servers[2].MustDo("REPLICAOF", "NO", "ONE")
	var log transcript
	m := open(t, quorumlock.Addrs(addrs...), patient(quorumlock.WithLogger(log.logger()))...)
	testkit.Eventually(t, "all votes are in", func() bool {
		l, err := m.TryAcquire(background, "job")
		return err == nil && l.Release(background) == nil
	})
	testkit.Eventually(t, "the log says that they were one", func() bool { return strings.Contains(log.String(), "were once master and replica") })
}

// replicate makes a replica and waits until it receives its master's writes.
func replicate(t *testing.T, replica, master *redistest.Server) {
	t.Helper()
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica.MustDo("REPLICAOF", host, port)
	master.MustDo("SET", "replicated", "v")
	testkit.Eventually(t, "in step", func() bool {
		value, err := replica.Do("GET", "replicated") // an error while the replica loads
		return err == nil && value == "v"
	})
	// A master may hold the next write back until the replica confirms the data.
	master.MustDo("DEL", "replicated")
	testkit.Eventually(t, "following", func() bool { return replica.MustDo("EXISTS", "replicated") == int64(0) })
}

// A connected master becomes a replica, and refuses writes at once. A new connection
// detects it, and the next check detects it over the old connection.
func TestAMasterThatIsDemotedUnderAManagerStopsVoting(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about what one server is")
	t.Parallel()
	servers := redistest.Start(t, 4, "--repl-diskless-sync-delay", "0") // the last is a master outside the quorum
	proxies, addrs := testkit.Proxied(t, servers[:3])
	m := open(t, quorumlock.Addrs(addrs...), patient()...)
	all := listen(m)
	const rounds = 4
	for round := range rounds {
		master := servers[3]
		if round%2 == 0 {
			master = servers[0] // or one of the nodes
		}
		l := testkit.Acquired(t, m, "job")
		testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers[:3], "job") == 3 })
		replicate(t, servers[2], master)
		// Over the old connection.
		testkit.Released(t, testkit.Acquired(t, m, "other")) // two masters are left
		testkit.Renewed(t, l)
		if round == 0 {
			changed := all.await(t, 2, "replica") // without a request, within 10 s
			assert.ErrorContains(t, changed.Err, "list the master")
		}
		// Two masters are left and one of them fails: the replica must not replace it.
		proxies[1].Refuse()
		_, err := m.TryAcquire(background, "alone")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		proxies[1].Heal()
		all.await(t, 1, "")
		// Over a new one.
		proxies[2].Reset()
		changed := all.await(t, 2, "replica")
		assert.Equal(t, addrs[2], changed.Addr)
		testkit.Released(t, l)

		servers[2].MustDo("REPLICAOF", "NO", "ONE")
		servers[2].MustDo("FLUSHALL") // the master's data
		all.await(t, 2, "")
	}
}

// A lock that a replica has copied from its master is not a vote of the replica. An acquisition that finds its own
// owner value there has one vote, not two.
func TestALockThatWasReplicatedIsNoVote(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about what one server is")
	servers := redistest.Start(t, 3, "--repl-diskless-sync-delay", "0")
	proxies, addrs := testkit.Proxied(t, servers)
	m := open(t, quorumlock.Addrs(addrs...), patient()...)
	testkit.Eventually(t, "all vote", func() bool {
		l, err := m.TryAcquire(background, "job")
		return err == nil && l.Release(background) == nil
	})
	replicate(t, servers[2], servers[0]) // and its connection stays
	proxies[1].Refuse()
	proxies[2].DelayCommand(func(cmd []string) bool { return cmd[0] == "EVALSHA" }, 100*time.Millisecond) // slower than replication
	for i := range 5 {
		l, err := m.TryAcquire(background, fmt.Sprint("job", i))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum, "one master is no quorum")
		require.Nil(t, l)
	}
}

func TestAClusterAndASentinelAmongTheNodesAreNamedAtTheStart(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about what one server is")
	servers := redistest.Start(t, 2)
	addrs := redistest.Addrs(servers)
	cluster := redistest.Start(t, 1, "--cluster-enabled", "yes")[0].Addr()
	refusedNode(t, quorumlock.Addrs(addrs[0], cluster, addrs[1]), "node 1", cluster, "cluster mode", "list standalone masters")
	sentinel := startSentinel(t).Addr()
	refusedNode(t, quorumlock.Addrs(addrs[0], addrs[1], sentinel), "node 2", sentinel, "sentinel mode", "name the Sentinels with quorumlock.Sentinel")
}

// startSentinel starts a server in sentinel mode, which takes other arguments.
func startSentinel(t *testing.T) *redistest.Server {
	t.Helper()
	real := os.Getenv("REDIS_SERVER")
	if real == "" {
		real = "redis-server"
	}
	script := filepath.Join(t.TempDir(), "sentinel")
	require.NoError(t, os.WriteFile(script, []byte(`#!/bin/sh
while [ "$1" != --port ]; do shift; done
: > sentinel.conf
exec `+real+` ./sentinel.conf --sentinel --bind 127.0.0.1 --port "$2"
`), 0o700))
	t.Setenv("REDIS_SERVER", script)
	return redistest.Start(t, 1)[0]
}

// A cluster node, a replica or another node's server may come to an address later. The Manager detects both its arrival
// and its departure.
func TestAServerThatComesToANodesAddressIsCheckedAnew(t *testing.T) {
	testkit.OnlyNightly(t, "it waits for 24 s")
	testkit.OnlyAddrs(t, "it is about what one server is")
	t.Parallel()
	servers := redistest.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := open(t, quorumlock.Addrs(addrs...), patient()...)
	all := listen(m)
	replica := redistest.Start(t, 2, "--repl-diskless-sync-delay", "0")
	replicate(t, replica[0], replica[1])
	cluster := redistest.Start(t, 1, "--cluster-enabled", "yes")[0]
	locked := redistest.Start(t, 1, "--requirepass", "secret")[0]
	for range testkit.Count(2, 1) {
		for _, c := range []struct{ addr, text string }{
			{cluster.Addr(), "cluster mode"}, {replica[0].Addr(), "replica"}, {locked.Addr(), "NOAUTH"}, {servers[0].Addr(), "same server"},
		} {
			proxies[2].Retarget(c.addr)
			proxies[2].Reset()
			all.await(t, 2, c.text)
			err := statusOf(t, m, 2).Err
			assert.Equal(t, c.text != "replica", errors.As(err, new(*wire.ConfigError)), "a former master may be one again: %v", err)
			l := testkit.Acquired(t, m, "job")
			testkit.Released(t, l)
			proxies[2].Retarget(servers[2].Addr())
			proxies[2].Reset()
			all.await(t, 2, "")
		}
	}
}

func TestAWarningNamesAPolicyThatMayEvictLocks(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about what one server is")
	t.Parallel()
	policies := []string{"noeviction", "volatile-lru", "allkeys-lfu", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-lru", "allkeys-random"}
	for _, policy := range policies[:testkit.Count(len(policies), 3)] {
		for _, limit := range []string{"0", "64mb"} {
			t.Run(policy+" "+limit, func(t *testing.T) {
				t.Parallel()
				bad := policy != "noeviction" && limit != "0"
				servers := append(redistest.Start(t, 2), redistest.Start(t, 1, "--maxmemory", limit, "--maxmemory-policy", policy)...)
				proxies, addrs := testkit.Proxied(t, servers)
				var log transcript
				m := open(t, quorumlock.Addrs(addrs...), patient(quorumlock.WithLogger(log.logger()))...)
				warnings := func() (n int) {
					for line := range strings.Lines(log.String()) {
						if strings.Contains(line, `"level":"WARN"`) && strings.Contains(line, policy) {
							n++
							assert.Contains(t, line, `"node":2`)
							assert.Contains(t, line, addrs[2])
							assert.Contains(t, line, "noeviction", "the remedy")
						}
					}
					return n
				}
				l := testkit.Acquired(t, m, "job")
				testkit.Eventually(t, "the node votes", func() bool { return testkit.Locks(t, servers, "job") == 3 })
				if bad {
					testkit.Eventually(t, "warned", func() bool { return warnings() == 1 })
					require.ErrorContains(t, statusOf(t, m, 2).Warning, policy)
				}
				// Every new connection checks the policy again.
				proxies[2].Refuse()
				// Wait for the log, not only for the state: a break that heals before the
				// node tries to connect changes no state, so it is not reported.
				testkit.Eventually(t, "down", func() bool { return strings.Contains(log.String(), "node grants no locks") })
				proxies[2].Heal()
				testkit.Eventually(t, "up", func() bool { return statusOf(t, m, 2).Err == nil })
				if bad {
					testkit.Eventually(t, "warned again", func() bool { return warnings() >= 2 })
				} else {
					assert.Zero(t, warnings())
					require.NoError(t, statusOf(t, m, 2).Warning)
				}
				testkit.Released(t, l)
				// The guard would not notice an eviction.
				guarded := open(t, quorumlock.Addrs(addrs...), patient(quorumlock.WithRestartGuard(time.Minute))...)
				testkit.Eventually(t, "refused, unless it evicts nothing", func() bool {
					err := guarded.Nodes()[2].Err
					return err != nil && strings.Contains(err.Error(), policy) == bad
				})
			})
		}
	}
}
