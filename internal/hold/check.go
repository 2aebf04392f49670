package hold

import (
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Check is a request to every node about a lock: raise the register, to reserve more tokens, and report whether other
// processes wait. It ends with a quorum of raises, with the last answer, or by End.
type Check struct {
	lock  *Lock
	then  func(c *Check, now clock.Validity, state quorum.Hold)
	token int64          // of the raises; 0 without fencing
	sent  clock.Validity // by the validity clock
	until clock.Validity // answers after it are late

	// Guarded by the lock's mutex.
	answered quorum.Set
	raised   quorum.Set
	others   int
	before   int64 // the largest register before the raises
	over     bool
}

// Check begins a check. At its end it calls then once, with the state of the lock and without a mutex. The caller calls
// End at Until.
func (l *Lock) Check(then func(c *Check, now clock.Validity, state quorum.Hold)) *Check {
	validity, steady := l.of.clock.Both()
	c := &Check{lock: l, then: then, sent: validity, until: validity.Add(l.Terms().Timeout)}
	l.mu.Lock()
	entry := l.entry()
	c.token = max(quorum.Register(l.of.ensemble.Time(steady).Microseconds()), quorum.NextRegister(l.tokens.last))
	l.mu.Unlock()
	var req *wire.Request
	if l.of.unfenced {
		c.token = 0
		req = wire.NewRead(l.key, steady.Add(l.Terms().Timeout))
	} else {
		req = entry.Raise(c.token, steady.Add(l.Terms().Timeout))
	}
	for _, n := range l.of.ensemble.Nodes() {
		n.Post(req, c) // a closed node does not answer
	}
	return c
}

// Until returns when the check must end.
func (c *Check) Until() clock.Validity { return c.until }

// End ends the check with the answers that have arrived.
func (c *Check) End() {
	c.lock.mu.Lock()
	ended, now, state := c.endLocked()
	c.lock.mu.Unlock()
	if ended {
		c.then(c, now, state)
	}
}

// Receive handles a node's answer.
func (c *Check) Receive(i int, req *wire.Request, reply *wire.Reply) {
	l := c.lock
	l.of.ensemble.Answered(i, req, reply)
	ok := reply.Status == wire.Done && reply.Before >= 0
	if req.Kind == wire.Read {
		ok = reply.Status == wire.Done && l.owns(reply) == nil
	}
	var now clock.Validity
	var state quorum.Hold
	ended := false
	l.mu.Lock()
	if c.over {
		c.late(i, ok && req.Kind == wire.Raise)
	} else if c.count(i, ok, reply); c.raised.Len() >= quorum.Size(l.Terms().Nodes) || c.answered == quorum.All(l.Terms().Nodes) {
		ended, now, state = c.endLocked()
	}
	l.mu.Unlock()
	if ended {
		c.then(c, now, state)
	}
}

// count counts an answer. A refusal does not end the lease, because it may also mean that the node's marker has
// changed: the next renewal, or the release, finds out. The lock's mutex is held.
func (c *Check) count(i int, ok bool, reply *wire.Reply) {
	c.answered = c.answered.With(i)
	if ok {
		c.raised = c.raised.With(i)
		c.before = max(c.before, reply.Before)
		c.others = max(c.others, int(reply.Waiters))
	}
}

// late handles an answer that arrives after the end of the check. If the check's token is the
// lock's, the node is one more that shows our owner value and token. Otherwise it shows another
// token. The lock's mutex is held.
func (c *Check) late(i int, raised bool) {
	if !raised {
		return
	}
	if p := &c.lock.proof; c.lock.tokens.last == c.token && c.sent >= p.from {
		p.nodes = p.nodes.With(i)
	} else {
		p.nodes = p.nodes.Without(i)
	}
}

// endLocked ends the check, unless it has ended, and applies its answers. The lock's mutex is
// held.
func (c *Check) endLocked() (ended bool, now clock.Validity, state quorum.Hold) {
	if c.over {
		return false, 0, state
	}
	c.over = true
	l := c.lock
	now = l.of.clock.Now() // read once, so that the answers have no age when they are used
	if c.raised.Len() >= quorum.Size(l.Terms().Nodes) {
		l.others.tickets, l.others.asOf = c.others, now
		if c.sent >= l.proof.from { // no reset since
			l.proof = proof{nodes: c.raised, from: c.sent}
		}
		if !l.of.unfenced {
			l.value = wire.Compose(wire.OwnerOf(l.value), c.token, wire.MetadataOf(l.value))
			l.tokens = block{next: max(l.tokens.next, quorum.NextRegister(c.before), c.token-blockSize+1), last: c.token}
		}
	} else if c.raised != 0 {
		l.proof.nodes &^= c.raised // these nodes now show another token than the rest
	}
	return true, now, l.holdLocked()
}
