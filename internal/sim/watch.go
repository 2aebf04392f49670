package sim

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
)

// This file is what a client does about failover groups, as internal/node does in production.

// connection is a client's connection to a server of a group.
type connection struct {
	line    uint32 // 0: there is none
	term           // the term whose master was dialled
	pending bool   // a greeting has no answer yet
}

// grouped reports whether a node is a failover group.
func (c *client) grouped(i int) bool { return c.w.nodes[i].group.size > 0 }

// lineTo returns the number of the client's connection to a node.
func (c *client) lineTo(i int) uint32 {
	if c.grouped(i) {
		return c.known[i].conn.line
	}
	return c.w.nodes[i].line
}

// connect dials the master that a majority names, unless a connection is up, and reports
// whether there is one for a greeting. A greeting without an answer ends its connection.
func (c *client) connect(i int) bool {
	k, g := &c.known[i], &c.w.nodes[i].group
	if k.conn.line > g.members[k.conn.server].broken && !k.conn.pending {
		k.conn.pending = true
		return true
	}
	k.greeted, k.conn = false, connection{}
	if c.w.now < c.blind {
		return false
	}
	named, asked := g.named, c.now()
	if c.w.rng.IntN(4) == 0 { // the majority and the dial take their time
		took := c.w.upTo(failoverTime)
		named, asked = g.namedAgo(c.w.now-took), asked-took
	}
	if !c.meets(i, named) {
		c.w.stats[Settlings]++
		c.w.schedule(c.w.now+1+c.w.upTo(failover.SettleFor/4), &event{kind: evRedial, client: c.id, node: int8(i)})
		return false
	}
	g.lines++
	k.conn = connection{line: g.lines, term: named, pending: true}
	k.terms.Use(named, clock.Validity(asked))
	return true
}

// meets records the term that a majority has named, and reports whether it may be used yet.
func (c *client) meets(i int, named term) bool {
	settled := c.known[i].terms.Meet(named, clock.Steady(c.steady()))
	return settled || c.w.bugs.has(UsedTooEarly)
}

// hangUp ends the connection to a group. The client dials again soon.
func (c *client) hangUp(i int) {
	c.w.stats[HangUps]++
	c.known[i].greeted, c.known[i].conn = false, connection{}
	c.w.schedule(c.w.now+1+c.w.upTo(c.w.config.terms.TTL/10), &event{kind: evRedial, client: c.id, node: int8(i)})
}

// carries puts m on the client's connection to a group, and reports whether m may go over
// it now.
func (c *client) carries(i int, m *message) bool {
	k := &c.known[i]
	m.line, m.server, m.epoch = k.conn.line, k.conn.server, k.conn.epoch
	retried := !k.conn.pending && m.op.insists()
	if k.conn.line != 0 && (k.greeted || m.op.aside() || retried) {
		return true
	}
	m.line = 0 // a release waits for the next connection
	return false
}

// noProcess is a run_id that no node has.
const noProcess = ^uint32(0)

// markerFor returns the marker that a request for a lease carries: one that no node has
// while the node must not vote.
func (c *client) markerFor(i int) marker {
	if k := &c.known[i]; k.vote.May(c.waited(), c.othersOf(i)) == nil {
		return k.marker
	}
	return marker{run: noProcess}
}

// dropped reports whether an answer does not count, because its connection has ended. A server that isn't the master
// ends it.
func (c *client) dropped(i int, m *message) bool {
	if !c.grouped(i) || m.op == opWake {
		return false
	}
	if m.line != c.known[i].conn.line {
		return true
	}
	switch m.answer {
	case notMaster:
		c.hangUp(i)
		m.answer = notConnected
	case halfMoved:
		c.metMove(i)
		m.answer = notConnected
	}
	return c.outlasted(i, m)
}

// outlasted reports whether no lease may rely on an answer, because no majority has confirmed
// the term for the window.
func (c *client) outlasted(i int, m *message) bool {
	switch m.op.plain() {
	case opExtend, opHeal, opRaise:
		if c.known[i].vote.Keeps(c.cast(i, m), nil) == nil {
			return false
		}
		c.w.stats[Outlasted]++
		return true
	default:
		return false
	}
}

// outdated reports whether a greeting shows that another client has met a later master.
// Then the connection ends.
func (c *client) outdated(i int, m *message) bool {
	if !c.grouped(i) {
		return false
	}
	c.known[i].conn.pending = false
	if m.marker.epoch <= c.known[i].conn.epoch {
		return false
	}
	c.w.stats[LaterTerms]++
	c.hangUp(i)
	return true
}

// counts reports whether a vote that has arrived counts.
func (c *client) counts(i int, m *message) bool {
	err := c.known[i].vote.Counts(c.cast(i, m), c.othersOf(i))
	if errors.Is(err, failover.ErrUnconfirmed) {
		c.w.stats[Unconfirmed]++
	}
	return err == nil
}

// watch asks a majority whether the terms of the groups continue.
func (c *client) watch(e *event) {
	w := c.w
	if c.phase == gone || e.life != c.life {
		return
	}
	if w.now < c.paused {
		order := time.Duration(timersFirst)
		if w.rng.IntN(2) == 0 {
			order = timersLast
		}
		w.schedule(c.paused+order, e)
		return
	}
	w.schedule(w.now+failover.ConfirmEvery*9/10+w.upTo(failover.ConfirmEvery/5), e)
	if w.now < c.blind || !w.quiet && w.rng.IntN(1000) < w.config.loss {
		return
	}
	for i := range w.p.Nodes {
		k := &c.known[i]
		switch {
		case !c.grouped(i):
		case k.conn.line == 0 && !c.meets(i, w.nodes[i].group.named):
		case k.conn.line != 0 && !k.terms.Record(w.nodes[i].group.named, clock.Validity(c.now()), clock.Steady(c.steady())):
			c.hangUp(i)
		default:
			c.look(i)
			if (k.vote.Unguarded || !k.greeted || k.terms.Moved()) && c.now() >= k.asked+w.config.terms.Timeout {
				c.greet(i)
			}
		}
	}
}

