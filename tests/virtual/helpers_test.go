package virtual

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The whole Manager runs with real rueidis in virtual time: the times in these tests are exact, to the nanosecond.

const (
	ttl      = 9 * time.Second
	interval = ttl / 3
	guard    = 180 * time.Millisecond // 2 % of ttl
	drift    = 92 * time.Millisecond  // 1 % of ttl and 2 ms
	// valid is how long a lease is valid after a round that took no time.
	valid   = ttl - drift - guard
	early   = 25 * time.Millisecond  // a loss is reported this much before the stop
	timeout = 500 * time.Millisecond // of a node
)

var background = context.Background()

// run runs a test over n nodes in virtual time.
func run(t *testing.T, n int, test func(*testing.T, *quorumlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, quorumlocktest.Start(t, n)) })
}

func manager(t *testing.T, c *quorumlocktest.Cluster, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	return managerFor(t, c, "", opts...)
}

func managerFor(t *testing.T, c *quorumlocktest.Cluster, client string, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.New(background, c.OptionsFor(client), append([]quorumlock.Option{quorumlock.WithTTL(ttl)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(background)) })
	return m
}

func acquire(t *testing.T, m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(background, name, opts...)
	require.NoError(t, err)
	synctest.Wait() // late votes have arrived
	return l
}

// holders returns how many nodes hold the lock.
func holders(t *testing.T, c *quorumlocktest.Cluster, name string) (n int) {
	t.Helper()
	for _, node := range c.Nodes() {
		v, err := node.Do("EXISTS", config.DefaultPrefix+name)
		require.NoError(t, err)
		if v == int64(1) {
			n++
		}
	}
	return n
}

// goroutines counts the goroutines of the test's bubble once they are all blocked. The
// PINGs of rueidis are short-lived goroutines, and the process has others that come and
// go.
func goroutines() int {
	time.Sleep(time.Millisecond)
	synctest.Wait()
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	n := bytes.Count(all, []byte(", synctest bubble "))
	if n == 0 {
		panic("goroutine dumps no longer name their bubble")
	}
	return n
}

// do runs a command on a node, bypassing its clients.
func do(tb testing.TB, n *quorumlocktest.Node, args ...string) any {
	tb.Helper()
	reply, err := n.Do(args...)
	require.NoError(tb, err)
	return reply
}
