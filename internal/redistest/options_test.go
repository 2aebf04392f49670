//go:build unix

package redistest

import (
	"bufio"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAServerListensAtItsSocketAndTakesItAway(t *testing.T) {
	t.Parallel()
	var path string
	t.Run("listens", func(t *testing.T) {
		s := StartWith(t, 1, Options{Socket: true})[0]
		path = s.SocketAddr()
		for range 2 {
			conn, err := net.Dial("unix", path)
			require.NoError(t, err)
			c := &client{t: t, conn: conn, r: bufio.NewReader(conn)}
			c.do("OK", "SET", "k", "v")
			assert.Equal(t, "v", s.MustDo("GET", "k"), "one server, two addresses")
			require.NoError(t, conn.Close())
			s.Restart()
		}
	})
	assert.NoDirExists(t, filepath.Dir(path))
	s := Start(t, 1)[0]
	assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.SocketAddr() }), "Options.Socket")
	assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.TLSAddr() }), "Options.TLS")
}

func TestTLSLetsInWhoTrustsTheCAAndAsksForTheName(t *testing.T) {
	t.Parallel()
	ca, other := NewCA(t), NewCA(t)
	s := StartWith(t, 1, Options{TLS: &TLS{CA: ca, Names: []string{"redis.test", "127.0.0.1"}}})[0]
	named := func(config *tls.Config, name string) *tls.Config { config.ServerName = name; return config }
	for range 2 {
		assert.NoError(t, ping(s, ca.ClientConfig()))
		assert.NoError(t, ping(s, named(ca.ClientConfig(), "redis.test")))
		assert.ErrorContains(t, ping(s, named(ca.ClientConfig(), "other.test")), "certificate is valid for redis.test, not other.test")
		assert.ErrorContains(t, ping(s, other.ClientConfig()), "unknown authority")
		assert.Equal(t, "PONG", s.MustDo("PING"), "in the clear as before")
		s.Restart()
	}
	unnamed := StartWith(t, 1, Options{TLS: &TLS{CA: ca}})[0]
	assert.NoError(t, ping(unnamed, ca.ClientConfig()))
}

func TestTLSWithClientCertificatesLetsInWhoHasTheRightOne(t *testing.T) {
	t.Parallel()
	ca, clients := NewCA(t), NewCA(t)
	s := StartWith(t, 1, Options{TLS: &TLS{CA: ca, Clients: clients}})[0]
	assert.NoError(t, ping(s, ca.ClientConfig(clients.Certificate("somebody"))))
	assert.Error(t, ping(s, ca.ClientConfig()))
	assert.Error(t, ping(s, ca.ClientConfig(ca.Certificate("somebody"))), "the servers' CA does not sign clients")
}

func TestStartTakesAnotherPortForTLSWhenAStrangerIsFaster(t *testing.T) {
	t.Parallel()
	stranger := Start(t, 1)[0]
	ca := NewCA(t)
	s := &Server{tb: t, bin: stranger.bin, dir: t.TempDir(), tls: &TLS{CA: ca}}
	t.Cleanup(s.Kill)
	args, err := s.tls.arguments(s.dir)
	require.NoError(t, err)
	s.args = args
	tries := 0
	require.NoError(t, s.startOnFreePort(func() (int, error) {
		if tries++; tries == 2 {
			return stranger.port, nil
		}
		return freePort()
	}))
	assert.NotEqual(t, stranger.Addr(), s.TLSAddr())
	assert.NoError(t, ping(s, ca.ClientConfig()))
}

func TestAUserGivenAsAnArgumentOutlivesARestart(t *testing.T) {
	t.Parallel()
	s := Start(t, 1, "--user", "reader", "on", ">secret", "resetchannels", "~mine:*", "-@all", "+get")[0]
	s.Restart()
	c := dial(t, s.Addr())
	c.do("OK", "AUTH", "reader", "secret")
	c.do(nil, "GET", "mine:k")
	for _, refused := range [][]string{{"GET", "theirs"}, {"SET", "mine:k", "v"}} {
		c.send(refused...)
		_, err := readReply(c.r)
		assert.ErrorContains(t, err, "NOPERM")
	}
	assert.Equal(t, "PONG", s.MustDo("PING"), "the default user is as before")
}

func TestTheKeyOfAServerIsItsOwnersAlone(t *testing.T) {
	t.Parallel()
	s := StartWith(t, 1, Options{TLS: &TLS{CA: NewCA(t)}})[0]
	info, err := os.Stat(filepath.Join(s.Dir(), "server.key"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

// ping sends PING over TLS.
func ping(s *Server, config *tls.Config) error {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", s.TLSAddr(), config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write(encodeCommand([]string{"PING"})); err != nil {
		return err
	}
	_, err = readReply(bufio.NewReader(conn)) // with TLS 1.3 a refusal of the client arrives here
	return err
}
