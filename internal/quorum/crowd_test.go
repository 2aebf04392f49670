package quorum_test

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file is a small world for waiters: nodes with one lock and its queue, processes
// that drive Local, Waiter and HandOff as a Manager does, and clients without queues.
// Time is virtual, messages do not overtake each other, and nothing fails unless a test
// makes it fail. (internal/sim has the faults, and the safety of the lock itself.)

const lockTTL = 10 * time.Second

// crowd is the world.
type crowd struct {
	now    time.Duration
	rng    *rand.Rand
	events timeline
	nodes  []*lockNode
	procs  []*process
	owner  int // the last one in use
	noWake func() bool
}

func newCrowd(seed uint64, nodes int) *crowd {
	w := &crowd{rng: rand.New(rand.NewPCG(seed, 1)), now: time.Second}
	for i := range nodes {
		w.nodes = append(w.nodes, &lockNode{w: w, id: i})
	}
	return w
}

// timeline is a heap of events, ordered by their instants.
type timeline []happening

type happening struct {
	at    time.Duration
	order int
	do    func()
}

func (t timeline) Len() int { return len(t) }
func (t timeline) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].order < t[j].order
}
func (t timeline) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timeline) Push(x any)   { *t = append(*t, x.(happening)) }
func (t *timeline) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = old[:len(old)-1]
	return last
}

func (w *crowd) at(at time.Duration, do func()) {
	w.owner++
	heap.Push(&w.events, happening{max(at, w.now), w.owner, do})
}

// run advances the time by d.
func (w *crowd) run(d time.Duration) {
	end := w.now + d
	for len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(happening)
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *crowd) number() int { w.owner++; return w.owner }

func (w *crowd) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d) + 1))
}

// ticket is an entry of a queue.
type ticket struct {
	id    int
	at    time.Duration
	p     *process
	grace time.Duration
}

// lockNode is a node.
type lockNode struct {
	w        *crowd
	id       int
	owner    int // of the lease; 0 for none
	stranger bool
	reserved *ticket
	expires  time.Duration
	queue    []*ticket
	calls    int // operations carried out
	emptied  int // times the queue was emptied
}

func (n *lockNode) free() bool {
	if n.now() >= n.expires {
		n.owner, n.reserved, n.stranger = 0, nil, false
	}
	return n.owner == 0 && n.reserved == nil
}

func (n *lockNode) now() time.Duration { return n.w.now }

func (n *lockNode) position(id int) int {
	return slices.IndexFunc(n.queue, func(t *ticket) bool { return t.id == id })
}

func (n *lockNode) enqueue(t *ticket) {
	if t == nil || n.position(t.id) >= 0 {
		return
	}
	i := len(n.queue)
	for i > 0 && n.queue[i-1].at > t.at {
		i--
	}
	n.queue = slices.Insert(n.queue, i, t)
}

func (n *lockNode) dequeue(t *ticket) {
	if t != nil {
		n.queue = slices.DeleteFunc(n.queue, func(other *ticket) bool { return other.id == t.id })
	}
}

// serve reserves the free lock for the head of the queue.
func (n *lockNode) serve(me *ticket) *ticket {
	if len(n.queue) == 0 {
		return nil
	}
	head := n.queue[0]
	n.queue = n.queue[1:]
	if head == me {
		return me
	}
	n.reserved, n.expires = head, n.now()+head.grace
	n.wake(head, quorum.WakeReserved)
	if len(n.queue) > 0 && n.queue[0] != me {
		n.wake(n.queue[0], quorum.WakeNext)
	}
	return head
}

func (n *lockNode) wake(t *ticket, what quorum.WakeUp) {
	if n.w.noWake != nil && n.w.noWake() {
		return
	}
	n.w.at(t.p.travel(wakeUps(n.id)), func() { t.p.wake(n.id, t, what) })
}

