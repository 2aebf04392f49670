package sim

import (
	"math/rand/v2"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
)

// This file is the move of a hash slot that is taken back: SETSLOT MIGRATING, MIGRATE of the lock's key, SETSLOT
// STABLE. The server keeps its process, epoch and marker, and the lock is gone.

// moveRuns is how many runs of the world Groups there are for one whose groups are slots of clusters.
const moveRuns = 3

// halfMove is a slot that is being moved away from a server.
type halfMove struct {
	open   bool
	ends   time.Duration
	key    lot  // that has left; its register stays
	slot   int8 // of a permit
	queued bool // it was a reservation
	// noticed means that a client which had found the move open told the server before its end.
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
