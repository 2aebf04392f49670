package node

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Companion keys contain a byte that is not valid UTF-8. Lock names and prefixes are
// valid UTF-8, so no valid name of any prefix can collide with them. They begin with the
// prefix, for ACL patterns; a hash tag in the prefix covers them all.
const (
	registerTag = "\xffr"
	baseTag     = "\xffb"
	hintTag     = "\xffh"
	guardTag    = "\xffg"
	listsTag    = "\xffl"
	wakeTag     = "\xffw" // of channels
	// Behind the lock's key: apply.lua appends them.
	queueTag = "\xffq"
	watchTag = "\xffn"
)

// LockKey returns the key of a lock: prefix and name and nothing else. So this package
// and other Redlock clients on the same key exclude each other.
func LockKey(prefix, name string) string { return prefix + name }

// QueueKey returns the key of the queue of a lock's waiters.
func QueueKey(lock string) string { return lock + queueTag }

// WatchKey returns the key that exists while some of a lock's waiters have just been woken: it
// has the place of the middle one of them.
func WatchKey(lock string) string { return lock + watchTag }

// RegistersKey returns the key of the sorted set that holds the fencing register of
// every lock of a prefix.
func RegistersKey(prefix string) string { return prefix + registerTag }

// BaseKey returns the key of the base: the least value of every register.
func BaseKey(prefix string) string { return prefix + baseTag }

// HintKey returns the key that exists while any lock of a prefix may have a queue.
func HintKey(prefix string) string { return prefix + hintTag }

// GuardKey returns the key of the restart guard's marker.
func GuardKey(prefix string) string { return prefix + guardTag }

// ListsKey returns the key of the lists of nodes that clients use, and of the node's
// identity.
func ListsKey(prefix string) string { return prefix + listsTag }

// WakeChannel returns the channel on which nodes wake the waiters of a Manager.
func WakeChannel(prefix, manager string) string { return prefix + wakeTag + manager }

// A ticket is a member of a lock's queue: 16 hex digits of the Manager that a node wakes,
// 16 of the wait, and then the grace: how long the node reserves the lock for it, in ms
// (see apply.lua). The name of a ticket does not include the grace.
const (
	ManagerLen = 16
	TicketLen  = 32
)

// PrefixShards reports whether a prefix is fit for hash slots: it puts all its keys into
// one slot, or does not affect the slot. A brace must belong to a whole hash tag.
func PrefixShards(prefix string) bool {
	return !strings.ContainsAny(prefix, "{}") || HashTag(prefix) != ""
}

// HashTag returns the hash tag of a key with its braces, "" if it has none: as Redis Cluster
// has it, the text between the first brace and the first closing one after it.
func HashTag(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return ""
	}
	if n := strings.IndexByte(key[open+1:], '}'); n > 0 {
		return key[open : open+n+2]
	}
	return ""
}

// Value is the content of a lock's key:
//
//	owner token since_µs traceparent label
//
// separated by single spaces, "-" for an absent traceparent. It begins with the owner
// value, as every Redlock client's does. The token is the fencing register's position
// to which this owner moved it on this node, 0 if it did not. The rest is for people.
//
// While a node reserves the lock for the head of its queue, the value is "ticket w ":
// neither a lease nor a vote.
type Value struct {
	Owner       string // 32 hex digits
	Reserved    bool   // for the waiter with the ticket Owner
	Token       int64
	Since       time.Time
	TraceParent string
	Label       string
}

// OwnerLen is the length of an owner value.
const OwnerLen = 32

// AppendMetadata appends the part of a lock's value that follows owner and token.
func AppendMetadata(b []byte, since time.Time, traceParent, label string) []byte {
	if traceParent == "" {
		traceParent = "-"
	}
	b = strconv.AppendInt(b, since.UnixMicro(), 10)
	b = append(append(b, ' '), traceParent...)
	return append(append(b, ' '), label...)
}

// Compose returns the whole value of a lock.
func Compose(owner string, token int64, metadata string) string {
	return owner + " " + strconv.FormatInt(token, 10) + " " + metadata
}

// reservedMark follows the ticket for which a node reserves a lock.
const reservedMark = " w "

// MaxLabelLen and maxTraceParent bound parts of our values, in bytes.
const (
	MaxLabelLen    = 256
	maxTraceParent = 55
)

// maxStranger bounds how much is kept of a value that is not ours, in bytes: it goes into
// errors, and it may be another program's secret. Owner values of Redlock clients fit.
const maxStranger = 32

// ParseValue parses the value of a lock. A value that is not ours counts as another
// client's owner value as a whole, cut to 32 bytes and made valid UTF-8.
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
	if s[OwnerLen:] == reservedMark {
		return Value{Owner: s[:OwnerLen], Reserved: true}, true
	}
	parts := strings.SplitN(s[OwnerLen+1:], " ", 4)
	if len(parts) != 4 || len(parts[2]) > maxTraceParent || len(parts[3]) > MaxLabelLen || !utf8.ValidString(s) {
		return v, false
	}
	token, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil || token < 0 {
		return v, false
	}
	since, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return v, false
	}
	v = Value{Owner: s[:OwnerLen], Token: token, Since: time.UnixMicro(since), Label: parts[3]}
	if parts[2] != "-" {
		v.TraceParent = parts[2]
	}
	return v, true
}
