package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// shape is a reply that a server could send.
type shape struct {
	kind  byte // the type byte of RESP; s and a are RESP2's nulls, a string and an array
	text  string
	parts []shape
}

func number(n int64) shape { return shape{kind: ':', text: strconv.FormatInt(n, 10)} }

func bulk(s string) shape { return shape{kind: '$', text: s} }

func array(parts ...shape) shape { return shape{kind: '*', parts: parts} }

// draw makes a shape from the bytes of a fuzzed input.
func draw(in *[]byte, depth int) shape {
	next := func() int {
		if len(*in) == 0 {
			return 0
		}
		b := (*in)[0]
		*in = (*in)[1:]
		return int(b)
	}
	text := func() string {
		n := min(next(), len(*in))
		s := string((*in)[:n])
		*in = (*in)[n:]
		return s
	}
	const kinds = "+-$:_*,#(=!~%sa"
	s := shape{kind: kinds[next()%len(kinds)]}
	switch s.kind {
	case '*', '~':
		for range next() % 16 { // a read with readers and tickets has 7 parts, and the list of the tickets twice as many as tickets
			if depth < 3 {
				s.parts = append(s.parts, draw(in, depth+1))
			}
		}
	case '%':
		for range next() % 3 * 2 {
			if depth < 3 {
				s.parts = append(s.parts, draw(in, depth+1))
			}
		}
	case ':', '(':
		s.text = strconv.FormatInt(int64(next())<<(next()%56)-int64(next()), 10)
	case ',':
		s.text = []string{"1.5", "inf", "-inf", "nan", "3"}[next()%5]
	case '#':
		s.text = []string{"t", "f"}[next()%2]
	case '+', '-':
		s.text = strings.NewReplacer("\r", "", "\n", "").Replace(text())
	case '=':
		s.text = "txt:" + text()
	case '_', 's', 'a':
	default:
		s.text = text()
	}
	return s
}

// encode appends the shape as RESP.
func (s shape) encode(b []byte) []byte {
	switch s.kind {
	case '*', '~', '%':
		n := len(s.parts)
		if s.kind == '%' {
			n /= 2
		}
		b = fmt.Appendf(b, "%c%d\r\n", s.kind, n)
		for _, part := range s.parts {
			b = part.encode(b)
		}
		return b
	case 's':
		return append(b, "$-1\r\n"...)
	case 'a':
		return append(b, "*-1\r\n"...)
	case '$', '=', '!':
		return fmt.Appendf(b, "%c%d\r\n%s\r\n", s.kind, len(s.text), s.text)
	default:
		return fmt.Appendf(b, "%c%s\r\n", s.kind, s.text)
	}
}

func (s shape) isError() bool { return s.kind == '-' || s.kind == '!' }

func (s shape) isNull() bool { return s.kind == '_' || s.kind == 's' || s.kind == 'a' }

func (s shape) isArray() bool { return s.kind == '*' || s.kind == '~' }

func (s shape) isText() bool { return s.kind == '$' || s.kind == '+' }

// isInteger reports whether a part is an integer, the only number that scripts answer.
func (s shape) isInteger() bool { return s.kind == ':' }

// isNumber reports whether a part can be read as an integer. The text of a number of any type counts.
func (s shape) isNumber() bool {
	_, err := strconv.ParseInt(s.text, 10, 64)
	return strings.ContainsRune(":$+(,", rune(s.kind)) && err == nil
}

// integer returns the integer value of the text.
func (s shape) integer() int64 {
	n, _ := strconv.ParseInt(s.text, 10, 64)
	return n
}

// failed reports whether the shape is the answer of an operation that failed.
func (s shape) failed() bool { return s.isArray() && len(s.parts) == 1 && s.parts[0].isText() }

// complaints are errors that a server may answer with.
var complaints = []string{
	"ERR max number of clients reached", "LOADING Redis is loading", "BUSY Redis is busy", "MASTERDOWN", "NOREPLICAS", "MISCONF",
	"CLUSTERDOWN", "TRYAGAIN", "UNKILLABLE", "ERR Script killed by user", "OOM command not allowed", "READONLY", "MOVED 1 a:1", "ASK 1 a:1",
	"CROSSSLOT", "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "NOSCRIPT No matching script", "ERR quorumlock: x", "ERR", "",
	"ERR The user executing the script can't run this command or subcommand script: x, on @user_script:40.",
	"ERR The user executing the script can't run this command or subcommand +set +zadd", "can't run this command subcommand +",
	"ERR can't run this command @user_script:99999999999999999999.", "5 1700000000000000",
	"ERR Script attempted to access a non local key in a cluster node script: x, on @user_script:40.",
	"ERR Attempted to access a non local key in a cluster node script: on @user_script:40.",
	"-OOM command not allowed when used memory > 'maxmemory'.", "ERR Error running script: -BUSY Redis is busy running a script.",
}

// class returns the status of a server's error, by the table of docs/reference.md, as an
// operator would read it.
func (s shape) class() wire.Status {
	if strings.HasPrefix(s.text, "NOSCRIPT") || strings.HasPrefix(s.text, "ERR NOSCRIPT") {
		return wire.NotApplied
	}
	return s.classInScript()
}

// classInScript is class for the error of an operation inside a script.
func (s shape) classInScript() wire.Status {
	text := strings.TrimPrefix(s.text, "ERR ")
	passes := regexp.MustCompile(`^(LOADING|BUSY|UNKILLABLE|Script killed by user|OOM|MISCONF|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|READONLY|MOVED|ASK|(Script a|A)ttempted to access a non local key)` +
		`|OOM command not allowed|BUSY Redis is busy`)
	switch {
	case strings.HasPrefix(text, "max number of clients"):
		return wire.NotApplied
	case passes.MatchString(text):
		return wire.Failed
	default:
		return wire.Misconfigured
	}
}

// newParrot returns a parrot, and a client as in production.
func newParrot(tb testing.TB) (*redistest.Parrot, rueidis.Client) {
	server := redistest.NewParrot(map[string][]byte{
		"HELLO": []byte("%2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n"),
	})
	var served sync.WaitGroup
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"parrot:1"}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		PipelineMultiplex: -1,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			here, there := net.Pipe()
			served.Go(func() { server.Serve(there) })
			return here, nil
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close(); served.Wait() })
	return server, client
}
