package wire

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Value is the content of a lock's key:
//
//	owner token since_µs traceparent label
//
// separated by single spaces, "-" for an absent traceparent. It begins with the owner value, as every Redlock client's
// does. The token is the position to which this owner moved the fencing register on this node, 0 if it did not. The
// rest is for people.
//
// While a node reserves the lock for the head of its queue, the value is "ticket w ":
// neither a lease nor a vote.
//
// A lease that a client has asked for is "owner a token since_µs traceparent label", and a revoked one is "x owner
// token …"; byte 255, the author, byte 255 and the reason follow. A detached lease is "d owner token …". The last two
// begin like another owner's value, as does the value of a lock that readers have: "s ", 32 zeros, and the rest, see
// lua/shared.lua.
type Value struct {
	Owner       string // 32 hex digits
	Reserved    bool   // for the waiter with the ticket Owner
	Token       int64
	Since       time.Time
	TraceParent string
	Label       string
	Asked       bool // a client has asked the owner to release the lock
	Revoked     bool // a client has revoked the lease
	Note        Note // of the client that has
	Detached    bool // it is kept for the process that resumes it
	Shared      bool // readers have it, and Owner is Nobody
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

// OwnerOf returns the owner part of a value that this package composed.
func OwnerOf(value string) string { return value[:OwnerLen] }

// MetadataOf returns what follows owner and token in such a value.
func MetadataOf(value string) string {
	_, rest, _ := strings.Cut(value[OwnerLen+1:], " ")
	return rest
}

// The answers of PTTL for a key without an end, and for a missing key.
const (
	Endless = -1 * time.Millisecond
	Absent  = -2 * time.Millisecond
)

// The marks behind an owner value, or behind the ticket for which a node reserves a lock; and the forms
// before it.
const (
	reservedMark = " w "
	askedMark    = " a "
	revokedForm  = "x "
	detachedForm = "d "
)

// Nobody stands for an owner in the value of a lock that readers have. It is smaller than any owner
// value.
const Nobody = "00000000000000000000000000000000"

// sharedForm begins the value of a lock that readers have, see lua/shared.lua; Nobody and noLease follow.
const (
	sharedForm = "s "
	noLease    = "0 0 - "
)

// noteSeparator is before each part of a note, and between the parts of a handle. No label has that byte: it
// is not UTF-8.
const noteSeparator = "\xff"

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
	if rest, found := strings.CutPrefix(s, revokedForm); found {
		s, v.Revoked = rest, true
	} else if rest, found := strings.CutPrefix(s, detachedForm); found {
		s, v.Detached = rest, true
	} else if rest, found := strings.CutPrefix(s, sharedForm); found {
		s, v.Shared = rest, true
	}
	if len(s) <= OwnerLen || s[OwnerLen] != ' ' || !IsOwner(s[:OwnerLen]) {
		return v, false
	}
	v.Owner = s[:OwnerLen]
	if s[OwnerLen:] == reservedMark {
		v.Reserved = true
		return v, v == Value{Owner: v.Owner, Reserved: true}
	}
	if s, ok = cutNote(s, &v); !ok {
		return v, false
	}
	parts := strings.SplitN(s, " ", 4)
	if len(parts) != 4 || len(parts[2]) > maxTraceParent || len(parts[3]) > MaxLabelLen || !utf8.ValidString(s) {
		return v, false
	}
	token, err := strconv.ParseUint(parts[0], 10, 63)
	since, wrong := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || wrong != nil || v.Shared && v.Owner != Nobody || (v.Shared || v.Revoked) && v.Owner == Nobody && s != noLease {
		return v, false
	}
	v.Token, v.Since, v.Label = int64(token), time.UnixMicro(since), parts[3]
	if parts[2] != "-" {
		v.TraceParent = parts[2]
	}
	return v, true
}

// IsOwner reports whether a text has the form of an owner value.
func IsOwner(text string) bool {
	return len(text) == OwnerLen && strings.Trim(text, "0123456789abcdef") == ""
}

// cutNote returns what follows the owner and a mark in a value of ours, and reads the note behind it. A node
// shows a long note shortened.
func cutNote(s string, v *Value) (rest string, ok bool) {
	v.Asked = strings.HasPrefix(s[OwnerLen:], askedMark)
	rest = s[OwnerLen+1:]
	if v.Asked {
		rest = s[OwnerLen+len(askedMark):]
	}
	if !v.Asked && !v.Revoked {
		return rest, true
	}
	rest, text, noted := strings.Cut(rest, noteSeparator)
	v.Note = readNote(text)
	return rest, noted && v.Asked != (v.Revoked || v.Detached)
}

// Note is an operator's note in a lock: its author, and the reason.
type Note struct{ By, Reason string }

// String returns the note for people: "who: why".
func (n Note) String() string {
	switch {
	case n == Note{}:
		return "no reason given"
	case n.By == "":
		return n.Reason
	case n.Reason == "":
		return n.By
	}
	return n.By + ": " + n.Reason
}

// MaxReasonLen bounds the reason of a Note, in bytes; MaxLabelLen bounds By.
const MaxReasonLen = 256

// readNote reads the note of a mark. Its text comes from other clients.
func readNote(text string) Note {
	by, reason, _ := strings.Cut(text, noteSeparator)
	return Note{By: cleaned(by, MaxLabelLen), Reason: cleaned(reason, MaxReasonLen)}
}

// cleaned returns a text as valid UTF-8, with at most that many bytes.
func cleaned(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