// goBlind keeps a client from asking who the masters are.
func (c *client) goBlind(d time.Duration) {
	c.w.stats[Blinds]++
	c.w.trace("client %d cannot ask who the masters are, for %v", c.id, d)
	c.blind = max(c.blind, c.w.now+d)
}

// The rest is the move of a hash slot that is taken back: SETSLOT MIGRATING, MIGRATE of the lock's key, SETSLOT STABLE.
// The server keeps its process, epoch and marker, and the lock is gone.

// moveRuns is N where one of N runs of the world Groups has groups that are slots of clusters.
const moveRuns = 3

// halfMove is a slot that is being moved away from a server.
type halfMove struct {
	open   bool
	ends   time.Duration
	key    lot  // that has left; its register stays
	slot   int8 // of a permit
	queued bool // it was a reservation
	// noticed means that a client that found the move open told the server before its end.
	noticed bool
}

// moves draws from a generator of its own.
type moves struct {
	pcg rand.PCG
	on  bool
}

// plan draws the moves of the run's groups.
func (v *moves) plan(w *world) {
	*v = moves{on: w.p.World == Groups && (w.p.Mutation.among(ofMoves...) || w.p.Mutation == 0 && w.p.Seed%moveRuns == 1)}
	v.pcg.Seed(uint64(w.p.Seed), 0x510f)
	for i := range int8(w.p.Nodes) {
		if !v.on || w.config.groups&(1<<i) == 0 {
			continue
		}
		for at := v.upTo(4 * w.config.terms.TTL); at < w.config.faults; at += v.upTo(8 * w.config.terms.TTL) {
			lasts := v.upTo(failover.ConfirmedFor)
			if v.pcg.Uint64()%2 == 0 {
				lasts += failover.ConfirmedFor + failover.ConfirmEvery
			}
			w.schedule(at, &event{kind: evMove, client: -1, node: i, duration: lasts})
		}
	}
}

func (v *moves) upTo(d time.Duration) time.Duration {
	return time.Duration(v.pcg.Uint64() % uint64(d))
}

// moveSlot begins a move, or ends it. The lock's key leaves, and until the end the server refuses scripts.
func (n *node) moveSlot(e *event) {
	if e.kind == evMoveBack {
		n.takeBack(e.caller)
		return
	}
	lasts := e.duration
	if n.down || n.half.open || n.w.quiet {
		return
	}
	n.expire(n.clock.read(n.w.now))
	n.w.stats[HalfMoves]++
	n.half = halfMove{open: true, ends: n.w.now + lasts, key: n.lot, slot: n.slots.in, queued: n.reserved}
	n.unlock()
	n.w.trace("node %d: the key of owner %d leaves server %d for %v", n.id, n.half.key.owner, n.group.in, lasts)
	n.w.schedule(n.half.ends, &event{kind: evMoveBack, client: -1, node: n.id, caller: n.group.in})
}

// takeBack ends the move of a server. Lemma FO promises nothing about a move that no client has noticed: such a
// one is taken back together with its key.
func (n *node) takeBack(server int8) {
	n.use(server)
	defer func() { n.use(n.group.current.server) }()
	move := n.half
	if !move.open || n.w.now < move.ends && !n.w.quiet {
		return
	}
	n.half = halfMove{}
	wall := n.clock.read(n.w.now)
	n.expire(wall)
	if move.noticed {
		n.w.stats[KeysGone]++
		n.w.trace("node %d: the move of server %d is taken back without the key of owner %d", n.id, server, move.key.owner)
		return
	}
	n.slots.turnTo(&n.lot, move.slot)
	if n.owner == 0 && move.key.expires > wall.Milliseconds() {
		n.owner, n.form, n.shown, n.expires, n.reserved = move.key.owner, move.key.form, move.key.shown, move.key.expires, move.queued
	}
}

// withdraw makes the marker name no server. A client does that when it finds the move open.
func (n *node) withdraw() answer {
	n.half.noticed = n.half.open
	if !n.w.bugs.has(MovesIgnored) {
		n.marker.run = noProcess - 1
	}
	return done
}

// look asks the owner of a slot whether keys leave it.
func (c *client) look(i int) {
	if k := &c.known[i]; c.w.moves.on && k.conn.line != 0 && k.greeted {
		c.request(i, &message{op: opLook})
	}
}

// looked handles the answer to a look or a greeting.
func (c *client) looked(i int, m *message) {
	k := &c.known[i]
	if m.open {
		c.w.stats[MovesSeen]++
		c.request(i, &message{op: opWithdraw})
	}
	if c.w.bugs.has(MovesIgnored) {
		k.terms.Look(false, clock.Validity(m.sent))
		return
	}
	if k.terms.Look(m.open, clock.Validity(m.sent)) && m.op == opLook {
		c.greet(i)
	}
}

// metMove handles an answer that only a half-moved slot gives.
func (c *client) metMove(i int) {
	c.w.stats[MovesMet]++
	if k := &c.known[i]; !c.w.bugs.has(MovesIgnored) && k.terms.FoundMove() && !k.conn.pending {
		c.greet(i)
	}
}

// endMoves ends all moves.
func (n *node) endMoves() {
	for k := range n.group.size {
		n.takeBack(k)
	}
}
