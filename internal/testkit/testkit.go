// Package testkit has what tests on real servers share. It is a package of the root module,
// because the tests of the root cannot import a leaf module.
package testkit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Manager returns a Manager over n real servers.
func Manager(tb testing.TB, n int, opts ...quorumlock.Option) (*quorumlock.Manager, []*redistest.Server) {
	tb.Helper()
	servers := Start(tb, n)
	return Connect(tb, redistest.Addrs(servers), opts...), servers
}

// Connect returns a Manager over the nodes at these addresses, as soon as a majority can be
// reached. The end of the test closes it.
func Connect(tb testing.TB, addrs []string, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	var m *quorumlock.Manager
	Confirmed(tb, func(context.Context) (err error) { m, err = New(tb, addrs, opts...); return err })
	tb.Cleanup(func() { require.NoError(tb, m.Close(context.Background())) })
	return m
}

// New is Connect for a Manager that may fail to start, or that the test closes.
func New(tb testing.TB, addrs []string, opts ...quorumlock.Option) (*quorumlock.Manager, error) {
	tb.Helper()
	return quorumlock.New(context.Background(), Nodes(tb, addrs...), Options(opts...)...)
}

// Acquiring is a method of a Manager that acquires.
type Acquiring = func(ctx context.Context, name string, opts ...quorumlock.AcquireOption) (*quorumlock.Lease, error)

// With returns an acquisition with more options.
func With(acquire Acquiring, more ...quorumlock.AcquireOption) Acquiring {
	return func(ctx context.Context, name string, opts ...quorumlock.AcquireOption) (*quorumlock.Lease, error) {
		return acquire(ctx, name, slices.Concat(more, opts)...)
	}
}

// Proxied puts a proxy before each server.
func Proxied(tb testing.TB, servers []*redistest.Server) (proxies []*redistest.Proxy, addrs []string) {
	tb.Helper()
	for _, s := range servers {
		p := redistest.NewProxy(tb, s.Addr())
		proxies = append(proxies, p)
		addrs = append(addrs, p.Addr())
	}
	return proxies, addrs
}

// Keys returns the keys of all servers that are up.
func Keys(tb testing.TB, servers []*redistest.Server) (all []string) {
	tb.Helper()
	for _, s := range servers {
		for _, key := range s.MustDo("KEYS", "*").([]any) {
			all = append(all, key.(string))
		}
	}
	return all
}

// Locks returns how many of the servers hold the lock.
func Locks(tb testing.TB, servers []*redistest.Server, name string) (n int) {
	tb.Helper()
	for _, s := range servers {
		if s.MustDo("EXISTS", Prefix+name) == int64(1) {
			n++
		}
	}
	return n
}

// Forgotten deletes the keys of servers until the lease is lost. It repeats that, because a
// round in between finds a majority and heals the other nodes. The restart guard's marker
// stays: without it no node would vote for a while.
func Forgotten(tb testing.TB, l *quorumlock.Lease, servers []*redistest.Server) quorumlock.Lost {
	tb.Helper()
	Eventually(tb, "the loss is reported", func() bool {
		for _, s := range servers {
			for _, key := range s.MustDo("KEYS", "*").([]any) {
				if key != Prefix+"\xffg" {
					s.MustDo("DEL", key.(string))
				}
			}
		}
		return l.Err() != nil
	})
	return <-l.Lost()
}

// CountAsks counts the requests to release a lease, until the lease ends. Each has a text of its own.
func CountAsks(l *quorumlock.Lease, asks *atomic.Int64) {
	last := ""
	for wanted := range l.Wanted() {
		if wanted.Reason != last {
			last = wanted.Reason
			asks.Add(1)
		}
	}
}

// Eventually waits for a condition, long enough for a loaded machine.
func Eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	require.Eventually(tb, condition, time.Minute, 5*time.Millisecond, what)
}

// ScriptCalls returns how many scripts a server has run since CONFIG RESETSTAT.
func ScriptCalls(tb testing.TB, s *redistest.Server) int {
	tb.Helper()
	stats, _ := s.MustDo("INFO", "commandstats").(string)
	_, calls, found := strings.Cut(stats, "cmdstat_evalsha:calls=")
	require.True(tb, found)
	calls, _, _ = strings.Cut(calls, ",")
	n, err := strconv.Atoi(calls)
	require.NoError(tb, err)
	return n
}

// Acquired waits for a lease that is free.
func Acquired(tb testing.TB, m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, name, opts...)
	require.NoError(tb, err)
	return l
}

// Confirmed repeats a request that needs a majority while nodes are too slow for it.
func Confirmed(tb testing.TB, ask func(context.Context) error) {
	tb.Helper()
	var err error
	Eventually(tb, "a majority has confirmed", func() bool { err = ask(context.Background()); return !errors.Is(err, quorumlock.ErrNoQuorum) })
	require.NoError(tb, err)
}

// Renewed renews a lease, which slow nodes may confirm late.
func Renewed(tb testing.TB, l *quorumlock.Lease, opts ...quorumlock.RenewOption) {
	tb.Helper()
	Confirmed(tb, func(ctx context.Context) error { return l.Renew(ctx, opts...) })
}

// Released releases a lease. Slow nodes may confirm it later.
func Released(tb testing.TB, l *quorumlock.Lease) {
	tb.Helper()
	if err := l.Release(context.Background()); !errors.Is(err, quorumlock.ErrNoQuorum) {
		require.NoError(tb, err)
	}
}

// Inspected returns the status of the name job, from all nodes.
func Inspected(tb testing.TB, m *quorumlock.Manager) (s quorumlock.Status) {
	tb.Helper()
	Confirmed(tb, func(ctx context.Context) (err error) { s, err = m.Inspect(ctx, "job"); return err })
	return s
}

// Remove deletes a key on all servers.
func Remove(servers []*redistest.Server, key string) {
	for _, s := range servers {
		s.MustDo("DEL", key)
	}
}
