package node

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
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

// Receiver receives the replies to posted requests. Receive is called in the worker's goroutine, or in the goroutine of
// a caller of Post. So it must not block, and Post must not be called with a lock held that Receive takes. The reply is
// valid during the call.
type Receiver interface {
	Receive(node int, req *wire.Request, reply *wire.Reply)
}

// Posting is a request and the receiver of its answer.
type Posting struct {
	Req *wire.Request
	To  Receiver
}

// entry is a request in a lane.
type entry struct {
	req    *wire.Request
	to     Receiver
	resent bool // it was sent before, and was certainly not applied
	again  bool // it was sent before, and may have been applied

	declined bool // the lean way has left it to the usual script

	flushed uint8 // how often the server had lost the script
}

// asks reports whether the request asks for a lock.
func (e entry) asks() bool { return e.req.Kind == wire.Acquire }

// lanes hold the requests that wait for the worker. Requests that keep or release a lease go first, then requests that
// messages have caused, then acquisitions: neither a flood of messages nor a burst of acquisitions must cost a lease
// that is held.
type lanes struct {
	index  int // of the node
	steady func() clock.Steady
	signal chan struct{} // capacity 1: there is something to do; never closed
	pace   pace          // used only by the worker

	batches atomic.Uint64 // answered batches: the node makes progress

	mu          sync.Mutex
	urgent      []entry
	hints       []entry
	acquire     []entry
	purgeAt     clock.Steady
	leaving     bool // Close has begun: no more votes, and the worker ends after the other requests
	allAnswered bool // everything was answered, except retried releases
	resting     bool // the same, and no retried release is queued
	closed      bool // post refuses requests
}

// post is Node.PostTogether.
func (l *lanes) post(all []Posting) (taken int) {
	var expired []entry
	l.mu.Lock()
	for _, p := range all {
		if !l.queue(entry{req: p.Req, to: p.To}, &expired) {
			break
		}
		taken++
	}
	l.mu.Unlock()
	fail(l.index, expired, wire.NotApplied, wire.ErrExpired)
	if taken > 0 {
		l.wake()
	}
	return taken
}

// queue puts an entry into its lane, unless the lane refuses it. The lane of messages refuses when Close has begun, too
// many wait or one waits for the same ticket; the lane of acquisitions when too many wait and none has expired. l.mu is
// held.
func (l *lanes) queue(e entry, expired *[]entry) bool {
	switch req := e.req; {
	case l.closed:
		return false
	case req.Hint:
		same := func(other entry) bool { return other.req.Same(req) }
		if l.leaving || len(l.hints) >= hintMax || slices.ContainsFunc(l.hints, same) {
			return false
		}
		l.hints = append(l.hints, e)
		return true
	case req.Urgent:
		l.urgent = append(l.urgent, e)
	default:
		if len(l.acquire) >= acquireMax {
			*expired = append(*expired, l.purge()...)
		}
		if len(l.acquire) >= acquireMax {
			return false
		}
		l.acquire = append(l.acquire, e)
	}
	l.allAnswered, l.resting = false, false
	return true
}

// purge removes expired and withdrawn acquisitions from their lane. l.mu is held.
func (l *lanes) purge() (expired []entry) {
	now := l.steady()
	if now < l.purgeAt {
		return nil
	}
	l.purgeAt = now.Add(purgeEvery)
	l.acquire, expired = split(l.acquire, func(e entry) bool { return e.req.Expires <= now || e.req.Withdrawn() })
	return expired
}

// split separates the entries that leave from the rest. Both parts keep their order, and rest reuses the array of all.
func split(all []entry, leaves func(entry) bool) (rest, out []entry) {
	rest = slices.DeleteFunc(all, func(e entry) bool {
		gone := leaves(e)
		if gone {
			out = append(out, e)
		}
		return gone
	})
	return rest, out
}

