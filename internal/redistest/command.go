//go:build unix

package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Do sends one command directly to the server, over a new connection with a deadline of
// 5 s, as the default user without a password. The reply is a string, an int64, nil or an
// []any of these. An error reply is a *[ReplyError]. It is returned as the error or,
// inside an array, as an element.
func (s *Server) Do(args ...string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("redistest: Do without a command")
	}
	replies, err := roundTrip(s.Addr(), doTimeout, args)
	if err != nil {
		return nil, fmt.Errorf("redistest: %s to %s: %w", args[0], s.Addr(), err)
	}
	if refused, ok := replies[0].(*ReplyError); ok {
		return nil, refused
	}
	return replies[0], nil
}

// MustDo is Do, except that the test fails on an error.
func (s *Server) MustDo(args ...string) any {
	s.tb.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		s.tb.Fatalf("redistest: %q on %s: %v", args, s.Addr(), err)
	}
	return reply
}

const doTimeout = 5 * time.Second

// ready reports whether the server with this pid has loaded its data and answers at addr.
// It checks the pid because another server that bound the port first would also answer.
// Refusals such as NOAUTH count as answers.
func ready(addr string, pid int) bool {
	replies, err := roundTrip(addr, time.Second, []string{"PING"}, []string{"INFO", "server"})
	if err != nil {
		return false
	}
	if refused, ok := replies[0].(*ReplyError); ok && strings.HasPrefix(refused.Text, "LOADING") {
		return false
	}
	info, ok := replies[1].(string)
	return !ok || strings.Contains(info, fmt.Sprintf("\r\nprocess_id:%d\r\n", pid))
}

// roundTrip sends commands over a new connection and returns their replies.
func roundTrip(addr string, timeout time.Duration, commands ...[]string) ([]any, error) {
	deadline := time.Now().Add(timeout)
	conn, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	var request []byte
	for _, args := range commands {
		request = append(request, encodeCommand(args)...)
	}
	if _, err := conn.Write(request); err != nil {
		return nil, err
	}
	replies, err := readArray(bufio.NewReader(conn), len(commands))
	if err != nil {
		return nil, err
	}
	return replies.([]any), nil
}
