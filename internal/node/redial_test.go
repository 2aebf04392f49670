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

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.once.Do(func() { close(c.ended) })
	}
	return n, err
}

// ungreeted reports whether the text went out on this connection before the
// greeting.
func (c *tapped) ungreeted(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := bytes.Index(c.written.Bytes(), []byte(text))
	return at >= 0 && !bytes.Contains(c.written.Bytes()[:at], []byte("replication"))
}

type answers chan node.Reply

func (a answers) Receive(_ int, _ *node.Request, r *node.Reply) { a <- *r }

// The connection breaks at every instant at which the worker reads its clock,
// one of which lies between its last look at the connection and the send:
// rueidis then dials by itself, and the vote travels on a connection that
// nobody has asked who is at its other end.
func TestAVoteOverAConnectionThatWasNotGreetedDoesNotCount(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	refused := 0
	for try := int64(0); try < 200 && (try < 6 || refused == 0); try++ { // rueidis may take its time to see the break
		step := 1 + try%6
		var mu sync.Mutex
		var conns []*tapped
		last := func() *tapped {
			mu.Lock()
			defer mu.Unlock()
			return conns[len(conns)-1]
		}
		real := clock.New()
		var countdown atomic.Int64
		now := func() time.Duration {
			if countdown.Add(-1) == 0 {
				c := last()
				server.MustDo("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				<-c.ended
				time.Sleep(20 * time.Millisecond)
			}
			return real.Now()
		}
		up := make(chan struct{}, 16)
		n := node.New(node.Config{
			Prefix: "p:", Now: now,
			Option: rueidis.ClientOption{
				InitAddress: []string{server.Addr()},
				DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
					conn, err := d.DialContext(ctx, "tcp", addr)
					if err != nil {
						return nil, err
					}
					c := &tapped{Conn: conn, ended: make(chan struct{})}
					mu.Lock()
					conns = append(conns, c)
					mu.Unlock()
					return c, nil
				},
			},
			Changed: func(int, node.Health) { up <- struct{}{} },
		})
		ended := make(chan struct{})
		go func() { defer close(ended); n.Run() }()
		<-up

		owner := "0123456789abcdef0123456789abcde" + string(rune('0'+step))
		lock, fence, queue := node.Keys("p:", "job")
		answer := make(answers, 1)
		expires := real.Now() + 10*time.Second
		countdown.Store(step)
		require.True(t, n.Post(&node.Request{
			Kind: node.Acquire, Keys: []string{lock, fence, queue}, Expires: expires,
			Args: []string{owner, "0 - x", "10000", "10000", "1", "1000000", "9000000000000000", "", ""},
		}, answer))
		got := <-answer
		mu.Lock()
		all := slices.Clone(conns)
		mu.Unlock()
		for _, c := range all {
			if c.ungreeted(owner) {
				refused++
				assert.Equal(t, node.Unknown, got.Status, "step %d", step)
				assert.ErrorIs(t, got.Err, node.ErrReconnected)
			}
		}
		n.Close(context.Background(), nil, nil)
		<-ended
		server.MustDo("FLUSHALL")
	}
	assert.Positive(t, refused, "the break was never where it matters: has the worker changed?")
}

// A dial function that keeps to its context and not to the dialer's timeout holds
// up the node's worker no longer than the library's own.
func TestADialFunctionIsBounded(t *testing.T) {
	over := make(chan struct{}, 1)
	n := node.New(node.Config{
		Prefix: "p:", Now: clock.New().Now,
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

// Whoever misses a key asks for a check and heals the key; the heal expires soon,
// and a greeting takes its time.
func TestACheckComesBehindWhatIsQueued(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	defer n.Close(context.Background(), nil, nil)

	seen := make(chan string, 100)
	proxy.DelayCommand(func(cmd []string) bool {
		seen <- cmd[0]
		return cmd[0] == "EVALSHA"
	}, 100*time.Millisecond)
	answer := make(answers, 2)
	read := &node.Request{Kind: node.Read, Keys: []string{"p:job"}, Expires: now() + time.Minute}
	require.True(t, n.Post(read, answer))
	require.Equal(t, "EVALSHA", <-seen) // on its way: the worker waits
	n.Check()
	require.True(t, n.Post(read, answer))
	for next := <-seen; ; next = <-seen {
		if next != "PING" { // rueidis's
			assert.Equal(t, "EVALSHA", next)
			break
		}
	}
	for next := <-seen; next != "INFO"; next = <-seen {
		require.NotEqual(t, "EVALSHA", next)
	}
	<-answer
	<-answer
}
