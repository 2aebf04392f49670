package quorum

import (
	"math"
	"time"
)

// Stagger is the time between the attempts of waiters that queue behind each
// other for a lock whose keys end by themselves: the first arrives first, and the
// second does not compete with it.
const Stagger = 2 * time.Millisecond

const (
	// MinPoll is the shortest time between two attempts of a waiter that queues on
	// enough nodes to be woken.
	MinPoll = 50 * time.Millisecond
	// MaxPoll is the longest time between two attempts of a waiter with others
	// before it, unless its own backoff is longer.
	MaxPoll = 5 * time.Second
	// KeepPlace is how often a waiter with a ticket asks at least: a node forgets a
	// queue that nobody has joined for 60 s.
	KeepPlace = 20 * time.Second
	// StrangerPoll is the shortest time between two attempts of the head of a queue
	// while a client that knows no queues holds the lock: that client releases without
	// waking anybody, and is back after its own delay.
	StrangerPoll = time.Millisecond
)

// Refusal is the answer of a node that did not grant the lock.
type Refusal struct {
	Node     int
	Left     time.Duration // how long the key in the way lives; Never for one without an end
	Position int           // how many tickets are before ours in the node's queue; −1 if ours is not in it
	Reserved bool          // the lock is reserved for the ticket of somebody else
	Stranger bool          // the value in the way is not one of ours
}

// RetryDelay returns how long a waiter waits that no wake-up reaches, before it
// asks again: until need of the keys in the way have ended, or as many as end at
// all. Each ticket before ours adds a Stagger, up to half a grace in all: the tickets
// before ours may belong to dead processes, and 300 of those must not keep a live
// waiter from asking. (Behind a dead holder it asks when the keys end, is refused by a
// reservation, waits that out and asks again: two graces and two milliseconds.)
//
// The delay is at most poll, times the number of tickets before ours and ours; that
// product is bounded by MaxPoll (or by poll itself, where poll is longer). Polling
// exists because clients of other kinds release without a word, and a waiter deep
// in the queue gains nothing by asking often.
func RetryDelay(refusals []Refusal, need int, poll, grace time.Duration) time.Duration {
	if len(refusals) == 0 {
		return poll
	}
	ends := make([]time.Duration, len(refusals))
	first, queued := math.MaxInt, 0
	for i, r := range refusals {
		position := max(r.Position, 0)
		if r.Position >= 0 {
			queued++
		}
		ends[i] = r.Left
		if r.Left != Never {
			ends[i] += time.Millisecond + stagger(position, grace)
		}
		first = min(first, position)
	}
	if queued >= max(need, 1) {
		poll = max(poll, MinPoll)
	}
	if first > 0 && poll < MaxPoll {
		poll = min(MaxPoll, poll+poll*time.Duration(min(first, int(MaxPoll/max(poll, 1)))))
	}
	if queued > 0 {
		poll = min(poll, KeepPlace)
	}
	if free := FreedBy(ends, need); free > 0 {
		return min(poll, free)
	}
	return poll
}

// stagger returns how much later than the first a waiter at this position asks.
func stagger(position int, grace time.Duration) time.Duration {
	return min(Stagger*time.Duration(min(position, int(grace/Stagger))), grace/2)
}
