package quorumlocktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// connect returns a rueidis client that is configured like a lock manager's.
func connect(tb testing.TB, option rueidis.ClientOption) rueidis.Client {
	tb.Helper()
	option.DisableRetry = true
	option.AlwaysPipelining = true
	option.PipelineMultiplex = -1
	option.Dialer.KeepAlive = 200 * time.Millisecond
	option.ConnWriteTimeout = 500 * time.Millisecond
	option.RingScaleEachConn = 8
	option.ReadBufferEachConn = 8 << 10
	option.WriteBufferEachConn = 8 << 10
	client, err := rueidis.NewClient(option)
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return client
}

// do sends one command and gives up after 50 ms.
func do(tb testing.TB, client rueidis.Client, args ...string) (any, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	return client.Do(ctx, client.B().Arbitrary(args...).Build()).ToAny()
}

func mustDo(tb testing.TB, client rueidis.Client, args ...string) any {
	tb.Helper()
	v, err := client.Do(context.Background(), client.B().Arbitrary(args...).Build()).ToAny()
	require.NoError(tb, err)
	return v
}

func admin(tb testing.TB, n *quorumlocktest.Node, args ...string) any {
	tb.Helper()
	v, err := n.Do(args...)
	require.NoError(tb, err)
	return v
}

// bubble runs a test with one node and one client in virtual time.
func bubble(t *testing.T, test func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 1)
		test(t, cluster.Nodes()[0], connect(t, cluster.Options()[0]))
	})
}
