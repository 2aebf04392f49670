package node

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// requestOf returns a request of a kind, for that number of locks if the kind allows it.
func requestOf(kind wire.Kind, locks int) *wire.Request {
	owner := strings.Repeat("a", wire.OwnerLen)
	value := wire.Compose(owner, 7, "0 - -")
	entry, batch := wire.Entry{Lock: "l", Value: value}, wire.NewBatch(kind, locks, clock.Steady(time.Hour))
	switch kind {
	case wire.Acquire:
		r := &wire.Request{}
		r.Init(&wire.Acquisition{Lock: "l", Value: value, KeyTTL: "1000", Token: "7", NotAfter: clock.Steady(time.Hour)})
		return r
	case wire.Extend:
		for range locks {
			entry.Extend(batch, "1000")
		}
		return batch
	case wire.Heal:
		for range locks {
			entry.Heal(batch, "1000", 0, 0)
		}
		return batch
	case wire.Raise:
		return entry.Raise(7, clock.Steady(time.Hour))
	case wire.Release:
		if locks == 1 {
			return entry.Release(nil, wire.TicketUpdate{}, clock.Steady(time.Hour))
		}
		for range locks {
			entry.Delete(batch)
		}
		return batch
	case wire.Pass:
		return wire.NewPass("l", owner, clock.Steady(time.Hour))
	case wire.Read:
		return wire.NewRead("l", clock.Steady(time.Hour))
	case wire.Scan:
		return wire.NewScan("l", wire.LastPage, 10, clock.Steady(time.Hour))
	default:
		return NewForget(time.Hour)
	}
}

// reading is the answer to one operation: its character, and the detail that a '*' refers
// to.
type reading struct {
	code   byte
	detail shape
}

// isNumber reports whether the answer is a small number.
func (a reading) isNumber() bool { return strings.IndexByte("012-", a.code) >= 0 }

// number returns the answer as a number.
func (a reading) number() int64 {
	if a.code == '-' {
		return -1
	}
	if a.code == '*' {
		return a.detail.integer()
	}
	return int64(a.code - '0')
}

// failed reports whether the operation has failed, and its error.
func (a reading) failed() (text shape, failed bool) {
	if a.code == '*' && a.detail.failed() {
		return a.detail.parts[0], true
	}
	return shape{}, false
}

// parts returns the parts of an answer that must have n of them.
func (a reading) parts(n int) []shape {
	if a.code == '*' && a.detail.isArray() && len(a.detail.parts) == n {
		return a.detail.parts
	}
	return nil
}

// wrongType reports whether an error is about a key of another type.
func wrongType(text shape) bool {
	return strings.HasPrefix(strings.TrimPrefix(text.text, "ERR "), "WRONGTYPE")
}

// verdict returns the status that the answers to a request must have: a naive reading of
// the script's header.
func verdict(kind wire.Kind, answers []reading) wire.Status {
	a := answers[0]
	integers := func(parts []shape) bool {
		return len(parts) > 0 && !slices.ContainsFunc(parts, func(s shape) bool { return !s.isInteger() })
	}
	held := func(s shape) bool { return s.isText() || s.isNull() }
	text, failed := a.failed()
	switch kind {
	case wire.Acquire, wire.Raise, wire.Read, wire.Scan:
		if failed {
			return text.classInScript()
		}
	default:
		return verdictOfMany(kind, answers)
	}
	switch kind {
	case wire.Acquire:
		switch {
		case a.code == '1', integers(a.parts(3)), a.code == '*' && a.detail.isInteger() && a.detail.integer() > 2:
			return wire.Granted
		case a.code == '0':
			return wire.NotApplied
		case a.code == '-':
			return wire.MayRepeat
		case a.parts(3) != nil && held(a.parts(3)[0]) && integers(a.parts(3)[1:]):
			return wire.Taken
		case a.parts(4) != nil && held(a.parts(4)[0]) && integers(a.parts(4)[1:]):
			return wire.Taken
		case a.parts(5) != nil && held(a.parts(5)[0]) && integers(a.parts(5)[1:4]) && a.parts(5)[4].isText():
			return wire.Taken
		}
	case wire.Raise:
		if integers(a.parts(2)) {
			return wire.Done
		}
	case wire.Scan:
		if parts := a.parts(2); parts != nil && parts[0].isText() && isTexts(parts[1]) {
			return wire.Done
		}
	default:
		if parts := a.parts(4); parts != nil && held(parts[0]) && integers(parts[1:]) {
			return wire.Done
		}
		for _, n := range []int{5, 6, 7} { // readers, tickets, and both
			parts := a.parts(n)
			if parts == nil {
				continue
			}
			numbers, tickets := 4+(n-4)/2, n != 6
			if held(parts[0]) && integers(parts[1:numbers]) && !slices.ContainsFunc(parts[numbers:], func(s shape) bool { return !isTexts(s) }) &&
				(!tickets || len(parts[n-1].parts)%2 == 0) {
				return wire.Done
			}
		}
	}
	return wire.Misconfigured
}

