package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// lapses has, for each node, the instant at which its reservation for another waiter ends:
// 0 if the node has none. It is nil until a node has one, because most waiters never meet a
// reservation. An attempt that begins later than such an instant reports it (Ask.Lapsed).
type lapses []clock.Validity

// endsBy records that the reservation of a node ends at an instant, unless an earlier end is
// known.
func (l *lapses) endsBy(nodes, node int, at clock.Validity) {
	if *l == nil {
		*l = make(lapses, nodes)
	}
	if ends := *l; ends[node] == 0 || at < ends[node] {
		ends[node] = at
	}
}

// moves records that the queue of a node moves.
func (l lapses) moves(node int) {
	if l != nil {
		l[node] = 0
	}
}

// refused records the end of each reservation that has refused an attempt. A node whose
// refusal came from a lease has no reservation. If that node has sent WakeNext since,
// the next attempt finds this waiter at the head.
func (l *lapses) refused(nodes int, now clock.Validity, refusals []Refusal) {
	for _, r := range refusals {
		if r.Reserved && r.Left != Endless {
			l.endsBy(nodes, r.Node, now.Add(r.Left+time.Millisecond))
		} else {
			l.moves(r.Node)
		}
	}
}

// reached returns the nodes whose reservation for another waiter has ended without a sign
// that the queue moves. Each node counts separately: on another node the lock may be
// free because the head there has just released it to try again.
func (l lapses) reached(now clock.Validity) (nodes Set) {
	for i, at := range l {
		if at != 0 && now >= at {
			nodes = nodes.With(i)
		}
	}
	return nodes
}
