package sim

import "time"

// A node may be a failover group: a master, and replicas of which one may take its place. A term is a stretch in which
// one server is the master. A new master may lack the last writes of the term before, and the old one may continue to
// confirm for a while.

// server is one Redis process.
type server struct {
	data
	clock   simClock
	run     uint32        // the run_id
	stalled time.Duration // until this true time
	busy    time.Duration // until this true time, with earlier requests
	freeze  time.Duration // how long the next script stalls
	half    halfMove
}

// term names a stretch in which one server of a group is the master.
type term struct {
	server int8
	epoch  uint32 // it grows with every term
}

// maxServers bounds the servers of a group.
const maxServers = 3

// member is a server of a group.
type member struct {
	server
	broken uint32        // connections up to this number have ended
	dead   time.Duration // until this true time the server does not run

	// Of a master that was replaced. Requests that were sent before the fence, in true
	// time, are still confirmed. From rejoins on the server says that it is a replica.
	fence, rejoins time.Duration
}

// group is the servers of a node. A node without a group has size 0.
type group struct {
	members [maxServers]member
	size    int8
	in      int8 // the member whose state is in the node
	current term // the latest
	named   term // as named by the majority that chooses the master
	before  term // as it named before
	namedAt time.Duration
	lines   uint32 // connections so far
}

// failoverTime is the least time from the instant at which a majority names a master to
// the next failover. The time for which a client may trust an earlier answer of that
// majority is shorter, see failover.ConfirmedFor.
const failoverTime = 2 * time.Second

// formGroup makes a node a group.
func (n *node) formGroup(clock func() simClock) {
	w, g := n.w, &n.group
	g.size = int8(2 + w.rng.IntN(maxServers-1))
	g.current.epoch, g.named.epoch, g.before.epoch = 1, 1, 1
	if w.config.known {
		n.marker.epoch = 1
	}
	for k := 1; k < int(g.size); k++ {
		w.runs++
		g.members[k].clock, g.members[k].run = clock(), w.runs
	}
}

// use puts the state of a member into the node. Outside of receive it is the master's.
func (n *node) use(k int8) {
	g := &n.group
	g.members[g.in].server = n.server
	g.in, n.server = k, g.members[k].server
}

// breakLines ends the connections to the server in use.
func (n *node) breakLines() {
	n.line++
	if g := &n.group; g.size > 0 {
		g.members[g.in].broken = g.lines
	}
}

// receive handles a request to a server of the node.
func (n *node) receive(e *event) {
	if n.group.size == 0 {
		n.serve(e)
		return
	}
	n.use(e.server)
	if n.w.now < n.stalled || n.accepts(&e.message) {
		n.serve(e)
	}
	n.use(n.group.current.server)
}

// accepts reports whether a request of a group's client reaches the script. If not, the
// client may get an answer that says so.
func (n *node) accepts(m *message) bool {
	w := n.w
	s, c := &n.group.members[m.server], &w.clients[m.client]
	why := notMaster
	switch {
	case c.life == m.life && c.known[n.id].conn.line != m.line:
		return false // the client has reset the connection
	case m.line <= s.broken, w.now < s.dead:
		if w.rng.IntN(2) == 0 {
			return false
		}
	case m.server == n.group.current.server, m.issued < s.fence && w.now < s.rejoins:
		return true
	case w.now < s.rejoins:
		// Too few replicas to write, or no way to the client.
		if why = notConnected; w.rng.IntN(2) == 0 {
			return false
		}
	}
	if m.step == 0 {
		n.answer(m, why, 0)
	}
	return false
}

// failoverKind is the reason of a failover.
type failoverKind uint8

const (
	crashed failoverKind = iota // the old master is down
	split                       // the old master continues without its replicas, up to its fence
	frozen                      // and it stalls for a time
	planned                     // the new master has all data
	failoverKinds
)

var failoverNames = [failoverKinds]string{"crash", "split", "freeze", "planned"}

// succession is a change of a group's master.
type succession struct {
	kind    failoverKind
	to      int8
	keeps   bool          // the new master has its own old data, and no copy
	empties bool          // crashed: the old master's data is lost
	kills   bool          // planned: the connections to the old master end
	lag     time.Duration // how old the new master's copy is
	fence   time.Duration // how long the old master continues to confirm
	named   time.Duration // when a majority names the new master
	rejoins time.Duration // when the old master becomes a replica
}

