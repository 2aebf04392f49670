package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"
)

// legal reports whether a Manager would take the prefix and the name.
func legal(prefix, name string) bool {
	return utf8.ValidString(prefix) && PrefixShards(prefix) && name != "" && utf8.ValidString(name)
}

// slot returns the part of a key that Redis Cluster hashes.
func slot(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if opened && closed && tag != "" {
		return tag
	}
	return key
}

// No lock is in the way of another's counter or queue, whatever the two are called
// and prefixed, and what belongs to a lock is on the shard of the lock.
func FuzzKeys(f *testing.F) {
	texts := []string{"quorumlock:", "", "a", "{", "}", "{}", "{a}", "}a{", "a{b}c", "{a", "f", "\xff", "a\xfff{aa}", "日本", "\x00", "{{a}}"}
	for i, name := range texts {
		for j, other := range texts {
			f.Add(texts[(i+j)%len(texts)], name, texts[(i*j)%len(texts)], other)
		}
	}
	f.Fuzz(func(t *testing.T, prefix, name, otherPrefix, other string) {
		if !legal(prefix, name) || !legal(otherPrefix, other) {
			t.Skip()
		}
		lock, fence, queue := Keys(prefix, name)
		if lock != prefix+name {
			t.Errorf("the lock of %q and %q is %q", prefix, name, lock)
		}
		for _, key := range []string{fence, queue, GuardKey(prefix), WakeChannel(prefix, name)} {
			if !strings.HasPrefix(key, prefix) {
				t.Errorf("without the prefix %q: %q", prefix, key)
			}
		}
		for _, key := range []string{fence, queue} {
			if utf8.ValidString(key) {
				t.Errorf("%q could be a lock", key)
			}
			if slot(lock) != slot(key) && (slot(lock) != lock || !strings.Contains(name, "}")) {
				t.Errorf("the lock %q hashes by %q, and %q by %q", lock, slot(lock), key, slot(key))
			}
		}
		otherLock, otherFence, otherQueue := Keys(otherPrefix, other)
		for what, key := range map[string]string{"the lock": lock, "the counter": fence, "the queue": queue, "the marker": GuardKey(prefix)} {
			for otherWhat, otherKey := range map[string]string{
				"the lock": otherLock, "the counter": otherFence, "the queue": otherQueue, "the marker": GuardKey(otherPrefix),
			} {
				same := what == otherWhat && (lock == otherLock || what == "the marker" && prefix == otherPrefix)
				if key == otherKey && !same {
					t.Errorf("%q is %s of %q and %q and %s of %q and %q", key, what, prefix, name, otherWhat, otherPrefix, other)
				}
			}
		}
		if len(map[string]bool{lock: true, fence: true, queue: true, GuardKey(prefix): true}) != 4 {
			t.Errorf("two of %q, %q, %q and %q are one", lock, fence, queue, GuardKey(prefix))
		}
	})
}

// What is read from a lock goes into errors, logs and spans: it is valid UTF-8
// and not long, whoever wrote it.
func FuzzParseValue(f *testing.F) {
	owner := strings.Repeat("0f", OwnerLen/2)
	for _, value := range []string{
		"", "x", owner, owner + " ", owner + " 1 2 - ", owner + " 1 2 - a label", owner + " 1 2 00-ab-cd-01 l",
		owner + " -1 2 - l", owner + " 1 x - l", owner + " 99999999999999999999 2 - l", owner + " 1 2 -", "\xff", strings.Repeat("\xffa", 300),
		strings.Repeat("é", 100), strings.Repeat("v", 127) + "é", strings.ToUpper(owner) + " 1 2 - l",
		owner + " 1 2 - \xff", owner + " 1 2 \xff l", owner + " 1 2 - " + strings.Repeat("x", 100_000), owner + " 1 9223372036854775807 - l",
		owner + " w ", owner + " w", owner + " w  ", owner + " w 2 - l", strings.ToUpper(owner) + " w ", owner[1:] + "x w ", " w ", owner + "0 w ",
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		v := ParseValue(value)
		for what, text := range map[string]string{"owner": v.Owner, "traceparent": v.TraceParent, "label": v.Label} {
			if !utf8.ValidString(text) {
				t.Errorf("%q: the %s %q is not valid UTF-8", value, what, text)
			}
			if len(text) > 1024 {
				t.Errorf("the %s has %d bytes", what, len(text))
			}
		}
		if v.Counter < 0 {
			t.Errorf("%q: counter %d", value, v.Counter)
		}
		if value != "" && v.Owner == "" {
			t.Errorf("%q is nobody's", value)
		}
		if kept := regexp.MustCompile(`^[0-9a-f]{32} w $`).MatchString(value); v.Kept != kept || kept && v != (Value{Owner: value[:OwnerLen], Kept: true}) {
			t.Errorf("%q is %+v", value, v)
		}
	})
}

