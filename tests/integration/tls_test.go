package integration

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// tlsAddrs returns the addresses at which servers speak TLS.
func tlsAddrs(servers []*redistest.Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.TLSAddr())
	}
	return addrs
}

func TestALeaseLivesItsWholeLifeOverTLS(t *testing.T) {
	testkit.OnlyAddrs(t, "the Sentinel and the owner of the slots know the plain port")
	t.Parallel()
	ca, clients := redistest.NewCA(t), redistest.NewCA(t)
	named := ca.ClientConfig()
	named.ServerName = "redis.test"
	for _, c := range []struct {
		claim  string
		server redistest.TLS
		config *tls.Config
	}{
		{"by address", redistest.TLS{CA: ca}, ca.ClientConfig()},
		{"by name", redistest.TLS{CA: ca, Names: []string{"redis.test"}}, named},
		{"with client certificates", redistest.TLS{CA: ca, Clients: clients}, ca.ClientConfig(clients.Certificate("client"))},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			servers := redistest.StartWith(t, 3, redistest.Options{TLS: &c.server})
			nodes := over(t, tlsAddrs(servers), func(o *rueidis.ClientOption) { o.TLSConfig = c.config })
			live(t, open(t, nodes, lively...), open(t, nodes, lively...), servers)
		})
	}
}

// lively are options for live: the watchdog renews every 3 s. A master that lost its data
// gets a key back within the TTL, and a cluster serves nothing for 2 s after its start.
var lively = []quorumlock.Option{quorumlock.WithTTL(9 * time.Second), quorumlock.WithNodeTimeout(3 * time.Second)}

// live takes a Manager through every event in the life of a lease, on servers of its own, with a contender on the same
// servers.
func live(t *testing.T, m, contender *quorumlock.Manager, servers []*redistest.Server) {
	t.Helper()
	l := testkit.Acquired(t, m, "job", quorumlock.WithHolder("me"))
	assert.Positive(t, l.Token())
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == len(servers) })
	var held *quorumlock.HeldError
	require.ErrorAs(t, refused(t, contender, "job"), &held)
	assert.Equal(t, "me", held.Holder.Label)
	assert.Positive(t, held.RetryAfter)
	s := testkit.Inspected(t, contender)
	assert.True(t, s.Held)
	assert.Equal(t, l.Token(), s.Fence)
	<-l.Renewed() // by the watchdog
	testkit.Renewed(t, l)
	testkit.Confirmed(t, l.Verify)

	servers[0].MustDo("DEL", testkit.Prefix+"job")
	testkit.Renewed(t, l)
	testkit.Eventually(t, "healed", func() bool { return testkit.Locks(t, servers, "job") == len(servers) })
	servers[0].Restart()
	testkit.Eventually(t, "healed after a restart", func() bool { return testkit.Locks(t, servers, "job") == len(servers) })
	testkit.Released(t, l)
	testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "job") == 0 })

	next := testkit.Acquired(t, contender, "job")
	assert.Greater(t, next.Token(), l.Token())
	for _, server := range servers {
		server.MustDo("DEL", testkit.Prefix+"job")
	}
	testkit.Eventually(t, "lost", func() bool { return errors.Is(next.Verify(background), quorumlock.ErrLost) })
	require.ErrorIs(t, next.Release(background), quorumlock.ErrLost)

	// Registers that differ and are above the proposed token must be raised before the grant.
	ahead := time.Now().Add(time.Minute).UnixMicro()
	for i, server := range servers {
		server.MustDo("ZADD", registersKey, fmt.Sprint(ahead+int64(i)), testkit.Prefix+"uneven")
	}
	next = testkit.Acquired(t, m, "uneven")
	assert.Greater(t, next.Token(), ahead+1, "above two of the three")
	assert.LessOrEqual(t, next.Token(), ahead+4, "registers are even")
	testkit.Released(t, next)
}