// isTexts reports whether a part is a list of texts.
func isTexts(s shape) bool {
	return s.isArray() && !slices.ContainsFunc(s.parts, func(s shape) bool { return !s.isText() })
}

// verdictOfMany is verdict for requests that answer one number for each lock.
func verdictOfMany(kind wire.Kind, answers []reading) wire.Status {
	verdict := wire.Done
	for _, a := range answers {
		text, failed := a.failed()
		if !failed && !a.isNumber() && (a.code != '*' || !a.detail.isInteger() || a.detail.integer() < 0) {
			return wire.Misconfigured
		}
		if failed && !wrongType(text) && kind != wire.Extend && kind != wire.Heal && verdict != wire.Failed {
			verdict = text.classInScript()
		}
	}
	return verdict
}

// No reply of a server crashes the worker. Only the answer to a grant is a vote, and only
// the answer to a refusal is contention. The replies come through rueidis, as in
// production.
func FuzzReplies(f *testing.F) {
	const whole = 1 << 7 // the input is the whole reply, not only the answers in a well-formed one
	server, client := newParrot(f)
	for kind := range wire.Forget { // as 1 + kind
		for code := range byte(8) {
			f.Add(byte(kind), byte(0), []byte{code})
			f.Add(byte(kind), byte(2), []byte{code, 1, code})
		}
		for _, seed := range []string{
			"", "\x05\x02\x03\x07\x00\x00\x02\x011", "\x05\x02\x03\x07\x00\x00\x02\x01*", "\x05\x03\x03\x07\x00\x00\x02\x01*\x05\x01\x02\x03OOM", "\x05\x02\x03\x07\x00\x00\x02\x01x", "\x05\x03\x03\x07\x00\x00\x02\x011\x0d", "\x05\x02\x03\x07\x00\x00\x02\x0211", "\x03\x01\x00\x00", "\x03\x00\x00\x01", "\x03\x00\x00\x00", "\x03\x02\x00\x00", "\x02\x011", "\x00\x011", "\x04", "\x0b\x00", "\x0c\x01\x02\x01a\x03\x01\x00\x00",
			"\x05\x00", "\x05\x01\x03\x07\x00\x00", "\x05\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x05\x02\x02\x017\x03\x07\x00\x00", "\x05\x02\x03\x07\x00\x00\x06\x00",
			"\x05\x03\x02\x03abc\x03\x07\x00\x00\x03\x02\x00\x00", "\x05\x03\x04\x03\x07\x00\x00\x03\x02\x00\x00", "\x05\x03\x0d\x03\xff\x37\x00\x03\xff\x37\x00",
			"\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00\x02\x01a", "\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x02\x00\x00\x02\x01a\x02\x01a", "\x05\x05\x03\x07\x00\x00\x03\x07\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00\x02\x01a", "\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00",
			"\x05\x06\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00\x05\x02\x02\x01a\x02\x01b", "\x05\x06\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00\x03\x02\x00\x00\x02\x01b", "\x05\x06\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00\x02\x012\x05\x00",
			"\x05\x03\x02\x03abc\x02\x017\x03\x02\x00\x00", "\x05\x04\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00", "\x05\x04\x04\x03\x00\x00\x02\x03\x00\x00\x00\x03\x00\x00\x00",
			"\x05\x04\x02\x03abc\x03\x07\x00\x00\x04\x03\x02\x00\x00", "\x05\x01\x02\x09WRONGTYPE", "\x05\x01\x01\x09WRONGTYPE", "\x05\x01\x09\x09WRONGTYPE", "\x05\x01\x05\x01\x02\x03OOM",
			"\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x05\x06\x02\x230123456789abcdef0000000000000001999\x02\x101700000000000001\x02\x220123456789abcdef00000000000000015s\x02\x017\x02\x250123456789abcdef000000000000000150p12\x02\x018", "\x05\x07\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x05\x01\x02\x01a\x05\x06\x02\x230123456789abcdef0000000000000001999\x02\x101700000000000001\x02\x220123456789abcdef00000000000000015s\x02\x017\x02\x250123456789abcdef000000000000000150p12\x02\x018",
			"\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x05\x01\x02\x230123456789abcdef0000000000000001999", "\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x05\x0c\x02\x230123456789abcdef0000000000000001999\x02\x031.5\x02\x240123456789abcdef00000000000000010999\x02\x011\x02\x210123456789abcdef00000000000000019\x02\x02-1\x02\x220123456789abcdef00000000000000019p\x02\x011\x02\x210123456789ABCDEF00000000000000019\x02\x011\x02\x210123456789abcdef00000000000000019\x02\x109007199254740994", "\x05\x05\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x02\x01b", "\x05\x07\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x03\x09\x00\x00\x05\x06\x02\x230123456789abcdef0000000000000001999\x02\x101700000000000001\x02\x220123456789abcdef00000000000000015s\x02\x017\x02\x250123456789abcdef000000000000000150p12\x02\x018\x02\x01b",
			"\x0d", "\x0e", "\x08\x01\x00\x00", "\x07\x00", "\x0b\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x01\x03ERR",
			"\x05\x02\x03\x01\x00\x00\x05\x01\x02\x03OOM", "\x05\x02\x02\x011\x03\x01\x00\x00", "\x05\x03\x03\x01\x00\x00\x03\x01\x00\x00\x03\x01\x00\x00",
			"\x05\x02\x02\x010\x05\x02\x02\x01a\x02\x01b", "\x05\x02\x02\x010\x05\x00", "\x05\x02\x02\x010\x05\x01\x03\x01\x00\x00", "\x05\x02\x03\x01\x00\x00\x05\x00", "\x03\xfe\xff\xff", "\x05\x02\x02\x010\x02\x010",
		} {
			f.Add(byte(kind), byte(0), []byte("\x00"+seed))
			f.Add(byte(kind)|whole, byte(0), []byte(seed))
			f.Add(byte(kind), byte(1), []byte("\x00"+seed+"\x00"+seed))
		}
		for _, text := range complaints {
			f.Add(byte(kind), byte(0), append([]byte{0, 5, 1, 2, byte(len(text))}, text...))
			f.Add(byte(kind), byte(1), append([]byte{1, 0, 5, 1, 2, byte(len(text))}, text...))
			f.Add(byte(kind)|whole, byte(0), append([]byte{1, byte(len(text))}, text...))
			f.Add(byte(kind)|whole, byte(0), append([]byte{10, byte(len(text))}, text...))
		}
	}
	f.Fuzz(func(t *testing.T, k, locks byte, input []byte) {
		kind := wire.Acquire + wire.Kind(k&^whole)%wire.Forget
		req := requestOf(kind, 1+int(locks)%3)
		reply := drawReply(&input, req.Locks(), k&whole != 0)
		server.Set("EVALSHA x", reply.encode(nil))
		n := New(Config{
			Option: rueidis.ClientOption{InitAddress: []string{"parrot:1"}},
			Clock: func() (validity clock.Validity, steady clock.Steady) {
				return clock.Validity(time.Hour), clock.Steady(time.Hour)
			},
		})
		defer n.cancel()
		result := client.Do(t.Context(), client.B().Evalsha().Sha1("0").Numkeys(0).Arg("", "", "", "", "", "", "x").Build())
		all, failure := n.courier.answers(&transfer{steady: clock.Steady(time.Hour), received: clock.Steady(time.Hour + time.Millisecond)}, nil, call{locks: req.Locks()}, []rueidis.RedisResult{result})
		r := wire.Reply{Status: failure.Status, Err: failure.Err}
		if failure.Status == 0 {
			n.courier.reader.Read(req, all.Next(req.Locks()), &r)
		}

		said := fmt.Sprintf("%v of %d: %q is %d, %v (%v)", kind, req.Locks(), reply.encode(nil), r.Status, r.Answers, r.Err)
		readings, want := readingsOf(kind, req.Locks(), reply)
		if r.Status != want {
			t.Errorf("%s, want %d", said, want)
		}
		answered := r.Status == wire.Granted || r.Status == wire.Taken || r.Status == wire.Done
		if !answered && r.Err == nil || answered && r.Err != nil && !slices.Contains(r.Answers, wire.Unanswered) {
			t.Error("an error with an answer, or neither: ", said)
		}
		var config *wire.ConfigError
		if r.Status == wire.Misconfigured && (!errors.As(r.Err, &config) || config.Fix == "") {
			t.Error("the error has no remedy: ", said)
		}
		if r.TTL > math.MaxInt64/2 {
			t.Errorf("a TTL of %v, which overflows in sums: %s", r.TTL, said)
		}
		if answered && r.Status == want {
			checkFields(t, kind, &r, readings, said)
		}
	})
}

