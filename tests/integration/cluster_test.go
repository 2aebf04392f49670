package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
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
	c := startCluster(t)
	option := rueidis.ClientOption{InitAddress: c.Addrs()[:5]} // with what a client of the whole cluster may have, and a Manager does not use
	option.SendToReplicas = func(rueidis.Completed) bool { return true }
	option.ClusterOption.ShardsRefreshInterval = time.Second
	m, other := openCluster(t, option), openCluster(t, option)
	testkit.Eventually(t, "the first quarantine ends", func() bool {
		for _, n := range append(m.Nodes(), other.Nodes()...) {
			if !n.Voting {
				return false
			}
		}
		return true
	})
	require.Len(t, m.Nodes(), 16)
	require.NoError(t, m.Ready())

	const names = 160
	leases := make([]*quorumlock.Lease, names)
	for i := range leases {
		var err error
		leases[i], err = m.Acquire(background, fmt.Sprint("job/", i))
		require.NoError(t, err)
		_, err = other.TryAcquire(background, leases[i].Name())
		require.ErrorIs(t, err, quorumlock.ErrHeld)
	}
	for _, s := range c.Servers()[:3] {
		keys, _ := s.MustDo("KEYS", "{ql??}quorumlock:job/*").([]any)
		assert.Greater(t, len(keys), names/6, "%s has its share", s.Addr())
	}
	assert.Len(t, m.Leases(), names)
	found := map[string]bool{}
	for s, err := range other.List(background, "job/") {
		require.NoError(t, err)
		assert.True(t, s.Held)
		found[s.Name] = true
	}
	assert.Len(t, found, names)

	var pending sync.WaitGroup
	for _, l := range leases[:40] {
		pending.Go(func() {
			next, err := other.Acquire(background, l.Name())
			if assert.NoError(t, err) {
				assert.Greater(t, next.Token(), l.Token())
				assert.NoError(t, next.Release(background))
			}
		})
	}
	testkit.Eventually(t, "all wait in the queues", func() bool {
		waiting := 0
		for _, l := range leases[:40] {
			s, err := m.Inspect(background, l.Name())
			if err == nil && s.Waiters == 1 {
				waiting++
			}
		}
		return waiting == 40
	})
	channels, buckets := 0, map[int]bool{}
	for _, l := range leases[:40] {
		buckets[16*redistest.Slot(l.Name())/16384] = true
	}
	for _, s := range c.Servers()[:3] {
		listed, _ := s.MustDo("PUBSUB", "SHARDCHANNELS").([]any)
		channels += len(listed)
	}
	assert.Equal(t, len(buckets), channels, "one for each bucket that has waiters")
	for _, l := range leases {
		testkit.Released(t, l)
	}
	pending.Wait()

	_, err := m.AcquireAll(background, []string{"a", "b"})
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	require.ErrorContains(t, err, `names "a", "b": are in different buckets of the cluster, 15 and 3; give them one {tag}`)
	several, err := m.AcquireAll(background, []string{"{x}a", "{x}b"})
	require.NoError(t, err)
	require.NoError(t, several.Release(background))

	l, err := m.Acquire(background, "detached")
	require.NoError(t, err)
	handle, err := l.Detach(background, clusterTTL)
	require.NoError(t, err)
	l, err = other.Resume(background, handle)
	require.NoError(t, err)
	testkit.Released(t, l)
	for range 3 {
		l, err := m.Acquire(background, "slots", quorumlock.Permits(3))
		require.NoError(t, err)
		defer testkit.Released(t, l)
	}
	_, err = other.TryAcquire(background, "slots", quorumlock.Permits(3))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
}

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

// The leases of the buckets that the master had continue, and the other buckets do not notice.
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

// A client has one connection for each bucket and one to each seed, and asks a seed once a second for all buckets.
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

// The five or six buckets of a server need INFO once in ten seconds, not each for itself.
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
		// Three sections at the start, and ten seconds later; two at each look for another server at the address.
		assert.LessOrEqual(t, n, 2*3+2*2)
	}
}

// The documented rights are enough, and an operator hears which one is missing.
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
