package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// greeting holds the replies of a parrot to a node that connects.
type greeting struct {
	clock, server, memory, digest, marker, rehearsal shape
}

// finding is the result that the node must reach.
type finding struct {
	status   wire.Status // Done for a usable connection, otherwise the class of the error
	withheld bool        // votes do not count
	waits    bool        // for the end of a quarantine
}

// findings is a naive reading: it reads the replies in turn, and the first invalid one
// decides. known is false if a reply that no server would send has no defined result.
func (g *greeting) findings(guarded bool, longest string) (v finding, known bool) {
	identity, v, known := g.identity()
	if v.status != 0 || !known {
		return v, known
	}
	if mode := identity["redis_mode"]; mode != "" && mode != "standalone" {
		return finding{status: wire.Misconfigured}, true
	}
	if role := identity["role"]; role != "" && role != "master" {
		return finding{status: wire.Misconfigured}, true
	}
	if wire.TooOld(identity["redis_version"]) != nil {
		return finding{status: wire.Misconfigured}, true
	}
	if !g.clock.isArray() || len(g.clock.parts) != 2 || slices.ContainsFunc(g.clock.parts, func(s shape) bool { return !s.isNumber() }) {
		return g.clock.refused()
	}
	if !g.digest.isText() {
		return g.digest.refused()
	}
	limit, limited := identity["maxmemory"]
	policy := identity["maxmemory_policy"]
	evicts := limited && limit != "0" && policy != "" && policy != "noeviction"
	switch {
	case !guarded:
	case identity == nil || evicts || len(strings.Fields(identity["run_id"])) != 1:
		v.withheld = true
	default:
		parts, bad, known := g.marker.operation()
		if v.withheld = bad.withheld; v.withheld {
			break
		}
		if parts == nil {
			return bad, known
		}
		if len(parts) != 3 || !parts[0].isInteger() || !parts[1].isInteger() || !parts[2].isText() || parts[2].text == "" {
			return finding{status: wire.Misconfigured}, false
		}
		if v.withheld = parts[1].text != longest; !v.withheld {
			stop := parts[0].integer()
			v.waits = stop > 0 && stop > g.clock.parts[0].integer()*1_000_000+g.clock.parts[1].integer()
		}
	}
	switch parts, bad, known := g.rehearsal.operation(); {
	case bad.withheld:
		v.withheld = true
	case parts == nil:
		return bad, known
	}
	v.status = wire.Done
	return v, true
}

// identity reads INFO. It returns nil if the user may not run INFO.
func (g *greeting) identity() (identity map[string]string, v finding, known bool) {
	identity = map[string]string{}
	for _, info := range []shape{g.server, g.memory} {
		switch {
		case info.isError() && info.class() == wire.Misconfigured:
			return nil, v, true // an ACL without INFO: nothing is known
		case info.isError():
			return nil, finding{status: info.class()}, true
		case info.kind == '=': // the RESP3 form
			info.text = strings.TrimPrefix(info.text, "txt:")
		case !info.isText():
			return nil, v, false
		}
		for line := range strings.SplitSeq(info.text, "\n") {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if key == "server_mode" {
				key = "redis_mode"
			}
			identity[key] = value
		}
	}
	return identity, v, true
}

// refused returns the result of an invalid reply.
func (s shape) refused() (finding, bool) {
	switch {
	case s.isError():
		return finding{status: s.class()}, true
	case s.isNull():
		return finding{status: wire.Unknown}, true
	default:
		return finding{status: wire.Misconfigured}, false
	}
}

// operation returns the parts of the answer to a single operation, or the result of a
// reply without an answer.
func (s shape) operation() (parts []shape, bad finding, known bool) {
	if !s.isArray() || len(s.parts) != 3 || !s.parts[0].isInteger() || !s.parts[1].isText() || s.parts[1].text != "*" {
		bad, known = s.refused()
		return nil, bad, known
	}
	switch answer := s.parts[2]; {
	case answer.failed():
		status := answer.parts[0].classInScript()
		moved := regexp.MustCompile(`^(ERR )?(READONLY|MOVED)`).MatchString(answer.parts[0].text)
		return nil, finding{status: status, withheld: !moved}, true
	case !answer.isArray() || len(answer.parts) == 1:
		return nil, finding{status: wire.Misconfigured}, false
	default:
		return append([]shape{}, answer.parts...), bad, true
	}
}

