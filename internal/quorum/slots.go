package quorum

// slotTries is how many slots a call asks for one after the other before it waits: each refusal names
// another one that was free.
const slotTries = 4

// Slots chooses the slot for which a call for a permit asks. A wrong choice costs a round trip and
// nothing else, because a slot is an exclusive lease. It is not safe for concurrent use.
type Slots struct {
	order []int // the nodes, in an order that all clients have
	next  int   // the slot to ask for unless the nodes name another
	named []int // by node: the slot that its latest message names; -1 for none
	tries int   // since the call has waited
}

// NewSlots returns the choice of a call that asks for first if no node names another slot. order has the nodes in an
// order that is the same for all clients.
func NewSlots(order []int, first int) Slots {
	s := Slots{order: order, next: first, named: make([]int, len(order))}
	s.forget()
	return s
}

func (s *Slots) forget() {
	for i := range s.named {
		s.named[i] = -1
	}
}

// Named records that a node lets the call in, and names a slot. A node names different slots to waiters that it lets in
// together.
func (s *Slots) Named(node, slot int) { s.named[node] = slot }

// Begin returns the slot to ask for, after a wait.
func (s *Slots) Begin() int {
	if slot, ok := s.most(s.named); ok {
		s.next = slot
	}
	s.forget()
	s.tries = 1
	return s.next
}

// Refused records that the slot was refused. free has the slot that each node offers instead, -1 for
// none. It returns whether to ask for another slot at once, and for which.
func (s *Slots) Refused(free []int) (slot int, again bool) {
	slot, ok := s.most(free)
	if !ok || s.tries >= slotTries {
		return 0, false
	}
	s.next = slot
	s.tries++
	return slot, true
}

// most returns the slot that most nodes name. Of several, it is the slot of the first node: waiters that
// follow the same node ask for different slots.
func (s *Slots) most(named []int) (slot int, ok bool) {
	best := 0
	for _, i := range s.order {
		votes := 0
		for _, other := range named {
			if other == named[i] {
				votes++
			}
		}
		if named[i] >= 0 && votes > best {
			slot, best = named[i], votes
		}
	}
	return slot, best > 0
}
