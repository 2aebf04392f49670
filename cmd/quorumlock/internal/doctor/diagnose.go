package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	"github.com/redis/rueidis"
)

// diagnose explains why a node could not be asked.
func diagnose(ctx context.Context, option rueidis.ClientOption, err error) *Finding {
	f := &Finding{Level: Fail}
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var header tls.RecordHeaderError
	var alert tls.AlertError
	var dns *net.DNSError
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "WRONGPASS"),
		strings.Contains(text, "without any password configured"):
		f.Code, f.Problem = CodePassword, "the node refuses the user or the password: "+text
		f.Fix = "give --username and --password, or --password-file, as the node's ACL has them"
	case strings.HasPrefix(text, "NOPERM"):
		f.Code, f.Problem, f.Fix = CodeMissingRights, text, "give the user the rights in https://github.com/quorumlock/quorumlock/blob/main/docs/reference.md#access-rights"
	case strings.HasPrefix(text, "LOADING"):
		f.Code, f.Problem, f.Fix = CodeLoading, "the node reads its data from disk and answers nothing else", "wait, and ask again"
	case errors.As(err, &unknown), errors.As(err, &invalid):
		f.Code, f.Problem = CodeTLSUntrusted, "the certificate of the node is not trusted: "+text
		f.Fix = "give the authority that signed it in --tls-ca"
	case errors.As(err, &hostname):
		f.Code, f.Problem = CodeTLSUntrusted, "the certificate of the node is for another name: "+text
		f.Fix = "list the node by a name in its certificate, or give that name in --tls-server-name"
	case option.TLSConfig != nil && errors.As(err, &header), option.TLSConfig != nil && speaksPlain(ctx, option):
		f.Code, f.Problem = CodeTLSUnexpected, "the node does not speak TLS at this port"
		f.Fix = "list its TLS port, or leave the --tls flags out"
	case option.TLSConfig != nil && (errors.As(err, &alert) || strings.Contains(text, "tls: ") || dropped(text)):
		f.Code, f.Problem = CodeTLSClient, "the node ends the TLS connection: "+text
		f.Fix = "give the client certificate that it asks for in --tls-cert and --tls-key"
	case option.TLSConfig == nil && speaksTLS(ctx, option):
		f.Code, f.Problem, f.Fix = CodeTLSMissing, "the node speaks TLS at this port, and this command does not", "give --tls, and --tls-ca where needed"
	case errors.As(err, &dns):
		f.Code, f.Problem, f.Fix = CodeUnreachable, "the name has no address: "+text, "fix the name in --nodes, or the name service"
	default:
		f.Code, f.Problem, f.Fix = other(err)
	}
	return f
}

// other is for errors that show only that the node does not work.
func other(err error) (code, problem, fix string) {
	var network net.Error
	switch {
	case errors.As(err, &network), errors.Is(err, context.DeadlineExceeded), dropped(err.Error()):
		return CodeUnreachable, "the node does not answer: " + err.Error(),
			"start the server, or fix the address, the network or the firewall between; end a server that hangs"
	case rueidis.IsParseErr(err):
		return CodeNotRedis, "the server at this address is not Redis: " + err.Error(), "fix the address in --nodes"
	}
	if _, answered := rueidis.IsRedisErr(err); answered {
		code, _, fix := causeOf(err.Error())
		return code, "the node refuses to work: " + err.Error(), fix
	}
	return CodeNotRedis, "the server at this address is not Redis: " + err.Error(), "fix the address in --nodes"
}

// dropped reports whether an error is only the end of a connection.
func dropped(text string) bool {
	return strings.Contains(text, "EOF") || strings.Contains(text, "connection reset") || strings.Contains(text, "broken pipe")
}

// speaksTLS reports whether a server begins a TLS handshake at an address.
func speaksTLS(ctx context.Context, option rueidis.ClientOption) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // nothing is sent: it only asks whether there is TLS
	conn, err := dialer.DialContext(ctx, "tcp", option.InitAddress[0])
	if err == nil {
		_ = conn.Close()
		return true
	}
	var alert tls.AlertError
	return errors.As(err, &alert)
}

// speaksPlain reports whether a server answers Redis without TLS at an address.
func speaksPlain(ctx context.Context, option rueidis.ClientOption) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", option.InitAddress[0])
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	answer := make([]byte, 1)
	_, err = conn.Read(answer)
	return err == nil && (answer[0] == '+' || answer[0] == '-')
}
