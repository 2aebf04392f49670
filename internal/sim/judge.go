package sim

import (
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Violation is a promise that was broken.
type Violation struct {
	Oracle string // overlap, token, told, leftover, alarm, liveness, order
	At     time.Duration
	Text   string
}

// Error returns the text of the violation.
func (v *Violation) Error() string { return fmt.Sprintf("%s at %v: %s", v.Oracle, v.At, v.Text) }

// grant is one lease that was handed out.
type grant struct {
	client int8
	token  int64
	at     time.Duration
}

// judge sees the whole world and looks for broken promises.
type judge struct {
	w      *world
	found  *Violation
	grants []grant
	newest int64             // highest token so far
	before [maxClients]int64 // highest token when the client's attempt began
	ended  [maxClients]bool  // the client's lease was told to be over
	next   waiting           // stood first in every queue when the last lease was released, in an orderly run
}

func (j *judge) reset(w *world) {
	*j = judge{w: w, grants: j.grants[:0]}
}

// inside reports whether the promises that need the fault model hold.
func (j *judge) inside() bool { return j.w.p.World != Anything }

func (j *judge) violated(oracle, format string, args ...any) {
	if j.found == nil {
		j.found = &Violation{Oracle: oracle, At: j.w.now, Text: fmt.Sprintf(format, args...)}
		j.w.trace("VIOLATION %v", j.found)
	}
	j.w.over = true
}

// alarmed looks at a step that was found.
func (j *judge) alarmed(c *client, node int) {
	if w := j.w; w.p.World != Anything && w.config.rate <= modelRate && !w.nodes[node].jumped {
		j.violated("alarm", "client %d sees a step of the clock of node %d, which has made none", c.id, node)
	}
}

// begins notes that an attempt begins.
func (j *judge) begins(c *client) { j.before[c.id] = j.newest }

// granted looks at a grant in the instant in which it returns.
func (j *judge) granted(c *client, now time.Duration) {
	w := j.w
	j.ended[c.id] = false
	for k := range j.grants {
		if j.grants[k].token == c.token {
			j.violated("token", "%d of client %d at %v is given to client %d as well",
				c.token, j.grants[k].client, j.grants[k].at, c.id)
		}
	}
	if c.token <= j.before[c.id] {
		j.violated("token", "%d of client %d is not above %d, which had returned when its attempt began at %v",
			c.token, c.id, j.before[c.id], c.started)
	}
	j.newest = max(j.newest, c.token)
	j.inOrder(c)
	j.grants = append(j.grants, grant{c.id, c.token, w.now})

	if now >= c.machine.Stop() {
		j.violated("told", "client %d is handed a lease that ended %v ago", c.id, now-c.machine.Stop())
	}
	j.alone(c)
	if w.quiet {
		w.over = true
	}
}

// alone looks for another client that works at this instant. One that was told
// of its loss has stopped; one that could not be told, because it stands still,
// is given the whole guard.
func (j *judge) alone(c *client) {
	w := j.w
	for i := range w.config.clients {
		other := &w.clients[i]
		if other == c || other.phase != holding {
			continue
		}
		if left := other.machine.Stop() + w.config.terms.Guard - other.now(); left > 0 {
			w.stats.Overlaps++
			if j.inside() {
				j.violated("overlap", "client %d is granted token %d while client %d works on under token %d, for %v more",
					c.id, c.token, other.id, other.token, left)
			}
		}
	}
}

// lost looks at a loss in the instant in which it is told. The lease had to
// stop at stop, for the sake of its keys at keys.
func (j *judge) lost(c *client, now, stop, keys time.Duration) {
	j.once(c)
	j.next = waiting{}
	if c.machine.Reason() == quorum.Revoked {
		return
	}
	// Of the stop by age, which is no matter of safety, timers may be late.
	stop = min(stop+quorum.Early(j.w.config.terms.Guard)+j.w.config.lag, keys)
	// Whoever was paused at the stop tells it as soon as it runs. A clock that
	// is read in whole nanoseconds can skip one.
	if now > stop+2 && c.mono.when(stop) > c.resumed+timersLast {
		j.violated("told", "client %d tells its loss %v after the stop", c.id, now-stop)
	}
}

func (j *judge) released(c *client) {
	j.once(c)
	j.next = waiting{}
	if !j.w.config.orderly {
		return
	}
	first := &j.w.nodes[0].queue[0]
	for i := range j.w.p.Nodes {
		if n := &j.w.nodes[i]; n.queued == 0 || n.queue[0].ticket != first.ticket {
			return
		}
	}
	j.next = *first
	j.yields(&j.w.clients[first.client])
}

// yields notes that a client lets others go first, if it does.
func (j *judge) yields(c *client) {
	if c.ticket == j.next.ticket && c.past() {
		j.next = waiting{}
	}
}

// inOrder looks whether whoever stood first in every queue was passed by.
func (j *judge) inOrder(c *client) {
	if j.next.ticket == 0 {
		return
	}
	j.w.stats.InOrder++
	if c.ticket != j.next.ticket && (c.ticket == 0 || c.place > j.next.place) {
		j.violated("order", "client %d is granted with ticket %d, place %d, before client %d with ticket %d, place %d",
			c.id, c.ticket, c.place, j.next.client, j.next.ticket, j.next.place)
	}
	j.next = waiting{}
}

func (j *judge) once(c *client) {
	if j.ended[c.id] {
		j.violated("told", "the lease of client %d ends twice", c.id)
	}
	j.ended[c.id] = true
}

// created looks at a key that was made.
func (j *judge) created(n *node, m *message) {
	if j.w.p.World != Inside {
		return // the bound is told by the node's clock
	}
	bound := m.bound
	if m.op == extend {
		bound = m.sent + j.w.config.terms.Timeout
	}
	c := &j.w.clients[m.client]
	if over := c.now() - bound - m.slack; over > 0 {
		j.violated("leftover", "%v of client %d makes a key on node %d, %v after it was void", m.op, m.client, n.id, over)
	}
}

// over has an attempt that failed, or a lease that was given back, looked at
// later.
func (j *judge) over(c *client) {
	w := j.w
	if !w.config.fifo || w.quiet || w.p.World != Inside {
		return // without order a release may overtake its acquire
	}
	e := event{kind: check, client: c.id, node: -1, duration: c.started}
	e.owner = c.owner
	w.schedule(c.mono.when(max(c.began, c.now()-2*w.config.terms.Timeout)+3*w.config.terms.Timeout), &e)
}

// leftover looks at what an attempt or a lease has left on the nodes that were
// in reach all the time.
func (j *judge) leftover(e *event) {
	w := j.w
	c := &w.clients[e.client]
	if c.resumed >= e.duration {
		return // it was stopped: its releases may still be on their way
	}
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		links := &w.links[e.client][i]
		if n.owner == e.owner && !n.kept && links[0].fault < e.duration && links[1].fault < e.duration {
			if n.expire(n.clock.read(w.now)); n.owner == e.owner {
				j.violated("leftover", "what client %d began at %v is over, and has its key on node %d", c.id, e.duration, i)
			}
		}
	}
}

// starved is called when by now somebody must have been granted the lock.
func (j *judge) starved() {
	if j.w.p.World == Inside {
		j.violated("liveness", "no grant since the faults stopped at %v", j.w.config.faults)
	}
	j.w.over = true
}
