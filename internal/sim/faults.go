package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// again calls do at random instants until the faults stop. The mean interval is every.
func (w *world) again(every time.Duration, do func(at time.Duration)) {
	if every == 0 {
		return
	}
	for at := w.upTo(2 * every); at < w.config.faults; at += 1 + w.upTo(2*every) {
		do(at)
	}
}

// skewed returns a time up to most; short times are more frequent than long
// ones.
func (w *world) skewed(most time.Duration) time.Duration { return w.upTo(1 + w.upTo(most)) }

// plan draws all faults in advance.
func (w *world) plan() {
	for i := range int8(w.config.clients) {
		w.planClient(i)
		for k := range int8(w.p.Nodes) {
			w.planLink(i, k)
		}
	}
	var ahead nodeSet // nodes whose clocks are set ahead, never back
	for i := range int8(w.p.Nodes) {
		if w.planNode(i) {
			ahead |= 1 << i
		}
		if w.config.groups&(1<<i) != 0 {
			w.planFailovers(i)
		}
	}
	c := &w.config
	w.again(c.everyCommon, func(at time.Duration) {
		e := event{kind: evCommonStep, client: int8(w.rng.IntN(c.clients)), node: -1, duration: w.farAhead()}
		e.t = int64(ahead & nodeSet(w.rng.IntN(1<<w.p.Nodes)))
		w.schedule(at, &e)
	})
	if c.instant > 0 {
		w.planTogether()
		return
	}
	w.schedule(c.faults, &event{kind: evCalm, client: -1, node: -1})
}

// planTogether draws the distances between clients and nodes, which nodes do not answer, and
// since when.
func (w *world) planTogether() {
	c := &w.config
	apart := []time.Duration{0, c.terms.Timeout / 20, c.terms.Timeout / 3}[w.rng.IntN(3)]
	for i := range c.clients {
		w.schedule(c.instant+w.upTo(c.latency), &event{kind: evCall, client: int8(i), node: -1})
		for k := range w.p.Nodes {
			by := w.upTo(apart)
			for way := range directions {
				w.links[i][k][way].far, w.links[i][k][way].by = c.faults, by
			}
		}
	}
	silent := w.rng.IntN(w.p.Nodes - quorum.Size(w.p.Nodes) + 1)
	for _, k := range w.rng.Perm(w.p.Nodes)[:silent] {
		at := c.instant - w.upTo(c.terms.TTL/2)
		if w.rng.IntN(4) == 0 {
			at = c.instant // and no client knows it yet
		}
		e := event{kind: evStall, client: -1, node: int8(k), duration: c.faults}
		if w.rng.IntN(2) == 0 {
			e.kind = evDown
		}
		w.schedule(at, &e)
	}
	w.schedule(c.instant+2*c.terms.TTL, &event{kind: evVerdict, client: -1, node: -1})
}

func (w *world) planClient(i int8) {
	c := &w.config
	ttl := c.terms.TTL
	file := func(every time.Duration, k kind, duration func() time.Duration) {
		w.again(every, func(at time.Duration) {
			w.schedule(at, &event{kind: k, client: i, node: -1, duration: duration()})
		})
	}
	file(c.everyPause, evPause, func() time.Duration { return w.skewed(5 * ttl) })
	file(c.everyCrash, evCrash, func() time.Duration { return w.skewed(3 * ttl) })
	file(c.everyQuit, evQuit, func() time.Duration { return w.skewed(3 * ttl) })
	file(c.everyBlind, evBlind, func() time.Duration { return w.skewed(8 * ttl) })
	file(c.everyJump, evStep, func() time.Duration {
		ahead, behind := w.skewed(6*ttl), w.skewed(6*ttl)
		by := ahead - behind
		if w.rng.IntN(8) == 0 {
			by += time.Hour
		}
		return by
	})
}

func (w *world) planLink(i, k int8) {
	c := &w.config
	ttl := c.terms.TTL
	w.again(c.everyCut, func(at time.Duration) {
		w.schedule(at, &event{
			kind: evCut, client: i, node: k, duration: w.skewed(3 * ttl), oneWay: w.rng.IntN(3) == 0,
		})
	})
	w.again(c.everyDistance, func(at time.Duration) {
		w.schedule(at, &event{kind: evDistance, client: i, node: k, duration: w.skewed(8 * ttl)})
	})
	w.again(c.everyCheck, func(at time.Duration) {
		w.schedule(at, &event{kind: evRedial, client: i, node: k})
	})
}

