package node

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Companion keys carry a byte that is not valid UTF-8. Lock names and prefixes
// are valid UTF-8, so no legal name of any prefix can collide with them.
const (
	fenceTag = "\xfff"
	queueTag = "\xffq"
	guardTag = "\xffg"
	wakeTag  = "\xffw" // of channels
)

// Keys returns the key of a lock, of its fence counter, and of the queue of
// those who wait for it.
//
// The lock's key is prefix and name, nothing else, so that other Redlock
// clients on the same key and we exclude each other. The others begin with the
// prefix, for ACL patterns, and have the hash tag of the lock's key, for proxies
// that shard. They share one allocation.
func Keys(prefix, name string) (lock, fence, queue string) {
	var both string
	if strings.Contains(name, "}") || hasHashTag(prefix) {
		// Either the lock's key has a hash tag, and so has whatever begins
		// with it, or no other key hashes like it.
		both = prefix + name + fenceTag + prefix + name + queueTag
		lock = both[:len(prefix)+len(name)]
	} else {
		both = prefix + fenceTag + "{" + prefix + name + "}" + prefix + queueTag + "{" + prefix + name + "}"
		lock = both[len(prefix)+len(fenceTag)+1 : len(both)/2-1]
	}
	return lock, both[:len(both)/2], both[len(both)/2:] // the tags are equally long
}

// A ticket is a place in the queues of a lock, and a member of them: 16 hex digits
// of the Manager, whom a node tells when it is its turn, 16 of the wait, and
// behind these how long the node keeps the lock for it then, in ms (see
// common.lua). The grace is no part of its name.
const (
	ManagerLen = 16
	TicketLen  = 32
)

// WakeChannel returns the channel on which a Manager is told whose turn it is.
func WakeChannel(prefix, manager string) string { return prefix + wakeTag + manager }

// GuardKey returns the key of the restart guard's marker.
func GuardKey(prefix string) string { return prefix + guardTag }

// PrefixShards reports whether keys with this prefix can have the hash tags
// that Keys promises: a brace must belong to a whole tag.
func PrefixShards(prefix string) bool {
	return !strings.ContainsAny(prefix, "{}") || hasHashTag(prefix)
}

// hasHashTag applies the rule of Redis Cluster: the text between the first
// brace and the first closing one after it, if any.
func hasHashTag(key string) bool {
	open := strings.IndexByte(key, '{')
	return open >= 0 && strings.IndexByte(key[open+1:], '}') > 0
}

// Value is the content of a lock's key:
//
//	owner counter since_µs traceparent label
//
// separated by single spaces, "-" for an absent traceparent. It begins with
// the owner value, as every Redlock client's does; the rest is for people.
//
// While a node keeps the lock for whom it has told that it is its turn, the value
// is "ticket w ": no lease, and nobody's vote.
type Value struct {
	Owner       string // 32 hex digits
	Kept        bool   // for whoever waits with the ticket Owner
	Counter     int64
	Since       time.Time
	TraceParent string
	Label       string
}

// OwnerLen is the length of an owner value.
const OwnerLen = 32

// AppendTail appends what follows owner and counter in the value of a lock.
func AppendTail(b []byte, since time.Time, traceParent, label string) []byte {
	if traceParent == "" {
		traceParent = "-"
	}
	b = strconv.AppendInt(b, since.UnixMicro(), 10)
	b = append(append(b, ' '), traceParent...)
	return append(append(b, ' '), label...)
}

// Compose returns the whole value of a lock.
func Compose(owner string, counter int64, tail string) string {
	return owner + " " + strconv.FormatInt(counter, 10) + " " + tail
}

// keptMark follows the ticket for which a node keeps a lock.
const keptMark = " w "

// MaxLabelLen and maxTraceParent bound what a value of ours can hold, in bytes.
const (
	MaxLabelLen    = 256
	maxTraceParent = 55
)

// maxStranger bounds what is kept of a value that is not ours: it goes into
// errors and spans.
const maxStranger = 128

// ParseValue reads the value of a lock. A value that is not ours is somebody
// else's owner value as a whole, cut to 128 bytes and made valid UTF-8.
func ParseValue(s string) Value {
	if v, ok := parseOwn(s); ok {
		return v
	}
	if len(s) > maxStranger {
		s = s[:maxStranger]
	}
	return Value{Owner: strings.ToValidUTF8(s, "\uFFFD")}
}

func parseOwn(s string) (v Value, ok bool) {
	if len(s) <= OwnerLen || s[OwnerLen] != ' ' || strings.Trim(s[:OwnerLen], "0123456789abcdef") != "" {
		return v, false
	}
	if s[OwnerLen:] == keptMark {
		return Value{Owner: s[:OwnerLen], Kept: true}, true
	}
	parts := strings.SplitN(s[OwnerLen+1:], " ", 4)
	if len(parts) != 4 || len(parts[2]) > maxTraceParent || len(parts[3]) > MaxLabelLen || !utf8.ValidString(s) {
		return v, false
	}
	counter, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil || counter < 0 {
		return v, false
	}
	since, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return v, false
	}
	v = Value{Owner: s[:OwnerLen], Counter: counter, Since: time.UnixMicro(since), Label: parts[3]}
	if parts[2] != "-" {
		v.TraceParent = parts[2]
	}
	return v, true
}