// planFailovers draws the failovers of a group.
func (w *world) planFailovers(i int8) {
	c, g := &w.config, &w.nodes[i].group
	last, master := int8(1), int8(0)
	w.failovers[i] = w.failovers[i][:0]
	for at := w.upTo(c.everyFailover); at < c.faults; {
		f := w.drawFailover()
		f.to = int8(w.rng.IntN(int(g.size)))
		if f.to == master || w.rng.IntN(2) == 0 {
			f.to = last // the first time a server that was never the master
		}
		last, master = master, f.to
		e := event{kind: evFailover, client: -1, node: i}
		e.t = int64(len(w.failovers[i]))
		w.failovers[i] = append(w.failovers[i], f)
		if !f.keeps && f.kind != planned {
			w.schedule(max(0, at-f.lag), &event{kind: evCopy, client: -1, node: i, caller: f.to})
		}
		w.schedule(at, &e)
		at += f.named + failoverTime + w.skewed(2*c.everyFailover)
	}
}

func (w *world) drawFailover() succession {
	c := &w.config
	ttl := c.terms.TTL
	f := succession{
		kind:  failoverKind(w.rng.IntN(int(failoverKinds))),
		keeps: w.rng.IntN(3) == 0, empties: w.rng.IntN(2) == 0, kills: w.rng.IntN(2) == 0,
		lag: w.skewed([]time.Duration{10 * time.Millisecond, ttl / 4, 2 * ttl}[w.rng.IntN(3)]),
	}
	if w.rng.IntN(2) == 0 {
		f.named = w.skewed(failoverTime)
	}
	if f.kind == split || f.kind == frozen {
		f.fence = w.upTo(c.window + 4*ttl)
	}
	f.rejoins = f.fence + w.skewed(4*ttl)
	return f
}

// failover makes another server of a group the master.
func (w *world) failover(e *event) {
	n := &w.nodes[e.node]
	g, f := &n.group, &w.failovers[e.node][e.t]
	old, next := &g.members[g.current.server], &g.members[f.to]
	if n.down || f.to == g.current.server || w.now < next.dead || w.now < next.stalled {
		return
	}
	w.stats[Failovers]++
	old.fence, old.rejoins = w.now+f.fence, w.now+f.rejoins
	switch f.kind {
	case crashed:
		old.dead = old.rejoins
		n.breakLines()
		n.process()
		if f.empties {
			n.data = data{}
		}
	case split:
		w.stats[Splits]++
	case frozen:
		w.stats[GroupFreezes]++
		n.stalled = max(n.stalled, old.rejoins-w.upTo(f.rejoins+1))
	case planned:
		next.data = n.data
		if f.kills {
			n.breakLines()
		}
	}
	n.use(f.to)
	if n.marker.epoch > 0 && n.marker.run == n.run {
		w.stats[Flaps]++ // its own marker of an earlier term is still there
	}
	g.current = term{server: f.to, epoch: g.current.epoch + 1}
	n.jumped = true // the clock of the node is another one
	n.faulted()
	w.trace("node %d: %v, server %d is the master of term %d: marker %v, owner %d; the fence of the old one: %v",
		n.id, failoverNames[f.kind], f.to, g.current.epoch, n.marker, n.owner, f.fence)
	if old.broken == g.lines {
		w.redial(int(n.id))
	}
	named := event{kind: evNamed, client: -1, node: n.id}
	named.t = int64(g.current.epoch)
	w.schedule(w.now+f.named, &named)
}

// replicate gives a replica the master's present data. An old master keeps its own until
// it is a replica.
func (n *node) replicate(to int8) {
	if g := &n.group; to != g.current.server && n.w.now >= g.members[to].rejoins {
		g.members[to].data = n.data
	}
}

// name makes the current term the one that a majority names.
func (n *node) name(epoch int64) {
	if g := &n.group; int64(g.current.epoch) == epoch {
		g.before, g.named, g.namedAt = g.named, g.current, n.w.now
	}
}

// namedAgo returns the term that the majority named at an instant less than failoverTime ago.
func (g *group) namedAgo(at time.Duration) term {
	if at < g.namedAt {
		return g.before
	}
	return g.named
}

// repair ends the faults of a group.
func (n *node) repair() {
	g := &n.group
	g.before, g.named, g.namedAt = g.named, g.current, n.w.now
	for k := range g.members {
		m := &g.members[k]
		m.stalled, m.dead, m.fence, m.rejoins = 0, 0, 0, 0
	}
}
