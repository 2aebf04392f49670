package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// errNotRESP means that a stream is not RESP and is not parsed any further.
var errNotRESP = errors.New("redistest: not RESP")

// ReplyError is an error reply of a Redis server.
type ReplyError struct {
	// Text is the reply without its leading '-', such as "NOAUTH Authentication required.".
	Text string
}

// Error returns the text of the reply.
func (e *ReplyError) Error() string { return e.Text }

// encodeCommand writes args as Redis expects a request: an array of bulk strings.
func encodeCommand(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// readReply reads one RESP2 reply. An error reply becomes a *ReplyError. A top-level one
// is returned as the error, one inside an array as an element.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: line %q", errNotRESP, line)
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, &ReplyError{Text: rest}
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$', '*':
		n, err := strconv.Atoi(rest)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: length %q", errNotRESP, line)
		case n < 0:
			return nil, nil
		case kind == '*':
			return readArray(r, n)
		}
		body := make([]byte, n+2)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, err
		}
		return string(body[:n]), nil
	default:
		return nil, fmt.Errorf("%w: reply %q", errNotRESP, line)
	}
}

func readArray(r *bufio.Reader, n int) (any, error) {
	items := make([]any, n)
	for i := range items {
		item, err := readReply(r)
		var refused *ReplyError
		switch {
		case errors.As(err, &refused):
			items[i] = refused
		case err != nil:
			return nil, err
		default:
			items[i] = item
		}
	}
	return items, nil
}

// A scanner finds the ends of top-level RESP2 and RESP3 values in a stream that arrives
// in pieces. It builds no values. A single counter of the missing values is enough for
// any nesting.
type scanner struct {
	// commands restricts the stream to requests, arrays of bulk strings, and
	// collects the elements in args.
	commands bool

	args    []string // elements of the request, complete once scan reports done
	kind    byte     // type of the top-level value; attributes before it do not count
	missing int      // values still missing before the top-level one ends; 0 between values
	line    []byte   // the part of the header line that has arrived
	body    int      // missing bytes of a bulk body and its CRLF
	text    []byte   // the part of the bulk body that has arrived, for commands only
}

// between reports whether the next byte begins a top-level value.
func (s *scanner) between() bool { return s.missing == 0 && len(s.line) == 0 }

// scan reads b up to the end of the first top-level value in it. It returns the number
// of bytes read and whether the value ended there. After an error the scanner can no
// longer follow the stream.
func (s *scanner) scan(b []byte) (n int, done bool, err error) {
	for n < len(b) {
		if s.body > 0 {
			n += s.readBody(b[n:])
			if s.body > 0 {
				break
			}
			s.missing--
		} else {
			end := bytes.IndexByte(b[n:], '\n') + 1
			if end == 0 {
				end = len(b) - n
			}
			s.line = append(s.line, b[n:n+end]...)
			n += end
			if err := s.readHeader(); err != nil {
				return n, false, err
			}
			if len(s.line) > 0 || s.body > 0 {
				continue
			}
		}
		if s.missing == 0 {
			return n, true, nil
		}
	}
	return n, false, nil
}

func (s *scanner) readBody(b []byte) int {
	n := min(s.body, len(b))
	s.body -= n
	if s.commands {
		s.text = append(s.text, b[:n]...)
		if s.body == 0 {
			s.args = append(s.args, string(s.text[:len(s.text)-len("\r\n")]))
			s.text = s.text[:0]
		}
	}
	return n
}

// readHeader parses the line if it is complete, and empties it.
func (s *scanner) readHeader() error {
	kind := s.line[0]
	if !bytes.ContainsRune([]byte("+-:_#,($!=*~>%|"), rune(kind)) {
		return errNotRESP // at the first byte, so that no other protocol is buffered
	}
	end := len(s.line) - len("\r\n")
	if s.line[len(s.line)-1] != '\n' {
		return nil
	}
	if end < 1 || s.line[end] != '\r' {
		return errNotRESP
	}
	top := s.missing == 0
	if s.commands && (kind == '*') != top || s.commands && kind != '*' && kind != '$' {
		return errNotRESP
	}
	if top {
		s.missing, s.kind, s.args = 1, 0, nil
	}
	if s.missing == 1 && s.kind == 0 && kind != '|' {
		s.kind = kind
	}

	size := 0
	if bytes.ContainsRune([]byte("$!=*~>%|"), rune(kind)) {
		var err error
		if size, err = strconv.Atoi(string(s.line[1:end])); err != nil {
			return errNotRESP // also for streamed types ("$?"), which no Redis sends
		}
	}
	s.line = s.line[:0]
	switch kind {
	case '$', '!', '=':
		if size >= 0 {
			s.body = size + len("\r\n")
			return nil // the value ends with its body
		}
		s.missing--
	case '*', '~', '>':
		s.missing += max(size, 0) - 1
	case '%':
		s.missing += 2*max(size, 0) - 1
	case '|':
		s.missing += 2 * max(size, 0) // the value that the attribute describes follows
	default:
		s.missing--
	}
	return nil
}
