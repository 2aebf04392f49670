package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Lists compares the nodes of a Manager with those of other clients. A node asks it what
// to register, and gives it the answer. Its methods are called in the workers' goroutines
// and must not block.
type Lists interface {
	// Entry returns what node i registers now.
	Entry(i int) ListEntry
	// Listed records the answer to an entry that was sent at sent, on the steady clock. It
	// returns why the list is refused, nil if it is not.
	Listed(i int, e ListEntry, sent time.Duration, a ListAnswer) error
	// Gone records that node i is not connected, or may not vote.
	Gone(i int)
	// Votes returns why the votes of node i do not count: ErrConnecting for what passes in
	// a moment, a ConfigError for a refusal; nil if they count.
	Votes(i int) error
	// Stale reports whether node i has to be asked again at once.
	Stale(i int) bool
}

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

// ListAnswer is the answer.
type ListAnswer struct {
	ID      string        // the identity of the node; "" if it has none yet
	Refused time.Duration // how long the other list is in the way; 0 for none
	Other   string        // that list
	Stands  bool          // our list is registered
}

const (
	// listVersion is the version of the protocol in an entry. Clients whose leases would
	// not exclude each other have different ones.
	listVersion = "1"
	// looksPerList is how many greetings an entry outlives; its votes count for one less.
	looksPerList = 3
	// ListAge is the age of a registration after which votes do not rely on it.
	ListAge = (looksPerList - 1) * checkEvery
)

// listLife returns how long an entry stands: for the longest lease after the last vote
// that may rely on it. The node's clock may run faster than ours, by the bound.
func (n *Node) listLife() time.Duration {
	life := n.cfg.Guard + looksPerList*checkEvery
	return life + time.Duration(float64(life)*max(n.cfg.Drift, minDrift))
}

// listing returns the operation that registers the list, and its entry.
func (n *Node) listing() (operation, ListEntry) {
	e := n.cfg.Lists.Entry(n.cfg.Index)
	known, fresh := e.Known, rand.Text()
	if n.cfg.Guard == 0 {
		known, fresh, e.Adds, e.Keeps = "", "", false, false
	}
	return operation{n.listsKey, []string{"list", listVersion, strconv.Itoa(e.Nodes), strings.Join(e.IDs, ","), known, fresh,
		strconv.FormatInt(n.listLife().Milliseconds(), 10), flag(e.Adds), flag(e.Keeps), n.notAfter()}}, e
}

// enlist registers the list of the Manager, together with the rehearsal.
func (n *Node) enlist(ctx context.Context) error {
	if n.cfg.Lists == nil {
		_, err := n.run(ctx, "script", n.rehearsal())
		return err
	}
	op, e := n.listing()
	sent := n.now
	replies, err := n.run(ctx, "script", n.rehearsal(), op)
	if err != nil {
		return err
	}
	a, err := readListed(replies[1])
	if err != nil {
		return err
	}
	n.named = a.ID != ""
	_ = n.cfg.Lists.Listed(n.cfg.Index, e, sent, a) // it withholds votes and nothing else: see unlisted
	return nil
}

// readListed reads the answer to the operation list.
func readListed(reply []rueidis.RedisMessage) (a ListAnswer, err error) {
	if len(reply) != 4 {
		return a, refusal("list of nodes", nil)
	}
	numbers, ok := integers([]rueidis.RedisMessage{reply[1], reply[3]})
	id, err := stringOf(&reply[0])
	other, wrong := stringOf(&reply[2])
	if !ok || err != nil || wrong != nil {
		return a, refusal("list of nodes", nil)
	}
	left := time.Duration(min(max(numbers[0], 0), maxRefused)) * time.Millisecond
	return ListAnswer{ID: id, Refused: left, Other: other, Stands: numbers[1] == 1}, nil
}

// maxRefused bounds what a node says about the time of a refusal, in ms: a year.
const maxRefused = 365 * 24 * 3600 * 1000

// OtherList returns the error about a list of other clients that is in the way of one of
// n nodes, whose known identities are ids.
func OtherList(other string, n int, ids []string, left time.Duration) *ConfigError {
	version, rest, _ := strings.Cut(other, " ")
	size, _, _ := strings.Cut(rest, " ")
	until := fmt.Sprintf("it stands until %v after its last client has ended", left.Round(time.Second))
	if version != listVersion {
		return &ConfigError{
			Problem: fmt.Sprintf("other clients of this node speak version %.16q of the protocol, and this one speaks version %s", version, listVersion),
			Fix:     "give every client a release of one version; the other list is remembered: " + until, Err: ErrOtherList,
		}
	}
	shared := 0
	for _, id := range ids {
		if id != "" && strings.Contains(other, id) {
			shared++
		}
	}
	return &ConfigError{
		Problem: fmt.Sprintf("other clients of this node use a list of %.3s nodes, and this one uses a list of %d, with %d nodes that are known to be in both: "+
			"a majority of each need not share a node", size, n, shared),
		Fix: "give every client the same nodes, and change them by one at a time, see docs/operations.md; the other list is remembered: " + until, Err: ErrOtherList,
	}
}

// ErrOtherList means that other clients use a list of nodes beside which this one must
// not be used.
var ErrOtherList = errors.New("other clients of this node use another list of nodes")

// unlist records that the node takes no part in the comparison of lists.
func (n *Node) unlist() {
	if n.cfg.Lists != nil {
		n.cfg.Lists.Gone(n.cfg.Index)
	}
}

// unlisted returns why votes do not count because of the lists of nodes, nil if they do.
func (n *Node) unlisted() error {
	if n.cfg.Lists == nil || n.cfg.Guard == 0 {
		return nil
	}
	return n.cfg.Lists.Votes(n.cfg.Index)
}

// Relist makes the worker look at the Manager's list again: another node has answered.
func (n *Node) Relist() {
	n.listNow.Store(true)
	n.wake()
}

// relist registers the list again when the Manager has met another node, and reports
// whether votes count.
func (n *Node) relist() {
	if n.cfg.Lists == nil || n.cfg.Guard == 0 || !n.connected() {
		return
	}
	if n.withheld == nil && !n.unguarded && n.cfg.Lists.Stale(n.cfg.Index) {
		ctx, cancel := context.WithTimeout(n.ctx, greetMax)
		defer cancel()
		if err := n.enlist(ctx); err != nil {
			n.checkAt = n.now // the greeting says what is wrong
		}
		n.look()
	}
	if reason := text(n.unlisted()); reason != n.unlistedWas {
		n.report(n.withheld)
	}
}