func FuzzValueRoundTrip(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), int64(7), int64(1_700_000_000_000_000), "", "")
	f.Add([]byte("0123456789abcdef"), int64(0), int64(-1), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "host 7, pid 1")
	f.Add([]byte{}, int64(1<<62), int64(1<<62), "-", " two  spaces ")
	f.Fuzz(func(t *testing.T, random []byte, counter, since int64, trace, label string) {
		if counter < 0 || strings.Contains(trace, " ") || len(trace) > 55 || !utf8.ValidString(trace) ||
			len(label) > 256 || !utf8.ValidString(label) {
			t.Skip()
		}
		owner := fmt.Sprintf("%x", append(random, make([]byte, OwnerLen/2)...))[:OwnerLen]
		want := Value{Owner: owner, Counter: counter, Since: time.UnixMicro(since), TraceParent: trace, Label: label}
		if trace == "-" {
			want.TraceParent = ""
		}
		value := Compose(owner, counter, string(AppendTail(nil, want.Since, trace, label)))
		if got := ParseValue(value); got != want {
			t.Errorf("%q: got %+v, want %+v", value, got, want)
		}
	})
}

// shape is a reply as a server could send it.
type shape struct {
	kind  byte // as RESP writes it; s and a for RESP2's nulls, a string and an array
	text  string
	parts []shape
}

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
		for range next() % 6 {
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

// isNumber reports whether a part may stand for an integer: also the text of
// one, however it is dressed.
func (s shape) isNumber() bool { return strings.ContainsRune(":$+(,", rune(s.kind)) && plain(s.text) }

// plain reports whether the text is an integer.
func plain(text string) bool {
	_, err := strconv.ParseInt(text, 10, 64)
	return err == nil
}

// number returns the integer that the text is.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// status returns what a reply has to be taken for, unless it is an error of the
// server: the naive reading of the comments in the scripts.
func (s shape) status(kind Kind) Status {
	array := s.isArray()
	switch kind {
	case Acquire:
		counter, clock, two := strings.Cut(s.text, " ")
		switch {
		case s.isText() && two && plain(counter) && plain(clock):
			return Granted
		case array && len(s.parts) == 3 && s.parts[0].isText() && s.parts[1].isNumber() && s.parts[2].isNumber():
			return Taken
		case array && (len(s.parts) == 0 || len(s.parts) == 1 && s.parts[0].isNumber()):
			return Unsent
		}
	case Extend, Heal:
		if array {
			for _, part := range s.parts {
				if !part.isNumber() {
					return Misconfigured
				}
			}
			return Done
		}
	case Read:
		if array && len(s.parts) == 4 && (s.parts[0].isText() || s.parts[0].isNull()) && s.parts[1].isNumber() &&
			(s.parts[2].isNumber() || s.parts[2].isNull()) && s.parts[3].isNumber() {
			return Done
		}
	default:
		if s.isNumber() {
			return Done
		}
	}
	return Misconfigured
}

// complaints are errors that a server may answer with.
var complaints = []string{
	"ERR max number of clients reached", "LOADING Redis is loading", "BUSY Redis is busy", "MASTERDOWN", "NOREPLICAS", "MISCONF",
	"CLUSTERDOWN", "TRYAGAIN", "UNKILLABLE", "ERR Script killed by user", "OOM command not allowed", "READONLY", "MOVED 1 a:1", "ASK 1 a:1",
	"CROSSSLOT", "NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "NOSCRIPT No matching script", "ERR quorumlock: x", "ERR", "",
	"ERR The user executing the script can't run this command or subcommand script: x, on @user_script:40.",
	"ERR can't run this command @user_script:99999999999999999999.", "5 1700000000000000",
	"-OOM command not allowed when used memory > 'maxmemory'.", "ERR Error running script: -BUSY Redis is busy running a script.",
}

// class returns what an error of the server has to be taken for: by the table
// of docs/operations.md, as whoever reads it would.
func (s shape) class() Status {
	text := strings.TrimPrefix(s.text, "ERR ")
	passes := regexp.MustCompile(`^(LOADING|BUSY|UNKILLABLE|Script killed by user|OOM|MISCONF|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN)` +
		`|OOM command not allowed|BUSY Redis is busy`)
	switch {
	case strings.HasPrefix(text, "max number of clients"), strings.HasPrefix(text, "NOSCRIPT"):
		return Unsent
	case passes.MatchString(text):
		return Failed
	default:
		return Misconfigured
	}
}

// parrot is a server that answers each command with the same reply.
type parrot struct {
	mu      sync.Mutex
	replies map[string][]byte // by command
}

func (p *parrot) set(command string, reply []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replies[command] = reply
}

// forget has every command but the handshake's answered by OK.
func (p *parrot) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.replies, func(command string, _ []byte) bool { return command != "HELLO" })
}

