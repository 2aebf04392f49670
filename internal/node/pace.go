package node

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// paceLeast is the lowest bound on the acquisitions of a batch: as many as one call runs.
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
