package wire

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
)

// legal reports whether a Manager would accept the prefix and the name.
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

// keysOf returns all keys of a lock and of its prefix, and the channel of a Manager.
func keysOf(prefix, name string) map[string]string {
	lock := LockKey(prefix, name)
	return map[string]string{
		"the lock": lock, "the queue": QueueKey(lock), "the registers": RegistersKey(prefix), "the base": BaseKey(prefix),
		"the hint": HintKey(prefix), "the marker": GuardKey(prefix), "the channel": WakeChannel(prefix, strings.Repeat("0", ManagerLen)),
	}
}

// No key collides with another, whatever the locks and prefixes are. A hash tag in the
// prefix puts all keys on one shard.
func FuzzKeys(f *testing.F) {
	texts := []string{"quorumlock:", "", "a", "{", "}", "{}", "{a}", "}a{", "a{b}c", "{a", "r", "q", "\xff", "a\xffq", "日本", "\x00", "{{a}}"}
	for i, name := range texts {
		for j, other := range texts {
			f.Add(texts[(i+j)%len(texts)], name, texts[(i*j)%len(texts)], other)
		}
	}
	f.Fuzz(func(t *testing.T, prefix, name, otherPrefix, other string) {
		if !legal(prefix, name) || !legal(otherPrefix, other) {
			return
		}
		keys, others := keysOf(prefix, name), keysOf(otherPrefix, other)
		if keys["the lock"] != prefix+name {
			t.Errorf("the lock of %q and %q is %q", prefix, name, keys["the lock"])
		}
		for what, key := range keys {
			if !strings.HasPrefix(key, prefix) {
				t.Errorf("%s is without the prefix %q: %q", what, prefix, key)
			}
			if what != "the lock" && utf8.ValidString(key) {
				t.Errorf("%s, %q, could be a lock", what, key)
			}
			if HashTag(prefix) != "" && slot(key) != slot(prefix) {
				t.Errorf("%s, %q, hashes by %q, and the prefix by %q", what, key, slot(key), slot(prefix))
			}
			for otherWhat, otherKey := range others {
				ofLock := what == "the lock" || what == "the queue"
				same := what == otherWhat && (ofLock && prefix+name == otherPrefix+other || !ofLock && prefix == otherPrefix)
				if (key == otherKey) != same {
					t.Errorf("%q is %s of %q and %q, and %q is %s of %q and %q", key, what, prefix, name, otherKey, otherWhat, otherPrefix, other)
				}
			}
		}
	})
}

// The parts of a lock's value go into errors, logs and spans: they are valid UTF-8 and
// short, whatever program wrote them.
func FuzzParseValue(f *testing.F) {
	owner := strings.Repeat("0f", OwnerLen/2)
	for _, value := range []string{
		"", "x", owner, owner + " ", owner + " 1 2 - ", owner + " 1 2 - a label", owner + " 1 2 00-ab-cd-01 l",
		owner + " -1 2 - l", owner + " 1 x - l", owner + " 99999999999999999999 2 - l", owner + " 1 2 -", "\xff", strings.Repeat("\xffa", 300),
		strings.Repeat("é", 100), strings.Repeat("v", 127) + "é", strings.ToUpper(owner) + " 1 2 - l",
		owner + " 1 2 - \xff", owner + " 1 2 \xff l", owner + " 1 2 - " + strings.Repeat("x", 100_000), owner + " 1 9223372036854775807 - l",
		"s " + Nobody + " 0 0 - ", "x " + owner + " w ",
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
		if v.Token < 0 {
			t.Errorf("%q: token %d", value, v.Token)
		}
		if value != "" && v.Owner == "" {
			t.Errorf("%q has no owner", value)
		}
		reserved := regexp.MustCompile(`^[0-9a-f]{32} w $`).MatchString(value)
		if v.Reserved != reserved || reserved && v != (Value{Owner: value[:OwnerLen], Reserved: true}) {
			t.Errorf("%q is %+v", value, v)
		}
	})
}

// A value that begins like one of ours, and does not match to the last byte, is another program's.
func TestOnlyAWholeValueIsOurs(t *testing.T) {
	owner := strings.Repeat("0f", OwnerLen/2)
	theirs, lease := "s "+Nobody+" 0 0 - ", owner+" 1 2 - l"
	for _, value := range []string{
		"s hello", "s ", "s " + Nobody, theirs[:len(theirs)-1], theirs + "x", "s " + owner + " 0 0 - ", "s " + Nobody + " 1 0 - ",
		"s " + Nobody + " a 0 0 - ", "s " + Nobody + " w ", "s " + owner + " w ", "x " + Nobody + " 1 0 - \xff", "x " + Nobody + " 0 0 - ", "x " + lease,
		"x " + owner + " w ", "x " + owner + " a 1 2 - l\xff", "d " + owner + " w ", "d " + owner + " a 1 2 - l\xff", owner + " a 1 2 - l", owner + " +1 2 - l",
	} {
		if got, want := ParseValue(value), (Value{Owner: value[:min(len(value), 32)]}); got != want {
			t.Errorf("%q is %+v", value, got)
		}
	}
	for _, value := range []string{theirs, "s " + Nobody + " a 0 0 - \xffe\xfff", "x " + Nobody + " 0 0 - \xff", "x " + lease + "\xff", "d " + lease, owner + " a 1 2 - l\xff", owner + " w "} {
		if got := ParseValue(value); !got.Shared && !got.Revoked && !got.Detached && !got.Asked && !got.Reserved {
			t.Errorf("%q is %+v", value, got)
		}
	}
}