// newParrot returns one, and a client as in production.
func newParrot(f *testing.F) (*parrot, rueidis.Client) {
	server := &parrot{replies: map[string][]byte{
		"HELLO": []byte("%2\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n"),
	}}
	var served sync.WaitGroup
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"parrot:1"}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		AlwaysPipelining: true, PipelineMultiplex: -1,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			here, there := net.Pipe()
			served.Go(func() { server.serve(there) })
			return here, nil
		},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { client.Close(); served.Wait() })
	return server, client
}

func (p *parrot) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		command := strings.ToUpper(words[0])
		switch command {
		case "EVALSHA", "INFO":
			command += " " + words[1] // the script, or the section
		case "SCRIPT":
			command += " " + words[2]
		}
		p.mu.Lock()
		answer, known := p.replies[command]
		p.mu.Unlock()
		if !known {
			answer = []byte("+OK\r\n")
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// readCommand reads one command as clients write it.
func readCommand(in *bufio.Reader) (words []string, err error) {
	number := func(mark byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil || line[0] != mark {
			return 0, errors.Join(err, io.ErrUnexpectedEOF)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	for range n {
		size, err := number('$')
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, err
}

// Whatever a server answers, it does not bring the worker down, and nothing
// but the answer to a grant is a vote, nothing but that to a refusal is
// contention. The replies come through rueidis, as in production.
func FuzzReplies(f *testing.F) {
	server, client := newParrot(f)
	for kind := range guard {
		for _, seed := range []string{
			"", // an empty simple string
			"\x02\x135 1700000000000000", "\x02\x015", "\x02\x035 x", "\x02\x02 5", "\x00\x035 7",
			"\x05\x00", "\x05\x01\x03\x07\x00\x00", "\x05\x02\x02\x03abc\x03\x07\x00\x00", "\x05\x02\x04\x03\x07\x00\x00", "\x05\x01\x04",
			"\x05\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x05\x03\x02\x03abc\x03\x07\x00\x00\x04", "\x05\x02\x02\x03abc\x03\xff\x37\x00",
			"\x0d", "\x0e", "\x05\x02\x0d\x03\x07\x00\x00", "\x05\x03\x0d\x03\x01\x00\x01\x0d", "\x05\x02\x0e\x03\x07\x00\x00",
			"\x03\x01\x00\x00", "\x03\x00\x00\x01", "\x04", "\x0b\x00", "\x0c\x01\x02\x01a\x03\x01\x00\x00",
			"\x05\x03\x02\x03abc\x03\x07\x00\x00\x03\x02\x00\x00", "\x05\x03\x02\x03abc\x03\x00\x00\x02\x03\x00\x00\x01",
			"\x05\x03\x02\x03abc\x03\x07\x00\x00\x02\x01x", "\x05\x03\x02\x03abc\x03\xff\x37\x00\x03\xff\x37\x00", "\x05\x03\x02\x03abc\x04\x03\x02\x00\x00",
			"\x05\x04\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00", "\x05\x04\x0d\x03\x00\x00\x02\x0d\x03\x00\x00\x00",
			"\x05\x04\x02\x03abc\x03\x07\x00\x00\x02\x01x\x03\x02\x00\x00", "\x05\x04\x02\x03abc\x03\x07\x00\x00\x0e\x0d",
			"\x05\x03\x0d\x03\x07\x00\x00\x03\x02\x00\x00", "\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00",
			"\x05\x02\x08\x30\x30\x30\x03\x00\x00\x00", "\x05\x02\x01\x03ERR\x03\x07\x00\x00", "\x05\x03\x03\x01\x00\x00\x01\x03ERR\x03\x01\x00\x00",
		} {
			f.Add(byte(kind), []byte(seed))
		}
		for _, text := range complaints {
			f.Add(byte(kind), append([]byte{1, byte(len(text))}, text...))
			f.Add(byte(kind), append([]byte{10, byte(len(text))}, text...))
		}
	}
	f.Fuzz(func(t *testing.T, k byte, input []byte) {
		kind := Kind(k) % guard
		s := draw(&input, 0)
		server.set("EVALSHA 0", s.encode(nil))
		n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"parrot:1"}}, Now: func() time.Duration { return time.Hour }})
		defer n.cancel()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		result := client.Do(ctx, client.B().Evalsha().Sha1("0").Numkeys(0).Build())
		r := Reply{Sent: time.Hour}
		n.read(&Request{Kind: kind}, result, &r, time.Hour+time.Millisecond)

		told := fmt.Sprintf("%v: %q is %v (%v)", kind, s.encode(nil), r.Status, r.Err)
		want := s.status(kind)
		switch {
		case (r.Status == Granted || r.Status == Taken || r.Status == Done) != (r.Err == nil):
			t.Error("an error with an answer, or neither: ", told)
		case s.isError() && r.Status != s.class():
			t.Errorf("an error of the server: %s, and not %v", told, s.class())
		case s.isNull() && r.Status == Unknown: // no answer: it may have been applied
		case !s.isError() && r.Status != want:
			t.Errorf("%s, and not %v", told, want)
		}
		var config *ConfigError
		if r.Status == Misconfigured && (!errors.As(r.Err, &config) || config.Problem == "" && !s.isError() || config.Fix == "") {
			t.Error("nobody is told what to mend: ", told)
		}
		if r.Status == Taken && (r.TTL > 0 && s.parts[1].text[0] == '-' || r.TTL < 0 && s.parts[1].text[0] != '-') {
			t.Errorf("%s ms is a life of %v: %s", s.parts[1].text, r.TTL, told)
		}
		if r.TTL > math.MaxInt64/2 {
			t.Errorf("a life of %v, to which nothing can be added: %s", r.TTL, told)
		}
		if r.Status == Taken && r.Place != number(s.parts[2].text) {
			t.Errorf("%s are before us, and not %d: %s", s.parts[2].text, r.Place, told)
		}
		if r.Status == Done && kind == Read && r.Queue != number(s.parts[3].text) {
			t.Errorf("%s wait, and not %d: %s", s.parts[3].text, r.Queue, told)
		}
	})
}