// planNode draws the faults of node i, and reports whether its clock is never
// set back.
func (w *world) planNode(i int8) (ahead bool) {
	c := &w.config
	ttl := c.terms.TTL
	file := func(every time.Duration, k kind, duration func() time.Duration) {
		w.again(every, func(at time.Duration) {
			w.schedule(at, &event{kind: k, client: -1, node: i, duration: duration()})
		})
	}
	back := w.p.World == Stepped && w.rng.IntN(3) == 0
	w.again(c.everyDown, func(at time.Duration) {
		e := event{kind: evDown, client: -1, node: i, duration: w.skewed(3 * ttl)}
		if c.amnesia {
			e.finds = loss(w.rng.IntN(3))
		}
		w.schedule(at, &e)
		if e.finds == truncated {
			w.schedule(max(0, at-w.skewed(3*ttl)), &event{kind: evSave, client: -1, node: i})
		}
	})
	file(c.everyFlush, evFlush, func() time.Duration { return 0 })
	file(c.everyStall, evStall, func() time.Duration { return w.skewed(2 * ttl) })
	file(c.everyFreeze, evFreeze, func() time.Duration { return w.skewed(2 * ttl) })
	file(c.everyTrim, evTrim, func() time.Duration {
		if w.rng.IntN(2) == 0 {
			return 0
		}
		return 1 + w.skewed(2*ttl)
	})
	file(c.everyStep, evStep, func() time.Duration {
		if w.p.World != Stepped {
			return w.upTo(2*c.step+1) - c.step
		}
		if back {
			return -w.farAhead()
		}
		return w.farAhead()
	})
	file(c.everyBlip, evBlip, func() time.Duration { return w.upTo(2 * ttl) })
	return !back
}

// farAhead returns a step that jumps past the end of every key.
func (w *world) farAhead() time.Duration {
	ttl := w.config.terms.TTL
	by := 2*ttl + w.upTo(10*ttl)
	if w.rng.IntN(8) == 0 {
		by += time.Hour
	}
	return by
}

// step moves a wall clock. Each step of a node's clock replaces the one before, except in the world Stepped.
func (w *world) step(e *event) {
	if e.client >= 0 {
		w.clients[e.client].jump(e.duration)
		return
	}
	if w.p.World == Stepped {
		w.stepAhead(int(e.node), e.duration)
		return
	}
	w.stats[Steps]++
	n := &w.nodes[e.node]
	n.jumped = true
	drifted := n.clock.read(w.now) - n.clock.offset - w.now
	n.clock.offset = epoch + e.duration - drifted
	w.trace("clock of node %d is off by %v", e.node, e.duration)
}

// blip moves the clock of a node ahead, and back before a client reads it.
func blip(w *world, e *event) {
	w.stats[Steps]++
	n := &w.nodes[e.node]
	n.expire(n.clock.read(w.now) + e.duration)
	w.trace("clock of node %d jumps ahead by %v and back", e.node, e.duration)
}

// stepAhead moves the clock of a node, if every client knows that clock.
func (w *world) stepAhead(node int, by time.Duration) {
	if !w.watched(node) {
		return
	}
	w.stats[Steps]++
	n := &w.nodes[node]
	n.jumped = true
	n.clock.offset += by
	w.trace("clock of node %d steps by %v", node, by)
}

// commonStep moves the clock of one host: the clock of a client and of the nodes on the
// same host.
func (w *world) commonStep(e *event) {
	w.stats[CommonSteps]++
	for i := range w.p.Nodes {
		if e.t&(1<<i) != 0 {
			w.stepAhead(i, e.duration)
		}
	}
	w.clients[e.client].jump(e.duration)
}

// watched reports whether every client knows the clock of a node.
func (w *world) watched(node int) bool {
	for i := range w.config.clients {
		if !w.clients[i].known[node].offset.Known() {
			return false
		}
	}
	return true
}

// observe drives the observer. It polls until the faults stop.
func observe(w *world, e *event) {
	o := &w.observer
	show := func(i int) sighted { return shows(w, i) }
	switch n := max(e.node, 0); e.kind {
	case evPoll:
		for i, at := range o.begin(w.now, show) {
			if at >= 0 && i < w.p.Nodes {
				w.schedule(at, &event{kind: evLook, client: -1, node: int8(i)})
			}
		}
		w.schedule(w.now+w.config.terms.Timeout, &event{kind: evSeen, client: -1, node: -1})
	case evLook:
		if node := &w.nodes[n]; !node.down && w.now >= node.stalled {
			o.look(int(n), w.now, show(int(n)))
		}
	default:
		w.judge.seen(o, show)
		if !w.quiet {
			w.schedule(w.now+w.config.terms.Timeout, &event{kind: evPoll, client: -1, node: -1})
		}
	}
}

