package hold

import (
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has what a holder learns from others: who waits for the lock, who has asked for it, and who
// has revoked the lease.

// A Want describes who wants a lock from its holder.
type Want struct {
	Waiters int // callers of this process, and tickets in the queue of the node that shows most of them
	Asked   bool
	Note    wire.Note // of the client that has asked
}

// RevokedError is why a node denies a lock: the lease was revoked.
type RevokedError struct{ Note wire.Note }

// Error names who has revoked the lease, and why.
func (e *RevokedError) Error() string { return "lease was revoked: " + e.Note.String() }

// wants tracks who wants a lock, for a lease that has asked to know.
type wants struct {
	nodes   []wire.Want // the latest answers to renewals, by node
	callers int         // of this process that wait for the lock
	told    Want        // the last one that was reported to the lease
}

// newWants returns the wants before the first answer: the tickets that a node has shown.
func newWants(nodes, tickets int) *wants {
	w := &wants{nodes: make([]wire.Want, nodes)}
	for i := range w.nodes {
		w.nodes[i].Waiters = int64(tickets)
	}
	return w
}

// record records the answer of node i. own means that the holder's own ticket may be in its queue.
func (w *wants) record(i int, want wire.Want, own bool) {
	if own {
		want.Waiters = max(want.Waiters-1, 0)
	}
	w.nodes[i] = want
}

// forget forgets the answers of nodes that no longer answer.
func (w *wants) forget(silent quorum.Set) {
	for i := range silent.All() {
		w.nodes[i] = wire.Want{}
	}
}

// news returns who wants the lock, and whether the lease must be notified.
func (w *wants) news() (now Want, changed bool) {
	now = w.sum()
	changed = now != w.told
	w.told = now
	return now, changed
}

// sum returns who wants the lock.
func (w *wants) sum() (now Want) {
	for i := range w.nodes {
		n := &w.nodes[i]
		now.Waiters = max(now.Waiters, int(n.Waiters))
		if n.Marked && !now.Asked {
			now.Asked, now.Note = true, n.Note
		}
	}
	now.Waiters += w.callers
	return now
}
