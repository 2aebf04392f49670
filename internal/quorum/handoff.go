package quorum

import "time"

// HandOff watches over a lock that a release has left to a waiter of another
// process. If that waiter is dead, and so are those behind it, nobody alive has been
// woken, and the living would find the lock free by polling alone, up to MaxPoll
// later. So the process that released looks once after the grace.
//
// It looks at one node first. A lock that somebody has taken there, or that is
// reserved for somebody else by then, shows that the queue moves, and in the common
// case that costs one operation on one node. The zero value watches over nothing.
type HandOff struct {
	at       time.Duration // of the look; 0 for none
	reserved Set           // nodes that have left the lock to somebody
	asked    Set
}

// Released begins to watch over a lock that is being released.
func (h *HandOff) Released() { *h = HandOff{} }

// Reserved takes the answer of a node to the release: it has left the lock to a
// waiter of another process. grace is that waiter's (or the largest there is), trip
// is a round trip to the node.
func (h *HandOff) Reserved(now time.Duration, node int, grace, trip time.Duration) {
	if h.asked != 0 {
		return
	}
	h.reserved = h.reserved.With(node)
	h.at = max(h.at, now+grace+trip+time.Millisecond)
}

// Settled takes a sign that the queue moves: a node names another lease, or has
// woken a waiter of this process, which then looks for itself. WakeAskAgain is no such
// sign: a node that has emptied its queue has one because the queue does not move.
func (h *HandOff) Settled() { *h = HandOff{} }

// At returns when to look; Never when there is nothing to look at.
func (h *HandOff) At() time.Duration {
	if h.at == 0 || h.asked != 0 {
		return Never
	}
	return h.at
}

// Look returns the node to send a lapsed passOn to. It empties the queue of a node
// whose lock is free, and has the waiters ask again; it does nothing else.
func (h *HandOff) Look(now time.Duration) (ask Set) {
	if now < h.At() {
		return 0
	}
	h.asked = h.reserved & -h.reserved // the first
	return h.asked
}

// Answered takes the answer to a lapsed passOn. Where the lock was free, so that the
// node has emptied its queue, the other nodes are to be sent the same.
func (h *HandOff) Answered(node int, lapsed bool) (ask Set) {
	if h.asked.Has(node) && lapsed {
		ask = h.reserved &^ h.asked
		h.asked |= ask
		return ask
	}
	if h.asked.Len() == 1 && h.asked.Has(node) {
		*h = HandOff{}
	}
	return 0
}
