package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// strange returns the address of a server that gives the same answer to every command.
func strange(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if !strings.HasPrefix(lines.Text(), "*") {
						continue // a part of a command
					}
					if _, err := conn.Write([]byte(answer)); err != nil {
						return
					}
				}
			})
		}
	})
	return listener.Addr().String()
}

func TestANodeThatCannotBeUsedIsRefusedWithACure(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	t.Parallel()
	plain := redistest.Start(t, 1)[0]
	ca := redistest.NewCA(t)
	secure := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca}})[0]
	for claim, c := range map[string]struct {
		addr   string
		change func(*rueidis.ClientOption)
		want   string
	}{
		"an HTTP port": {strange(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), nil,
			"the answer is not Redis's protocol (it begins with 'H', as from an HTTP server); name the host and port of a Redis server"},
		"a memcached port": {strange(t, "ERROR\r\n"), nil,
			"the answer is not Redis's protocol (it begins with 'E', as from another kind of server); name the host and port of a Redis server"},
		"a TLS port": {strange(t, "\x15\x03\x01\x00\x02\x02\x0a"), nil,
			`(it begins with '\x15', as from a TLS port); set TLSConfig, or name the port without TLS`},
		"a proxy without HELLO": {strange(t, "-ERR unsupported command\r\n"), nil,
			"unsupported command; do not rename commands that locks need (https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights); if a proxy answers, name the server itself, or set AlwaysRESP2"},
		"a proxy without RESP3": {strange(t, "-NOPROTO unsupported protocol version\r\n"), nil,
			"NOPROTO unsupported protocol version; set AlwaysRESP2"},
		"an unknown answer": {strange(t, "-ERR No such feature.\r\n"), nil,
			"connecting: No such feature; no supported server gives this answer: see https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#an-unknown-answer"},
		"a database that is not there": {plain.Addr(), func(o *rueidis.ClientOption) { o.SelectDB = 99 },
			"DB index is out of range; set SelectDB to a database that the server has: 0 always exists"},
		"an unknown authority": {secure.TLSAddr(), func(o *rueidis.ClientOption) { o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} },
			"x509: certificate signed by unknown authority; set TLSConfig.RootCAs to the authority of the server's certificate"},
		"another name": {secure.TLSAddr(), func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig(); o.TLSConfig.ServerName = "other" },
			"name the node as its certificate does, or set TLSConfig.ServerName"},
	} {
		nodes := over(t, []string{c.addr}, func(o *rueidis.ClientOption) {
			if c.change != nil {
				c.change(o)
			}
		})
		_, err := quorumlock.New(background, nodes)
		assert.ErrorContains(t, err, c.want, claim)
	}
}

func TestACommandThatIsRenamedIsSaid(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	t.Parallel()
	m := open(t, testkit.Nodes(t, redistest.Addrs(redistest.Start(t, 1, "--rename-command", "ZADD", "hidden"))...))
	_, err := m.TryAcquire(background, "job")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	assert.ErrorContains(t, err, "do not rename commands that locks need")
}

func TestACallWhoseContextHadEndedSaysSo(t *testing.T) {
	t.Parallel()
	m := open(t, testkit.Nodes(t, redistest.Addrs(testkit.Start(t, 3))...), patient()...)
	l := testkit.Acquired(t, m, "job")
	ended, cancel := context.WithCancel(background)
	cancel()
	_, inspected := m.Inspect(ended, "job")
	for claim, err := range map[string]error{"inspect": inspected, "verify": l.Verify(ended), "release": l.Release(ended)} {
		require.ErrorIs(t, err, context.Canceled, claim)
		if short := (*quorumlock.QuorumError)(nil); errors.As(err, &short) {
			for _, n := range short.Nodes {
				require.EqualError(t, n.Err, "answer not awaited: the context had ended before the call", claim)
			}
		}
	}
}

func TestANameThatIsTakenWithoutAHolderSaysByWhat(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
	for _, s := range servers {
		s.MustDo("SET", testkit.Prefix+"foreign", "")
	}
	err := refused(t, m, "foreign")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	assert.Equal(t, `quorumlock: "foreign" is held by another program, whose key has an empty value`, err.Error())

	handed := testkit.Acquired(t, m, "handed")
	// Detach withdraws what a slow node has not run yet, so the lock never gets there.
	reached(t, servers, "handed")
	h, err := handed.Detach(background, time.Minute)
	require.NoError(t, err)
	for _, s := range servers {
		s.MustDo("DEL", testkit.Prefix+"handed")
	}
	_, err = m.Resume(background, h)
	require.ErrorIs(t, err, quorumlock.ErrLost)
	assert.EqualError(t, err, `quorumlock: resume "handed": the handle no longer works: its lock has ended`)
}

// A program may compute the remaining time for a wait, and pass the result unchecked.
func TestAWaitThatEndsAtOnceStillAsksOnce(t *testing.T) {
	t.Parallel()
	m := open(t, testkit.Nodes(t, redistest.Addrs(testkit.Start(t, 3))...), patient()...)
	l, err := m.Acquire(background, "free", quorumlock.WithWait(time.Nanosecond))
	require.NoError(t, err)
	_, err = m.Acquire(background, "free", quorumlock.WithWait(time.Nanosecond))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	assert.Contains(t, err.Error(), `"free" is held by`)
	assert.False(t, strings.Contains(err.Error(), "waiter"), err)
	testkit.Confirmed(t, l.Release)
}
