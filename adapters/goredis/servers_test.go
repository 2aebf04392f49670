//go:build unix

package goredis_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/goredis"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute // decides only when a hopeless test is given up

func connect(t *testing.T, nodes []rueidis.ClientOption, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.New(t.Context(), nodes, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close(context.Background())) })
	return m
}

// grant takes the name "job" and looks for its key with a client of go-redis.
func grant(t *testing.T, m *quorumlock.Manager, data *redis.Client) *quorumlock.Lease {
	t.Helper()
	lease, err := m.TryAcquire(t.Context(), "job", quorumlock.WithTTL(time.Minute))
	require.NoError(t, err)
	found, err := data.Exists(t.Context(), "quorumlock:job").Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), found, "the lock is where the data is")
	return lease
}

// rights returns the rights of docs/reference.md, with the password "secret".
func rights(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	command := regexp.MustCompile("(?s)redis-cli ACL SETUSER quorumlock (.*?)\n```").FindSubmatch(page)
	require.NotNil(t, command)
	return strings.Fields(strings.NewReplacer("'", "", "\\\n", "", "CHANGE-ME", "secret").Replace(string(command[1])))
}

func TestAUserTLSAndADatabaseReachTheServer(t *testing.T) {
	ca := redistest.NewCA(t)
	servers := redistest.StartWith(t, 3, redistest.Options{TLS: &redistest.TLS{CA: ca, Clients: ca}})
	var all []*redis.Options
	for _, s := range servers {
		s.MustDo(append([]string{"ACL", "SETUSER", "quorumlock"}, rights(t)...)...)
		s.MustDo("ACL", "SETUSER", "quorumlock", "+select")
		all = append(all, &redis.Options{
			Addr: s.TLSAddr(), Username: "quorumlock", Password: "secret", DB: 2, ClientName: "billing",
			TLSConfig: ca.ClientConfig(ca.Certificate("client")),
		})
	}
	unnamed := *all[0]
	unnamed.ClientName = "" // go-redis needs a right for it
	data := redis.NewClient(&unnamed)
	defer func() { require.NoError(t, data.Close()) }()
	nodes, err := goredis.Nodes(all...)
	require.NoError(t, err)
	grant(t, connect(t, nodes), data)
	assert.Contains(t, servers[1].MustDo("CLIENT", "LIST"), "name=billing")

	written := *data.Options() // with go-redis's own dialer for TLS connections
	nodes, err = goredis.Nodes(&written)
	require.NoError(t, err)
	_, err = connect(t, nodes).TryAcquire(t.Context(), "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld, "the same server")
}

func TestAUnixSocketAndRESP2AndADialerAreUsed(t *testing.T) {
	server := redistest.StartWith(t, 1, redistest.Options{Socket: true})[0]
	data := redis.NewClient(&redis.Options{Addr: server.SocketAddr(), Protocol: 2})
	defer func() { require.NoError(t, data.Close()) }()
	nodes, err := goredis.Nodes(data.Options())
	require.NoError(t, err)
	lease := grant(t, connect(t, nodes), data)
	require.NoError(t, lease.Release(t.Context()))

	var dials atomic.Int32
	nodes, err = goredis.Nodes(&redis.Options{Addr: "locks.internal", Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, server.Addr())
	}})
	require.NoError(t, err)
	grant(t, connect(t, nodes), data)
	assert.Positive(t, dials.Load())
}

// rotating is a provider whose credentials a test changes.
type rotating struct {
	now       auth.Credentials
	listeners map[auth.CredentialsListener]bool
}

func (r *rotating) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	r.listeners[l] = true
	return r.now, func() error { delete(r.listeners, l); return nil }, nil
}

func (r *rotating) rotate(password string) {
	r.now = auth.NewBasicCredentials("app", password)
	for l := range r.listeners {
		l.OnNext(r.now)
	}
}

func TestALeaseSurvivesARotationOfAStreamingProvider(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	server.MustDo("ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all")
	provider := &rotating{listeners: map[auth.CredentialsListener]bool{}}
	provider.rotate("old")
	data := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { require.NoError(t, data.Close()) }()

	credentials, unsubscribe, err := goredis.Latest(provider)
	require.NoError(t, err)
	nodes, err := goredis.Nodes(&redis.Options{Addr: server.Addr(), CredentialsProviderContext: credentials})
	require.NoError(t, err)
	m := connect(t, nodes)
	lease := grant(t, m, data)
	server.MustDo("ACL", "SETUSER", "app", "resetpass", ">new")
	provider.rotate("new")
	for l := range provider.listeners {
		l.OnError(assert.AnError) // the newest credentials stay
	}
	server.MustDo("CLIENT", "KILL", "USER", "app")
	require.Eventually(t, func() bool { return lease.Verify(t.Context()) == nil }, patience, 50*time.Millisecond)
	assert.Contains(t, server.MustDo("CLIENT", "LIST"), "user=app")
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, unsubscribe())
	assert.Empty(t, provider.listeners)
}