// operate drives the operator, who revokes leases until the faults stop.
func operate(w *world, e *event) {
	o := &w.operator
	switch e.kind {
	case evRevoke:
		if w.quiet {
			return
		}
		again := event{kind: evRevoke, client: -1, node: -1}
		answers := func(i int) sighted {
			if w.nodes[i].down {
				return sighted{}
			}
			return shows(w, i)
		}
		o.began = w.now
		if !o.reads(w.p.Nodes, answers) {
			w.schedule(w.now+w.config.terms.TTL/4, &again)
			return
		}
		beginMarks(w)
		w.schedule(w.now+8*w.config.terms.TTL+o.upTo(w.config.terms.TTL), &again)
	case evMark:
		markLock(w, &w.nodes[e.node], e)
	case evMarked:
		switch at, known, repeat := o.until(w.now); {
		case known:
			w.stats[Revocations]++
			w.trace("the lease of owner %d was revoked, and is over in %v", o.owner, at-w.now)
			over := event{kind: evRevoked, client: -1, node: -1}
			over.owner, over.issued = o.owner, o.began
			w.schedule(at, &over)
			if one := w.handles.find(o.owner); one != nil {
				w.handles.ended(w, one, wasRevoked)
			}
		case repeat && !w.quiet:
			w.stats[MoreRounds]++
			beginMarks(w)
		}
	default:
		for i := range w.config.clients {
			c := &w.clients[i]
			hit := c.owner == e.owner || c.reads && e.owner == everybody && c.started < e.issued
			if !hit || c.phase != holding {
				continue
			}
			if left := time.Duration(c.machine.Stop()) - c.now(); left > 0 {
				w.judge.violated("revocation", "client %d has a lease for %v more, as owner %d, whose lease was revoked and is over", c.id, left, c.owner)
			}
		}
	}
}

// beginMarks sends the requests of a round.
func beginMarks(w *world) {
	o := &w.operator
	for i, at := range o.begin(w.now, w.p.Nodes) {
		if i < w.p.Nodes && at >= 0 {
			mark := event{kind: evMark, client: -1, node: int8(i), duration: o.life}
			mark.owner, mark.issued = o.owner, w.now
			w.schedule(at, &mark)
		}
	}
	w.schedule(w.now+2*o.timeout, &event{kind: evMarked, client: -1, node: -1})
}

// markLock runs the operation mark on a node, unless it is void.
func markLock(w *world, n *node, e *event) {
	if w.now < n.stalled {
		w.schedule(n.stalled, e)
		return
	}
	wall := n.clock.read(w.now)
	if n.expire(wall); n.down || w.now > e.issued+w.operator.timeout || !canMark(n, e.owner, wall) {
		return
	}
	w.stats[Marks]++
	left := time.Duration(n.expires)*time.Millisecond - wall.Truncate(time.Millisecond)
	already := n.form == revokedForm
	revokeLock(n, wall, e.duration)
	w.trace("node %d marks the lock of owner %d, which had %v to live", n.id, n.owner, left)
	if w.bugs.has(RevokeDeletes) {
		n.unlock()
	}
	if w.operator.owner == e.owner {
		w.operator.marked(int(n.id), w.now, left, already)
	}
}

// canMark reports whether the lock is the owner's. One of readers that only waits for them is not theirs.
func canMark(n *node, owner uint32, wall time.Duration) bool {
	return n.owner == owner && !n.reserved && (!shared(n) || n.set.reads(wall))
}

// revokeLock marks the lock, which lives on for a while.
func revokeLock(n *node, wall, life time.Duration) {
	n.form, n.expires = revokedForm, max(n.expires, (wall+life).Milliseconds())
}

// shows returns what a read of a node would show now.
func shows(w *world, i int) sighted {
	n := &w.nodes[i]
	wall := n.clock.read(w.now)
	left := time.Duration(n.expires)*time.Millisecond - wall.Truncate(time.Millisecond)
	if !n.locked() || left <= 0 {
		return sighted{}
	}
	shown := n.shown
	if n.owner == everybody && n.base <= wall.Microseconds() { // the end of a quarantine is above that
		shown = max(n.register, n.base) + 1
	}
	return sighted{n.owner, shown, left}
}
