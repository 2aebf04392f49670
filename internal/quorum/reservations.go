package quorum

// reservations has the nodes that reserve the lock for the ticket of a Waiter. An attempt
// uses the reservations on which it begins. Those that arrive during it are for the next one.
type reservations struct {
	by     Set // nodes that have sent WakeReserved or WakeFree since the attempt began
	free   Set // of these, those that have sent WakeFree
	relied Set // nodes that had sent WakeReserved when the attempt began
}

// begin records that an attempt begins.
func (r *reservations) begin() {
	r.relied = r.by &^ r.free
	r.by, r.free = 0, 0
}

// add records that a node has sent WakeReserved, or WakeFree.
func (r *reservations) add(node int, free bool) {
	r.by = r.by.With(node)
	if free {
		r.free = r.free.With(node)
	} else {
		r.free = r.free.Without(node)
	}
}

// missed reports whether the attempt came too late for the reservations on which it began:
// each of those nodes has given the lock to another client in between. Fewer than a quorum of
// reservations show nothing, because the attempt before may have used them.
func (r *reservations) missed(nodes int, refusals []Refusal) bool {
	unused := r.relied
	for _, refusal := range refusals {
		if !refusal.LetIn {
			unused = unused.Without(refusal.Node)
		}
	}
	return r.relied.Len() >= Size(nodes) && unused == 0
}