// greeting is what a parrot answers to a node that connects.
type greeting struct {
	clock, server, memory, digest, marker, rehearsal shape
}

// verdict is what a node has to make of it.
type verdict struct {
	status   Status // Done for a connection that may be used, otherwise what the error says
	withheld bool   // votes are
	waits    bool   // for a quarantine to end
}

// verdict is the naive reading: each reply in turn, and the first that is no
// good decides. known is false where nothing follows from a reply that no
// server would give.
func (g *greeting) verdict(guarded bool, longest string) (v verdict, known bool) {
	identity := map[string]string{}
	for _, info := range []shape{g.server, g.memory} {
		switch {
		case info.isError() && info.class() == Misconfigured:
			identity = nil // an ACL without INFO: nothing can be known
		case info.isError():
			return verdict{status: info.class()}, true
		case info.kind == '=': // as RESP3 has it
			info.text = strings.TrimPrefix(info.text, "txt:")
		case !info.isText():
			return v, false
		}
		if identity == nil {
			break
		}
		for line := range strings.SplitSeq(info.text, "\n") {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if key == "server_mode" {
				key = "redis_mode"
			}
			identity[key] = value
		}
	}
	if mode := identity["redis_mode"]; mode != "" && mode != "standalone" {
		return verdict{status: Misconfigured}, true
	}
	if role := identity["role"]; role != "" && role != "master" {
		return verdict{status: Misconfigured}, true
	}
	numbers := func(parts []shape) bool {
		return !slices.ContainsFunc(parts, func(s shape) bool { return !s.isNumber() })
	}
	refused := func(s shape) (verdict, bool) {
		switch {
		case s.isError():
			return verdict{status: s.class()}, true
		case s.isNull():
			return verdict{status: Unknown}, true
		default:
			return verdict{status: Misconfigured}, false
		}
	}
	if !g.clock.isArray() || len(g.clock.parts) != 2 || !numbers(g.clock.parts) {
		return refused(g.clock)
	}
	if !g.digest.isText() {
		return refused(g.digest)
	}
	limit, limited := identity["maxmemory"]
	policy := identity["maxmemory_policy"]
	evicts := limited && limit != "0" && policy != "" && policy != "noeviction"
	switch {
	case !guarded:
	case identity == nil || evicts || len(strings.Fields(identity["run_id"])) != 1:
		v.withheld = true
	case !g.marker.isArray() || len(g.marker.parts) != 4 || !numbers(g.marker.parts[:3]) || !g.marker.parts[3].isText() || g.marker.parts[3].text == "":
		return refused(g.marker)
	case g.marker.parts[2].text != longest:
		v.withheld = true
	default:
		now, _ := strconv.ParseInt(g.marker.parts[0].text, 10, 64)
		ends, _ := strconv.ParseInt(g.marker.parts[1].text, 10, 64)
		v.waits = ends > now
	}
	if g.rehearsal.isError() || g.rehearsal.isNull() {
		return refused(g.rehearsal)
	}
	v.status = Done
	return v, true
}

