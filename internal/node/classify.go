package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// classify returns what an error of the client or of the server means for its request.
func classify(err error) (wire.Status, error) {
	var config *wire.ConfigError // of a dial to a failover group
	if errors.As(err, &config) {
		return wire.Misconfigured, config
	}
	if status, meaning := wire.Classify(err); status != 0 {
		return status, meaning
	}
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, syscall.ECONNREFUSED):
		return wire.NotApplied, wire.Opaque(err)
	case errors.Is(err, context.Canceled):
		return wire.Unknown, wire.ErrClosed
	default:
		return wire.Unknown, wire.Opaque(err)
	}
}

// timed returns err, or a Silence if one of our bounds has ended the call. The bounds are half a second and a second.
// took is rounded to these, so that the text of an outage stays the same.
func timed(err error, took time.Duration) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return err // says it already
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return wire.Silence(max(took.Round(maxDial), maxDial))
	default:
		return err
	}
}

// noRedis returns the error of a server that does not speak Redis's protocol at all, nil for every
// other error. rueidis then reports the first byte of the answer, in decimal.
func noRedis(err error) *wire.ConfigError {
	number, found := strings.CutPrefix(err.Error(), "received unknown message type: ")
	first, parsed := strconv.Atoi(number)
	if !found || parsed != nil {
		return nil
	}
	what, fix := "another kind of server", "name the host and port of a Redis server"
	switch first {
	case 'H':
		what = "an HTTP server"
	case 0x15: // an alert
		what, fix = "a TLS port", "set TLSConfig, or name the port without TLS"
	}
	return &wire.ConfigError{Problem: fmt.Sprintf("the answer is not Redis's protocol (it begins with %q, as from %s)", rune(first), what), Fix: fix}
}

// noScript reports whether the server has lost our script. The server has then not applied the request, which may be
// sent again after a greeting.
func noScript(err error) bool {
	redis, ok := rueidis.IsRedisErr(err)
	return ok && redis.IsNoScript()
}
