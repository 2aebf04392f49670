package wire

// WakeKind is the kind of message that a node publishes to the Manager of a waiter.
type WakeKind byte

const (
	// WakeReserved means that the node reserves the lock for the ticket.
	WakeReserved WakeKind = 'r'
	// WakeFree means that the lock is free, without a reservation, and the ticket is the head
	// of the queue.
	WakeFree WakeKind = 'f'
	// WakeNext and the eight kinds after it mean that the node reserves the lock for another
	// ticket, and that this one is the first, the second … of those that may ask if the
	// reservation is not used; see Rank.
	WakeNext WakeKind = '1'
	// WakeAskAgain means that the node has emptied the queue. Waiters that ask again get
	// their places back.
	WakeAskAgain WakeKind = 'a'
	// WakePing means nothing: the node asks whether the process of the ticket is there.
	WakePing WakeKind = 'p'
)

// Rank returns which of the waiters behind the head is woken, from 1 to 9; 0 for a message of
// another kind.
func (k WakeKind) Rank() int {
	if k < WakeNext || k > WakeNext+8 {
		return 0
	}
	return int(k-WakeNext) + 1
}
