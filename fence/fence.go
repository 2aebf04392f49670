package fence

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of resources and tokens.
const (
	// MaxToken is the largest token, 2^53 − 1: the largest number that Lua and
	// JSON readers keep exactly. Tokens are microseconds since 1970, so they stay
	// below it until the year 2255.
	MaxToken int64 = 1<<53 - 1
	// MaxResourceLen is the largest length of a resource's name, in bytes.
	MaxResourceLen = 512
)

var (
	// ErrStale means that the resource has seen a larger token: the lease of this
	// holder has ended, and another one has written since.
	ErrStale = errors.New("fence: stale token")
	// ErrInvalid means that an argument cannot be used.
	ErrInvalid = errors.New("fence: invalid")
)

// StaleError says which write was refused and why. It is ErrStale.
//
// The holder must not try again with the same token, because it will never pass again. It
// must stop its work and acquire the lock again.
type StaleError struct {
	Resource string
	Token    int64 // of the refused write
	Seen     int64 // the highest token that the resource has seen; above Token
}

// Error names the resource and both tokens.
func (e *StaleError) Error() string {
	return fmt.Sprintf("fence: stale token %d for %q: the resource has seen %d, so another holder has taken over; stop, and acquire the lock again",
		e.Token, e.Resource, e.Seen)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// InvalidError says what cannot be used, what its bound is and how to fix it.
// It is ErrInvalid.
type InvalidError struct {
	What  string // the argument or option
	Value string // as given
	Bound string // what it must satisfy
	Fix   string // what to do
}

// Error names the value, the bound and the fix.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("fence: %s %s: must be %s; %s", e.What, e.Value, e.Bound, e.Fix)
}

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Validate checks the resource's name and the token of a write. It returns nil
// or an *InvalidError.
func Validate(resource string, token int64) error {
	if resource == "" || len(resource) > MaxResourceLen || !utf8.ValidString(resource) || strings.ContainsRune(resource, 0) {
		return &InvalidError{
			What: "resource", Value: strconv.Quote(shorten(resource)),
			Bound: fmt.Sprintf("1 to %d bytes of valid UTF-8 without a zero byte", MaxResourceLen),
			Fix:   "name what the write changes, for example the name of the lock",
		}
	}
	if token < 1 || token > MaxToken {
		return &InvalidError{
			What: "token", Value: strconv.FormatInt(token, 10),
			Bound: fmt.Sprintf("1 to %d (2^53 − 1)", MaxToken),
			Fix:   "pass Lease.Token of a lease that was acquired with fencing (it is 0 with WithoutFencing)",
		}
	}
	return nil
}

// shorten keeps an error message readable when the name is far too long.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
