package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
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

func TestMain(m *testing.M) { testkit.RunWaiting(m) }

var background = context.Background()

// over returns one changed option for each address.
func over(tb testing.TB, addrs []string, change func(*rueidis.ClientOption)) []rueidis.ClientOption {
	tb.Helper()
	nodes := testkit.Nodes(tb, addrs...)
	for i := range nodes {
		if change(&nodes[i]); nodes[i].DialFn != nil {
			nodes[i].DialCtxFn = nil // of testkit.Nodes
		}
	}
	return nodes
}

// patient returns options for tests that are not about time: a machine that stalls for
// seconds must not change their result.
func patient(opts ...quorumlock.Option) []quorumlock.Option {
	return testkit.Options(append([]quorumlock.Option{quorumlock.WithTTL(30 * time.Second), quorumlock.WithNodeTimeout(3 * time.Second)}, opts...)...)
}

// refused asks for a lease once, and again while nodes are too slow. It returns the
// reason for the refusal: another holder, or a misconfigured node.
func refused(tb testing.TB, m *quorumlock.Manager, name string) (err error) {
	tb.Helper()
	testkit.Eventually(tb, "refused", func() bool {
		var l *quorumlock.Lease
		l, err = m.TryAcquire(background, name)
		require.Nil(tb, l)
		var short *quorumlock.QuorumError
		if !errors.As(err, &short) {
			return true
		}
		broken := 0
		for _, n := range short.Nodes {
			if n.Misconfigured {
				broken++
			}
		}
		return broken >= short.Need
	})
	return err
}

// start returns the results of New. It tries again while running nodes are too slow for
// New.
func start(tb testing.TB, nodes []rueidis.ClientOption, opts ...quorumlock.Option) (m *quorumlock.Manager, err error) {
	tb.Helper()
	testkit.Eventually(tb, "greeted", func() bool {
		m, err = quorumlock.New(background, nodes, opts...)
		return !errors.Is(err, quorumlock.ErrNoQuorum)
	})
	return m, err
}

// open returns a Manager that is closed with its test.
func open(tb testing.TB, nodes []rueidis.ClientOption, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	m, err := start(tb, nodes, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, m.Close(background)) })
	return m
}

var (
	registersKey = wire.RegistersKey(testkit.Prefix)
	baseKey      = wire.BaseKey(testkit.Prefix)
	hintKey      = wire.HintKey(testkit.Prefix)
	markerKey    = wire.GuardKey(testkit.Prefix)
	listsKey     = wire.ListsKey(testkit.Prefix)
)

// keysBut returns the keys of the servers that contain none of these texts. It omits announcements of node lists, which
// expire by themselves.
func keysBut(t *testing.T, servers []*redistest.Server, texts ...string) []string {
	t.Helper()
	return slices.DeleteFunc(testkit.Keys(t, servers), func(key string) bool {
		return key == wire.InUseKey(testkit.Prefix) || slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(key, text) })
	})
}

// ofLeases returns the locks, queues and rights on the servers. The index of the slots is a hint that lives for a
// minute.
func ofLeases(t *testing.T, servers ...*redistest.Server) []string {
	t.Helper()
	return keysBut(t, servers, registersKey, baseKey, hintKey, markerKey, listsKey, wire.SlotsKey(""))
}

// clean waits until no lock, queue or right is left on the servers.
func clean(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	if assert.Eventually(t, func() bool { return len(ofLeases(t, servers...)) == 0 }, time.Minute, 5*time.Millisecond) {
		return
	}
	for i, s := range servers {
		for _, key := range ofLeases(t, s) {
			t.Errorf("server %d still has %q, a %v that ends in %v ms", i, key, s.MustDo("TYPE", key), s.MustDo("PTTL", key))
		}
	}
	t.FailNow()
}
