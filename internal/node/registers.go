package node

import (
	"math/rand/v2"
	"strconv"
	"time"
)

const (
	// registerAge is how long a register is kept after its last move. When it is dropped,
	// later tokens start from the base, so they are larger still.
	registerAge = 24 * time.Hour
	// forgetEvery is about how often a node drops old registers. forgetMost is how many
	// it drops at once, because a script stops the server.
	forgetEvery = time.Minute
	forgetMost  = 200
)

// forget drops old registers, a few at a time. A TTL of Redis could not do this: the base
// has to be raised with each drop.
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

// forgotten receives the answer, and schedules the next drop at once while there are more
// old registers.
type forgotten struct{ n *Node }

// Receive is called by the node's own worker.
func (f forgotten) Receive(_ int, _ *Request, r *Reply) {
	if r.Status == Done && r.N >= forgetMost {
		f.n.forgetAt = f.n.now
	}
}
