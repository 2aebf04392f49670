package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// dialer returns the dial function that rueidis would have used.
func dialer(o rueidis.ClientOption) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	switch {
	case o.DialCtxFn != nil:
		return o.DialCtxFn
	case o.DialFn != nil:
		return func(_ context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
			return o.DialFn(addr, d, config)
		}
	default:
		return Dial
	}
}

// socketScheme may stand before the path of a Unix socket.
const socketScheme = "unix://"

// IsSocket reports whether an address is the absolute path of a Unix socket.
func IsSocket(addr string) bool {
	return strings.HasPrefix(strings.TrimPrefix(addr, socketScheme), "/")
}

// Dial connects to a host and port, with TLS if config is set, or to a Unix socket.
func Dial(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	switch {
	case IsSocket(addr):
		return d.DialContext(ctx, "unix", strings.TrimPrefix(addr, socketScheme))
	case config == nil:
		return d.DialContext(ctx, "tcp", addr)
	default:
		return dialTLS(ctx, addr, d, config)
	}
}

// dialTLS does what tls.Dialer does, and also reports whether the connection or the handshake has failed. A Redis
// without TLS does not answer a handshake: it waits for a line feed.
func dialTLS(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = addr[:strings.LastIndexByte(addr, ':')]
	}
	secure := tls.Client(conn, config)
	err = secure.HandshakeContext(ctx)
	if err == nil {
		return secure, nil
	}
	_ = conn.Close()
	const fix = "leave TLSConfig out, or name the port at which it speaks TLS"
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &header):
		return nil, &wire.ConfigError{Problem: "the server does not speak TLS at this port", Fix: fix}
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: conn.RemoteAddr(), Err: fmt.Errorf(
			"connected, but no TLS handshake within %v; if the server does not speak TLS at this port, %s", d.Timeout, fix)}
	default:
		return nil, refusedTLS(err)
	}
}

// refusedTLS explains an alert with which the server ends TLS. In TLS 1.3 the alert follows the handshake of the
// client, so it is the first answer that is read.
func refusedTLS(err error) error {
	var alert *net.OpError
	if !errors.As(err, &alert) || alert.Op != "remote error" {
		return err
	}
	return &wire.ConfigError{Problem: "the server refuses the TLS connection (" + err.Error() + ")",
		Fix: "if it asks for a client certificate, set TLSConfig.Certificates to one that its tls-ca-cert-file trusts; otherwise match its tls-protocols and tls-ciphers"}
}

// dialFailed returns the error of a dial, with a remedy if the error names none.
func dialFailed(err error, bound time.Duration) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("no connection within %v", bound)}
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; set TLSConfig.RootCAs to the authority of the server's certificate", err)
	case errors.As(err, &name):
		return fmt.Errorf("%w; name the node as its certificate does, or set TLSConfig.ServerName", err)
	}
	return err
}