// docs/redis.conf has the steps. Clients of both ports are clients of the same servers.
func TestAFleetMovesToTLSWhileLeasesAreHeld(t *testing.T) {
	testkit.OnlyAddrs(t, "the Sentinel and the owner of the slots know the plain port")
	t.Parallel()
	servers, ca := redistest.Start(t, 3), redistest.NewCA(t)
	options := append(listing(9*time.Second), quorumlock.WithNodeTimeout(3*time.Second))
	before := open(t, quorumlock.Addrs(pick(servers, 0, 1, 2)...), options...)
	l := testkit.Acquired(t, before, "job")

	dir := t.TempDir()
	authority := filepath.Join(dir, "ca.crt")
	require.NoError(t, os.WriteFile(authority, ca.PEM(), 0o600))
	var addrs []string
	for i, s := range servers {
		certificate, key := filepath.Join(dir, strconv.Itoa(i)+".crt"), filepath.Join(dir, strconv.Itoa(i)+".key")
		require.NoError(t, redistest.WritePEM(ca.Certificate("127.0.0.1"), certificate, key))
		s.MustDo("CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key, "tls-ca-cert-file", authority, "tls-auth-clients", "no")
		testkit.Eventually(t, "a free port", func() bool {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			addr := listener.Addr().String()
			require.NoError(t, listener.Close())
			_, port, _ := net.SplitHostPort(addr)
			if _, err = s.Do("CONFIG", "SET", "tls-port", port); err == nil {
				addrs = append(addrs, addr)
			}
			return err == nil
		})
	}
	after := open(t, over(t, addrs, func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() }), options...)
	require.ErrorIs(t, refused(t, after, "job"), quorumlock.ErrHeld)
	testkit.Released(t, l)
	next := testkit.Acquired(t, after, "job")
	assert.Greater(t, next.Token(), l.Token())
	require.ErrorIs(t, refused(t, before, "job"), quorumlock.ErrHeld)
	require.NoError(t, before.Close(background))

	for _, s := range servers {
		s.MustDo("CONFIG", "SET", "port", "0")
		_, err := net.Dial("tcp", s.Addr())
		require.Error(t, err)
	}
	<-next.Renewed() // by the watchdog
	testkit.Renewed(t, next)
	testkit.Released(t, next)
}

// docs/redis.conf has the command.
func TestANodeLoadsACertificateFromTheSameFilesAndKeepsItsConnections(t *testing.T) {
	testkit.OnlyAddrs(t, "the Sentinel and the owner of the slots know the plain port")
	t.Parallel()
	text, err := os.ReadFile("../../docs/redis.conf")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)^#   (CONFIG SET tls-cert-file .*)$`).FindSubmatch(text)
	require.Len(t, command, 2)
	ca := redistest.NewCA(t)
	s := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca}})[0]
	serial := func() string {
		conn, err := tls.Dial("tcp", s.TLSAddr(), ca.ClientConfig())
		require.NoError(t, err)
		defer func() { assert.NoError(t, conn.Close()) }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	path := func(setting string) string { return s.MustDo("CONFIG", "GET", setting).([]any)[1].(string) }
	nodes := over(t, tlsAddrs([]*redistest.Server{s}), func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() })
	l := testkit.Acquired(t, open(t, nodes, lively...), "job")
	connections := func() [][]byte {
		return regexp.MustCompile(`(?m)^id=\d+ addr=\S+ laddr=`+s.TLSAddr()+" ").FindAll([]byte(s.MustDo("CLIENT", "LIST").(string)), -1)
	}
	connected := connections()
	require.NotEmpty(t, connected)
	before := serial()
	require.NoError(t, redistest.WritePEM(ca.Certificate("127.0.0.1"), path("tls-cert-file"), path("tls-key-file")))
	require.Equal(t, before, serial(), "it reads the files at the command")

	s.MustDo(strings.Fields(strings.NewReplacer("/etc/redis/node.crt", path("tls-cert-file"), "/etc/redis/node.key", path("tls-key-file")).Replace(string(command[1])))...)
	assert.NotEqual(t, before, serial())
	testkit.Renewed(t, l)
	assert.Subset(t, connections(), connected)
	testkit.Released(t, l)
}

