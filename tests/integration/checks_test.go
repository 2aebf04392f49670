package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// throughChecks is longer than two checks of the nodes and a lease, so a check that ends a lease shows. The cases of a
// test share this wait.
const throughChecks = 30 * time.Second

// checked are options for a lease that survives a busy machine and would end between two checks.
func checked(opts ...quorumlock.Option) []quorumlock.Option {
	return append(opts, quorumlock.WithTTL(8*time.Second), quorumlock.WithNodeTimeout(2*time.Second))
}

// fullServer is a case of TestLeasesOutliveAFullServer.
type fullServer struct {
	claim   string
	servers []*redistest.Server
	leases  []*quorumlock.Lease
}

// docs/reference.md promises that a server at its limit grants nothing, and that everything else continues.
func TestLeasesOutliveAFullServer(t *testing.T) {
	testkit.OnlyNightly(t, "leases are renewed for 30 s")
	testkit.OnlyAddrs(t, "it fills single servers")
	t.Parallel()
	var cases []fullServer
	for claim, opts := range map[string][]quorumlock.Option{
		"plain": nil, "guarded": {quorumlock.WithRestartGuard(10 * time.Second), quorumlock.WithTrustEmptyNodes()},
	} {
		for _, nodes := range []int{1, 3} {
			for full := 1; full <= nodes; full += 2 {
				k := fullServer{claim: fmt.Sprintf("%s, %d of %d", claim, full, nodes), servers: redistest.Start(t, nodes)}
				m := testkit.Connect(t, redistest.Addrs(k.servers), checked(opts...)...)
				shared, err := m.Acquire(background, "read", quorumlock.Shared())
				require.NoError(t, err)
				k.leases = []*quorumlock.Lease{testkit.Acquired(t, m, "job"), testkit.Acquired(t, m, "other"), shared}
				for _, s := range k.servers[:full] {
					s.MustDo("CONFIG", "SET", "maxmemory", "1")
				}
				_, err = m.TryAcquire(background, "new")
				require.Equal(t, full > nodes/2, err != nil, "%s: %v", k.claim, err)
				cases = append(cases, k)
			}
		}
	}
	time.Sleep(throughChecks)
	for _, k := range cases {
		t.Run(k.claim, func(t *testing.T) {
			for _, l := range k.leases {
				require.NoError(t, l.Err(), l.Name())
				require.True(t, l.Valid(), l.Name())
				require.NoError(t, l.Release(background), l.Name())
				testkit.Eventually(t, "the name is free", func() bool { return testkit.Locks(t, k.servers, l.Name()) == 0 })
			}
		})
	}
}

// withoutRight is a case of TestARightThatIsTakenAwayEndsNoLease. Each case has its own user on a shared server.
type withoutRight struct {
	claim, rule, user string
	server            *redistest.Server
	m                 *quorumlock.Manager
	lease             *quorumlock.Lease
}

// A lease needs no more rights than its renewals do, which docs/reference.md#access-rights lists.
func TestARightThatIsTakenAwayEndsNoLease(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the rights of one server")
	t.Parallel()
	renewal := []string{"+evalsha", "+time", "+getrange", "+mget", "+pexpireat"}
	var cases []withoutRight
	for claim, opts := range map[string][]quorumlock.Option{
		"plain": nil, "guarded": {quorumlock.WithRestartGuard(30 * time.Second), quorumlock.WithTrustEmptyNodes()},
	} {
		server := redistest.Start(t, 1)[0]
		for _, rule := range documented(t) {
			if !strings.HasPrefix(rule, "+") || slices.Contains(renewal, rule) {
				continue
			}
			k := withoutRight{claim: claim + " " + rule, rule: rule, user: "without" + rule, server: server}
			server.MustDo(append([]string{"ACL", "SETUSER", k.user}, documented(t)...)...)
			k.m = open(t, as(t, k.user, []string{server.Addr()}), checked(opts...)...)
			k.lease = testkit.Acquired(t, k.m, k.claim)
			cases = append(cases, k)
		}
	}
	for _, k := range cases {
		k.server.MustDo("SET", testkit.Prefix+"\xffh", "1") // others wait, so renewals count them
		k.server.MustDo("ACL", "SETUSER", k.user, "-"+k.rule[1:])
	}
	time.Sleep(throughChecks)
	for _, k := range cases {
		t.Run(k.claim, func(t *testing.T) {
			require.NoError(t, k.lease.Err())
			require.True(t, k.lease.Valid())
			k.server.MustDo("ACL", "SETUSER", k.user, k.rule)
			require.NoError(t, k.lease.Release(background))
			assert.Zero(t, testkit.Locks(t, []*redistest.Server{k.server}, k.claim))
			testkit.Eventually(t, "it votes again", func() bool {
				l, err := k.m.TryAcquire(background, k.claim)
				return err == nil && l.Release(background) == nil
			})
		})
	}
}

