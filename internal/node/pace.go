package node

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// paceLeast is the lowest bound on the acquisitions of a batch: one call's.
	paceLeast = wire.MaxLocks
	// paceFirst is the bound before the first measurement of the node.
	paceFirst = 1024
)

// pace bounds how many acquisitions a batch carries, so that they are answered while
// their callers still wait. Without a bound, more callers than the node can serve make
// batches longer until every grant comes too late, and the node only grants and releases.
type pace struct {
	left    time.Duration // about how long a new acquisition waits for its answer
	took    time.Duration // about how long a batch takes
	most    int           // acquisitions in a batch
	carried int           // acquisitions in the current batch
	cut     bool          // more acquisitions were queued than the batch may carry
}

// observe adjusts the bound to how long a batch took. An acquisition that comes when a
// batch has just been sent waits for that batch and for its own, so each may take half of
// the time.
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

// await updates left from how much longer the newest acquisition waits for its answer.
func (p *pace) await(left time.Duration) {
	p.left = max(left, p.left-p.left/64)
}

// shed moves the acquisitions that the batch may carry to the front of their lane and
// returns how many these are; the others stay behind them. Nodes choose by the owner
// value, which is random, so that all nodes choose the same acquisitions: if each node
// chose by itself, few acquisitions would reach a quorum. n.mu is held.
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
		case e.req.Withdrawn():
			out.withdrawn = append(out.withdrawn, e)
		case e.req.Expires < now+takes:
			out.expired = append(out.expired, e) // the answer would come too late
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
		if e.req.Lot() < bound {
			chosen = append(chosen, e)
		} else {
			rest = append(rest, e)
		}
	}
	if len(chosen) == 0 {
		return most // in the order of the lane
	}
	copy(live[len(chosen):], rest) // rest is at the front of the same array
	copy(live, chosen)
	return len(chosen)
}
