package quorumlock_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newManager returns a Manager over n real servers.
func newManager(tb testing.TB, n int, opts ...quorumlock.Option) (*quorumlock.Manager, []*redistest.Server) {
	tb.Helper()
	servers := redistest.Start(tb, n)
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(redistest.Addrs(servers)...), opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, m.Close(context.Background())) })
	return m, servers
}

// connect returns one more Manager over the same servers.
func connect(tb testing.TB, addrs []string, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(addrs...), opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, m.Close(context.Background())) })
	return m
}

// proxied puts a proxy before each server.
func proxied(tb testing.TB, servers []*redistest.Server) (proxies []*redistest.Proxy, addrs []string) {
	tb.Helper()
	for _, s := range servers {
		p := redistest.NewProxy(tb, s.Addr())
		proxies = append(proxies, p)
		addrs = append(addrs, p.Addr())
	}
	return proxies, addrs
}

// keys returns the keys of all servers that are up.
func keys(tb testing.TB, servers []*redistest.Server) (all []string) {
	tb.Helper()
	for _, s := range servers {
		for _, key := range s.MustDo("KEYS", "*").([]any) {
			all = append(all, key.(string))
		}
	}
	return all
}

// locks returns how many of the servers hold the lock.
func locks(tb testing.TB, servers []*redistest.Server, name string) (n int) {
	tb.Helper()
	for _, s := range servers {
		if s.MustDo("EXISTS", quorumlock.DefaultPrefix+name) == int64(1) {
			n++
		}
	}
	return n
}

// forgotten flushes servers until the lease is lost. It repeats the flush, because a
// round in between finds a majority and heals the other nodes.
func forgotten(tb testing.TB, l *quorumlock.Lease, servers []*redistest.Server) quorumlock.Lost {
	tb.Helper()
	eventually(tb, "the loss is reported", func() bool {
		for _, s := range servers {
			s.MustDo("FLUSHALL")
		}
		return l.Err() != nil
	})
	return <-l.Lost()
}

// eventually waits for a condition, long enough for a loaded machine.
func eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	require.Eventually(tb, condition, 20*time.Second, 5*time.Millisecond, what)
}

// scriptCalls returns how many scripts a server has run since CONFIG RESETSTAT.
func scriptCalls(tb testing.TB, s *redistest.Server) int {
	tb.Helper()
	stats, _ := s.MustDo("INFO", "commandstats").(string)
	_, calls, found := strings.Cut(stats, "cmdstat_evalsha:calls=")
	require.True(tb, found)
	calls, _, _ = strings.Cut(calls, ",")
	n, err := strconv.Atoi(calls)
	require.NoError(tb, err)
	return n
}
