package quorumlock

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// check is a request to every node about a hold: move the register on, to reserve more
// tokens, and report whether clients elsewhere wait. It is a node.Receiver.
type check struct {
	q        *localQueue
	h        *hold
	token    int64
	sent     time.Duration
	until    time.Duration
	raised   quorum.Set
	others   int
	before   int64 // the largest register before the raises
	answered quorum.Set
	awaited  bool // the hold carries no lease until the check ends
	over     bool
}

// startCheck begins a check of the hold. q.mu is held.
func (q *localQueue) startCheck() {
	h := q.hold
	validity, steady := q.m.clock.Both()
	c := &check{q: q, h: h, sent: validity, until: validity + h.terms.Timeout}
	q.check = c
	c.token = max(q.m.ensemble.Time(steady).Microseconds(), h.last+1)
	if q.m.cfg.unfenced {
		c.token = 0
	}
	req := wire.NewRaise(q.lock, ownerOf(h.value), c.token, metadata(h.value), steady+h.terms.Timeout)
	if q.m.cfg.unfenced {
		req = wire.NewRead(q.lock, steady+h.terms.Timeout)
	}
	q.tendBy(c.until)
	for _, n := range q.m.ensemble.Nodes() {
		n.Post(req, c) // a closed node does not answer
	}
}

// Receive handles a node's answer.
func (c *check) Receive(i int, req *wire.Request, reply *wire.Reply) {
	c.q.m.ensemble.Answered(i, req, reply)
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	ok := reply.Status == wire.Done && reply.Before >= 0
	if req.Kind == wire.Read {
		ok = reply.Status == wire.Done && c.h.owns(reply) == nil
	}
	if c.over {
		c.late(i, ok && req.Kind == wire.Raise)
		return
	}
	c.answered = c.answered.With(i)
	if ok {
		c.raised = c.raised.With(i)
		c.before = max(c.before, reply.Before)
		c.others = max(c.others, int(reply.Waiters))
	}
	if c.raised.Len() >= c.q.m.ensemble.Quorum() || c.answered == quorum.All(c.h.terms.Nodes) {
		c.endLocked()
	}
}

// late handles an answer that arrives after the end of the check. If the check's token is
// the hold's, the node is one more that shows our owner and token. Otherwise it shows
// another token.
func (c *check) late(i int, raised bool) {
	if !raised {
		return
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.h.last == c.token && c.sent >= c.h.provenFrom {
		c.h.proof = c.h.proof.With(i)
	} else {
		c.h.proof = c.h.proof.Without(i)
	}
}

// endLocked applies the answers of a check. c.q.mu is held.
func (c *check) endLocked() {
	if c.over {
		return
	}
	c.over = true
	q, h := c.q, c.h
	now := q.m.clock.Now() // read once, so that the answers have no age when they are used
	if q.check == c {
		q.check = nil
	}
	h.mu.Lock()
	if c.raised.Len() >= q.m.ensemble.Quorum() {
		h.others, h.answeredAt = c.others, now
		if c.sent >= h.provenFrom { // no reset since
			h.proof, h.provenFrom = c.raised, c.sent
		}
		if !q.m.cfg.unfenced {
			h.value = wire.Compose(ownerOf(h.value), c.token, metadata(h.value))
			h.next, h.last = max(h.next, c.before+1, c.token-blockSize+1), c.token
		}
	} else if c.raised != 0 {
		h.proof &^= c.raised // these nodes now show another token than the rest
	}
	state := h.stateLocked()
	over := h.over
	h.mu.Unlock()
	if c.awaited && q.hold == h && !over {
		q.do(q.queue.Checked(now, &state))
	}
}
