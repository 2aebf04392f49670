package wire

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
)

// Handle is a lease that was detached, as it goes from one process to another.
type Handle struct {
	Prefix, Name string
	Owner        string
	Token        int64
	TraceParent  string // of the span in which the lease was acquired; "" for none
}

// handleVersion begins the text of a handle.
const handleVersion = "ql1."

// Text returns the handle as text: the version, and base64url of the owner value, the token, and the
// lengths and bytes of the others.
func (h *Handle) Text() string {
	b, _ := hex.DecodeString(h.Owner) // it is hex
	b = binary.AppendUvarint(b, uint64(h.Token))
	for _, part := range []string{h.Prefix, h.Name, h.TraceParent} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return handleVersion + base64.RawURLEncoding.EncodeToString(b)
}

// ParseHandle reads a handle, and returns false for a text that is none.
func ParseHandle(text string) (h Handle, ok bool) {
	text, ok = strings.CutPrefix(text, handleVersion)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) < OwnerLen/2 {
		return Handle{}, false
	}
	h.Owner, b = hex.EncodeToString(b[:OwnerLen/2]), b[OwnerLen/2:]
	token, n := binary.Uvarint(b)
	if n <= 0 || token > math.MaxInt64 {
		return Handle{}, false
	}
	h.Token, b = int64(token), b[n:]
	for _, part := range []*string{&h.Prefix, &h.Name, &h.TraceParent} {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return Handle{}, false
		}
		*part, b = string(b[n:n+int(size)]), b[n+int(size):]
	}
	if len(b) != 0 {
		return Handle{}, false
	}
	return h, true
}
