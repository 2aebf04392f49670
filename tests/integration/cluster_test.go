package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/testkit/clustercases"
)

// A whole cluster under one Manager.

const (
	clusterTTL   = 8 * time.Second // longer than a failover takes
	clusterGuard = clusterTTL + window
)

func startCluster(t *testing.T) *redistest.Cluster {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	return redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", "no"}})
}

func openCluster(t *testing.T, o rueidis.ClientOption) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.NewCluster(background, o, quorumlock.WithTTL(clusterTTL), quorumlock.WithRestartGuard(clusterGuard), quorumlock.WithFailover(window))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(background)) })
	return m
}

func TestAWholeClusterIsUsedLikeAListOfNodes(t *testing.T) {
	u := underTest(startCluster(t))
	// Options that a client of a whole cluster may set, and that a Manager does not use.
	u.Option.SendToReplicas = func(rueidis.Completed) bool { return true }
	u.Option.ClusterOption.ShardsRefreshInterval = time.Second
	clustercases.Use(t, u)
}

// All buckets of a server share its connections, which are encrypted like the connections of a node.
func TestAWholeClusterIsUsedOverTLS(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	ca := redistest.NewCA(t)
	c := redistest.StartCluster(t, redistest.ClusterOptions{TLS: &redistest.TLS{CA: ca, Clients: ca}})
	u := underTest(c)
	u.Option.InitAddress = tlsAddrs(c.Servers()[:5])
	u.Option.TLSConfig = ca.ClientConfig(ca.Certificate("client"))
	clustercases.Use(t, u)

	u.Option.TLSConfig = ca.ClientConfig()
	ctx, cancel := context.WithTimeout(background, 5*time.Second)
	defer cancel()
	_, err := quorumlock.NewCluster(ctx, u.Option, quorumlock.WithTTL(clusterTTL), quorumlock.WithRestartGuard(clusterGuard), quorumlock.WithFailover(window))
	require.ErrorContains(t, err, "the server refuses the TLS connection")
}

func TestALeaseOfAWholeClusterOutlivesAMoveAndAFailover(t *testing.T) {
	testkit.OnlyNightly(t, "it waits for the guard three times")
	clustercases.Change(t, underTest(startCluster(t)))
}

// underTest returns a real cluster for the cases that the test kit's cluster passes as well.
func underTest(c *redistest.Cluster) clustercases.Cluster {
	u := clustercases.Cluster{
		Option: rueidis.ClientOption{InitAddress: c.Addrs()[:5]},
		OwnerOf: func(name string) int {
			owner, _ := c.Owner(bucketSlot(name))
			return owner
		},
		Move:    func(name string, to int) { c.Migrate(bucketSlot(name), to) },
		Replace: func(name string) { c.Failover(bucketSlot(name)) },
	}
	for _, s := range c.Servers()[:3] {
		u.Masters = append(u.Masters, s.Do)
	}
	return u
}

func bucketSlot(name string) int { return master.Slot(master.BucketTag(master.Bucket(name))) }

