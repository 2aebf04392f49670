package node

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// requestOf returns a request of a kind, about so many locks where it can be.
func requestOf(kind Kind, locks int) *Request {
	owner := strings.Repeat("a", OwnerLen)
	value := Compose(owner, 7, "0 - -")
	switch kind {
	case Acquire:
		r := &Request{}
		r.Init(&Acquisition{Lock: "l", Value: value, KeyTTL: "1000", Token: "7", NotAfter: time.Hour})
		return r
	case Extend:
		r := NewRenewals(locks)
		for range locks {
			r.Add("l", value, "1000")
		}
		return r.Request(time.Hour)
	case Heal:
		return NewHeal(make([]Healing, locks), time.Hour)
	case Raise:
		return NewRaise("l", owner, 7, "0 - -", time.Hour)
	case Release:
		if locks == 1 {
			return NewRelease("l", value, nil, TicketUpdate{}, time.Hour)
		}
		return NewReleases(slices.Repeat([][2]string{{"l", value}}, locks), time.Hour)
	case Pass:
		return NewPass("l", "t", time.Hour)
	case Recall:
		return NewRecall("l", time.Hour)
	case Read:
		return NewRead("l", time.Hour)
	default:
		return NewForget(time.Hour)
	}
}

// verdict returns what the answers to a request have to be taken for: the naive reading
// of the script's header.
func verdict(kind Kind, answers []shape) Status {
	a := answers[0]
	integers := func(parts []shape) bool {
		return !slices.ContainsFunc(parts, func(s shape) bool { return !s.isInteger() })
	}
	held := func(s shape) bool { return s.isText() || s.isNull() }
	switch kind {
	case Acquire:
		switch {
		case a.isInteger() && a.text == "1":
			return Granted
		case a.isInteger() && a.text == "0":
			return Unsent
		case a.isInteger() && a.text == "-1":
			return notApplied
		case a.failed():
			return a.parts[0].classInScript()
		case a.isArray() && len(a.parts) == 2 && integers(a.parts):
			return Granted
		case a.isArray() && len(a.parts) == 3 && held(a.parts[0]) && integers(a.parts[1:]):
			return Taken
		}
	case Raise:
		switch {
		case a.failed():
			return a.parts[0].classInScript()
		case a.isArray() && len(a.parts) == 2 && integers(a.parts):
			return Done
		}
	case Read:
		switch {
		case a.failed():
			return a.parts[0].classInScript()
		case a.isArray() && len(a.parts) == 4 && held(a.parts[0]) && integers(a.parts[1:]):
			return Done
		}
	default:
		for _, s := range answers {
			if !s.isInteger() && !s.failed() {
				return Misconfigured
			}
		}
		if kind != Extend && kind != Heal && a.failed() && !strings.HasPrefix(strings.TrimPrefix(a.parts[0].text, "ERR "), "WRONGTYPE") {
			last := answers[len(answers)-1]
			for _, s := range answers { // the last failure counts
				if s.failed() {
					last = s
				}
			}
			return last.parts[0].classInScript()
		}
		return Done
	}
	return Misconfigured
}

// Whatever a server answers, it does not bring the worker down, and nothing but the
// answer to a grant is a vote, nothing but that to a refusal is contention. The replies
// come through rueidis, as in production.
func FuzzReplies(f *testing.F) {
	const whole = 1 << 7 // the input is the whole reply, and not the answers in one that is well formed
	server, client := newParrot(f)
	for kind := Acquire; kind <= Forget; kind++ {
		for _, seed := range []string{
			"", "\x03\x01\x00\x00", "\x03\x00\x00\x01", "\x03\x00\x00\x00", "\x03\x02\x00\x00", "\x02\x011", "\x00\x011", "\x04", "\x0b\x00", "\x0c\x01\x02\x01a\x03\x01\x00\x00",
			"\x05\x00", "\x05\x01\x03\x07\x00\x00", "\x05\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x05\x02\x02\x017\x03\x07\x00\x00", "\x05\x02\x03\x07\x00\x00\x06\x00",
			"\x05\x03\x02\x03abc\x03\x07\x00\x00\x03\x02\x00\x00", "\x05\x03\x04\x03\x07\x00\x00\x03\x02\x00\x00", "\x05\x03\x0d\x03\xff\x37\x00\x03\xff\x37\x00",
			"\x05\x03\x02\x03abc\x02\x017\x03\x02\x00\x00", "\x05\x04\x02\x03abc\x03\x07\x00\x00\x03\x09\x00\x00\x03\x02\x00\x00", "\x05\x04\x04\x03\x00\x00\x02\x03\x00\x00\x00\x03\x00\x00\x00",
			"\x05\x04\x02\x03abc\x03\x07\x00\x00\x04\x03\x02\x00\x00", "\x05\x01\x02\x09WRONGTYPE", "\x05\x01\x01\x09WRONGTYPE", "\x05\x01\x09\x09WRONGTYPE", "\x05\x01\x05\x01\x02\x03OOM",
			"\x0d", "\x0e", "\x08\x01\x00\x00", "\x07\x00", "\x0b\x02\x03\x07\x00\x00\x03\x07\x00\x00", "\x01\x03ERR",
			"\x05\x02\x03\x01\x00\x00\x05\x01\x02\x03OOM", "\x05\x02\x02\x011\x03\x01\x00\x00", "\x05\x03\x03\x01\x00\x00\x03\x01\x00\x00\x03\x01\x00\x00",
		} {
			f.Add(byte(kind), byte(1), []byte(seed))
			f.Add(byte(kind)|whole, byte(1), []byte(seed))
			f.Add(byte(kind), byte(2), []byte(seed+seed))
		}
		for _, text := range complaints {
			f.Add(byte(kind), byte(1), append([]byte{5, 1, 2, byte(len(text))}, text...))
			f.Add(byte(kind)|whole, byte(1), append([]byte{1, byte(len(text))}, text...))
			f.Add(byte(kind)|whole, byte(1), append([]byte{10, byte(len(text))}, text...))
		}
	}
	f.Fuzz(func(t *testing.T, k, locks byte, input []byte) {
		kind := Acquire + Kind(k&^whole)%Forget
		req := requestOf(kind, 1+int(locks)%3)
		reply := array(number(1_700_000_000_000_000))
		if k&whole != 0 {
			reply = draw(&input, 0)
		} else {
			for range req.Locks() {
				reply.parts = append(reply.parts, draw(&input, 1))
			}
		}
		server.set("EVALSHA x", reply.encode(nil))
		n := New(Config{
			Option: rueidis.ClientOption{InitAddress: []string{"parrot:1"}},
			Clock:  func() (validity, steady time.Duration) { return time.Hour, time.Hour },
		})
		defer n.cancel()
		result := client.Do(t.Context(), client.B().Evalsha().Sha1("0").Numkeys(0).Arg("", "", "", "", "", "", "x").Build())
		answers, failure := n.answers(&sending{steady: time.Hour, received: time.Hour + time.Millisecond}, req.Locks(), result)
		r := Reply{Status: failure.Status, Err: failure.Err}
		if failure.Status == 0 {
			n.read(req, answers, &r)
		}

		said := fmt.Sprintf("%v of %d: %q is %d, %v (%v)", kind, req.Locks(), reply.encode(nil), r.Status, r.Answers, r.Err)
		if want := wholeVerdict(kind, req.Locks(), reply); r.Status != want {
			t.Errorf("%s, and not %d", said, want)
		}
		answered := r.Status == Granted || r.Status == Taken || r.Status == Done
		if !answered && r.Err == nil || answered && r.Err != nil && !slices.Contains(r.Answers, Unanswered) {
			t.Error("an error with an answer, or neither: ", said)
		}
		var config *ConfigError
		if r.Status == Misconfigured && (!errors.As(r.Err, &config) || config.Fix == "") {
			t.Error("nothing says what to mend: ", said)
		}
		checkFields(t, kind, &r, reply, said)
	})
}