// drawReply draws a reply to a number of operations: a well-formed one with any answers,
// or any reply.
func drawReply(input *[]byte, operations int, anything bool) shape {
	if anything {
		return draw(input, 0)
	}
	reply := array(number(1_700_000_000_000_000), shape{})
	codes := ""
	for range operations {
		code := byte('*')
		if len(*input) > 0 {
			code = "*01-2*x3"[(*input)[0]%8]
			*input = (*input)[1:]
		}
		codes += string(rune(code))
		if code == '*' {
			reply.parts = append(reply.parts, draw(input, 1))
		}
	}
	reply.parts[1] = bulk(codes)
	return reply
}

// readingsOf splits a reply into the answers, and returns the status that it must have.
func readingsOf(kind wire.Kind, operations int, reply shape) (readings []reading, want wire.Status) {
	switch {
	case reply.isError() && strings.HasPrefix(strings.TrimPrefix(reply.text, "ERR "), "NOSCRIPT"):
		return nil, wire.MayRepeat
	case reply.isError():
		return nil, reply.class()
	case reply.isNull():
		return nil, wire.Unknown // no answer: it may have been applied
	case !reply.isArray() || len(reply.parts) < 2 || !reply.parts[0].isInteger() || !reply.parts[1].isText():
		return nil, wire.Misconfigured
	}
	codes, details := reply.parts[1].text, reply.parts[2:]
	if len(codes) != operations || strings.Count(codes, "*") != len(details) {
		return nil, wire.Misconfigured
	}
	for i := range len(codes) {
		a := reading{code: codes[i]}
		if a.code == '*' {
			a.detail, details = details[0], details[1:]
		}
		readings = append(readings, a)
	}
	return readings, verdict(kind, readings)
}

