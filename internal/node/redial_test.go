package node_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// tapped notes what is written to a connection, and when it has ended.
type tapped struct {
	net.Conn
	mu      sync.Mutex
	written bytes.Buffer
	ended   chan struct{}
	once    sync.Once
}

func (c *tapped) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.written.Write(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *tapped) Close() error {
	defer c.once.Do(func() { close(c.ended) })
	return c.Conn.Close()
}

// ungreeted reports whether the text went out on this connection before the greeting.
func (c *tapped) ungreeted(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := bytes.Index(c.written.Bytes(), []byte(text))
	return at >= 0 && !bytes.Contains(c.written.Bytes()[:at], []byte("replication"))
}

// tapping dials connections that are tapped.
type tapping struct {
	mu    sync.Mutex
	conns []*tapped
}

func (d *tapping) dial(ctx context.Context, addr string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &tapped{Conn: conn, ended: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, c)
	return c, nil
}

func (d *tapping) all() []*tapped {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.conns)
}

// The connection ends at every instant at which the worker reads its clock, one of which
// lies between its last look at the connection and the send: rueidis, which ends it when
// credentials cannot be renewed, then dials by itself, and the vote travels on a
// connection at whose other end nobody has asked who is there.
func TestAVoteOverAConnectionThatWasNotGreetedDoesNotCount(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	refused := 0
	for try := int64(0); try < 100 && (try < 6 || refused == 0); try++ { // the worker may just look for itself
		look := 1 + try%6
		dialer := &tapping{}
		renew, renewals := make(chan struct{}), atomic.Int64{}
		ended := sync.OnceFunc(func() { close(renew) })
		defer ended()
		real := clock.New()
		var countdown atomic.Int64
		n, _ := run(t, node.Config{
			Cap: time.Second,
			Clock: func() (validity, steady time.Duration) {
				if countdown.Add(-1) == 0 {
					conns := dialer.all()
					ended()
					<-conns[len(conns)-1].ended
					time.Sleep(20 * time.Millisecond) // rueidis turns to the next one behind it
				}
				return real.Both()
			},
			Option: rueidis.ClientOption{
				InitAddress: []string{server.Addr()}, DialCtxFn: dialer.dial,
				AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
					switch renewals.Add(1) {
					case 1:
						return rueidis.AuthCredentials{RefreshAfter: time.Now()}, nil
					case 2:
						<-renew
						return rueidis.AuthCredentials{}, errors.New("no credentials")
					default: // the next connection's
						return rueidis.AuthCredentials{}, nil
					}
				},
			},
		})
		require.Eventually(t, func() bool { return n.Health().Err == nil && renewals.Load() >= 2 }, 10*time.Second, time.Millisecond)
		owner := ownerA[1:] + string(rune('0'+look))
		answer := make(answers, 1)
		req := acquisition("p:job", owner, real.Steady()+10*time.Second)
		countdown.Store(look)
		require.True(t, n.Post(req, answer))
		got := answer.Next(t)
		for _, c := range dialer.all() {
			if c.ungreeted(owner) {
				refused++
				assert.Equal(t, node.Unknown, got.Status, "look %d", look)
				assert.ErrorIs(t, got.Err, node.ErrReconnected)
			}
		}
		n.Close(context.Background(), nil, nil)
		server.MustDo("FLUSHALL")
	}
	assert.Positive(t, refused, "the break was never where it matters: has the worker changed?")
}

// Nobody reads an idle connection, and its end is known long before the next greeting.
func TestTheEndOfAnIdleConnectionIsNoticed(t *testing.T) {
	for how, end := range map[string]func(*redistest.Server, *redistest.Proxy){
		"reset":          func(s *redistest.Server, _ *redistest.Proxy) { s.Kill() },
		"without a word": func(_ *redistest.Server, p *redistest.Proxy) { p.Swallow() },
	} {
		t.Run(how, func(t *testing.T) {
			server := redistest.Start(t, 1)[0]
			proxy := redistest.NewProxy(t, server.Addr())
			n, _ := greeted(t, proxy.Addr())
			end(server, proxy)
			assert.Eventually(t, func() bool { return n.Health().Err != nil }, 5*time.Second, time.Millisecond)
		})
	}
}