func TestAProviderWithoutCredentialsIsRefusedAndUnsubscribedFrom(t *testing.T) {
	provider := &rotating{listeners: map[auth.CredentialsListener]bool{}}
	_, _, err := goredis.Latest(provider)
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Empty(t, provider.listeners)
}

// guarded returns the options that a failover group needs. The nodes are new, so they vote a guard later.
func guarded(opts ...quorumlock.Option) []quorumlock.Option {
	return append(opts, quorumlock.WithTTL(2*time.Second), quorumlock.WithFailover(2*time.Second), quorumlock.WithRestartGuard(4*time.Second))
}

func TestAMasterUnderSentinelsIsOneNode(t *testing.T) {
	t.Parallel()
	group := redistest.StartGroup(t, redistest.GroupOptions{Replicas: 1})
	for _, s := range group.Servers() {
		s.MustDo("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all")
	}
	for _, s := range group.Sentinels() {
		s.MustDo("ACL", "SETUSER", "watcher", "on", ">other", "&*", "+@all")
	}
	options := &redis.FailoverOptions{
		MasterName: group.Name(), SentinelAddrs: group.SentinelAddrs(), SentinelUsername: "watcher", SentinelPassword: "other",
		CredentialsProvider: func() (string, string) { return "app", "word" }, DB: 1,
	}
	data := redis.NewFailoverClient(options)
	defer func() { require.NoError(t, data.Close()) }()
	node, err := goredis.Sentinel(options)
	require.NoError(t, err)
	m := connect(t, []rueidis.ClientOption{node}, guarded()...)
	require.Eventually(t, func() bool { return m.Ready() == nil }, patience, 50*time.Millisecond)
	lease, err := m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	found, err := data.Exists(t.Context(), "quorumlock:job").Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), found)
	require.NoError(t, lease.Release(t.Context()))
	clients := group.Sentinels()[0].MustDo("CLIENT", "LIST")
	assert.Contains(t, clients, "user=watcher")
}

func TestASlotOfAClusterIsOneNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{Masters: 1, Replicas: 2})
	for _, s := range cluster.Servers() {
		s.MustDo("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all")
	}
	options := &redis.ClusterOptions{Addrs: cluster.Addrs(), Username: "app", Password: "word"}
	data := redis.NewClusterClient(options)
	defer func() { require.NoError(t, data.Close()) }()
	node, err := goredis.ClusterSlot("{locks}", options)
	require.NoError(t, err)
	m := connect(t, []rueidis.ClientOption{node}, guarded(quorumlock.WithPrefix("{locks}:"))...)
	require.Eventually(t, func() bool { return m.Ready() == nil }, patience, 50*time.Millisecond)
	lease, err := m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	found, err := data.Exists(t.Context(), "{locks}:job").Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), found)
	require.NoError(t, lease.Release(t.Context()))
}

func TestTheMastersOfAWholeClusterGetTheSettings(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{})
	for _, s := range cluster.Servers() {
		s.MustDo("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all")
	}
	options := &redis.ClusterOptions{Addrs: cluster.Addrs()[:5], Username: "app", Password: "word"}
	data := redis.NewClusterClient(options)
	defer func() { require.NoError(t, data.Close()) }()
	named := *options
	named.ClientName = "locks"
	option, err := goredis.Cluster(&named)
	require.NoError(t, err)
	m, err := quorumlock.NewCluster(t.Context(), option, guarded()...)
	require.NoError(t, err)
	defer func() { assert.NoError(t, m.Close(context.Background())) }()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(m.Nodes(), func(n quorumlock.NodeStatus) bool { return !n.Voting })
	}, patience, 50*time.Millisecond)
	for _, s := range cluster.Servers()[:3] {
		assert.Regexp(t, "name=locks .* user=app ", s.MustDo("CLIENT", "LIST"))
	}
	_, err = m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	found, err := data.Exists(t.Context(), master.BucketTag(master.Bucket("job"))+"quorumlock:job").Result()
	require.NoError(t, err)
	require.Equal(t, int64(1), found)
}

// README and other pages say how many connections a Manager adds (docs_test.go of the root looks there). A
// server counts them when a hundred names are held, and after a caller has waited.
func TestAManagerAddsOneConnectionAndASecondWhenACallerWaits(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	nodes, err := goredis.Nodes(&redis.Options{Addr: server.Addr(), ClientName: "counted"})
	require.NoError(t, err)
	m := connect(t, nodes)
	connections := func() int { return strings.Count(fmt.Sprint(server.MustDo("CLIENT", "LIST")), " name=counted ") }
	for i := range 100 {
		_, err := m.TryAcquire(t.Context(), fmt.Sprint(i), quorumlock.WithTTL(time.Minute))
		require.NoError(t, err)
	}
	assert.Equal(t, 1, connections())
	_, err = m.Acquire(t.Context(), "0", quorumlock.WithWait(100*time.Millisecond))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.Eventually(t, func() bool { return connections() == 2 }, patience, 10*time.Millisecond)
}