// checkFields checks the fields of the reply other than its status.
func checkFields(t *testing.T, kind wire.Kind, r *wire.Reply, answers []reading, said string) {
	a := answers[0]
	same := func(what string, got, want int64) {
		if got != want {
			t.Errorf("%s is %d and not %d: %s", what, got, want, said)
		}
	}
	switch {
	case r.Status == wire.Granted && a.code == '1':
		same("moved", r.Moved, wire.AsProposed)
		same("before", r.Before, wire.AsProposed)
	case r.Status == wire.Granted && a.detail.isInteger():
		same("moved", r.Moved, 0)
		same("before", r.Before, a.detail.integer())
	case r.Status == wire.Granted:
		same("moved", r.Moved, a.detail.parts[0].integer())
		same("before", r.Before, a.detail.parts[1].integer())
		same("waiters", r.Waiters, a.detail.parts[2].integer())
	case r.Status == wire.Taken:
		checkHeld(t, r, a.detail, said)
		same("position", r.Position, a.detail.parts[2].integer())
		if len(a.detail.parts) == 4 {
			same("free slot", r.FreeSlot, a.detail.parts[3].integer())
			break
		}
		checkReaders(t, r, a.detail.parts[3:], said)
	case kind == wire.Raise:
		same("before", r.Before, a.detail.parts[0].integer())
		same("waiters", r.Waiters, a.detail.parts[1].integer())
	case kind == wire.Read:
		checkHeld(t, r, a.detail, said)
		same("register", r.Register, a.detail.parts[2].integer())
		same("waiters", r.Waiters, a.detail.parts[3].integer())
		rest := a.detail.parts[4:]
		checkTickets(t, r, &rest, said)
		checkReaders(t, r, rest, said)
	case kind == wire.Scan:
		if r.Page.Cursor != a.detail.parts[0].text {
			t.Errorf("cursor %q: %s", r.Page.Cursor, said)
		}
		same("keys", int64(len(r.Page.Keys)), int64(len(a.detail.parts[1].parts)))
	default:
		same("answers", int64(len(r.Answers)), int64(len(answers)))
		for i, a := range answers {
			want := a.number()
			if text, failed := a.failed(); failed && wrongType(text) {
				want = wire.Another
			} else if failed {
				want = wire.Unanswered
			}
			same(fmt.Sprint("answer ", i), r.Answers[i], want)
		}
		if kind != wire.Extend && kind != wire.Heal {
			same("N", r.N, r.Answers[0])
		}
	}
}