// A server's replies are accepted or refused, with the class of error that the operator's
// documentation names. No reply makes a vote count that must not.
func FuzzGreeting(f *testing.F) {
	fields := []func(*greeting) *shape{
		func(g *greeting) *shape { return &g.clock }, func(g *greeting) *shape { return &g.server },
		func(g *greeting) *shape { return &g.memory }, func(g *greeting) *shape { return &g.digest },
		func(g *greeting) *shape { return &g.marker }, func(g *greeting) *shape { return &g.rehearsal },
		func(g *greeting) *shape { return &g.marker.parts[2] }, func(g *greeting) *shape { return &g.rehearsal.parts[2] },
	}
	const inWords = 1 << 7 // the input is the text of INFO, not a shape
	for field := range fields {
		for _, seed := range []string{
			"", "\x05\x02\x02\x0a1700000000\x02\x065000000", "\x05\x02\x04\x04", "\x05\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x0d", "\x0e", "\x05\x00",
			"\x05\x03\x03\x07\x00\x00\x02\x0260\x02\x01m", "\x05\x03\x03\x07\x00\x00\x02\x0261\x02\x01m", "\x05\x03\x03\x00\x00\x01\x02\x0260\x02\x01m",
			"\x05\x03\x03\xff\x30\x00\x02\x0260\x02\x01m", "\x05\x03\x03\x07\x00\x00\x02\x0260\x0d", "\x05\x03\x03\x07\x00\x00\x02\x0260\x02\x00",
			"\x05\x03\x03\x07\x00\x00\x02\x01*\x05\x03\x03\x07\x00\x00\x02\x0260\x02\x01m", "\x05\x03\x03\x07\x00\x00\x02\x01*\x05\x01\x02\x06NOPERM", "\x05\x01\x02\x06NOPERM",
			"\x05\x01\x03\x07\x00\x00", "\x02\x01d", "\x06\x00", "\x05\x03\x03\x00\x00\x10\x02\x0260\x02\x01m",
		} {
			f.Add(byte(field), true, []byte(seed))
		}
		for _, text := range complaints {
			f.Add(byte(field), true, append([]byte{1, byte(len(text))}, text...))
			f.Add(byte(field), true, append([]byte{5, 1, 2, byte(len(text))}, text...))
		}
	}
	for _, text := range []string{
		"role:slave\r\nrun_id:a", "role:master\r\nmaster_replid2:00\r\n", "redis_mode:cluster", "server_mode:sentinel\n", "redis_mode:standalone\r\n",
		"maxmemory:1\r\nmaxmemory_policy:allkeys-lru", "maxmemory:0\r\nmaxmemory_policy:allkeys-lru", "maxmemory:1\r\nmaxmemory_policy:noeviction", "::\r\n:",
	} {
		f.Add(byte(1|inWords), true, []byte(text))
		f.Add(byte(2|inWords), false, []byte(text))
	}
	server, client := newParrot(f)
	const longest = 60
	f.Fuzz(func(t *testing.T, which byte, guarded bool, input []byte) {
		g := greeting{
			clock:  array(bulk("1700000000"), bulk("1")),
			server: shape{kind: '=', text: "txt:run_id:a\r\n"}, memory: bulk(""), digest: bulk("digest"),
			marker:    array(number(5), bulk("*"), array(number(5), number(longest), bulk("m"))),
			rehearsal: array(number(5), bulk("*"), array(shape{kind: '_'}, number(-2), number(0), number(0))),
		}
		field := int(which&^inWords) % len(fields)
		drawn := fields[field](&g)
		if which&inWords != 0 {
			*drawn = shape{kind: '=', text: "txt:" + string(input)}
		} else {
			*drawn = draw(&input, 0)
		}
		rehearsal := g.rehearsal
		if !guarded && rehearsal.isArray() && len(rehearsal.parts) == 3 && rehearsal.parts[1].isText() { // the same call looks for a marker
			said := rehearsal.parts
			rehearsal = array(said[0], bulk(said[1].text+"*"), said[2], array(number(0), number(0), bulk(""), number(0)))
		}
		server.Forget()
		for command, reply := range map[string]shape{
			"TIME": g.clock, "INFO server": g.server, "INFO memory": g.memory, "SCRIPT": g.digest,
			"EVALSHA guard": g.marker, "EVALSHA read": rehearsal,
		} {
			server.Set(command, reply.encode(nil))
		}
		n := New(Config{
			Option: rueidis.ClientOption{InitAddress: []string{"parrot:1"}, DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
				return nil, net.ErrClosed // a connection next to the worker's
			}},
			Clock: func() (validity clock.Validity, steady clock.Steady) {
				return clock.Validity(time.Hour), clock.Steady(time.Hour)
			},
		})
		defer n.cancel()
		n.client = client
		n.conns.dialed.Store(1)
		if guarded {
			n.cfg.Guard = longest * time.Millisecond
			n.vote = vote.New(n.cfg.Guard, 0)
		}
		withheld, err := n.greeter.greet(false)

		said := fmt.Sprintf("guard %v: %q is %v, withheld: %v", guarded, drawn.encode(nil), err, withheld)
		want, known := g.findings(guarded, strconv.Itoa(longest))
		var config *wire.ConfigError
		switch {
		case !known && want.status == wire.Misconfigured && err == nil && withheld == nil:
			t.Error("an invalid greeting was accepted: ", said)
		case !known:
		case (err == nil) != (want.status == wire.Done):
			t.Errorf("%s, want %v", said, want.status)
		case err != nil && errors.As(err, &config) != (want.status == wire.Misconfigured):
			t.Errorf("%s, want %v", said, want.status)
		case err == nil && (withheld != nil) != want.withheld:
			t.Errorf("%s, want votes withheld: %v", said, want.withheld)
		case err == nil && field != 0 && n.vote.Lasts() != want.waits: // a random clock makes random sums
			t.Errorf("%s, in quarantine %v, want %v", said, n.vote.Lasts(), want.waits)
		}
		for _, err := range []error{err, withheld} {
			if errors.As(err, &config) && (config.Problem == "" || config.Fix == "") {
				t.Error("the error has no remedy: ", said)
			}
		}
	})
}
