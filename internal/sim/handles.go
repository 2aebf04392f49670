package sim

import (
	"math/rand/v2"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// handles are the leases that a run detaches, as Lease.Detach does, and the fate of their handles. One run of
// handleRuns has them, and so has each run of their planted bugs. Such a run has more clients, the successors. They
// have no callers, and only use copies of handles, as Manager.Resume and Manager.ReleaseHandle do. The generator is not
// the run's, so all other runs stay as they are.
type handles struct {
	pcg   rand.PCG
	all   []handle
	first int           // the first successor; the clients after it are successors as well
	ends  time.Duration // true time from which on no node has a detached lock
}

// handle is a lease that was detached.
type handle struct {
	owner   uint32
	token   int64
	keep    time.Duration
	started time.Duration            // true time at which the lease's attempt began
	answers quorum.Tally             // to the requests that detach it
	decided bool                     // Detach has returned
	exists  time.Duration            // true time at which it has returned the handle; 0 for never
	drops   [successors]quorum.Tally // answers to each successor that gives the lock back
	used    use
}

// use is the end of a handle: each takes the owner's detached locks away on a majority of nodes.
type use uint8

const (
	unused     use = iota
	wasResumed     // Resume has returned a lease
	wasGiven       // ReleaseHandle has succeeded
	wasRevoked     // an operator has succeeded
)

var useNames = [...]string{"unused", "resumed", "given back", "revoked"}

func (u use) String() string { return useNames[u] }

// A run has handles if its seed leaves 5 modulo handleRuns: the rare seeds of other bugs (catch.go) leave something else.
const (
	handleRuns = 7
	successors = 2
)

// reset begins a run.
func (h *handles) reset(w *world) {
	c := &w.config
	*h = handles{all: h.all[:0], first: maxClients}
	h.pcg.Seed(uint64(w.p.Seed), 0x4a9d)
	if c.orderly || c.once || w.p.Seed%handleRuns != 5 && !w.p.Mutation.among(ofHandles...) {
		return
	}
	c.clients = min(c.clients+successors, maxClients)
	h.first = c.clients - successors
	w.schedule(h.upTo(2*c.terms.TTL), &event{kind: evDetach, client: -1, node: -1})
}

// upTo returns a time in [0, d).
func (h *handles) upTo(d time.Duration) time.Duration {
	return time.Duration(h.pcg.Uint64() % uint64(d))
}

// soon returns a time up to d and a half. Short times are more frequent than long ones.
func (h *handles) soon(d time.Duration) time.Duration { return h.upTo(1 + h.upTo(d*3/2)) }

// once reports true in one call of n.
func (h *handles) once(n uint64) bool { return h.pcg.Uint64()%n == 0 }

// find returns the handle of an owner, nil if its lease was not detached.
func (h *handles) find(owner uint32) *handle {
	for i := range h.all {
		if h.all[i].owner == owner {
			return &h.all[i]
		}
	}
	return nil
}

// keep draws how long the nodes keep a detached lock. Under the restart guard it is at most as long as a
// quarantine, as Detach demands: a node that comes back with an old detached lock must not vote before
// that lock has ended.
func (h *handles) keep(w *world) time.Duration {
	c := &w.config
	d := c.terms.TTL/4 + h.upTo(4*c.terms.TTL)
	switch {
	case w.bugs.has(KeepOutlivesGuard):
		return 2*c.maxTTL + d
	case c.guard:
		return min(d, c.maxTTL-c.window)
	}
	return d
}

// succeeds reports whether a client only uses handles.
func succeeds(c *client) bool { return int(c.id) >= c.w.handles.first }

// asksOnce reports whether the caller that contends asks once: to resume, to continue as a reader, and in the runs in
// which all callers do.
func asksOnce(c *client) bool { return c.w.config.once || c.from != 0 || c.downgrade }

// useHandles drives the handles. Leases are detached until the faults stop; a handle may be used later.
func useHandles(w *world, e *event) {
	h, ttl := &w.handles, w.config.terms.TTL
	switch e.kind {
	case evDetach:
		if w.quiet {
			return
		}
		next := ttl / 8
		for i := range w.config.clients {
			if c := &w.clients[i]; c.working() && !c.reads && w.now >= c.paused {
				detach(c)
				next = ttl/2 + h.upTo(3*ttl)
				break
			}
		}
		w.schedule(w.now+next, e)
	case evDetached:
		c := &w.clients[e.client]
		switch {
		case c.phase == gone || c.life != e.life:
		case w.now < c.paused:
			w.schedule(c.paused+h.upTo(timersLast+1), e)
		default:
			endDetach(c, h.find(e.owner), true)
		}
	default:
		c, one := &w.clients[e.client], h.find(e.owner)
		if c.phase != resting || c.waits || c.keeps || w.now < c.paused {
			w.schedule(w.now+1+h.upTo(ttl/4), e) // it is gone, or still busy with an earlier call
			return
		}
		if h.once(2) {
			w.schedule(w.now+h.upTo(2*one.keep), e) // a program may use its copy again, whatever came of it
		}
		if drops := &one.drops[int(c.id)-h.first]; *drops == (quorum.Tally{}) && h.once(6) {
			*drops = quorum.NewTally(w.p.Nodes)
			tellAll(c, message{op: opDrop, owner: one.owner})
			return
		}
		resume(c, one.owner)
	}
}

// detach ends the lease of a client, and asks the nodes to keep its lock for a successor.
func detach(c *client) {
	w, now := c.w, c.now()
	h := &w.handles
	one := handle{
		owner: c.owner, token: c.token, started: c.started, keep: h.keep(w), answers: quorum.NewTally(w.p.Nodes),
	}
	if !w.bugs.has(HandleBeforeTheEnd) {
		if c.step(quorum.Input{Kind: quorum.InputRelease}).Events&quorum.Ended != 0 {
			return
		}
		endForSuccessor(c, now)
	}
	w.stats[Detached]++
	w.trace("client %d detaches owner %d, token %d, and the nodes are to keep it for %v", c.id, one.owner, one.token, one.keep)
	timeout := w.config.terms.Timeout
	for i := range w.p.Nodes {
		m := message{op: opDetach, owner: one.owner, left: one.keep.Milliseconds()}
		c.limit(i, &m, now+timeout)
		c.request(i, &m)
	}
	tellAll(c, message{op: opRelease, owner: one.owner}) // where the lock has not been marked
	h.all = append(h.all, one)
	h.ends = max(h.ends, w.now+2*timeout+one.keep+one.keep/50) // clocks run at different rates
	e := event{kind: evDetached, client: c.id, node: -1}
	e.owner, e.life = one.owner, c.life
	w.schedule(c.when(now+timeout), &e)
}

// endForSuccessor ends a lease whose keys stay. The other callers of the process ask the nodes.
func endForSuccessor(c *client, now time.Duration) {
	w := c.w
	w.judge.once(c)
	w.judge.released(c, true)
	c.endWait()
	caller, ticket := c.current, c.ticket
	c.phase, c.owner, c.ticket = resting, 0, 0
	if ticket != 0 {
		c.passOn(quorum.All(w.p.Nodes)&^c.voted, ticket)
	}
	c.callLater(caller, w.config.terms.TTL/4)
	c.do(now, c.local.Lost(clock.Validity(c.localTime(now))))
	c.sleep()
}

// tellAll sends a request without a limit to every node.
func tellAll(c *client, m message) {
	for i := range c.w.p.Nodes {
		c.request(i, &m)
	}
}

// answered handles an answer to a request that detaches a lease or drops a detached lock.
func (h *handles) answered(c *client, m *message) {
	one, votes, i := h.find(m.owner), (*quorum.Tally)(nil), int(m.node)
	switch {
	case m.op == opDetach:
		votes = &one.answers
	case one.exists != 0:
		votes = &one.drops[int(c.id)-h.first]
	default:
		return // Detach has failed, and does not wait for this
	}
	before := votes.Outcome()
	switch m.answer {
	case done:
		votes.Grant(i)
	case notDone:
		votes.Refuse(i)
	default:
		votes.Fail(i)
	}
	switch {
	case m.op == opDetach:
		endDetach(c, one, false)
	case before != quorum.OutcomeWon && votes.Outcome() == quorum.OutcomeWon:
		c.w.stats[GivenBack]++
		h.ended(c.w, one, wasGiven)
	}
}

// endDetach ends the call that detaches a lease, when a majority keeps the lock or the others cannot complete one. In
// the second case the lock is released: as a detached one, and as the owner's, in case it was revoked or the request
// has not arrived.
func endDetach(c *client, one *handle, late bool) {
	w, h, timeout := c.w, &c.w.handles, c.w.config.terms.Timeout
	switch {
	case one.decided:
	case one.answers.Outcome() == quorum.OutcomeWon:
		one.decided, one.exists = true, w.now
		w.trace("the handle of owner %d exists", one.owner)
		h.copy(w, one)
	case late || one.answers.Silent() == 0:
		one.decided = true
		w.stats[DetachesFailed]++
		w.trace("too few nodes keep the lock of owner %d", one.owner)
		if w.bugs.has(HandleBeforeTheEnd) {
			return
		}
		if !w.bugs.has(FailedDetachStays) {
			tellAll(c, message{op: opDrop, owner: one.owner})
		}
		tellAll(c, message{op: opRelease, owner: one.owner})
		if !w.config.fifo || w.quiet || !w.p.World.plain() {
			return // as after a release
		}
		e := event{kind: evCheck, client: c.id, node: -1, duration: one.started}
		e.owner = one.owner
		w.schedule(c.when(c.now()+timeout), &e)
	}
}

// copy gives a handle to one successor or to both, which use it at one instant or at two.
func (h *handles) copy(w *world, one *handle) {
	at := h.soon(one.keep)
	for k := range successors {
		if k > 0 && h.once(4) {
			return
		}
		e := event{kind: evUse, client: int8(h.first + k), node: -1}
		e.owner = one.owner
		w.schedule(w.now+at, &e)
		switch h.upTo(4) {
		case 0: // both at one instant
		case 1:
			at = 4 * h.soon(one.keep) // also when others have detached the lock again
		default:
			at = h.soon(one.keep)
		}
	}
}

// resume has a successor ask for the lease of an owner. The call does not wait behind other callers.
func resume(c *client, owner uint32) {
	now := c.now()
	c.from, c.current, c.failures = owner, 0, 0
	c.arrived[c.current] = now
	c.startWait(now, quorum.Step{})
	c.try(now)
	c.sleep()
}

// granted checks a resumed lease: its token is above the detached lease's, and no other client was granted the lock
// since the handle exists. No caller of its process waits for the lock.
func (h *handles) granted(c *client, now time.Duration) {
	w, one := c.w, h.find(c.from)
	w.stats[Resumes]++
	w.trace("client %d has resumed the lease of owner %d as owner %d", c.id, c.from, c.owner)
	c.local = quorum.Held(clock.Validity(c.localTime(now)), clock.Validity(c.localTime(now)), 0)
	h.ended(w, one, wasResumed)
	if c.token <= one.token {
		w.judge.violated("handles", "client %d resumes token %d as %d, which is not above it", c.id, one.token, c.token)
	}
	for k := range w.judge.grants {
		g := &w.judge.grants[k]
		if g.used < g.first {
			continue // a client that was stopped has checked its old hold, and has used no token of that
		}
		if w.judge.inside() && g.at > one.exists && g.owner != c.owner {
			w.judge.violated("handles", "client %d resumes the lease of owner %d, whose handle exists since %v, and client %d was granted token %d at %v",
				c.id, one.owner, one.exists, g.client, g.first, g.at)
		}
	}
}

// ended records the end of a handle, and checks that it is the first. A node that has come back with old data does not
// vote for a resume, but it does delete a detached lock.
func (h *handles) ended(w *world, one *handle, how use) {
	stale := how == wasGiven && (w.config.amnesia || w.config.groups != 0)
	if one.used != unused && w.judge.inside() && !stale {
		w.judge.violated("handles", "the lease of owner %d is %v, and its handle was %v before", one.owner, how, one.used)
	}
	one.used = how
}

// serveLock runs a request on a node, and checks that a detached lock stays as it was, because the owner's earlier
// requests may arrive at any time. Only requests that name its handle, and heals of other leases, may change it.
func serveLock(n *node, m *message, wall, frozen time.Duration) answer {
	detached, owner, expires := n.form == detachedForm, n.owner, n.expires
	a := n.execute(m, wall, frozen)
	if a == granted && !m.again || m.op.plain() == opRaise {
		m.position = int64(n.queued)
	}
	stays := n.form == detachedForm && n.owner == owner && n.expires == expires
	if detached && !stays && !m.op.usesHandle() && (m.op.plain() != opHeal || m.owner == owner) {
		n.w.judge.violated("handles", "%v of client %d by owner %d changes the detached lock of owner %d on node %d", m.op, m.client, m.owner, owner, n.id)
	}
	return a
}

// detachLock runs the operation mark with the kind 'd'.
func detachLock(n *node, m *message, wall time.Duration) answer {
	switch {
	case n.owner != m.owner, n.reserved, n.form == revokedForm:
		return notDone
	case micros(wall) > m.after:
		n.w.stats[TooLate]++
		return late
	}
	n.form, n.expires = detachedForm, wall.Milliseconds()+m.left
	return done
}

// resumeLock gives the detached lock of m.holder another owner.
func resumeLock(n *node, m *message, wall time.Duration, end int64) answer {
	bugs := n.w.bugs
	ours := n.owner == m.owner && !n.reserved && n.form == ownedForm
	may := n.form == detachedForm && (n.owner == m.holder || bugs.has(ResumesAnyHandle)) ||
		n.form == revokedForm && n.owner == m.holder && bugs.has(ResumesRevoked) ||
		n.form == ownedForm && n.locked() && bugs.has(ResumesAnyLock) ||
		n.owner == 0 && bugs.has(ResumesMissing)
	switch {
	case !trusts(n, m) && !bugs.has(ResumesUnguarded):
		n.w.stats[MarkerChanges]++
		return markerChanged
	case !ours && !may:
		return n.taken(m, wall, false)
	case micros(wall) > m.after:
		n.w.stats[TooLate]++
		return late
	case ours:
		n.repeat(m, end)
		return granted
	}
	n.lock(m, end)
	if bugs.has(ResumesUnmoved) {
		m.moved, m.before = m.t, m.t-1
		n.shown = m.t
		return granted
	}
	n.move(m, wall)
	return granted
}

// dropLock deletes a detached lock, and reserves it for the head of the queue.
func dropLock(n *node, m *message, wall time.Duration) answer {
	free := n.owner == 0
	ours := n.owner == m.owner && n.form == detachedForm || n.locked() && n.w.bugs.has(DropsAnyLock)
	if ours {
		n.unlock()
	}
	return settle(n, m, wall, free || ours, ours)
}