// answer is the answer of a node.
type answer struct {
	granted  bool
	late     bool
	refusal  quorum.Refusal
	waiting  int     // tickets in the queue
	reserved *ticket // the ticket for which a release has reserved the lock
}

func (n *lockNode) acquire(owner int, t *ticket, lapsed bool, notAfter time.Duration) answer {
	n.calls++
	if !n.free() && (n.reserved == nil || n.reserved != t) {
		return n.refuse(t)
	}
	if n.now() > notAfter {
		return answer{late: true}
	}
	if n.reserved == nil && len(n.queue) > 0 {
		if lapsed {
			for _, other := range n.queue {
				if other != t {
					n.wake(other, quorum.WakeAskAgain)
				}
			}
			n.queue = nil
			n.emptied++
		} else {
			n.enqueue(t)
			if n.serve(t) != t || t == nil {
				return n.refuse(t)
			}
		}
	}
	n.dequeue(t)
	n.owner, n.reserved, n.stranger, n.expires = owner, nil, false, n.now()+lockTTL
	return answer{granted: true, waiting: len(n.queue)}
}

func (n *lockNode) refuse(t *ticket) answer {
	r := quorum.Refusal{
		Node: n.id, Left: n.expires - n.now(), Position: -1, Reserved: n.reserved != nil, Stranger: n.stranger,
	}
	if t != nil {
		n.enqueue(t)
		r.Position = n.position(t.id)
	}
	return answer{refusal: r}
}

// release releases a lock.
func (n *lockNode) release(owner int, t *ticket, update quorum.TicketUpdate, carried *ticket, leaveFree bool) answer {
	n.calls++
	if !n.free() && n.owner == owner {
		n.owner, n.expires = 0, 0
	}
	if update == quorum.TicketKeep && n.reserved != t {
		n.enqueue(t)
	} else if update == quorum.TicketYield || update == quorum.TicketLeave {
		n.dequeue(t)
	}
	if update == quorum.TicketLeave && t != nil && n.reserved == t {
		n.reserved, n.expires = nil, 0
	}
	n.enqueue(carried)
	var a answer
	if n.free() && len(n.queue) > 0 {
		if leaveFree {
			a.reserved = n.queue[0]
			n.wake(n.queue[0], quorum.WakeReserved)
		} else {
			a.reserved = n.serve(nil)
		}
	}
	if update == quorum.TicketYield && n.reserved != t {
		n.enqueue(t)
	}
	return a
}

func (n *lockNode) passOn(t *ticket) {
	n.calls++
	if !n.free() && n.reserved == t {
		n.reserved, n.expires = nil, 0
		n.serve(nil)
	}
}

// passOnLapsed empties the queue of a free lock.
func (n *lockNode) passOnLapsed() bool {
	n.calls++
	if !n.free() || len(n.queue) == 0 {
		return false
	}
	for _, t := range n.queue {
		n.wake(t, quorum.WakeAskAgain)
	}
	n.queue = nil
	n.emptied++
	return true
}

// stranger is a client without queues: SET NX on each node, then DEL.
type stranger struct {
	w      *crowd
	trip   time.Duration
	hold   time.Duration
	delay  func() time.Duration
	grants int
}

func (s *stranger) ask() {
	w, owner := s.w, s.w.number()
	var got []*lockNode
	w.at(w.now+s.trip/2, func() {
		for _, n := range w.nodes {
			n.calls++
			if n.free() {
				n.owner, n.stranger, n.expires = owner, true, w.now+lockTTL
				got = append(got, n)
			}
		}
		end := w.now + s.trip/2
		if len(got) >= quorum.Size(len(w.nodes)) {
			s.grants++
			end += s.hold
		}
		w.at(end+s.trip/2, func() {
			for _, n := range got {
				if n.owner == owner {
					n.owner, n.stranger, n.expires = 0, false, 0
				}
			}
			w.at(w.now+s.trip/2+s.delay(), s.ask)
		})
	})
}