func FuzzValueRoundTrip(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), int64(7), int64(1_700_000_000_000_000), "", "")
	f.Add([]byte("0123456789abcdef"), int64(0), int64(-1), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "host 7, pid 1")
	f.Add([]byte{}, int64(1<<62), int64(1<<62), "-", " two  spaces ")
	f.Fuzz(func(t *testing.T, random []byte, token, since int64, trace, label string) {
		if token < 0 || strings.Contains(trace, " ") || len(trace) > 55 || !utf8.ValidString(trace) ||
			len(label) > 256 || !utf8.ValidString(label) {
			return
		}
		owner := fmt.Sprintf("%x", append(random, make([]byte, OwnerLen/2)...))[:OwnerLen]
		want := Value{Owner: owner, Token: token, Since: time.UnixMicro(since), TraceParent: trace, Label: label}
		if trace == "-" {
			want.TraceParent = ""
		}
		value := Compose(owner, token, string(AppendMetadata(nil, want.Since, trace, label)))
		if got := ParseValue(value); got != want {
			t.Errorf("%q: got %+v, want %+v", value, got, want)
		}
		if got, want := proof(value), fmt.Sprintf("%s %d ", owner, token); got != want {
			t.Errorf("%q: the proof is %q and not %q", value, got, want)
		}
	})
}

// The owner and the token prove a renewal; the rest of the value does not matter.
func TestProofIsOwnerAndToken(t *testing.T) {
	owner := strings.Repeat("a", OwnerLen)
	for value, want := range map[string]string{
		Compose(owner, 7, "0 - x y"):             owner + " 7 ",
		Compose(owner, 1795344466720373, "0 - "): owner + " 1795344466720373 ",
		owner + " 7":                             owner + " 7",
		owner:                                    owner,
		"":                                       "",
	} {
		assert.Equal(t, want, proof(value))
	}
}

// Messages, which any client may send, have such keys.
func TestTheKeyOfASlotNamesIt(t *testing.T) {
	for _, i := range []int{0, 7, 10, 127, 1 << 40} {
		lock, slot, ok := SlotOf(SlotKey("p:job", i))
		assert.Equal(t, []any{"p:job", i, true}, []any{lock, slot, ok})
	}
	lock, slot, ok := SlotOf(FamilyKey("p:job"))
	assert.Equal(t, []any{"p:job", -1, true}, []any{lock, slot, ok})
	for _, key := range []string{"p:job", "p:job\xffq", "", "p:job\xffp-1", "p:job\xffp01", "p:job\xffp+1", "p:job\xffp1x", "p:job\xffp1\xffp2", "p:job\xffp99999999999999999999"} {
		_, _, ok = SlotOf(key)
		assert.False(t, ok, "%q", key)
	}
	_, slot, _ = SlotOf("p:job")
	assert.Equal(t, -1, slot, "a lease that is no permit")
}

func TestATicketSaysWhichManagerWaitsSinceWhenAndForWhat(t *testing.T) {
	const name, manager = "0123456789abcdef00000000000000a1", "0123456789abcdef"
	for member, want := range map[string]Ticket{
		name + "50":      {Manager: manager, EnqueuedAt: 7},
		name + "999s":    {Manager: manager, EnqueuedAt: 7, Shared: true},
		name + "9p1024":  {Manager: manager, EnqueuedAt: 7, Limit: 1024},
		name + "50s 9":   {}, // of a later version, or of another program
		name + "50p4s":   {},
		name + "50p":     {},
		name + "50p04":   {},
		name + "50p-4":   {},
		name + "50p4p4":  {},
		name + "p4":      {},
		name + "s":       {},
		name + "0":       {},
		name + "050":     {},
		name + "1000":    {},
		name:             {},
		name[1:] + "9":   {},
		name[1:] + "A50": {},
		"":               {},
		"no ticket":      {},
	} {
		got, ok := parseTicket(member, "7")
		if assert.Equal(t, want != Ticket{}, ok, member) && ok {
			assert.Equal(t, want, got, member)
		}
	}
	for score, want := range map[string]int64{
		"0": 0, "9007199254740992": 1 << 53, "9007199254740994": -1, "-1": -1, "1.5": 1, "inf": -1, "-inf": -1, "nan": -1, "1.8e+15": 1_800_000_000_000_000, "": -1, "x": -1,
	} {
		got, ok := parseTicket(name+"50", score)
		assert.Equal(t, want >= 0, ok, score)
		assert.Equal(t, max(want, 0), got.EnqueuedAt, score)
	}
}