// A dial function that keeps to its context and not to the dialer's timeout holds up
// the node's worker no longer than the library's own.
func TestADialFunctionIsBounded(t *testing.T) {
	over := make(chan struct{}, 1)
	n := node.New(node.Config{
		Prefix: "p:", Clock: clock.New().Both,
		Option: rueidis.ClientOption{
			InitAddress: []string{"nobody:1"},
			DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				<-ctx.Done()
				select {
				case over <- struct{}{}:
				default:
				}
				return nil, ctx.Err()
			},
		},
	})
	ended := make(chan struct{})
	go func() { defer close(ended); n.Run() }()
	defer func() { n.Close(context.Background(), nil, nil); <-ended }()
	select {
	case <-over: // the first, which rueidis makes without a context of ours
	case <-time.After(10 * time.Second):
		assert.Fail(t, "the dial goes on")
	}
}

// A caller that misses a key asks for a check and heals the key; the heal expires soon,
// and a greeting takes its time.
func TestACheckComesBehindTheRequestsInTheLanes(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())

	seen := make(chan string, 100)
	proxy.DelayCommand(func(cmd []string) bool {
		seen <- cmd[0]
		return cmd[0] == "EVALSHA"
	}, 100*time.Millisecond)
	answer := make(answers, 2)
	require.True(t, n.Post(node.NewRead("p:job", now()+time.Minute), answer))
	require.Equal(t, "EVALSHA", <-seen) // on its way: the worker waits
	n.Check()
	require.True(t, n.Post(node.NewRead("p:job", now()+time.Minute), answer))
	for next := <-seen; ; next = <-seen {
		if next != "PING" {
			assert.Equal(t, "EVALSHA", next)
			break
		}
	}
	for next := <-seen; next != "INFO"; next = <-seen {
		require.NotEqual(t, "EVALSHA", next)
	}
	answer.Next(t)
	answer.Next(t)
}

// Releases are all that deletes a key early: they wait for a node that is away.
func TestReleasesSurviveABrokenConnection(t *testing.T) {
	server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "always")[0]
	n, now := greeted(t, server.Addr())
	server.MustDo("SET", "p:job", node.Compose(ownerA, 0, metadata))
	server.Kill()
	require.Eventually(t, func() bool { return n.Health().Err != nil }, 20*time.Second, time.Millisecond)
	released, others := make(answers, 4), make(answers, 4)
	require.True(t, n.Post(release("p:job", ownerA, now()+time.Minute), released))
	require.True(t, n.Post(release("p:late", ownerA, now()+300*time.Millisecond), others))
	for _, req := range []*node.Request{
		acquisition("p:job", ownerB, now()+time.Minute), renewals([]string{"p:job"}, ownerA, 0, "1000", now()+time.Minute),
	} {
		require.True(t, n.Post(req, others))
		assert.Equal(t, node.Unsent, others.Next(t).Status)
	}
	time.Sleep(400 * time.Millisecond)
	server.Restart()
	got := released.Next(t)
	assert.Equal(t, node.Done, got.Status, "%v", got.Err)
	assert.EqualValues(t, node.Ours, got.N)
	got = others.Next(t)
	assert.Equal(t, node.Unsent, got.Status)
	assert.ErrorIs(t, got.Err, node.ErrExpired)
}

// A server that is busy with somebody's script says so, and it passes.
func TestReleasesWaitForAServerThatIsBusy(t *testing.T) {
	server := redistest.Start(t, 1, "--busy-reply-threshold", "50")[0]
	n, now := greeted(t, server.Addr())
	server.MustDo("SET", "p:job", node.Compose(ownerA, 0, metadata))
	go func() { _, _ = server.Do("EVAL", "while true do end", "0") }()
	require.Eventually(t, func() bool { _, err := server.Do("GET", "x"); return err != nil }, 4*time.Second, time.Millisecond)
	extended, released := make(answers, 1), make(answers, 1)
	require.True(t, n.Post(renewals([]string{"p:job"}, ownerA, 0, "1000", now()+time.Minute), extended))
	require.True(t, n.Post(release("p:job", ownerA, now()+time.Minute), released))
	got := extended.Next(t)
	assert.Equal(t, node.Failed, got.Status)
	require.ErrorContains(t, got.Err, "BUSY")
	time.Sleep(100 * time.Millisecond)
	assert.Empty(t, released)
	server.MustDo("SCRIPT", "KILL")
	assert.EqualValues(t, node.Ours, released.Next(t).N)
}
