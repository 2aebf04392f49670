package node

import (
	"strconv"
	"time"
)

const (
	// paceLeast is how many acquisitions a batch may carry at least: one call's.
	paceLeast = MaxLocks
	// paceFirst is how many it may carry before the node has shown what it can do.
	paceFirst = 1024
)

// pace bounds how many acquisitions go out at once, so that they are answered before
// nobody waits for them any more. Without a bound, more callers than the node can serve
// make batches longer until every grant comes too late, and all that the node does is to
// grant and to release.
type pace struct {
	left    time.Duration // how long a new acquisition waits for its answer, about
	took    time.Duration // what a batch takes, about
	most    int           // acquisitions in a batch
	carried int           // by the batch under way
	cut     bool          // there were more than it may carry
}

// observe takes how long the batch took. An acquisition that comes when a batch has just
// been sent waits for that one, and for its own: so each may take half of the time.
func (p *pace) observe(took time.Duration) {
	p.took += (took - p.took) / 8
	target := p.left / 2
	switch {
	case p.carried == 0:
	case took > target:
		part := min(max(float64(target)/float64(took), .25), .9)
		p.most = max(int(float64(min(p.carried, p.most))*part), paceLeast)
	case p.cut:
		p.most += p.most / 8
	}
}

// await takes how long the newest acquisition waits for its answer still.
func (p *pace) await(left time.Duration) {
	p.left = max(left, p.left-p.left/64)
}

// shed leaves those acquisitions in their lane that are more than a batch may carry, and
// moves the others to the front. It returns how many these are. Nodes choose by the
// owner value, which is random, so that all of them choose the same: of requests that each
// node chose by itself, few would find a quorum. n.mu is held.
func (n *Node) shed(now time.Duration, out *rejected) int {
	lane := n.lanes.acquire
	n.pace.cut = false
	if len(lane) == 0 || n.leaving {
		return len(lane)
	}
	n.pace.await(lane[len(lane)-1].req.Expires - now)
	most, takes := n.pace.most, n.pace.took
	if len(lane) <= most {
		return len(lane)
	}
	n.pace.cut = true
	live := lane[:0]
	for _, e := range lane {
		switch {
		case e.req.withdrawn.Load():
			out.withdrawn = append(out.withdrawn, e)
		case e.req.Expires < now+takes:
			out.expired = append(out.expired, e) // nobody would wait for the answer
		default:
			live = append(live, e)
		}
	}
	clear(lane[len(live):])
	n.lanes.acquire = live
	if len(live) <= most {
		return len(live)
	}
	bound := uint64(most) * (1 << 16) / uint64(len(live))
	chosen := make([]entry, 0, most)
	rest := live[:0]
	for _, e := range live {
		if lot(e.req) < bound {
			chosen = append(chosen, e)
		} else {
			rest = append(rest, e)
		}
	}
	if len(chosen) == 0 {
		return most // as they come
	}
	copy(live[len(chosen):], rest) // rest stands at the front of the same array
	copy(live, chosen)
	return len(chosen)
}

// lot returns 16 random bits of an acquisition, the same on every node.
func lot(r *Request) uint64 {
	bits, _ := strconv.ParseUint(r.args[1][:4], 16, 16)
	return bits
}