// What a server says of itself is understood or refused, by the class that an
// operator reads of, and nothing makes a vote of what cannot be one.
func FuzzGreeting(f *testing.F) {
	fields := []func(*greeting) *shape{
		func(g *greeting) *shape { return &g.clock }, func(g *greeting) *shape { return &g.server },
		func(g *greeting) *shape { return &g.memory }, func(g *greeting) *shape { return &g.digest },
		func(g *greeting) *shape { return &g.marker }, func(g *greeting) *shape { return &g.rehearsal },
	}
	const inWords = 1 << 7 // the input is the text of an INFO as it is, and no shape
	for field := range fields {
		for _, seed := range []string{
			"", "\x05\x02\x02\x0a1700000000\x02\x065000000", "\x05\x02\x04\x04", "\x05\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x0d", "\x0e", "\x05\x00",
			"\x05\x04\x03\x07\x00\x00\x03\x09\x00\x00\x02\x0260\x02\x01m", "\x05\x04\x03\x07\x00\x00\x03\x09\x00\x00\x02\x0261\x02\x01m",
			"\x05\x04\x03\x07\x00\x00\x03\x07\x00\x00\x02\x0260\x02\x01m", "\x05\x04\x03\x07\x00\x00\x03\x09\x00\x00\x02\x0260\x0d",
			"\x05\x03\x03\x07\x00\x00\x03\x09\x00\x00\x02\x0260", "\x02\x01d", "\x06\x00",
			"\x05\x04\x03\x00\x00\x10\x03\x30\x30\x30\x02\x0260\x02\x01m", "\x05\x04\x03\x00\x00\x10\x03\x30\x30\x30\x02\x0260\x02\x00",
		} {
			f.Add(byte(field), true, []byte(seed))
		}
		for _, text := range complaints {
			f.Add(byte(field), true, append([]byte{1, byte(len(text))}, text...))
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
			clock:  shape{kind: '*', parts: []shape{{kind: '$', text: "1700000000"}, {kind: '$', text: "1"}}},
			server: shape{kind: '=', text: "txt:run_id:a\r\n"}, memory: shape{kind: '$'}, digest: shape{kind: '$', text: "guard"},
			marker:    shape{kind: '*', parts: []shape{{kind: ':', text: "5"}, {kind: ':', text: "5"}, {kind: ':', text: "60"}, {kind: '$', text: "m"}}},
			rehearsal: shape{kind: '*'},
		}
		drawn := fields[int(which&^inWords)%len(fields)](&g)
		if which&inWords != 0 {
			*drawn = shape{kind: '=', text: "txt:" + string(input)}
		} else {
			*drawn = draw(&input, 0)
		}
		if g.digest.text == "read" {
			t.Skip("two scripts with one digest")
		}
		server.forget()
		for command, reply := range map[string]shape{
			"TIME": g.clock, "INFO server": g.server, "INFO memory": g.memory,
			"SCRIPT " + scripts[guard]: g.digest, "EVALSHA " + g.digest.text: g.marker,
			"SCRIPT " + scripts[Read]: {kind: '$', text: "read"}, "EVALSHA read": g.rehearsal,
		} {
			server.set(command, reply.encode(nil))
		}
		n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"parrot:1"}}, Now: func() time.Duration { return time.Hour }})
		defer n.cancel()
		n.client = client
		n.dialed.Store(1)
		if guarded {
			n.cfg.Guard = longest * time.Millisecond
		}
		withheld, err := n.greet()

		told := fmt.Sprintf("guard %v: %q is %v, withheld: %v", guarded, drawn.encode(nil), err, withheld)
		want, known := g.verdict(guarded, strconv.Itoa(longest))
		var config *ConfigError
		switch {
		case !known && want.status == Misconfigured && err == nil && withheld == nil:
			t.Error("taken for good: ", told)
		case !known:
		case (err == nil) != (want.status == Done):
			t.Errorf("%s, and not %v", told, want.status)
		case err != nil && errors.As(err, &config) != (want.status == Misconfigured):
			t.Errorf("%s, and not %v", told, want.status)
		case err == nil && (withheld != nil) != want.withheld:
			t.Errorf("%s, and votes are withheld: %v", told, want.withheld)
		case err == nil && (n.why != nil) != want.waits:
			t.Errorf("%s, and in quarantine %v, not %v", told, n.why, want.waits)
		}
		for _, err := range []error{err, withheld} {
			if errors.As(err, &config) && (config.Problem == "" || config.Fix == "") {
				t.Error("nobody is told what to mend: ", told)
			}
		}
	})
}
