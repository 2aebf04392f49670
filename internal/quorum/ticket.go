package quorum

// ticket is what a Waiter knows about its ticket in the queues of the nodes.
type ticket struct {
	subscribed Set  // nodes whose wake-ups arrive
	queued     Set  // nodes in whose queues the ticket may be
	earlier    Set  // the same when the attempt under way began
	cleared    Set  // nodes that have sent WakeAskAgain since the last attempt that they have answered began
	unheard    Set  // the same when the attempt under way began
	carried    bool // the attempt under way carries the ticket
}

// useful reports whether an attempt should carry the ticket. It should not before a quorum
// of nodes can wake the waiter: most Managers never meet contention and need no second
// connection to each node. A ticket that is in some queue is always carried: a node that
// reserves the lock for it refuses every other attempt.
func (t *ticket) useful(nodes int) bool {
	return t.queued != 0 || t.subscribed.Len() >= Size(nodes)
}

// begin records that an attempt begins.
func (t *ticket) begin(nodes int, carried bool) {
	t.carried, t.earlier, t.unheard, t.cleared = carried, t.queued, t.cleared, 0
	if carried {
		t.queued = All(nodes)
	}
}

// ended removes the nodes whose queues the failed attempt certainly did not enter. A node whose answer was not
// awaited, because the others had decided, may not have heard of it.
func (t *ticket) ended(r *AttemptResult) {
	if !t.carried {
		return
	}
	t.queued &^= r.Unqueued &^ t.earlier
	answered := r.Granted
	for _, refusal := range r.Refusals {
		answered = answered.With(refusal.Node)
		if refusal.Position < 0 {
			t.queued = t.queued.Without(refusal.Node)
		}
	}
	t.cleared |= t.unheard &^ answered
}

// forgotten reports whether fewer nodes than a quorum still have the ticket in their
// queues: then a wake-up may never arrive. While a quorum has the ticket, the next poll
// is soon enough for the other nodes, and not all waiters ask at once.
func (t *ticket) forgotten(nodes int) bool {
	return t.cleared != 0 && (t.queued&^t.cleared).Len() < Size(nodes)
}
