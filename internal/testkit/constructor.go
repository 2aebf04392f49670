package testkit

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// constructor is how the tests make nodes of servers: Addrs unless QUORUMLOCK_CONSTRUCTOR names another one. With
// Sentinel, each server of Start is a master that a Sentinel names. With ClusterSlot, each is a cluster of one. Nothing
// takes a master's place, so a test may kill, freeze and read its servers as usual.
var constructor = os.Getenv("QUORUMLOCK_CONSTRUCTOR")

const (
	byAddress  = ""
	bySentinel = "Sentinel"
	bySlot     = "ClusterSlot"

	tag    = "{quorumlock}"
	window = 30 * time.Minute // of WithFailover: there are no failovers
	guard  = 2 * time.Hour    // above each TTL of a test, and longer than a test waits for a vote
)

// Prefix begins the keys of the Managers of Connect.
var Prefix = prefix()

func prefix() string {
	switch constructor {
	case byAddress, bySentinel:
		return config.DefaultPrefix
	case bySlot:
		return tag + ":"
	default:
		panic("QUORUMLOCK_CONSTRUCTOR is neither Sentinel nor ClusterSlot: " + constructor)
	}
}

// OnlyAddrs skips a test that cannot run, or shows something else, on failover groups.
func OnlyAddrs(tb testing.TB, why string) {
	tb.Helper()
	if constructor != byAddress {
		tb.Skip("not through " + constructor + ": " + why)
	}
}

// Start starts n masters, as redistest.Start does for one server each.
func Start(tb testing.TB, n int, args ...string) []*redistest.Server {
	tb.Helper()
	if constructor == bySlot {
		return redistest.StartOwners(tb, n, redistest.Options{Args: args})
	}
	return redistest.Start(tb, n, args...)
}

// Nodes returns the nodes at these addresses.
func Nodes(tb testing.TB, addrs ...string) []rueidis.ClientOption {
	tb.Helper()
	nodes := quorumlock.Addrs(addrs...)
	for i, addr := range addrs {
		switch constructor {
		case bySentinel:
			nodes[i] = quorumlock.Sentinel(addr, watched(tb, addr))
		case bySlot:
			nodes[i] = quorumlock.ClusterSlot(tag, addr)
			// The server announces its own address, and addr may be a proxy's.
			nodes[i].DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", addr)
			}
		default:
			continue
		}
		met(tb, addr)
	}
	return nodes
}

// Options returns what the nodes of the constructor need, and then opts.
func Options(opts ...quorumlock.Option) []quorumlock.Option {
	if constructor == byAddress {
		return opts
	}
	return append([]quorumlock.Option{quorumlock.WithPrefix(Prefix),
		quorumlock.WithRestartGuard(guard), quorumlock.WithFailover(window)}, opts...)
}

// sentinels has the Sentinel of each running test, which watches every server of the test.
var sentinels = struct {
	sync.Mutex
	of map[testing.TB]*redistest.Server
}{of: map[testing.TB]*redistest.Server{}}

// watched returns the address of the test's Sentinel, which watches the master at addr
// under that name from now on.
func watched(tb testing.TB, addr string) string {
	tb.Helper()
	sentinels.Lock()
	defer sentinels.Unlock()
	s := sentinels.of[tb]
	if s == nil {
		s = redistest.StartSentinel(tb, redistest.Options{})
		sentinels.of[tb] = s
		tb.Cleanup(func() {
			sentinels.Lock()
			defer sentinels.Unlock()
			delete(sentinels.of, tb)
		})
	}
	host, port, err := net.SplitHostPort(addr)
	require.NoError(tb, err)
	if _, err := s.Do("SENTINEL", "MONITOR", addr, host, port, "1"); err != nil {
		require.ErrorContains(tb, err, "Duplicate")
	}
	return s.Addr()
}

// met leaves the restart guard's marker on a server that has none: the server's term was met long ago, so no test waits
// for the end of its quarantine. A server that is down gets none.
func met(tb testing.TB, addr string) {
	tb.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, _ := c.Do(ctx, c.B().Info().Build()).ToString()
	word := field(info, "run_id") + "." + field(info, "master_replid") + ".0"
	_ = c.Do(ctx, c.B().Set().Key(Prefix+"\xffg").Value(fmt.Sprintf("%s 0 %d met", word, guard.Milliseconds())).Nx().Build()).Error()
}

// field returns a value of INFO's reply.
func field(info, name string) string {
	_, value, _ := strings.Cut(info, "\n"+name+":")
	value, _, _ = strings.Cut(value, "\r")
	return value
}