func TestAClusterThatCannotBeUsedIsRefusedWithTheFix(t *testing.T) {
	c := startCluster(t)
	seeds := c.Addrs()[:3]
	guard, failover := quorumlock.WithRestartGuard(15*time.Second), quorumlock.WithFailover(window)
	for claim, k := range map[string]struct {
		seeds []string
		opts  []quorumlock.Option
		text  string
	}{
		"one seed":             {seeds[:1], []quorumlock.Option{guard, failover}, "InitAddress 1 addresses: must list at least 3 nodes of the cluster: a majority of them names the master of a bucket; list the same ones on every client, such as "},
		"no seed":              {nil, []quorumlock.Option{guard, failover}, "name nodes of the cluster, three or more"},
		"without the guard":    {seeds, nil, "WithRestartGuard: is needed for a cluster, and so is WithFailover"},
		"without the window":   {seeds, []quorumlock.Option{guard}, "WithFailover: is needed for a cluster"},
		"a tag in the prefix":  {seeds, []quorumlock.Option{guard, failover, quorumlock.WithPrefix("{app}:")}, `WithPrefix "{app}:": must not have a brace with NewCluster`},
		"a seed that is twice": {[]string{seeds[0], seeds[0], seeds[1]}, []quorumlock.Option{guard, failover}, "is named twice"},
	} {
		t.Run(claim, func(t *testing.T) {
			m, err := quorumlock.NewCluster(background, rueidis.ClientOption{InitAddress: k.seeds}, k.opts...)
			require.Nil(t, m)
			require.ErrorIs(t, err, quorumlock.ErrInvalid)
			require.ErrorContains(t, err, k.text)
			if claim == "one seed" {
				for _, addr := range c.Addrs()[:3] {
					assert.Contains(t, err.Error(), addr)
				}
			}
		})
	}
	_, err := quorumlock.New(background, []rueidis.ClientOption{quorumlock.ClusterSlot("{ql43}", seeds...)}, guard, failover, quorumlock.WithPrefix("{ql43}:"))
	require.ErrorContains(t, err, "has a hash tag that belongs to NewCluster")
	m, err := quorumlock.NewCluster(nil, rueidis.ClientOption{}) //nolint:staticcheck // nil is what a program may pass
	require.Nil(t, m)
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
}

// The leases of the killed master's buckets continue, and the other buckets are unaffected.
func TestAMasterOfAClusterIsKilled(t *testing.T) {
	c := startCluster(t)
	m := openCluster(t, rueidis.ClientOption{InitAddress: c.Addrs()[:5]})
	ctx, cancel := context.WithTimeout(background, 3*time.Minute)
	defer cancel()
	var leases []*quorumlock.Lease
	buckets := map[string]int{} // of a master, by its address
	for i := range 64 {
		l, err := m.Acquire(ctx, fmt.Sprint("job/", i))
		require.NoError(t, err)
		leases = append(leases, l)
	}
	for _, n := range m.Nodes() {
		buckets[n.Master]++
	}
	require.Len(t, buckets, 3)
	for addr, n := range buckets {
		assert.GreaterOrEqual(t, n, 5, addr)
	}
	victim := c.Servers()[0]
	victim.Kill()
	testkit.Eventually(t, "all buckets grant again", func() bool {
		all := true
		for b := range 16 {
			l, err := m.TryAcquire(ctx, fmt.Sprint("other/", b))
			if err != nil {
				all = false
				continue
			}
			testkit.Released(t, l)
		}
		return all
	})
	for _, l := range leases {
		require.NoError(t, l.Err(), "%s is held all the time", l.Name())
		testkit.Released(t, l)
	}
}

// A client has one connection to each master and one to each seed, and asks a seed twice a second for all buckets.
func TestAClientOfAClusterAsksEachSeedOnceForAllBuckets(t *testing.T) {
	c := startCluster(t)
	openCluster(t, rueidis.ClientOption{InitAddress: c.Addrs()[:5], ClientName: "counted"})
	connections := 0
	for _, s := range c.Servers() {
		list, _ := s.MustDo("CLIENT", "LIST", "TYPE", "normal").(string)
		connections += strings.Count(list, " name=counted ")
	}
	assert.Equal(t, 3+5, connections)
	replica := c.Servers()[4]
	asked := func() int {
		stats, _ := replica.MustDo("INFO", "commandstats").(string)
		_, calls, _ := strings.Cut(stats, "cmdstat_cluster|nodes:calls=")
		calls, _, _ = strings.Cut(calls, ",")
		n, err := strconv.Atoi(calls)
		require.NoError(t, err)
		return n
	}
	before, began := asked(), time.Now()
	time.Sleep(3 * time.Second)
	assert.LessOrEqual(t, asked()-before, int(time.Since(began)/failover.ConfirmEvery)+1)
}

