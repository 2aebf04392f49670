package node

import (
	"errors"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// batchBytes bounds the size of a batch, because later requests wait for all its
	// answers. Below it the number of requests has no bound, so that a distant node is
	// not limited to a number of requests per round trip.
	batchBytes = 512 << 10
	// acquireMax is how many acquisitions may wait for one node. All other requests keep
	// or release a lease and are never refused.
	acquireMax = 8192
	// hintMax is how many requests that messages have caused may wait for one node. Each
	// saves a waiter a grace, so few are of use at a time.
	hintMax = 64
	// purgeEvery is how often a full lane is searched for expired requests.
	purgeEvery = 10 * time.Millisecond
)

// Receiver receives the replies to posted requests. Receive is called in the worker's
// goroutine, or in that of a caller of Post. So it must not block, and Post must not be
// called with a lock held that Receive takes. The reply is valid during the call.
type Receiver interface {
	Receive(node int, req *wire.Request, reply *wire.Reply)
}

// entry is a request in a lane.
type entry struct {
	req    *wire.Request
	to     Receiver
	resent bool // it was sent before, and was certainly not applied
}

// asks reports whether the request asks for a lock.
func (e entry) asks() bool { return e.req.Kind == wire.Acquire }

// lanes hold the requests that wait for the worker. Requests that keep or release a lease
// go before those that messages have caused, and these before acquisitions: neither a flood
// of messages nor a burst of acquisitions must cost a lease that is held. Node.mu guards them.
type lanes struct {
	urgent  []entry
	hints   []entry
	acquire []entry
	purgeAt time.Duration
}

// Post queues req; to receives its answer, once. Post returns false, and does nothing,
// when too many acquisitions wait or the node is closed, and for a request of NewPassOn that
// is one too many.
func (n *Node) Post(req *wire.Request, to Receiver) bool {
	if req.Hint {
		return n.postHint(entry{req: req, to: to})
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return false
	}
	n.allAnswered, n.resting = false, false
	if req.Urgent {
		n.lanes.urgent = append(n.lanes.urgent, entry{req: req, to: to})
		n.mu.Unlock()
		n.wake()
		return true
	}
	var expired []entry
	if len(n.lanes.acquire) >= acquireMax {
		expired = n.purge()
	}
	ok := len(n.lanes.acquire) < acquireMax
	if ok {
		n.lanes.acquire = append(n.lanes.acquire, entry{req: req, to: to})
	}
	n.mu.Unlock()
	fail(n.cfg.Index, expired, wire.NotApplied, wire.ErrExpired)
	if ok {
		n.wake()
	}
	return ok
}

// postHint queues a request that a message has caused, unless Close has begun, too many wait
// or one waits for the same ticket.
func (n *Node) postHint(e entry) bool {
	n.mu.Lock()
	same := func(other entry) bool { return other.req.Same(e.req) }
	ok := !n.closed && !n.leaving && len(n.lanes.hints) < hintMax && !slices.ContainsFunc(n.lanes.hints, same)
	if ok {
		n.lanes.hints = append(n.lanes.hints, e)
	}
	n.mu.Unlock()
	if ok {
		n.wake()
	}
	return ok
}

// purge removes expired and withdrawn acquisitions from their lane. n.mu is held.
func (n *Node) purge() (expired []entry) {
	_, now := n.cfg.Clock()
	if now < n.lanes.purgeAt {
		return nil
	}
	n.lanes.purgeAt = now + purgeEvery
	rest := n.lanes.acquire[:0]
	for _, e := range n.lanes.acquire {
		if e.req.Expires <= now || e.req.Withdrawn() {
			expired = append(expired, e)
		} else {
			rest = append(rest, e)
		}
	}
	clear(n.lanes.acquire[len(rest):])
	n.lanes.acquire = rest
	return expired
}

// wake signals the worker.
func (n *Node) wake() {
	select {
	case n.signal <- struct{}{}:
	default:
	}
}

