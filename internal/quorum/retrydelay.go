package quorum

import (
	"math"
	"time"
)

// Stagger is the time between the attempts of successive waiters of a queue when the
// keys of the lock expire. The first waiter asks first, and the second does not
// compete with it.
const Stagger = 2 * time.Millisecond

const (
	// MinPoll is the shortest time between two attempts of a waiter that queues on
	// enough nodes to be woken.
	MinPoll = 50 * time.Millisecond
	// MaxPoll is the longest time between two attempts of a waiter with others
	// before it, unless its own backoff is longer.
	MaxPoll = 5 * time.Second
	// KeepPlace is the longest time between two attempts of a waiter with a ticket: a
	// node drops a queue that no waiter has joined for 60 s.
	KeepPlace = 20 * time.Second
	// StrangerPoll is the shortest time between two attempts of the head of a queue
	// while a client without queue support holds the lock. That client releases without
	// a wake-up, and comes back after its own delay.
	StrangerPoll = time.Millisecond
)

// Refusal is the answer of a node that did not grant the lock.
type Refusal struct {
	Node     int
	Left     time.Duration // how long the blocking key lives; Endless if it does not expire
	Position int           // how many tickets are before ours in the node's queue; −1 if ours is not in it
	Reserved bool          // the lock is reserved for the ticket of another waiter
	Stranger bool          // the blocking value does not have this library's format
	Owner    string        // of the blocking value
	LetIn    bool          // of a slot: the waiter may take another one that is free
}

// RetryDelay returns how long a waiter waits before it asks again, if no wake-up
// arrives. It waits until need of the blocking keys have ended, or as many as expire
// at all. Each ticket before ours adds a Stagger, up to half a grace in total. The
// limit exists because the tickets before ours may belong to dead processes: 300 of
// them must not keep a live waiter from asking. (Behind a dead holder the waiter asks
// when the keys end. A reservation refuses it, the waiter waits for its end and asks
// again: two graces and two milliseconds.)
//
// The delay is at most poll times the number of tickets up to and including ours. That
// product is bounded by MaxPoll, or by poll itself if poll is longer. Polling is needed
// because other kinds of clients release without a wake-up. A waiter deep in the queue
// gains nothing by asking often.
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
		if r.Left != Endless {
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

// stagger returns how much later than the head a waiter at this position asks.
func stagger(position int, grace time.Duration) time.Duration {
	return min(Stagger*time.Duration(min(position, int(grace/Stagger))), grace/2)
}