// aTicket matches a member of a queue that is a ticket.
var aTicket = regexp.MustCompile(`^[0-9a-f]{32}[1-9][0-9]{0,2}(s|p[1-9][0-9]{0,8})?$`)

// checkTickets checks the tickets in a reply, and removes them from the parts.
func checkTickets(t *testing.T, r *wire.Reply, parts *[]shape, said string) {
	want := []wire.Ticket(nil)
	if last := len(*parts) - 1; last == 0 || last == 2 {
		for texts := (*parts)[last].parts; len(texts) > 0; texts = texts[2:] {
			place, err := strconv.ParseFloat(texts[1].text, 64)
			_, end, _ := strings.Cut(texts[0].text, "p")
			limit, _ := strconv.Atoi(end)
			if text := texts[0].text; aTicket.MatchString(text) && err == nil && place >= 0 && place <= 1<<53 {
				want = append(want, wire.Ticket{Manager: text[:16], EnqueuedAt: int64(place), Shared: strings.HasSuffix(text, "s"), Limit: limit})
			}
		}
		*parts = (*parts)[:last]
	}
	if !slices.Equal(r.Tickets, want) {
		t.Errorf("tickets %v and not %v: %s", r.Tickets, want, said)
	}
}

// checkReaders checks the readers of a lock in a reply.
func checkReaders(t *testing.T, r *wire.Reply, parts []shape, said string) {
	if (r.Readers != nil) != (len(parts) > 0) {
		t.Errorf("readers %v: %s", r.Readers, said)
		return
	}
	if len(parts) > 0 && r.Readers.Count != parts[0].integer() {
		t.Errorf("%d readers: %s", r.Readers.Count, said)
	}
}

func checkHeld(t *testing.T, r *wire.Reply, a shape, said string) {
	if r.Held != a.parts[0].text {
		t.Errorf("held %q: %s", r.Held, said)
	}
	if ms := a.parts[1].integer(); (r.TTL < 0) != (ms < 0) {
		t.Errorf("%d ms is a TTL of %v: %s", ms, r.TTL, said)
	}
}
