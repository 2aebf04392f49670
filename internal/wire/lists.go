package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// ListEntry is what a node registers: a list of nodes, as far as their identities are
// known.
type ListEntry struct {
	Nodes   int      // in the list
	IDs     []string // of its nodes
	Members uint32   // the same nodes, by their indices
	Known   string   // the identity of the node that is asked, "" if the Manager has not met it
	// Adds means that the list is added where it is admitted; Keeps that it is prolonged
	// where it stands, or a part of it.
	Adds, Keeps bool
}

// listVersion is the version of the protocol in an entry. Clients whose leases would not
// exclude each other have different ones.
const listVersion = "1"

// NewList returns a request that registers an entry for that long. fresh is the identity that
// the node gets if it has none.
func NewList(lists string, e *ListEntry, fresh string, life, notAfter time.Duration) *Request {
	return &Request{keys: []string{lists}, args: []string{"list", listVersion, strconv.Itoa(e.Nodes), strings.Join(e.IDs, ","), e.Known, fresh,
		strconv.FormatInt(life.Milliseconds(), 10), flag(e.Adds), flag(e.Keeps), Micros(notAfter)}}
}

// ListAnswer is the answer to a NewList.
type ListAnswer struct {
	ID      string        // the identity of the node; "" if it has none yet
	Refused time.Duration // how long the other list is in the way; 0 for none
	Other   string        // that list
	Stands  bool          // our list is registered
}

// ReadListed reads the answer to the operation list.
func ReadListed(reply []rueidis.RedisMessage) (a ListAnswer, err error) {
	if len(reply) != 4 {
		return a, ErrNotUnderstood
	}
	numbers, ok := Integers([]rueidis.RedisMessage{reply[1], reply[3]})
	id, err := StringOf(&reply[0])
	other, wrong := StringOf(&reply[2])
	if !ok || err != nil || wrong != nil {
		return a, ErrNotUnderstood
	}
	left := time.Duration(min(max(numbers[0], 0), maxRefused)) * time.Millisecond
	return ListAnswer{ID: id, Refused: left, Other: other, Stands: numbers[1] == 1}, nil
}

// maxRefused bounds what a node says about the time of a refusal, in ms: a year.
const maxRefused = 365 * 24 * 3600 * 1000

// OtherList returns the error about a list of other clients that is in the way of one of n nodes.
func OtherList(other string, n int, left time.Duration) *ConfigError {
	version, rest, _ := strings.Cut(other, " ")
	size, _, _ := strings.Cut(rest, " ")
	until := fmt.Sprintf("it ends in %v, unless a client with it asks again", left.Round(time.Second))
	if version != listVersion {
		return &ConfigError{
			Problem: fmt.Sprintf("other clients of this node speak version %.16q of the protocol, and this one speaks version %s", version, listVersion),
			Fix:     "give every client a release of one version; the other list is remembered: " + until, Err: ErrOtherList,
		}
	}
	return &ConfigError{
		Problem: fmt.Sprintf("other clients of this node use a list of %.3s nodes, and this one uses another list of %d: "+
			"a majority of each need not share a node", size, n),
		Fix: "give every client the same nodes, and change them by one at a time, see docs/runbook.md#from-3-to-5-nodes; the other list is remembered: " + until, Err: ErrOtherList,
	}
}

// ErrOtherList means that other clients use a list of nodes beside which this one must
// not be used.
var ErrOtherList = errors.New("other clients of this node use another list of nodes")
