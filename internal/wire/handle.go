package wire

import (
	"encoding/base64"
	"strconv"
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

// Text returns the handle as text: the version, and base64url of its parts, none of which has a byte 255. The owner
// value comes last and has a known length, so a truncated text isn't a handle.
func (h *Handle) Text() string {
	parts := []string{strconv.FormatInt(h.Token, 10), h.Prefix, h.Name, h.TraceParent, h.Owner}
	return handleVersion + base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, noteSeparator)))
}

// ParseHandle reads a handle, and returns false for any other text.
func ParseHandle(text string) (h Handle, ok bool) {
	text, ok = strings.CutPrefix(text, handleVersion)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	parts := strings.Split(string(b), noteSeparator)
	if !ok || err != nil || len(parts) != 5 || !IsOwner(parts[4]) {
		return Handle{}, false
	}
	token, err := strconv.ParseUint(parts[0], 10, 63)
	return Handle{Token: int64(token), Prefix: parts[1], Name: parts[2], TraceParent: parts[3], Owner: parts[4]}, err == nil
}
