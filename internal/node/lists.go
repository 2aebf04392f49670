package node

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Lists compares the nodes of a Manager with those of other clients. A node asks it what
// to register, and gives it the answer. Its methods are called in the workers' goroutines
// and must not block.
type Lists interface {
	// Entry returns what node i registers now.
	Entry(i int) wire.ListEntry
	// Listed records the answer to an entry that was sent at sent, on the steady clock. It
	// returns why the list is refused, nil if it is not.
	Listed(i int, e wire.ListEntry, sent time.Duration, a wire.ListAnswer) error
	// Gone records that node i is not connected, or may not vote.
	Gone(i int)
	// Votes returns why the votes of node i do not count: ErrConnecting for what passes in
	// a moment, a ConfigError for a refusal; nil if they count.
	Votes(i int) error
	// Stale reports whether node i has to be asked again at once.
	Stale(i int) bool
}

const (
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

// listing returns the request that registers the list, and its entry. A client without the
// guard only asks.
func (n *Node) listing() (*wire.Request, wire.ListEntry) {
	e := n.cfg.Lists.Entry(n.cfg.Index)
	asked, fresh := e, rand.Text()
	if n.cfg.Guard == 0 {
		e.Adds, e.Keeps = false, false
		asked, fresh = e, ""
		asked.Known = ""
	}
	return wire.NewList(n.listsKey, &asked, fresh, n.listLife(), n.notAfter()), e
}

// enlist registers the list of the Manager, together with the rehearsal.
func (n *Node) enlist(ctx context.Context) error {
	if n.cfg.Lists == nil {
		_, err := n.run(ctx, "script", wire.NewRehearsal(n.markerKey))
		return err
	}
	op, e := n.listing()
	sent := n.now
	replies, err := n.run(ctx, "script", wire.NewRehearsal(n.markerKey), op)
	if err != nil {
		return err
	}
	a, err := wire.ReadListed(replies[1])
	if err != nil {
		return err
	}
	n.named = a.ID != ""
	_ = n.cfg.Lists.Listed(n.cfg.Index, e, sent, a) // it withholds votes and nothing else: see unlisted
	return nil
}

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
	n.lanes.wake()
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
