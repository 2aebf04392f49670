//go:build unix

package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// patience bounds the wait for an event that must happen, and soon the wait for one
	// that must not.
	patience = 20 * time.Second
	soon     = 100 * time.Millisecond
)

// proxied starts a server and a proxy before it.
func proxied(t *testing.T) (*Server, *Proxy) {
	t.Helper()
	s := Start(t, 1)[0]
	return s, NewProxy(t, s.Addr())
}

// is matches commands by name.
func is(name string) func([]string) bool {
	return func(cmd []string) bool { return cmd[0] == name }
}

// clients counts the connections of s, its own among them.
func clients(s *Server) int {
	return strings.Count(s.MustDo("CLIENT", "LIST").(string), "\n")
}

// blocked counts the clients that wait in a blocking command.
func blocked(s *Server) int64 { return s.Info("clients", "blocked_clients") }

// awaitLosses waits until n connections have lost bytes. Without it, Heal could come
// before the bytes that a test wants swallowed.
func awaitLosses(t *testing.T, p *Proxy, n int) {
	t.Helper()
	eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		count := 0
		for l := range p.links {
			if l.requests.lost || l.replies.lost {
				count++
			}
		}
		return count == n
	})
}

// underWay counts the requests, a chunk each, that the proxy has read but not yet
// delivered.
func underWay(p *Proxy) int {
	count := 0
	for _, l := range p.snapshot() {
		l.requests.lineMu.Lock()
		count += len(l.requests.line)
		l.requests.lineMu.Unlock()
	}
	return count
}

// eventually waits for a condition that must come true.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the condition never came true")
	}
}

// failure requires that f fails its test, and returns the text of the failure.
func failure(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	return ended(t, "failed: ", f)
}

// skipped requires that f skips its test, and returns the text of the skip.
func skipped(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	return ended(t, "skipped: ", f)
}

func ended(t *testing.T, how string, f func(tb testing.TB)) string {
	t.Helper()
	tb := &endingTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	text, ok := strings.CutPrefix(tb.end, how)
	require.True(t, ok, "expected %q, and not %q", how, tb.end)
	return text
}

// An endingTB records a failure or a skip instead of passing it on to its test.
type endingTB struct {
	testing.TB
	end string
}

func (tb *endingTB) Fatalf(format string, args ...any) {
	tb.end = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (tb *endingTB) Skipf(format string, args ...any) {
	tb.end = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// A client is one raw connection.
type client struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*patience)))
	return &client{t: t, conn: conn, r: bufio.NewReader(conn)}
}

func (c *client) send(args ...string) {
	c.t.Helper()
	_, err := c.conn.Write(encodeCommand(args))
	require.NoError(c.t, err)
}

func (c *client) want(reply any) {
	c.t.Helper()
	got, err := readReply(c.r)
	require.NoError(c.t, err)
	require.Equal(c.t, reply, got)
}

func (c *client) do(reply any, args ...string) {
	c.t.Helper()
	c.send(args...)
	c.want(reply)
}

// raw returns the bytes of the next RESP2 or RESP3 value.
func (c *client) raw() string {
	c.t.Helper()
	var s scanner
	var value []byte
	for {
		b, err := c.r.ReadByte()
		require.NoError(c.t, err)
		value = append(value, b)
		_, done, err := s.scan(value[len(value)-1:])
		require.NoError(c.t, err)
		if done {
			return string(value)
		}
	}
}

// wantSilence requires that no byte and no end arrives for a while.
func (c *client) wantSilence() {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(soon)))
	_, err := c.r.Peek(1)
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded)
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(2*patience)))
}

// wantEOF requires that the connection ends normally, without a byte before the end.
func (c *client) wantEOF() {
	c.t.Helper()
	_, err := c.r.ReadByte()
	require.ErrorIs(c.t, err, io.EOF)
}

// wantEnd requires that the connection ends, normally or by a RST.
func (c *client) wantEnd() {
	c.t.Helper()
	_, err := c.r.ReadByte()
	if !errors.Is(err, syscall.ECONNRESET) {
		require.ErrorIs(c.t, err, io.EOF)
	}
}