// wholeVerdict is verdict for a whole reply of the script.
func wholeVerdict(kind Kind, locks int, reply shape) Status {
	switch {
	case reply.isError() && (strings.HasPrefix(reply.text, "NOSCRIPT") || strings.HasPrefix(reply.text, "ERR NOSCRIPT")):
		return notApplied
	case reply.isError():
		return reply.class()
	case reply.isNull():
		return Unknown // no answer: it may have been applied
	case !reply.isArray() || len(reply.parts) != 1+locks || !reply.parts[0].isNumber():
		return Misconfigured
	default:
		return verdict(kind, reply.parts[1:])
	}
}

// checkFields checks what the reply says besides its status.
func checkFields(t *testing.T, kind Kind, r *Reply, reply shape, said string) {
	if r.TTL > math.MaxInt64/2 {
		t.Errorf("a life of %v, to which nothing can be added: %s", r.TTL, said)
	}
	if r.Status != Granted && r.Status != Taken && r.Status != Done {
		return
	}
	answers := reply.parts[1:]
	a := answers[0]
	switch {
	case r.Status == Granted && a.isInteger():
		if r.Moved != AsProposed || r.Before != AsProposed {
			t.Errorf("moved to %d from %d: %s", r.Moved, r.Before, said)
		}
	case r.Status == Granted:
		if r.Moved != a.parts[0].integer() || r.Before != a.parts[1].integer() {
			t.Errorf("moved to %d from %d: %s", r.Moved, r.Before, said)
		}
	case r.Status == Taken:
		checkHeld(t, r, a, said)
		if r.Position != a.parts[2].integer() {
			t.Errorf("position %d: %s", r.Position, said)
		}
	case kind == Raise:
		if r.Before != a.parts[0].integer() || r.Waiters != a.parts[1].integer() {
			t.Errorf("before %d, %d wait: %s", r.Before, r.Waiters, said)
		}
	case kind == Read:
		checkHeld(t, r, a, said)
		if r.Register != a.parts[2].integer() || r.Waiters != a.parts[3].integer() {
			t.Errorf("register %d, %d wait: %s", r.Register, r.Waiters, said)
		}
	default:
		for i, s := range answers {
			want := s.integer()
			if s.failed() {
				want = Unanswered
				if strings.HasPrefix(strings.TrimPrefix(s.parts[0].text, "ERR "), "WRONGTYPE") {
					want = Another
				}
			}
			if r.Answers[i] != want {
				t.Errorf("answer %d is %d and not %d: %s", i, r.Answers[i], want, said)
			}
		}
		if len(r.Answers) != len(answers) || kind != Extend && kind != Heal && r.N != r.Answers[0] {
			t.Errorf("N is %d: %s", r.N, said)
		}
	}
}

func checkHeld(t *testing.T, r *Reply, a shape, said string) {
	if r.Held != a.parts[0].text {
		t.Errorf("held %q: %s", r.Held, said)
	}
	if ms := a.parts[1].text; (r.TTL < 0) != (ms[0] == '-' && ms != "-0") {
		t.Errorf("%s ms is a life of %v: %s", ms, r.TTL, said)
	}
}