// requeue puts entries at the front of the urgent lane, in their order.
func (n *Node) requeue(entries []entry) {
	if len(entries) == 0 {
		return
	}
	n.mu.Lock()
	n.resting = false
	n.lanes.urgent = append(entries, n.lanes.urgent...)
	n.mu.Unlock()
}

// rejected collects the requests that take answers without sending them.
type rejected struct {
	expired, withdrawn, withheld, paused, closing []entry
	undone                                        []entry
}

// take moves requests from the front of the lanes into the batch. It answers at once
// requests that expired or were withdrawn, and votes while the node is quarantined,
// closing, or withholds votes.
func (n *Node) take(now time.Duration) {
	paused := n.paused()
	var out rejected
	size := 0
	n.batch = n.batch[:0]
	n.mu.Lock()
	fill := func(lane []entry, most int) []entry {
		i := 0
		for ; i < most && size < batchBytes; i++ {
			if e := lane[i]; n.admit(e, now, paused != nil, &out) {
				n.batch = append(n.batch, e)
				size += e.req.Bytes()
			}
		}
		return dropFirst(lane, i)
	}
	n.lanes.urgent = fill(n.lanes.urgent, len(n.lanes.urgent))
	n.lanes.hints = fill(n.lanes.hints, len(n.lanes.hints))
	others, most := len(n.batch), len(n.lanes.acquire)
	if paused == nil && n.withheld == nil {
		most = n.shed(now, &out)
	}
	n.lanes.acquire = fill(n.lanes.acquire, most)
	n.pace.carried = len(n.batch) - others
	n.mu.Unlock()
	fail(n.cfg.Index, out.expired, wire.NotApplied, wire.ErrExpired)
	fail(n.cfg.Index, out.withdrawn, wire.NotApplied, wire.ErrWithdrawn)
	fail(n.cfg.Index, out.withheld, wire.Misconfigured, n.withheld)
	fail(n.cfg.Index, out.paused, pausedStatus(paused), paused)
	fail(n.cfg.Index, out.closing, wire.NotApplied, wire.ErrClosed)
	for _, e := range out.undone {
		e.to.Receive(n.cfg.Index, e.req, &wire.Reply{Status: wire.Done, N: wire.Missing})
	}
}

// pausedStatus returns what a vote is answered that is not asked for now.
func pausedStatus(err error) wire.Status {
	if err == nil { // before config, which is allocated, at each batch
		return wire.NotApplied
	}
	if config := (*wire.ConfigError)(nil); errors.As(err, &config) {
		return wire.Misconfigured
	}
	return wire.NotApplied
}

// admit returns whether an entry is to be sent; otherwise it adds the entry to out. An
// admitted acquisition counts as sent. n.mu is held.
func (n *Node) admit(e entry, now time.Duration, paused bool, out *rejected) bool {
	bit := uint32(1) << n.cfg.Index
	switch req := e.req; {
	case req.Expires <= now:
		out.expired = append(out.expired, e)
	case req.Kind != wire.Acquire:
		if req.UndoesNothing(bit) {
			// The acquisition is still in its lane, or was never sent, or was refused.
			// There is nothing to undo, and take drops an acquisition that was withdrawn.
			out.undone = append(out.undone, e)
			return false
		}
		return true
	case req.Withdrawn():
		out.withdrawn = append(out.withdrawn, e)
	case n.leaving:
		out.closing = append(out.closing, e)
	case n.withheld != nil:
		out.withheld = append(out.withheld, e)
	case paused:
		out.paused = append(out.paused, e)
	default:
		req.MarkSent(bit)
		return true
	}
	return false
}

// dropFirst removes the first i entries and keeps the array.
func dropFirst(lane []entry, i int) []entry {
	rest := copy(lane, lane[i:])
	clear(lane[rest:])
	return lane[:rest]
}

// fail answers entries with a status and an error that do not come from the server.
func fail(index int, entries []entry, status wire.Status, err error) {
	for _, e := range entries {
		e.to.Receive(index, e.req, &wire.Reply{Status: status, Err: err})
	}
}
