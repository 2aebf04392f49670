package node_test

import (
	"bytes"
	"context"
	"crypto/tls"
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
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// tapped records the bytes written to a connection, and its end.
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

// ungreeted reports whether the text was sent on this connection before the greeting.
func (c *tapped) ungreeted(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := bytes.Index(c.written.Bytes(), []byte(text))
	return at >= 0 && !bytes.Contains(c.written.Bytes()[:at], []byte("replication"))
}

// tapping dials tapped connections.
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

// The connection ends at each instant at which the worker reads its clock. One of these
// lies between its last check of the connection and the send. rueidis dials again by itself,
// so the vote then travels on a connection that was not greeted.
func TestAVoteOverAConnectionThatWasNotGreetedDoesNotCount(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	refused := 0
	for try := int64(0); try < 100 && (try < 6 || refused == 0); try++ { // the worker may check the connection at that moment
		look := 1 + try%6
		dialer := &tapping{}
		real := clock.New()
		var countdown atomic.Int64
		var n *node.Node
		n, _ = run(t, node.Config{
			Cap: time.Second,
			Clock: func() (validity clock.Validity, steady clock.Steady) {
				if countdown.Add(-1) == 0 {
					for _, c := range dialer.all() {
						_ = c.Close()
					}
					assert.Error(t, n.Ping(), "rueidis notices the end, and dials for the next command")
				}
				return real.Both()
			},
			Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, DialCtxFn: dialer.dial},
		})
		require.NoError(t, n.Health().Err)
		owner := ownerA[1:] + string(rune('0'+look))
		answer := make(answers, 1)
		req := acquisition("p:job", owner, time.Duration(real.Steady().Add(10*time.Second)))
		countdown.Store(look)
		require.True(t, n.Post(req, answer))
		got := answer.Next(t)
		for _, c := range dialer.all() {
			if c.ungreeted(owner) {
				refused++
				assert.Equal(t, wire.Unknown, got.Status, "look %d", look)
				assert.ErrorIs(t, got.Err, vote.ErrReconnected)
			}
		}
		n.Close(context.Background(), nil, nil)
		server.MustDo("FLUSHALL")
	}
	assert.Positive(t, refused, "no break was between the check and the send: has the worker changed?")
}

// No goroutine of the node reads an idle connection, but its end is noticed long before
// the next greeting.
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

// rueidis would send AUTH over the worker's connection. Where that meets a batch, rueidis pipelines from then on, and
// has no bound for an answer.
func TestAConnectionWithNewCredentialsStillBoundsAnswers(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	var asked atomic.Int64
	n, now := run(t, node.Config{
		Cap: time.Second,
		Option: rueidis.ClientOption{
			InitAddress: []string{proxy.Addr()},
			AuthCredentialsFn: func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				ends := 5 * time.Millisecond
				if asked.Add(1) >= 4 {
					ends = time.Hour
				}
				return rueidis.AuthCredentials{Username: "default", Password: "any", RefreshAfter: time.Now().Add(ends)}, nil
			},
		},
	})
	load := &flood{n: n, make: func() *wire.Request { return release("p:job", ownerA, now()+time.Minute) }}
	for range 4 {
		load.post()
	}
	require.Eventually(t, func() bool { return asked.Load() >= 4 }, 20*time.Second, time.Millisecond)
	require.NoError(t, n.Health().Err)
	proxy.Swallow()
	assert.Eventually(t, func() bool { return n.Health().Err != nil }, 10*time.Second, time.Millisecond)
	load.end()
	proxy.Heal()
	load.calls.Wait()
}

// A dial function that honours its context but not the dialer's timeout delays the node's
// worker no longer than the library's own.
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
	case <-over: // the first, which rueidis makes without our context
	case <-time.After(10 * time.Second):
		assert.Fail(t, "the dial goes on")
	}
}

// A caller that misses a key asks for a check and heals the key. The heal expires soon,
// and a greeting takes time.
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
	require.True(t, n.Post(wire.NewRead("p:job", clock.Steady(now()+time.Minute)), answer))
	require.Equal(t, "EVALSHA", <-seen) // in flight: the worker waits
	n.Check()
	require.True(t, n.Post(wire.NewRead("p:job", clock.Steady(now()+time.Minute)), answer))
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

// A node may be down for days, and a release that waits for it takes memory.
func TestAReleaseThatHasExpiredWaitsForNoNode(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	server.Kill()
	require.Eventually(t, func() bool { return n.Health().Err != nil }, 20*time.Second, time.Millisecond)
	replies := make(answers, 1)
	require.True(t, n.Post(release("p:job", ownerA, now()+300*time.Millisecond), replies))
	got := replies.Next(t)
	assert.Equal(t, wire.NotApplied, got.Status)
	assert.ErrorIs(t, got.Err, wire.ErrExpired)
}

// Releases are the only requests that delete a key early. They wait for a node that is
// down.
func TestReleasesSurviveABrokenConnection(t *testing.T) {
	server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "always")[0]
	n, now := greeted(t, server.Addr())
	server.MustDo("SET", "p:job", wire.Compose(ownerA, 0, metadata))
	server.Kill()
	require.Eventually(t, func() bool { return n.Health().Err != nil }, 20*time.Second, time.Millisecond)
	released, others := make(answers, 4), make(answers, 4)
	require.True(t, n.Post(release("p:job", ownerA, now()+time.Minute), released))
	require.True(t, n.Post(release("p:late", ownerA, now()+300*time.Millisecond), others))
	for _, req := range []*wire.Request{
		acquisition("p:job", ownerB, now()+time.Minute), renewals([]string{"p:job"}, ownerA, 0, "1000", now()+time.Minute),
	} {
		require.True(t, n.Post(req, others))
		assert.Equal(t, wire.NotApplied, others.Next(t).Status)
	}
	time.Sleep(400 * time.Millisecond)
	server.Restart()
	got := released.Next(t)
	assert.Equal(t, wire.Done, got.Status, "%v", got.Err)
	assert.EqualValues(t, wire.Ours, got.N)
	got = others.Next(t)
	assert.Equal(t, wire.NotApplied, got.Status)
	assert.ErrorIs(t, got.Err, wire.ErrExpired)
}

// A server that is busy with another client's script reports it, and the state passes.
func TestReleasesWaitForAServerThatIsBusy(t *testing.T) {
	server := redistest.Start(t, 1, "--busy-reply-threshold", "50")[0]
	n, now := greeted(t, server.Addr())
	server.MustDo("SET", "p:job", wire.Compose(ownerA, 0, metadata))
	go func() { _, _ = server.Do("EVAL", "while true do end", "0") }()
	require.Eventually(t, func() bool { _, err := server.Do("GET", "x"); return err != nil }, 4*time.Second, time.Millisecond)
	extended, released := make(answers, 1), make(answers, 1)
	require.True(t, n.Post(renewals([]string{"p:job"}, ownerA, 0, "1000", now()+time.Minute), extended))
	require.True(t, n.Post(release("p:job", ownerA, now()+time.Minute), released))
	got := extended.Next(t)
	assert.Equal(t, wire.Failed, got.Status)
	require.ErrorContains(t, got.Err, "BUSY")
	time.Sleep(100 * time.Millisecond)
	assert.Empty(t, released)
	server.MustDo("SCRIPT", "KILL")
	assert.EqualValues(t, wire.Ours, released.Next(t).N)
}