// wake signals the worker.
func (l *lanes) wake() {
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

// requeue puts entries at the front of the urgent lane, in their order.
func (l *lanes) requeue(entries []entry) {
	if len(entries) == 0 {
		return
	}
	l.mu.Lock()
	l.resting = false
	l.urgent = append(entries, l.urgent...)
	l.mu.Unlock()
}

// rejected collects the requests that the method take answers without sending them.
type rejected struct {
	expired, withdrawn, barred, closing []entry
	undone                              []entry
}

// take moves requests from the front of the lanes into the batch, and returns it. It answers expired and withdrawn
// requests at once, and also votes while the node is closing or must not vote; barred is the reason, nil if it may.
// Without votes, acquisitions stay in their lane.
func (l *lanes) take(batch []entry, now clock.Steady, barred error, votes bool) []entry {
	var out rejected
	size := 0
	l.mu.Lock()
	fill := func(lane []entry, most int) []entry {
		i := 0
		for ; i < most && size < batchBytes; i++ {
			if e := lane[i]; l.admit(e, now, barred != nil, &out) {
				batch = append(batch, e)
				size += e.req.Bytes()
			}
		}
		return slices.Delete(lane, 0, i)
	}
	l.urgent = fill(l.urgent, len(l.urgent))
	l.hints = fill(l.hints, len(l.hints))
	others, most := len(batch), len(l.acquire)
	switch {
	case !votes:
		most = 0
	case barred == nil:
		most = l.shed(now, &out)
	}
	l.acquire = fill(l.acquire, most)
	l.pace.carried = len(batch) - others
	l.mu.Unlock()
	fail(l.index, out.expired, wire.NotApplied, wire.ErrExpired)
	fail(l.index, out.withdrawn, wire.NotApplied, wire.ErrWithdrawn)
	fail(l.index, out.barred, barredStatus(barred), barred)
	fail(l.index, out.closing, wire.NotApplied, wire.ErrClosed)
	tell(l.index, out.undone, wire.Reply{Status: wire.Done, N: wire.Missing})
	return batch
}

// barredStatus returns the answer to a vote that is not asked for now.
func barredStatus(err error) wire.Status {
	if err == nil { // before config, which is allocated: this runs at each batch
		return wire.NotApplied
	}
	if config := (*wire.ConfigError)(nil); errors.As(err, &config) {
		return wire.Misconfigured
	}
	return wire.NotApplied
}

// admit returns whether an entry is to be sent; otherwise it adds the entry to out. An
// admitted acquisition counts as sent. l.mu is held.
func (l *lanes) admit(e entry, now clock.Steady, barred bool, out *rejected) bool {
	bit := uint32(1) << l.index
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
	case l.leaving:
		out.closing = append(out.closing, e)
	case barred:
		out.barred = append(out.barred, e)
	default:
		req.MarkSent(bit)
		return true
	}
	return false
}

// shed moves the acquisitions that the batch may carry to the front of their lane and
// returns how many these are; the others stay behind them. Nodes choose by the owner
// value, which is random, so that all nodes choose the same acquisitions: if each node
// chose by itself, few acquisitions would reach a quorum. l.mu is held.
func (l *lanes) shed(now clock.Steady, out *rejected) int {
	lane := l.acquire
	l.pace.cut = false
	if len(lane) == 0 || l.leaving {
		return len(lane)
	}
	l.pace.await(lane[len(lane)-1].req.Expires.Sub(now))
	most, takes := l.pace.most, l.pace.took
	if len(lane) <= most {
		return len(lane)
	}
	l.pace.cut = true
	live, withdrawn := split(lane, func(e entry) bool { return e.req.Withdrawn() })
	live, late := split(live, func(e entry) bool { return e.req.Expires < now.Add(takes) }) // the answer would come too late
	out.withdrawn, out.expired = append(out.withdrawn, withdrawn...), append(out.expired, late...)
	l.acquire = live
	if len(live) <= most {
		return len(live)
	}
	bound := uint64(most) * (1 << 16) / uint64(len(live))
	rest, chosen := split(live, func(e entry) bool { return e.req.Lot() < bound })
	if len(chosen) == 0 {
		return most // in the order of the lane
	}
	l.acquire = slices.Insert(rest, 0, chosen...)
	return len(chosen)
}

// fail answers entries with a status and an error that do not come from the server.
func fail(index int, entries []entry, status wire.Status, err error) {
	tell(index, entries, wire.Reply{Status: status, Err: err})
}

// tell answers entries that the server does not answer.
func tell(index int, entries []entry, with wire.Reply) {
	if len(entries) == 0 {
		return
	}
	reply := new(wire.Reply) // one for all of them: it is valid during each call
	for _, e := range entries {
		*reply = with
		reply.Status = left(index, e.req, with.Status)
		e.to.Receive(index, e.req, reply)
	}
}

// left returns the status of a request that was not applied: an earlier try may have made a lock in the lean way.
func left(index int, req *wire.Request, status wire.Status) wire.Status {
	if status == wire.NotApplied && req.Unproven(1<<index) {
		return wire.Unknown
	}
	return status
}

// queued returns how many requests are queued, not counting requests that messages have caused.
func (l *lanes) queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.urgent) + len(l.acquire)
}

// keeping reports whether a queued request keeps or releases a lease.
func (l *lanes) keeping() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.urgent) > 0
}

// trim frees buffers that a burst has made large.
func (l *lanes) trim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.urgent, l.acquire = slices.Clone(l.urgent), slices.Clone(l.acquire)
}
