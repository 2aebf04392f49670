package battery

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// newQuotes collects replies that a server never sends to our commands.
func newQuotes(t *testing.T) map[string]string {
	t.Helper()
	s := redistest.Start(t, 1, "--busy-reply-threshold", "10")[0]
	defer s.Kill() // nothing else ends the second script
	admin := dialRaw(t, s.Addr())
	quotes := map[string]string{}
	kill := func() (reply string) {
		patiently(t, "the script counts as slow", func() bool {
			reply = admin.say("SCRIPT", "KILL")
			return !strings.HasPrefix(reply, "-NOTBUSY")
		})
		return reply
	}
	admin.say("CONFIG", "SET", "maxclients", "1")
	quotes["clients"] = dialRaw(t, s.Addr()).read()
	admin.say("CONFIG", "SET", "maxclients", "10000")
	admin.say("SET", "text", "x")
	quotes["integer"] = admin.say("EVAL", "return redis.call('INCR', 'text')", "0")
	slow := busy(t, s, "while true do end")
	kill()
	quotes["killed"] = slow.read()
	busy(t, s, "redis.call('SET', 'a', 'b') while true do end")
	quotes["UNKILLABLE"] = kill()
	for what, reply := range quotes {
		require.True(t, strings.HasPrefix(reply, "-"), "%s: %q", what, reply)
	}
	return quotes
}

// busy has a server run a script, and returns the connection that waits for it.
func busy(t *testing.T, s *redistest.Server, script string) *rawConn {
	t.Helper()
	conn := dialRaw(t, s.Addr())
	conn.send("EVAL", script, "0")
	return conn
}

// rawConn is a plain connection to a server: it lasts as long as the test, and returns
// raw replies.
type rawConn struct {
	t      *testing.T
	conn   net.Conn
	r      *bufio.Reader
	broken bool
}

func dialRaw(t *testing.T, addr string) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp4", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &rawConn{t: t, conn: conn, r: bufio.NewReader(conn)}
}

func (c *rawConn) say(args ...string) string {
	c.send(args...)
	return c.read()
}

func (c *rawConn) send(args ...string) {
	if c.broken {
		return
	}
	if _, err := c.conn.Write(encode(args)); err != nil {
		c.t.Errorf("%q: %v", args, err)
		c.broken = true
	}
}

func (c *rawConn) read() string {
	if c.broken {
		return ""
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	reply, err := readRaw(c.r)
	if err != nil {
		c.t.Errorf("reply: %v", err)
		c.broken = true
	}
	return string(reply)
}

func encode(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// readRaw reads one value and returns its bytes.
func readRaw(r *bufio.Reader) ([]byte, error) {
	value, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(value[1:])))
	values := 0
	switch value[0] {
	case '$', '=', '!':
		if n < 0 {
			return value, nil
		}
		body := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(r, body)
		return append(value, body...), err
	case '*', '~', '>':
		values = n
	case '%':
		values = 2 * n
	}
	for range values {
		v, err := readRaw(r)
		if err != nil {
			return nil, err
		}
		value = append(value, v...)
	}
	return value, nil
}

// readCommand reads one command of a client.
func readCommand(r *bufio.Reader) ([]string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if err != nil {
		return nil, err
	}
	cmd := make([]string, n)
	for i := range cmd {
		raw, err := readRaw(r)
		if err != nil {
			return nil, err
		}
		_, word, _ := strings.Cut(string(raw), "\r\n")
		cmd[i] = strings.TrimSuffix(word, "\r\n")
	}
	return cmd, nil
}

// A switchboard is a proxy that can answer single commands itself or have another server answer them. It passes one
// command at a time and waits for its reply, so that replies stay in order whatever their source.
type switchboard struct {
	ln     net.Listener
	target string
	all    sync.WaitGroup

	mu      sync.Mutex
	conns   []net.Conn
	match   func(cmd []string) bool // nil: all commands pass
	text    string                  // the answer, unless other is set
	other   string                  // the address of the server that answers
	instead map[string]string       // words to replace in diverted commands
}

func newSwitchboard(t *testing.T, target string) *switchboard {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	b := &switchboard{ln: ln, target: target, instead: map[string]string{}}
	b.all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, conn)
			b.mu.Unlock()
			b.all.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		b.hangUp()
		b.all.Wait()
	})
	return b
}

func (b *switchboard) addr() string { return b.ln.Addr().String() }

// hangUp closes all connections of clients.
func (b *switchboard) hangUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.conns {
		_ = conn.Close()
	}
	b.conns = nil
}

// quote answers matching commands with this text.
func (b *switchboard) quote(text string, match func(cmd []string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.match = text, match
}

// divert has matching commands answered by the server at this address.
func (b *switchboard) divert(addr string, match func(cmd []string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.other, b.match = addr, match
}

// replace replaces a word in diverted commands.
func (b *switchboard) replace(word, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instead[word] = by
}

// pass ends quote, divert and replace.
func (b *switchboard) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.match, b.text, b.other = nil, "", ""
	clear(b.instead)
}

func (b *switchboard) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp4", b.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		cmd, err := readCommand(requests)
		if err != nil {
			return
		}
		reply := []byte(b.answer(cmd))
		if len(reply) == 0 {
			if _, err := server.Write(encode(cmd)); err != nil {
				return
			}
			if reply, err = readRaw(replies); err != nil {
				return
			}
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// answer returns the reply to a command that does not pass, or "" for one that does.
func (b *switchboard) answer(cmd []string) string {
	b.mu.Lock()
	match, text, other := b.match, b.text, b.other
	for i, word := range cmd {
		if by, ok := b.instead[word]; ok {
			cmd[i] = by
		}
	}
	b.mu.Unlock()
	if match == nil || !match(cmd) {
		return ""
	}
	if other == "" {
		return text
	}
	conn, err := net.Dial("tcp4", other)
	if err != nil {
		return "-ERR switchboard: " + err.Error() + "\r\n"
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.Write(encode(cmd)); err == nil {
		var reply []byte
		if reply, err = readRaw(bufio.NewReader(conn)); err == nil {
			return string(reply)
		}
	}
	return "-ERR switchboard: " + err.Error() + "\r\n"
}
