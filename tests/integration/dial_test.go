package integration

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Settings that users may put into a rueidis.ClientOption, and their effects.

// A user's function that hangs must delay neither Close nor New.
func TestAUsersFunctionThatHangsHoldsUpNeitherNewNorClose(t *testing.T) {
	t.Parallel()
	for claim, hanging := range map[string]func(o *rueidis.ClientOption, hang func()){
		"credentials": func(o *rueidis.ClientOption, hang func()) {
			o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				hang()
				return rueidis.AuthCredentials{}, nil
			}
		},
		"DialFn": func(o *rueidis.ClientOption, hang func()) {
			o.DialFn = func(addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				hang()
				return d.Dial("tcp", addr)
			}
		},
		"DialCtxFn": func(o *rueidis.ClientOption, hang func()) {
			o.DialCtxFn = func(_ context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				hang()
				return d.Dial("tcp", addr)
			}
		},
	} {
		t.Run(claim, func(t *testing.T) {
			servers := testkit.Start(t, 3)
			gate := make(chan struct{})
			open := sync.OnceFunc(func() { close(gate) })
			defer open()
			defer time.AfterFunc(15*time.Second, open).Stop() // a waiter that depends on it is late, but does not hang
			hangs := make(chan struct{}, 100)                 // waiting calls; more than 100 are dropped
			hang := func() {
				select {
				case hangs <- struct{}{}:
				default:
				}
				<-gate
			}
			option := func(hang func()) []rueidis.ClientOption {
				return over(t, redistest.Addrs(servers), func(o *rueidis.ClientOption) { hanging(o, hang) })
			}

			ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
			defer cancel()
			began := time.Now()
			_, err := quorumlock.New(ctx, option(hang), testkit.Options()...)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Less(t, time.Since(began), 10*time.Second)

			// The function hangs only later: one node is down, and the others continue.
			var later atomic.Bool
			nodes := option(func() {})
			nodes[0] = option(func() {
				if later.Load() {
					hang()
				}
			})[0]
			m, err := quorumlock.New(background, nodes, testkit.Options()...)
			require.NoError(t, err)
			_, err = m.Acquire(background, "job")
			require.NoError(t, err)
			testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
			for len(hangs) > 0 {
				<-hangs
			}
			later.Store(true)
			servers[0].MustDo("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			<-hangs
			began = time.Now()
			_ = m.Close(background) // the error may say that a node has not answered
			assert.Less(t, time.Since(began), 10*time.Second)
			assert.Zero(t, testkit.Locks(t, servers[1:], "job"))
		})
	}
}

// bare is a connection of a type that cannot be the key of a map.
type bare struct {
	net.Conn
	_ []func()
}

func TestAConnectionMayBeOfAnyType(t *testing.T) {
	servers := testkit.Start(t, 1)
	m := open(t, over(t, redistest.Addrs(servers), func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return bare{Conn: conn}, err
		}
	}), testkit.Options()...)
	testkit.Released(t, testkit.Acquired(t, m, "job"))
}

// rueidis sends a pipeline above a threshold over a separate connection.
func TestThereIsOneConnectionWhateverThePipelineThreshold(t *testing.T) {
	testkit.OnlyAddrs(t, "a Sentinel and a replica have connections too")
	servers := testkit.Start(t, 1)
	m := open(t, over(t, redistest.Addrs(servers), func(o *rueidis.ClientOption) { o.BlockingPipeline = 1 }),
		quorumlock.WithRestartGuard(config.DefaultTTL), quorumlock.WithTrustEmptyNodes())
	testkit.Released(t, testkit.Acquired(t, m, "job"))
	list, _ := servers[0].MustDo("CLIENT", "LIST").(string)
	assert.Equal(t, 2, strings.Count(list, "\n"), "the Manager's and this one:\n%s", list)
}