// The five or six buckets of a server share one INFO in ten seconds.
func TestAClientOfAClusterAsksEachServerOnceForAllBuckets(t *testing.T) {
	c := startCluster(t)
	for _, s := range c.Servers() {
		s.MustDo("CONFIG", "RESETSTAT")
	}
	openCluster(t, rueidis.ClientOption{InitAddress: c.Addrs()[:5]})
	time.Sleep(11 * time.Second)
	for _, s := range c.Servers()[:3] {
		stats, _ := s.MustDo("INFO", "commandstats").(string)
		_, calls, _ := strings.Cut(stats, "cmdstat_info:calls=")
		calls, _, _ = strings.Cut(calls, ",")
		n, err := strconv.Atoi(calls)
		require.NoError(t, err)
		t.Log(n)
		// Three sections at the start and again ten seconds later, and two at each check for another server at the
		// address.
		assert.LessOrEqual(t, n, 2*3+2*2)
	}
}

// The password changes while a lease is held, as with IAM: each new connection of the buckets asks for the current
// credentials.
func TestAClusterClientAsksForItsCredentialsAtEachConnection(t *testing.T) {
	c := startCluster(t)
	var password atomic.Pointer[string]
	set := func(next string, before ...string) {
		password.Store(&next)
		for _, s := range c.Servers() {
			s.MustDo(append([]string{"ACL", "SETUSER", "user", "on", "allcommands", "allkeys", "allchannels", ">" + next}, before...)...)
			if before != nil {
				s.MustDo("CLIENT", "KILL", "USER", "user")
			}
		}
	}
	set("first")
	m := openCluster(t, rueidis.ClientOption{
		InitAddress: c.Addrs()[:5],
		AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			return rueidis.AuthCredentials{Username: "user", Password: *password.Load()}, nil
		},
	})
	var leases []*quorumlock.Lease
	for i := range 16 {
		l, err := m.Acquire(background, "job-"+strconv.Itoa(i))
		require.NoError(t, err)
		leases = append(leases, l)
	}
	set("second", "<first")
	testkit.Eventually(t, "renewed under the next password", func() bool {
		return !slices.ContainsFunc(leases, func(l *quorumlock.Lease) bool { return l.Renew(background) != nil })
	})
	l, err := m.Acquire(background, "another")
	require.NoError(t, err)
	for _, l := range append(leases, l) {
		require.NoError(t, l.Release(background))
	}
}

// The documented rights are enough, and an error names a missing one.
func TestTheRightsOfAClusterClient(t *testing.T) {
	c := startCluster(t)
	rights := strings.Fields("resetchannels &{ql*}quorumlock:* ~{ql*}quorumlock:* +evalsha +script|load +time +info +ping +getrange +mget +set +del +exists +pexpireat +pttl +dbsize " +
		"+zadd +zcard +zrange +zrank +zrem +zscore +spublish +pubsub|shardnumsub +ssubscribe +cluster|nodes")
	allow := func(rights ...string) {
		for _, s := range c.Servers() {
			s.MustDo(append([]string{"ACL", "SETUSER", "user", "on", ">word"}, rights...)...)
		}
	}
	allow(rights...)
	option := rueidis.ClientOption{InitAddress: c.Addrs()[:3], Username: "user", Password: "word"}
	m, other := openCluster(t, option), openCluster(t, option)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	next := make(chan *quorumlock.Lease, 1)
	go func() {
		l, err := other.Acquire(background, "job")
		assert.NoError(t, err)
		next <- l
	}()
	testkit.Eventually(t, "a queue", func() bool {
		s, err := m.Inspect(background, "job")
		return err == nil && s.Waiters == 1
	})
	allow("-spublish")
	require.ErrorContains(t, l.Release(background), "give the user +spublish")
	testkit.Released(t, <-next)
	for _, s := range c.Servers() {
		log, _ := s.MustDo("ACL", "LOG").([]any)
		for _, entry := range log {
			assert.Contains(t, fmt.Sprint(entry), "spublish", "the only refusal")
		}
	}
	for _, n := range append(m.Nodes(), other.Nodes()...) {
		require.NoError(t, n.Warning)
	}
}
