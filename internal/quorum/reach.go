package quorum

import "time"

// The reach of a process is how long it takes to use a reservation: a round trip to the
// nodes, and the time by which it is late because its CPU is throttled or its host is busy.

const (
	// MinGrace is the shortest time for which a node reserves a lock for the waiter that it
	// has woken.
	MinGrace = 20 * time.Millisecond
	// MaxGrace is the longest such time: a ticket has three digits for it.
	MaxGrace = 999 * time.Millisecond
)

// Grace returns how long the nodes are to reserve a lock for a process. It is four times the
// process's reach, and at most the node timeout: a process that needs longer gets no answer
// in time either, and stays out of the queues (see Waiter.Unanswered).
func Grace(trip, late, timeout time.Duration) time.Duration {
	return min(max(4*(trip+late), MinGrace), timeout, MaxGrace)
}

// NodeTimeout returns how long a node may take to answer unless the user says so: a tenth of the TTL, within 20 ms and
// half a second. A far client has up to a second, because its request may wait for the answer to the previous request,
// and is then answered after two round trips.
func NodeTimeout(ttl, trip time.Duration) time.Duration {
	most := max(500*time.Millisecond, min(5*trip/2, time.Second))
	return min(max(ttl/10, 20*time.Millisecond), most)
}

// Turn returns what a turn of a process costs all waiters, apart from the time for which it holds the lock: the way of
// the wake-up and of the request, of the answer and of the release. It is 0 for a near process, whose turns cost no
// more than other processes' turns, also after it has missed one reservation: any process stalls at times on a busy
// machine.
func Turn(trip, late time.Duration) time.Duration {
	if 4*trip <= MinGrace && late <= MinGrace/2 {
		return 0
	}
	return 5*trip/2 + 3*late
}

// LaterBy returns by how much a process is late after it has missed a reservation of a grace.
func LaterBy(late, grace time.Duration) time.Duration { return min(late+grace/2, MaxGrace) }

// EarlierBy returns by how much a process is late after it has used a reservation.
func EarlierBy(late time.Duration) time.Duration {
	if late < time.Millisecond {
		return 0
	}
	return late - late/16
}
