package sim

import "time"

// waiting is one who stands in the queue of a node.
type waiting struct {
	place  int64
	ticket uint32
	life   uint32
	client int8
}

// maxQueue bounds the queue of a node: all clients, and as many that are gone
// and were not found to be yet. Who finds it full is not in it.
const maxQueue = 2 * maxClients

// rank returns how many are before a ticket, -1 if it is not in the queue.
func (n *node) rank(ticket uint32) int64 {
	for i := range n.queued {
		if n.queue[i].ticket == ticket {
			return int64(i)
		}
	}
	return -1
}

// enqueue puts whoever asks into the queue, once, and reports whether it waits.
func (n *node) enqueue(m *message) bool {
	if m.ticket == 0 || m.op == acquire && !m.hears {
		return false
	}
	if n.rank(m.ticket) >= 0 || n.queued == maxQueue {
		return true
	}
	i := n.queued
	n.queued++
	for ; i > 0 && n.queue[i-1].place > m.place; i-- {
		n.queue[i] = n.queue[i-1]
	}
	n.queue[i] = waiting{place: m.place, ticket: m.ticket, life: m.life, client: m.client}
	return true
}

func (n *node) dequeue(ticket uint32) {
	if i := n.rank(ticket); i >= 0 {
		copy(n.queue[i:n.queued], n.queue[i+1:n.queued])
		n.queued--
	}
}

// give keeps the lock, which is free, for the first in the queue, and tells it. me
// is here and need not be told. Returns its ticket, 0 when nobody waits.
func (n *node) give(me uint32, wall time.Duration) uint32 {
	w := n.w
	for n.queued > 0 {
		first := n.queue[0]
		if w.bugs.has(LastFirst) {
			first = n.queue[n.queued-1]
		}
		n.dequeue(first.ticket)
		if first.ticket == me {
			return me
		}
		if !n.reaches(&first) {
			continue
		}
		w.stats.Kept++
		n.owner, n.kept, n.counter = first.ticket, true, 0
		if w.bugs.has(PassOnUndoes) {
			n.counter = n.fence
		}
		n.gave = first.ticket
		grace := w.config.grace
		if w.bugs.has(KeptForEver) {
			grace = 1000 * time.Hour
		}
		n.expires = (wall + grace).Milliseconds()
		n.tell(&first, kept)
		if n.queued > 0 && n.queue[0].ticket != me {
			n.tell(&n.queue[0], missing)
		}
		return first.ticket
	}
	return 0
}

// tell tells whoever waits that the lock is kept for it, or for the one before it.
func (n *node) tell(v *waiting, what answer) {
	n.w.transmit(&message{
		op: told, answer: what, reply: true, client: v.client, node: n.id, life: v.life, line: n.line, ticket: v.ticket,
	})
}

// reaches reports whether somebody seems to listen, who need not be the one who
// waits: a connection may be broken, or have been taken for one that stands.
func (n *node) reaches(v *waiting) bool {
	there := n.w.clients[v.client].life == v.life
	if !n.w.quiet && n.w.rng.IntN(1000) < n.w.config.deaf {
		return !there
	}
	return there
}