func TestATLSNodeThatCannotBeTrustedIsRefusedAndTheErrorSaysWhy(t *testing.T) {
	testkit.OnlyAddrs(t, "the Sentinel and the owner of the slots know the plain port")
	t.Parallel()
	ca, clients := redistest.NewCA(t), redistest.NewCA(t)
	servers := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca, Names: []string{"redis.test", "127.0.0.1"}}})
	strict := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca, Clients: clients}})
	named := func(name string) *tls.Config { c := ca.ClientConfig(); c.ServerName = name; return c }
	// With TLS 1.3 a client notices its refusal only after the handshake, perhaps only from the end of the connection.
	old := func(c *tls.Config) *tls.Config { c.MaxVersion = tls.VersionTLS12; return c }
	for _, c := range []struct {
		claim, addr string
		config      *tls.Config
		cause       any // for errors.As
		text        string
	}{
		{"another CA", servers[0].TLSAddr(), redistest.NewCA(t).ClientConfig(), new(x509.UnknownAuthorityError), "unknown authority"},
		{"another name", servers[0].TLSAddr(), named("other.test"), new(x509.HostnameError), "not other.test"},
		{"no TLS there", servers[0].Addr(), ca.ClientConfig(), nil,
			"connected, but no TLS handshake within 500ms; if the server does not speak TLS at this port, leave TLSConfig out, or name the port at which it speaks TLS"},
		{"no TLS here", servers[0].TLSAddr(), nil, nil, "if it speaks TLS at this port, set TLSConfig or name its other port"},
		{"no client certificate", strict[0].TLSAddr(), old(ca.ClientConfig()), nil, "tls: "},
		{"a client certificate of another CA", strict[0].TLSAddr(), old(ca.ClientConfig(ca.Certificate("client"))), nil, "tls: "},
		{"no client certificate, TLS 1.3", strict[0].TLSAddr(), ca.ClientConfig(), nil, ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			var err error
			testkit.Eventually(t, "refused for this reason and not for a timeout", func() bool {
				_, err = quorumlock.New(background, over(t, []string{c.addr}, func(o *rueidis.ClientOption) { o.TLSConfig = c.config }))
				require.Error(t, err)
				return strings.Contains(err.Error(), c.text)
			})
			var node *quorumlock.NodeError
			require.ErrorAs(t, err, &node)
			assert.Equal(t, c.addr, node.Addr)
			if c.cause != nil {
				assert.ErrorAs(t, err, c.cause)
			}
			assert.True(t, errors.Is(err, quorumlock.ErrNoQuorum) || errors.Is(err, quorumlock.ErrInvalid), "%v", err)
		})
	}
}

// A server that answers a TLS handshake with plain text certainly does not speak TLS. A Redis server answers so once it
// has received a line feed.
func TestAServerThatAnswersAHandshakeInPlainTextIsRefused(t *testing.T) {
	testkit.OnlyAddrs(t, "the server is none")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
			_ = conn.Close()
		}
	})
	defer serving.Wait()
	defer func() { _ = listener.Close() }()
	_, err = quorumlock.New(background, over(t, []string{listener.Addr().String()}, func(o *rueidis.ClientOption) { o.TLSConfig = redistest.NewCA(t).ClientConfig() }),
		quorumlock.WithStartupWait(time.Hour))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Contains(t, err.Error(), "the server does not speak TLS at this port; leave TLSConfig out, or name the port at which it speaks TLS")
}

func TestOneNodeThatCannotBeTrustedDoesNotVoteAndTheOthersDo(t *testing.T) {
	testkit.OnlyAddrs(t, "the Sentinel and the owner of the slots know the plain port")
	ca, other := redistest.NewCA(t), redistest.NewCA(t)
	servers := append(redistest.StartWith(t, 2, redistest.Options{TLS: &redistest.TLS{CA: ca}}),
		redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: other}})...)
	m := open(t, over(t, tlsAddrs(servers), func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() }), patient()...)
	l := testkit.Acquired(t, m, "job")
	testkit.Renewed(t, l)
	testkit.Eventually(t, "the reason", func() bool {
		err := testkit.Inspected(t, m).Nodes[2].Err
		require.Error(t, err)
		return strings.Contains(err.Error(), "unknown authority")
	})
	testkit.Released(t, l)
	assert.Empty(t, testkit.Keys(t, servers[2:]))
}
