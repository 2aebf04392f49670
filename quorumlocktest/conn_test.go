package quorumlocktest_test

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

const ping = "*1\r\n$4\r\nPING\r\n"

func dial(t *testing.T, cluster *quorumlocktest.Cluster) net.Conn {
	t.Helper()
	c, err := cluster.Options()[0].DialCtxFn(t.Context(), "", &net.Dialer{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestConnectionKeepsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, quorumlocktest.Start(t, 1))
		start := time.Now()
		require.NoError(t, c.SetReadDeadline(start.Add(time.Second)))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(start))
		_, err = io.WriteString(c, ping)
		require.NoError(t, err, "that was for reads")

		require.NoError(t, c.SetReadDeadline(time.Time{}))
		buf := make([]byte, 3)
		_, err = io.ReadFull(c, buf)
		require.NoError(t, err)
		assert.Equal(t, "+PO", string(buf))
		buf = make([]byte, 4)
		_, err = io.ReadFull(c, buf)
		require.NoError(t, err)
		assert.Equal(t, "NG\r\n", string(buf))

		time.AfterFunc(time.Minute, func() { _ = c.SetDeadline(time.Now()) })
		_, err = c.Read(buf)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a new deadline counts for a blocked Read")
		_, err = io.WriteString(c, ping)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		_, err = io.WriteString(c, ping)
		require.NoError(t, err)
	})
}

func TestConnectionEndsForEveryReader(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(n *quorumlocktest.Node, c net.Conn)
		want error
	}{
		"by the client":    {func(_ *quorumlocktest.Node, c net.Conn) { _ = c.Close() }, io.ErrClosedPipe},
		"by a kill":        {func(n *quorumlocktest.Node, _ net.Conn) { n.Kill() }, io.EOF},
		"by QUIT":          {func(_ *quorumlocktest.Node, c net.Conn) { _, _ = io.WriteString(c, "*1\r\n$4\r\nQUIT\r\n") }, io.EOF},
		"by no RESP":       {func(_ *quorumlocktest.Node, c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\n") }, io.EOF},
		"by a cut, healed": {func(n *quorumlocktest.Node, c net.Conn) { n.Cut(); _, _ = io.WriteString(c, ping); n.Heal() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := quorumlocktest.Start(t, 1)
				c := dial(t, cluster)
				ended := make(chan error)
				for range 3 {
					go func() {
						_, err := io.Copy(io.Discard, onlyReader{c})
						if err == nil {
							err = io.EOF // Copy takes it for success
						}
						ended <- err
					}()
				}
				synctest.Wait()
				test.end(cluster.Nodes()[0], c)
				for range 3 {
					require.ErrorIs(t, <-ended, test.want)
				}
				_, err := io.WriteString(c, ping)
				require.Error(t, err)
			})
		})
	}
}

type onlyReader struct{ io.Reader }
