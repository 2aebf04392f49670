package sim

import (
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// grant is one granted lease with its block of tokens.
type grant struct {
	client      int8
	owner       uint32
	first, last int64
	used        int64 // the last token in use
	reads       bool
	at          time.Duration
	slot        int8
	began       time.Duration // of its attempt, also for a block that a check has minted later
}

// judge observes the whole world and looks for broken promises.
type judge struct {
	w       *world
	found   *Violation
	grants  []grant
	newest  [slotIDs]int64      // highest token so far, by slot
	before  [maxClients]int64   // highest token when the client's attempt began
	current [maxClients]int     // index of the client's last grant
	ended   [maxClients]bool    // the end of the client's lease was reported
	next    waiting             // head of every queue when the last lease was released, in an orderly run
	free    time.Duration       // a release that leaves the lock free may arrive until then
	until   int64               // readers before this place may join next, which is a reader
	ahead   [maxClients]waiting // the first writer in every queue when a reader's attempt began, in an orderly run
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

// alarmed checks a step that a client has found.
func (j *judge) alarmed(c *client, node int) {
	if w := j.w; w.p.World != Anything && w.config.rate <= modelRate && !w.nodes[node].jumped {
		j.violated("alarm", "client %d sees a step of the clock of node %d, which has made none", c.id, node)
	}
}

// begins records that an attempt begins.
func (j *judge) begins(c *client) {
	j.before[c.id], j.ahead[c.id] = j.newest[c.slot], waiting{}
	if j.w.config.orderly && c.reads && j.w.now > j.free {
		j.ahead[c.id] = writerAhead(c)
	}
}

// granted checks a grant at the instant at which it returns. Any token of its block may
// be used later. So all of them must be new, and above the blocks of all grants that had
// returned before the attempt began.
func (j *judge) granted(c *client, now time.Duration) {
	w := j.w
	j.ended[c.id] = false
	if c.token > c.lastToken || c.token < 1 || c.lastToken > quorum.MaxToken {
		j.violated("token", "client %d is granted tokens %d to %d", c.id, c.token, c.lastToken)
	}
	for k := range j.grants {
		if g := &j.grants[k]; g.slot == c.slot && g.first <= c.lastToken && c.token <= g.last && !(g.reads && c.reads) {
			j.violated("token", "%d to %d of client %d at %v and %d to %d of client %d have tokens in common",
				g.first, g.last, g.client, g.at, c.token, c.lastToken, c.id)
		}
	}
	if c.token < j.before[c.id] || c.token == j.before[c.id] && !c.reads {
		j.violated("token", "%d of client %d is not above %d, which had returned when its attempt began at %v",
			c.token, c.id, j.before[c.id], c.started)
	}
	if c.reads && c.token%2 == 0 {
		j.violated("token", "client %d reads with token %d, which a writer can have", c.id, c.token)
	}
	j.newest[c.slot] = max(j.newest[c.slot], c.lastToken)
	j.inOrder(c)
	j.current[c.id] = len(j.grants)
	j.grants = append(j.grants, grant{c.id, c.owner, c.token, c.lastToken, c.token, c.reads, w.now, c.slot, c.started})
	j.valid(c, now)
	j.alone(c)
	bounded(j, c)
	if w.quiet && w.permits.limit == 0 {
		w.over = true
	}
}

// passed checks a lease at the instant at which it is passed on inside a process. It
// counts as a grant whose attempt began at since: the nodes have shown that no other
// attempt had the lock before that.
func (j *judge) passed(c *client, now, since time.Duration) {
	own := j.current[c.id]
	g := &j.grants[own]
	if c.token <= g.used || c.token > g.last {
		j.violated("token", "client %d passes on token %d, which is not of %d to %d", c.id, c.token, g.used+1, g.last)
	}
	g.used = c.token
	j.ended[c.id] = false
	for k := range j.grants {
		if g := &j.grants[k]; k != own && g.at < since && g.last >= c.token {
			j.violated("token", "client %d passes on token %d, which is not above %d of client %d, which had returned at %v, before %v",
				c.id, c.token, g.last, g.client, g.at, since)
		}
	}
	j.valid(c, now)
	j.alone(c)
}

// minted checks a new block of tokens for a hold. The block replaces the rest of the previous one. The check that
// minted it began at since.
func (j *judge) minted(c *client, since time.Duration) {
	own := &j.grants[j.current[c.id]]
	own.last = min(own.last, c.next-1)
	if c.next > c.lastToken || c.lastToken > quorum.MaxToken {
		j.violated("token", "client %d mints tokens %d to %d", c.id, c.next, c.lastToken)
	}
	for k := range j.grants {
		g := &j.grants[k]
		if g.first <= c.lastToken && c.next <= g.last || g.at < since && g.last >= c.next {
			j.violated("token", "%d to %d of client %d at %v are not below %d to %d, which client %d mints since %v",
				g.first, g.last, g.client, g.at, c.next, c.lastToken, c.id, since)
		}
	}
	j.newest[c.slot] = max(j.newest[c.slot], c.lastToken)
	j.current[c.id] = len(j.grants)
	j.grants = append(j.grants, grant{c.id, c.owner, c.next, c.lastToken, c.next - 1, false, j.w.now, c.slot, own.began})
}

func (j *judge) valid(c *client, now time.Duration) {
	if clock.Validity(now) >= c.machine.Stop() {
		j.violated("reported", "client %d is handed a lease that ended %v ago", c.id, clock.Validity(now).Sub(c.machine.Stop()))
	}
}

// alone looks for another client that works at this instant: under a lease, or in the
// safety margin after its loss. A paused client cannot notice the loss, and also works until the
// end of the safety margin.
func (j *judge) alone(c *client) {
	w := j.w
	for i := range w.config.clients {
		other := &w.clients[i]
		until := worksOn(other, c.slot, other != c)
		if left := until - other.now(); left > 0 && until > 0 && !(c.reads && other.read) {
			w.stats[Overlaps]++
			if j.inside() {
				j.violated("overlap", "client %d is granted token %d while client %d works on under token %d, for %v more",
					c.id, c.token, other.id, other.token, left)
			}
		}
	}
}

// lost checks a loss at the instant at which it is reported. The lease must end at stop; without MaxHold it must end at
// keys.
func (j *judge) lost(c *client, now, stop, keys time.Duration) {
	j.next = waiting{}
	if c.machine.Reason().Denied() {
		return
	}
	// A timer may be late for the stop by MaxHold, because safety does not depend on it.
	stop = min(stop+quorum.Early(c.machine.Terms().SafetyMargin)+j.w.config.lag, keys)
	// A client that was paused at the stop reports the loss as soon as it runs. A client
	// whose clock jumped over the stop reports it when it next reads its clock. A clock
	// that is read in whole nanoseconds can skip one.
	if now > stop+2 && c.when(stop) > c.resumed+timersLast {
		j.violated("reported", "client %d reports its loss %v after the stop", c.id, now-stop)
	}
}

// released records the head of the queues. It must get the lock next, unless the lock is
// left free.
func (j *judge) released(c *client, leftFree bool) {
	j.next = waiting{}
	if leftFree {
		j.ahead, j.free = [maxClients]waiting{}, j.w.now+j.w.config.latency
	}
	if !j.w.config.orderly || leftFree || j.w.permits.limit > 0 {
		return
	}
	head := &j.w.nodes[0].queue[0]
	for i := range j.w.p.Nodes {
		if n := &j.w.nodes[i]; n.queued == 0 || n.queue[0].ticket != head.ticket || c.reads && !last(n, c.owner) {
			return
		}
	}
	j.next, j.until = *head, writersFrom(j.w)
	if waiter := &j.w.clients[head.client]; waiter.yielded {
		j.yields(waiter)
	}
}

// yields records that a client lets others go first.
func (j *judge) yields(c *client) {
	if c.ticket == j.next.ticket {
		j.next = waiting{}
	}
	settled(j, c)
}

// startsOver checks that no client loses its place in a run without faults. Where messages can overtake each other on a
// connection, a key of the client's own earlier attempt can refuse it: from then on the client has another place, and
// need not be the next.
func (j *judge) startsOver(c *client) {
	if j.w.config.orderly && j.w.config.fifo {
		j.violated("order", "client %d has missed its reservations for ticket %d, and starts over", c.id, c.ticket)
	}
	if c.ticket == j.next.ticket {
		j.next = waiting{}
	}
}

// inOrder checks that no other client gets the lock before the head of every queue, and that no reader gets it before a
// writer that came earlier and was in every queue.
func (j *judge) inOrder(c *client) {
	if v := &j.ahead[c.id]; c.reads && v.ticket != 0 && (c.carried == 0 || c.enqueuedAt > v.enqueuedAt) {
		j.violated("order", "client %d reads with ticket %d, enqueued at %d, before client %d writes with ticket %d, enqueued at %d",
			c.id, c.carried, c.enqueuedAt, v.client, v.ticket, v.enqueuedAt)
	}
	settled(j, c)
	if j.next.ticket == 0 {
		return
	}
	j.w.stats[ServedInOrder]++
	beside := c.reads && j.next.reads && (c.carried != 0 && c.enqueuedAt < j.until || j.until == none)
	if !beside && c.ticket != j.next.ticket && (c.ticket == 0 || c.enqueuedAt > j.next.enqueuedAt) {
		j.violated("order", "client %d is granted with ticket %d, enqueued at %d, before client %d with ticket %d, enqueued at %d",
			c.id, c.ticket, c.enqueuedAt, j.next.client, j.next.ticket, j.next.enqueuedAt)
	}
	j.next = waiting{}
}

// marked checks a new marker of the restart guard. Once a term's quarantine has ended, a client of an earlier term must
// not begin another one.
func (j *judge) marked(n *node, m *message, before marker) {
	if before.epoch > m.epoch {
		j.violated("marker", "client %d, of term %d, replaces the marker of term %d on node %d", m.client, m.epoch, before.epoch, n.id)
	}
}

// once records that the lease of a client ends.
func (j *judge) once(c *client) {
	if j.ended[c.id] {
		j.violated("reported", "the lease of client %d ends twice", c.id)
	}
	j.ended[c.id] = true
}

// created checks a new key. It must not be created after its limit, and must not live
// longer than a key that is created in time.
func (j *judge) created(n *node, m *message) {
	if !j.w.p.World.plain() {
		return // the node's clock, by which the limit is checked, may step
	}
	if m.way == leanWay {
		j.createdLean(n, m)
		return
	}
	if m.op.plain() != opExtend {
		latest := m.after/1000 + j.w.ttlOf(m).Milliseconds() + 1
		if over := endOf(n, m) - latest; over > 0 {
			j.violated("leftover", "%v of client %d makes a key on node %d that ends %d ms too late", m.op, m.client, n.id, over)
		}
	}
	bound := m.bound
	if m.op.plain() == opExtend {
		bound = m.steady + j.w.config.terms.Timeout
	}
	c := &j.w.clients[m.client]
	if over := c.steady() - bound - m.slack; over > 0 {
		j.violated("leftover", "%v of client %d makes a key on node %d, %v after it was void", m.op, m.client, n.id, over)
	}
}

// over schedules a check of a failed attempt or a released lease.
func (j *judge) over(c *client) {
	w := j.w
	if !w.config.fifo || w.quiet || !w.p.World.plain() {
		return // without message order a release may overtake its acquire
	}
	e := event{kind: evCheck, client: c.id, node: -1, duration: c.started}
	e.owner, e.slot = c.owner, c.slot
	w.schedule(c.when(max(c.began, c.now()-2*w.config.terms.Timeout)+3*w.config.terms.Timeout), &e)
}

// retried schedules a check of a node to which a client sends a release again, because a
// connection broke.
func (j *judge) retried(c *client, node int, m *message) {
	w := j.w
	if m.owner == 0 || !w.config.fifo || w.quiet || !w.p.World.plain() {
		return
	}
	e := event{kind: evCheck, client: c.id, node: int8(node), duration: w.now}
	e.owner, e.slot = m.owner, m.slot
	w.schedule(w.now+w.config.terms.Timeout, &e)
}

// leftover looks for locks that an ended attempt or lease has left on nodes that were in
// reach all the time.
func (j *judge) leftover(e *event) {
	w := j.w
	c := &w.clients[e.client]
	if c.resumed >= e.duration {
		return // the client was paused: its releases may still be on their way
	}
	for i := range w.p.Nodes {
		n := &w.nodes[i]
		links := &w.links[e.client][i]
		if e.node >= 0 && int(e.node) != i {
			continue
		}
		n.slots.turnTo(&n.lot, e.slot)
		wall := n.clock.read(w.now)
		if keeps(n, e.owner, wall) && links[requests].fault < e.duration && links[replies].fault < e.duration {
			// A failed resume does not give back a lock that was revoked in between: that lock ends by itself.
			if n.expire(wall); keeps(n, e.owner, wall) && n.form != revokedForm {
				j.violated("leftover", "owner %d of client %d, looked at since %v, is over and has its key on node %d",
					e.owner, c.id, e.duration, i)
			}
		}
	}
}

// starved is called at the instant by which a client must have got the lock.
func (j *judge) starved() {
	if j.w.config.instant > 0 {
		if j.w.stats[Grants] == 0 && j.w.permits.limit == 0 { // ADR 46: calls for permits may all be refused
			j.violated("liveness", "%d clients asked at one instant, at %v, and none got the lock", j.w.config.clients, j.w.config.instant)
		}
		j.w.over = true
		return
	}
	if j.w.permits.limit > 0 && j.w.permits.granted {
		j.w.over = !watchPermits(j.w)
		return
	}
	// Servers of a group have clocks of their own. A client that looks for steps takes the difference for one, and
	// prolongs a quarantine each time.
	if j.w.p.World.plain() || j.w.p.World == Groups && !j.w.config.stepAware {
		j.violated("liveness", "no grant since the faults stopped at %v", j.w.config.faults)
	}
	j.w.over = true
}

// seen checks what the observer reports: the owner that had a majority all the time, and never one whose tokens are
// below the tokens of an owner reported before. Where clocks of nodes are set back, a late request of an owner may lock
// again, and the node then shows a token that is not of the owner's grant.
func (j *judge) seen(o *observer, show func(int) sighted) {
	owner, known := o.conclude()
	j.w.trace("the observer sees owner %d, known %v", owner, known)
	switch {
	case !known:
		j.w.stats[Unsighted]++
		return
	case owner == 0:
		j.w.stats[Vacancies]++
	default:
		j.w.stats[Sightings]++
	}
	if kept := o.kept(show); kept != 0 && owner != kept {
		j.violated("sight", "an observer sees owner %d (0: nobody), and owner %d had a majority since %v", owner, kept, o.began)
	}
	var top int64 // of the owner's last block, 0 if it was never granted
	for k := range j.grants {
		if g := &j.grants[k]; g.owner == owner {
			top = g.last
		}
	}
	switch {
	case owner == 0 || top == 0:
	case owner != o.seen && top < o.seenTop && j.inside():
		j.violated("sight", "an observer sees owner %d with tokens up to %d, after owner %d with %d", owner, top, o.seen, o.seenTop)
	default:
		o.seen, o.seenTop = owner, max(o.seenTop, top)
	}
}
