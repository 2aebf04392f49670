package node

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// registerAge is how long a register is kept after its last move. When it is dropped,
	// later tokens start from the base, so they are larger still.
	registerAge = 24 * time.Hour
	// forgetMost is how many registers a node drops at once, because a script stops the
	// server.
	forgetMost = 200
)

// newForget returns a request that drops old registers.
func (n *Node) newForget() *wire.Request {
	return wire.NewForget(n.registersKey, registerAge, forgetMost, n.now+time.Minute)
}

// forget drops old registers when a greeting has left some, or the server is full. Each
// greeting drops some, so that clients which live for a moment collect as well.
func (n *Node) forget() {
	if n.forgetting || n.cfg.Cap == 0 {
		return
	}
	n.forgetting = true
	n.lanes.requeue([]entry{{req: n.newForget(), to: forgotten{n}}})
}

// forgotten receives the answer, and drops the next ones while there are more.
type forgotten struct{ n *Node }

// Receive is called by the node's own worker.
func (f forgotten) Receive(_ int, _ *wire.Request, r *wire.Reply) {
	f.n.forgetting = false
	f.n.forgetMore(r)
}

// forgetMore drops more old registers if this answer shows that there may be some.
func (n *Node) forgetMore(r *wire.Reply) {
	if r.Status == wire.Done && r.N >= forgetMost {
		n.forget()
	}
}