// A node that may evict locks gives no votes under the guard. Renewals continue there, so it must remember the list
// that they rely on, and must not learn another one.
func TestANodeThatGivesNoVotesRemembersTheListOfTheLeasesThere(t *testing.T) {
	testkit.OnlyAddrs(t, "it changes the settings of single servers")
	t.Parallel()
	servers := redistest.Start(t, 3)
	m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
	l := testkit.Acquired(t, m, "job")
	ends := func() (all []string) {
		for _, part := range servers[0].MustDo("ZRANGE", testkit.Prefix+"\xffl", "0", "-1", "WITHSCORES").([]any) {
			all = append(all, part.(string))
		}
		return all
	}
	testkit.Eventually(t, "the list and the node's identity", func() bool { return len(ends()) == 4 })
	servers[0].MustDo("CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "volatile-lru")
	testkit.Eventually(t, "it gives no votes", func() bool { return m.Nodes()[0].Err != nil })
	before := ends()
	require.Len(t, before, 4, "the list and the node's identity")
	testkit.Eventually(t, "the list is prolonged", func() bool {
		now := ends()
		return len(now) == 4 && now[0] == before[0] && now[1] > before[1]
	})
	servers[0].MustDo("DEL", testkit.Prefix+"\xffl")
	testkit.Eventually(t, "it is asked", func() bool { return len(ends()) > 0 })
	time.Sleep(2 * time.Second)
	require.Len(t, ends(), 2, "the identity alone")
	testkit.Released(t, l)
	servers[0].MustDo("CONFIG", "SET", "maxmemory-policy", "noeviction")
}

// While a guarded lease is valid, two of its three nodes come back empty, before a client with the guard connects to
// them. Clients without the guard get no lock: one that has seen the marker on any node, and one that starts now.
func TestNoClientWithoutTheGuardGetsInWhereNodesComeBackEmpty(t *testing.T) {
	testkit.OnlyAddrs(t, "every group has the guard")
	t.Parallel()
	servers := redistest.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	guarded := testkit.Connect(t, addrs, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes(), quorumlock.WithTTL(time.Minute))
	l := testkit.Acquired(t, guarded, "job", quorumlock.WithoutRenewal())
	testkit.Eventually(t, "it is everywhere", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	early, err := start(t, testkit.Nodes(t, redistest.Addrs(servers)...))
	require.NoError(t, err)
	defer func() { require.NoError(t, early.Close(background)) }()
	for i, s := range servers[1:] {
		proxies[i+1].Refuse()
		s.Restart() // empty, and nothing writes a marker
	}
	late, err := start(t, testkit.Nodes(t, redistest.Addrs(servers)...))
	require.NoError(t, err)
	defer func() { require.NoError(t, late.Close(background)) }()
	refusals := map[string]int{}
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(5 * time.Millisecond) {
		for what, m := range map[string]*quorumlock.Manager{"early": early, "late": late} {
			got, err := m.TryAcquire(background, "job")
			require.Nil(t, got, "%s: both are valid: %v", what, l.Valid())
			require.Error(t, err)
			if strings.Contains(err.Error(), "): the other clients of this node use the restart guard") {
				refusals[what]++
			}
		}
	}
	require.True(t, l.Valid())
	require.Positive(t, refusals["early"])
	require.Positive(t, refusals["late"])
	require.ErrorContains(t, early.Nodes()[1].Err, "the other clients of this node use the restart guard")
}

// A pilot with the guard binds other clients exactly as long as one of its leases may be alive.
func TestTheGuardOfAPilotEndsWithItsLastLease(t *testing.T) {
	testkit.OnlyNightly(t, "the marker of a guard ends after 34 s")
	testkit.OnlyAddrs(t, "every group has the guard")
	t.Parallel()
	servers := redistest.Start(t, 1)
	pilot, err := testkit.New(t, redistest.Addrs(servers), quorumlock.WithRestartGuard(3*time.Second), quorumlock.WithTrustEmptyNodes(), quorumlock.WithTTL(time.Second))
	require.NoError(t, err)
	testkit.Released(t, testkit.Acquired(t, pilot, "job"))
	require.NoError(t, pilot.Close(background))
	last := time.Now()
	m := testkit.Connect(t, redistest.Addrs(servers), checked()...)
	events := m.Subscribe(100)
	for {
		l, err := m.TryAcquire(background, "job")
		if err == nil {
			require.NoError(t, l.Release(background))
			break
		}
		require.ErrorContains(t, err, "set WithRestartGuard to 3s")
		require.ErrorContains(t, err, "the guard ends in ")
		require.Less(t, time.Since(last), 50*time.Second, "it binds forever: %v", err)
		time.Sleep(100 * time.Millisecond)
	}
	require.Greater(t, time.Since(last), 30*time.Second, "3 s, and the age of what the votes of a client may rely on")
	var changes []error
	for range len(events.C()) {
		if e, ok := (<-events.C()).(quorumlock.NodeChanged); ok {
			changes = append(changes, e.Err)
		}
	}
	require.LessOrEqual(t, len(changes), 2, "it does not vote, and votes, and no event for each second: %v", changes)
	testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithRestartGuard(5*time.Second), quorumlock.WithTTL(time.Second)) // begins anew
}
