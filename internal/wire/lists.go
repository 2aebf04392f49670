package wire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// ListEntry is what a node registers: a list of nodes, as far as their identities are
// known.
type ListEntry struct {
	Nodes   int      // in the list
	IDs     []string // of its nodes
	Members uint32   // the same nodes, by their indices
	Known   string   // the identity of the node that is asked, "" if the Manager has not met it
	// Adds means that the list is added if it is admitted; Keeps that the list, or a part of it, is prolonged if it
	// stands.
	Adds, Keeps bool
}

// listVersion is the version of the protocol in an entry. Clients whose leases would not
// exclude each other have different ones.
const listVersion = "1"

// NewList returns a request that registers an entry for that long. fresh is the identity that
// the node gets if it has none.
func NewList(lists string, e *ListEntry, fresh string, life time.Duration, notAfter clock.Steady) *Request {
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
	p := parts{rest: reply}
	a = ListAnswer{ID: p.text(), Refused: p.span(), Other: p.text(), Stands: p.integer() == 1}
	return a, p.end()
}

// OtherNodes returns the nodes of the other list. ok is false if it is of another version of the protocol.
func (a *ListAnswer) OtherNodes() (ids []string, ok bool) {
	words := strings.SplitN(a.Other, " ", 3)
	if len(words) != 3 || words[0] != listVersion {
		return nil, false
	}
	return strings.Split(words[2], ","), true
}

// OtherList returns the error about a list of other clients that is in the way of one of n nodes.
func OtherList(other string, n int, left time.Duration) *ConfigError {
	version, rest, _ := strings.Cut(other, " ")
	size, _, _ := strings.Cut(rest, " ")
	until := fmt.Sprintf("for %v, or longer if a client with that list connects again", left.Round(time.Second))
	if version != listVersion {
		return &ConfigError{
			Problem: fmt.Sprintf("other clients of this node speak version %.16q of the protocol, and this one speaks version %s", version, listVersion),
			Fix:     "give every client a release of one version; the node remembers the other list " + until, Err: ErrOtherList,
		}
	}
	return &ConfigError{
		Problem: fmt.Sprintf("other clients of this node use a list of %.3s nodes, and this one uses another list of %d: two clients could be granted the same lock", size, n),
		Fix:     fixLists + "; the node remembers the other list " + until, Err: ErrOtherList,
		List: true,
	}
}

const fixLists = "give every client the same nodes, and change one at a time, see https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md#from-3-to-5-nodes"

// ErrOtherList means that other clients use a list of nodes that must not be used together with this one.
var ErrOtherList = errors.New("other clients of this node use another list of nodes")

// AnnouncedFor is how long an announcement stands.
const AnnouncedFor = 30 * time.Second

// Announcement is a list of nodes as its clients announce it to clients with other lists. No vote depends on it.
type Announcement struct {
	Guarded bool
	Nodes   int      // in the list
	IDs     []string // run_ids of its servers, as far as the client is connected to them
	Addrs   string   // of all nodes, as the client lists them
}

// announcers are the first words of announcements, without the guard and with it.
var announcers = [...]string{"plain", "guarded"}

// String returns the text on the nodes. It is the same for all clients with the same list.
func (a *Announcement) String() string {
	who := announcers[0]
	if a.Guarded {
		who = announcers[1]
	}
	return fmt.Sprintf("%s %d %s %.1000s", who, a.Nodes, strings.Join(a.IDs, ","), a.Addrs)
}

// ParseAnnouncement reads the text of an announcement. ok is false for any other text.
func ParseAnnouncement(text string) (a Announcement, ok bool) {
	words := strings.SplitN(text, " ", 4)
	if len(words) != 4 || words[2] == "" || !slices.Contains(announcers[:], words[0]) {
		return a, false
	}
	n, err := strconv.Atoi(words[1])
	return Announcement{Guarded: words[0] == announcers[1], Nodes: n, IDs: strings.Split(words[2], ","), Addrs: words[3]}, err == nil
}

// NewAnnounce returns a request that announces a list, and asks for the lists of others.
func NewAnnounce(key string, a *Announcement, notAfter clock.Steady) *Request {
	return &Request{keys: []string{key}, args: []string{"announce", a.String(), strconv.FormatInt(AnnouncedFor.Milliseconds(), 10), Micros(notAfter)}}
}

// ReadAnnounced reads the answer to a NewAnnounce: how much longer each text stands.
func ReadAnnounced(reply []rueidis.RedisMessage) map[string]time.Duration {
	all := map[string]time.Duration{}
	for i := 0; i+1 < len(reply); i += 2 {
		p := parts{rest: reply[i : i+2]}
		if text, left := p.text(), p.span(); p.err == nil {
			all[text] = left
		}
	}
	return all
}

// Apart returns the warning about clients with other nodes, which may hold a lock that clients with these hold.
func Apart(own, other string) *ConfigError {
	return &ConfigError{
		Problem: fmt.Sprintf("other clients of this node list the nodes %.400q, and this one lists %.400q: two clients could be granted the same lock", other, own),
		Fix:     fixLists,
	}
}
