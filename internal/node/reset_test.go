package node_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
)

// holding is a connection of a user's DialCtxFn.
type holding struct{ *net.TCPConn }

// The kernel may still have bytes to send when the node gives a connection up. They must
// not arrive after the requests on the next connection.
func TestAConnectionThatIsGivenUpIsReset(t *testing.T) {
	lender := httptest.NewUnstartedServer(nil) // lends a certificate
	lender.StartTLS()
	certificate := lender.TLS.Certificates[0]
	lender.Close()

	for _, c := range []struct {
		claim string
		// answer is the server's reply to the first bytes; then it listens.
		answer string
		secure bool
		own    bool // dial function
		want   error
	}{
		{claim: "by rueidis", answer: "what is this?\r\n", want: syscall.ECONNRESET},
		{claim: "by rueidis, over TLS", answer: "what is this?\r\n", secure: true, want: syscall.ECONNRESET},
		{claim: "by rueidis, dialled by the user", answer: "what is this?\r\n", own: true, want: syscall.ECONNRESET},
		{claim: "by Close it is not, for the sake of releases"},
		{claim: "by Close it is not, over TLS", secure: true},
	} {
		t.Run(c.claim, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			option := rueidis.ClientOption{InitAddress: []string{listener.Addr().String()}}
			if c.secure {
				option.TLSConfig = &tls.Config{InsecureSkipVerify: true} // a server of our own
			}
			if c.own {
				option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
					conn, err := d.DialContext(ctx, "tcp", addr)
					if err != nil {
						return nil, err
					}
					return holding{conn.(*net.TCPConn)}, nil
				}
			}
			seen, end := make(chan struct{}), make(chan error, 1)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					end <- err
					return
				}
				_ = listener.Close() // one connection is enough
				defer func() { _ = conn.Close() }()
				if c.secure {
					conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}})
				}
				if _, err := conn.Read(make([]byte, 4096)); err != nil {
					end <- err
					return
				}
				close(seen)
				if c.answer != "" {
					_, _ = io.WriteString(conn, c.answer)
				}
				_, err = io.Copy(io.Discard, conn)
				end <- err
			}()
			n := node.New(node.Config{Option: option, Prefix: "p:", Clock: clock.New().Both})
			ended := make(chan struct{})
			go func() { defer close(ended); n.Run() }()
			defer func() { n.Close(context.Background(), nil, nil); <-ended }()
			select {
			case <-seen:
			case err := <-end:
				select {
				case <-seen: // the end came at once, and counts below
					end <- err
				default:
					require.NoError(t, err)
				}
			}
			if c.answer == "" {
				n.Close(context.Background(), nil, nil)
			}
			select {
			case err := <-end: // nil for EOF
				assert.ErrorIs(t, err, c.want)
			case <-time.After(20 * time.Second):
				assert.Fail(t, "the node did not close the connection")
			}
		})
	}
}
