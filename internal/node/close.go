package node

import (
	"context"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// closePatience is how long Close continues without any answer from the node.
const closePatience = time.Second

// Close queues the last requests, however many, sends everything that is queued, and then ends the worker and the
// connection. It continues while the node makes progress, until ctx ends. It abandons a node that answers nothing for a
// second, or cannot be reached. It sends no more acquisitions. Remaining requests are answered NotApplied, and the
// batch on its way Unknown. Close returns when Run has returned; false means that a request was left without an answer.
func (n *Node) Close(ctx context.Context, last []*wire.Request, to Receiver) bool {
	n.lanes.leave(last, to)
	inTime := true
	if n.Health().up() { // otherwise it may be dialling
		if n.finish(ctx) {
			return true
		}
		inTime, _ = n.lanes.progress()
	}
	n.cut()
	<-n.done
	return inTime
}

// finish waits until the worker has ended, as long as it makes progress.
func (n *Node) finish(ctx context.Context) bool {
	patience := time.NewTicker(closePatience)
	defer patience.Stop()
	seen := n.lanes.batches.Load()
	for {
		select {
		case <-n.done:
			return true
		case <-ctx.Done():
			return false
		case <-patience.C:
			_, resting := n.lanes.progress()
			now := n.lanes.batches.Load()
			if now == seen && !resting {
				return false
			}
			seen = now
		}
	}
}
