package sim

import "time"

// waiting is a ticket in the queue of a node.
type waiting struct {
	enqueuedAt int64
	ticket     uint32
	life       uint32
	client     int8
	limit      int8 // of its client, if it waits for a permit
	reads      bool
}

// maxQueue bounds the queue of a node. It leaves room for all clients and for as many
// tickets of dead clients that were not yet detected. A full queue accepts no ticket.
const maxQueue = 2 * maxClients

// rank returns the number of tickets before a ticket, or -1 if the ticket is not in the
// queue.
func (n *node) rank(ticket uint32) int64 {
	for i := range n.queued {
		if n.queue[i].ticket == ticket {
			return int64(i)
		}
	}
	return -1
}

// enqueue puts the ticket of m into the queue, once, and reports whether the ticket may
// wait.
func (n *node) enqueue(m *message) bool {
	if m.ticket == 0 || !m.subscribed {
		return false
	}
	if n.rank(m.ticket) >= 0 || n.queued == maxQueue {
		return true
	}
	i := n.queued
	n.queued++
	for ; i > 0 && n.queue[i-1].enqueuedAt > m.enqueuedAt; i-- {
		n.queue[i] = n.queue[i-1]
	}
	n.queue[i] = waiting{enqueuedAt: m.enqueuedAt, ticket: m.ticket, life: m.life, client: m.client, limit: m.limit, reads: m.op&reads != 0}
	return true
}

func (n *node) dequeue(ticket uint32) {
	if i := n.rank(ticket); i >= 0 {
		copy(n.queue[i:n.queued], n.queue[i+1:n.queued])
		n.queued--
	}
}

// reserve reserves the free lock for the head of the queue, and wakes its client. The
// sender of the current request has the ticket me and needs no wake-up. reserve returns
// the ticket of the head, or 0 if the queue is empty.
func (n *node) reserve(me uint32, wall time.Duration) uint32 {
	w := n.w
	for n.queued > 0 {
		head := n.queue[0]
		if w.bugs.has(LastFirst) {
			head = n.queue[n.queued-1]
		}
		if head.reads {
			if first := admit(n, wall); first != 0 {
				return first
			}
			continue
		}
		n.dequeue(head.ticket)
		if head.ticket == me {
			return me
		}
		if !n.subscribed(&head) {
			continue
		}
		w.stats[Reservations]++
		n.owner, n.reserved, n.shown = head.ticket, true, 0
		n.reservedFor, n.reservedClient = head.ticket, head.client
		grace := w.config.grace
		if w.bugs.has(ReservedForEver) {
			grace = 1000 * time.Hour
		}
		n.expires = (wall + grace).Milliseconds()
		n.wake(&head, forTicket, 0)
		n.watch(&head, me, wall)
		return head.ticket
	}
	return 0
}

// watch wakes tickets behind the head, further and further back. It wakes the second each time, and the others after 20
// ms or when the head has come to the middle one of them.
func (n *node) watch(head *waiting, me uint32, wall time.Duration) {
	if n.queued == 0 {
		return
	}
	n.wakeNext(0, 1, me)
	if n.watchedUntil > wall && head.enqueuedAt < n.watched {
		return
	}
	var places [maxQueue]int64
	woken, last := 0, n.queued-1
	for at := 0; at < last; woken++ {
		at = min(2*at+1, last)
		n.wakeNext(at, woken+2, me)
		places[woken] = n.queue[at].enqueuedAt
	}
	if woken > 0 {
		n.watched, n.watchedUntil = places[woken/2], wall+20*time.Millisecond
	}
}

// wakeNext wakes the ticket at a position of the queue, unless it is me.
func (n *node) wakeNext(at, rank int, me uint32) {
	if v := &n.queue[at]; v.ticket != me {
		n.wake(v, forNext, int8(rank))
	}
}

// clearQueue deletes the queue, because a reservation has lapsed. Otherwise each ticket
// of a dead client would cost a grace. The live clients ask again.
func (n *node) clearQueue(me uint32) {
	n.w.stats[QueuesCleared]++
	for i := range n.queued {
		if n.queue[i].ticket != me {
			n.wake(&n.queue[i], askAgain, 0)
		}
	}
	n.queued = 0
}

// wake publishes a wake-up to the client of a ticket.
func (n *node) wake(v *waiting, what answer, rank int8) {
	n.w.transmit(&message{
		op: opWake, answer: what, reply: true, client: v.client, node: n.id, life: v.life, line: n.line, ticket: v.ticket, rank: rank,
	}, 0)
}

// wakeFor tells a client that it is let in, and names a slot that is free.
func wakeFor(n *node, v *waiting, slot int8) {
	n.w.transmit(&message{
		op: opWake, answer: forTicket, reply: true, client: v.client, node: n.id, life: v.life, line: n.line, ticket: v.ticket,
		ofSlot: ofSlot{slot: slot},
	}, 0)
}

// subscribed reports whether the channel of a ticket seems to have a subscriber. The
// answer may be wrong for the waiting client: the node may take a broken connection for
// an open one.
func (n *node) subscribed(v *waiting) bool {
	there := n.w.clients[v.client].life == v.life
	if !n.w.quiet && n.w.rng.IntN(1000) < n.w.config.unsubscribed {
		return !there
	}
	return there
}
