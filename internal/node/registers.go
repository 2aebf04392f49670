package node

import (
	"math/rand/v2"
	"strconv"
	"time"
)

const (
	// registerAge is how long a register outlives its last move. Tokens that follow a
	// register which was dropped start from the base, so they are larger all the same.
	registerAge = 24 * time.Hour
	// forgetEvery is about how often a node drops old registers, and forgetMost is how
	// many at once: a script stops the server.
	forgetEvery = time.Minute
	forgetMost  = 200
)

// forget drops registers that are old, a few at a time. Redis has no TTL for them: the
// base has to be raised with each.
func (n *Node) forget() {
	if n.forgetAt != 0 && (n.now < n.forgetAt || !n.connected()) {
		return
	}
	first := n.forgetAt == 0
	n.forgetAt = n.now + forgetEvery/2 + rand.N(forgetEvery)
	if first || n.cfg.Cap == 0 {
		return
	}
	n.requeue([]entry{{
		req: &Request{
			Kind: Forget, Expires: n.now + forgetEvery, urgent: true, keys: []string{n.registersKey},
			args: []string{"forget", micros(registerAge), strconv.Itoa(forgetMost)},
		},
		to: forgotten{n},
	}})
}

// forgotten goes on while there are more old registers.
type forgotten struct{ n *Node }

// Receive is called by the node's own worker.
func (f forgotten) Receive(_ int, _ *Request, r *Reply) {
	if r.Status == Done && r.N >= forgetMost {
		f.n.forgetAt = f.n.now
	}
}
