package spread

import (
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock"
)

// The causes of the context of Config.Func, in addition to the loss of the lease and the end of Run's context.
var (
	errGiven    = errors.New("spread: the name moves to a member that has fewer")
	errUnlisted = errors.New("spread: the name is no longer in the list")
	errLapsed   = errors.New("spread: the holder of the name did not hand it over")
)

// errReturned is in Status for a function that has returned nil too early.
var errReturned = errors.New("spread: the function has returned before its context ended")

const (
	mostNames  = 10_000
	longestTag = 128 // bytes of a group or a label
	longest    = 383 // bytes of a name, so that "GROUP/NAME" is the name of a lock
	leastTTL   = 3 * time.Second
)

// check returns what is wrong with a configuration.
func (c *Config) check(m *quorumlock.Manager) error {
	switch {
	case m == nil:
		return &quorumlock.InvalidError{What: "Manager", Bound: "must not be nil", Fix: "give New a Manager"}
	case c.Func == nil:
		return &quorumlock.InvalidError{What: "Config.Func", Bound: "must not be nil", Fix: "give the work for a name"}
	case c.Group == "" || len(c.Group) > longestTag || strings.Contains(c.Group, "/") || !utf8.ValidString(c.Group):
		return &quorumlock.InvalidError{
			What: "Config.Group", Value: shown(c.Group), Bound: "must be 1 to 128 bytes of UTF-8 without a slash", Fix: "give another name",
		}
	case len(c.Label) > longestTag || !utf8.ValidString(c.Label):
		return &quorumlock.InvalidError{
			What: "Config.Label", Value: shown(c.Label), Bound: "must be at most 128 bytes of UTF-8", Fix: "shorten it",
		}
	case c.TTL < leastTTL:
		return &quorumlock.InvalidError{
			What: "Config.TTL", Value: c.TTL.String(), Bound: "must be at least 3s", Fix: "give a longer TTL, or 0 for 10s",
		}
	}
	return checkNames(c.Names)
}

// checkNames returns what is wrong with a list.
func checkNames(names []string) error {
	distinct := map[string]bool{}
	for _, name := range names {
		if name == "" || len(name) > longest || !utf8.ValidString(name) {
			return &quorumlock.InvalidError{
				What: "name", Value: shown(name), Bound: "must be 1 to 383 bytes of UTF-8", Fix: "give another name",
			}
		}
		distinct[name] = true
	}
	if len(distinct) > mostNames {
		return &quorumlock.InvalidError{
			What: "list of names", Value: strconv.Itoa(len(distinct)) + " names", Bound: "must have at most 10,000 names",
			Fix: "spread them over several groups",
		}
	}
	return nil
}

// shown returns the beginning of a value, for an error.
func shown(value string) string {
	if len(value) > longestTag {
		return strconv.Quote(value[:longestTag]) + "..."
	}
	return strconv.Quote(value)
}
