package quorum

import "time"

// HandOff checks a lock that a release has left to a waiter of another process. That
// waiter and those behind it may be dead. Then no live waiter has been woken, and live
// waiters would find the lock free only by polling, up to MaxPoll later. So the process
// that released the lock checks once after the grace.
//
// It checks one node first. If another client has taken the lock there, or the lock is
// reserved for another waiter by then, the queue moves. So the common case costs one
// operation on one node. The zero value has nothing to check.
type HandOff struct {
	at       time.Duration // when to check; 0 for never
	reserved Set           // nodes that have left the lock to a waiter of another process
	asked    Set
}

// Released resets the HandOff for a lock that is being released.
func (h *HandOff) Released() { *h = HandOff{} }

// Reserved records the answer of a node to the release: the node has left the lock to
// a waiter of another process. grace is the grace of that waiter, or the largest
// possible one. trip is a round trip to the node.
func (h *HandOff) Reserved(now time.Duration, node int, grace, trip time.Duration) {
	if h.asked != 0 {
		return
	}
	h.reserved = h.reserved.With(node)
	h.at = max(h.at, now+grace+trip+time.Millisecond)
}

// QueueMoved records a sign that the queue moves: a node names another lease, or has
// woken a waiter of this process, which then contends itself. WakeAskAgain is no such
// sign: a node empties its queue because the queue does not move.
func (h *HandOff) QueueMoved() { *h = HandOff{} }

// At returns when to check; Never when there is nothing to check.
func (h *HandOff) At() time.Duration {
	if h.at == 0 || h.asked != 0 {
		return Never
	}
	return h.at
}

// Look returns the node to send a recall to. If the lock is free on that node, the recall
// empties the queue there and makes the waiters ask again. Otherwise it does nothing.
func (h *HandOff) Look(now time.Duration) (ask Set) {
	if now < h.At() {
		return 0
	}
	h.asked = h.reserved & -h.reserved // the first
	return h.asked
}

// Answered records the answer to a recall. lapsed says that the lock was free and the node
// has emptied its queue. Then Answered returns the other nodes, which must get the same.
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
