package hold

import (
	"sync"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// unreleased receives the answers to the releases of Close, and records the locks that
// may remain on a node.
type unreleased struct {
	ensemble *ensemble.Ensemble

	mu    sync.Mutex
	locks map[string]struct{} // lock keys
	nodes quorum.Set
}

// Receive implements node.Receiver.
func (u *unreleased) Receive(i int, req *wire.Request, reply *wire.Reply) {
	u.ensemble.Answered(i, req, reply)
	if reply.Status == wire.Done {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.locks == nil {
		u.locks = map[string]struct{}{}
	}
	for j := range req.Locks() {
		u.locks[req.Lock(j)] = struct{}{}
	}
	u.nodes = u.nodes.With(i)
}

// count returns how many locks may remain, and on how many nodes.
func (u *unreleased) count() (locks, nodes int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.locks), u.nodes.Len()
}
