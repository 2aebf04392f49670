package quorum

import "time"

const (
	// ReacquireDelay is how long a process that has handed a lock on does not ask for
	// it again: the answer is known, and the attempt would compete with the one that
	// takes the lock.
	ReacquireDelay = 2 * time.Millisecond
	// CheckAfter is how old the nodes' last word may be that nobody waits elsewhere,
	// and how long a hold is passed on inside the process while somebody does.
	CheckAfter = 5 * time.Millisecond
	// maxPasses is how often a hold is passed on while somebody waits elsewhere.
	maxPasses = 16
	// strangerMemory is for how long a client that knows no queues is taken to be
	// around after its lock was seen.
	strangerMemory = 10 * time.Minute
)

// CallerID names a caller inside its process. It is not zero.
type CallerID uint64

// Caller is a call that acquires.
type Caller struct {
	ID      CallerID
	Arrived time.Duration
	Terms   uint64 // equal for calls that may stand on the same hold: TTL, label, fencing, …
	Once    bool   // TryAcquire: does not wait
}

// Hold is what a process knows of a lock that it holds, when one of its leases on it
// ends.
type Hold struct {
	Tokens     int           // left in the block of tokens; any positive number without fencing
	Proven     bool          // q nodes have shown our owner and our t since the last doubt
	Useful     bool          // enough validity is left for another lease, and nothing else forbids one
	Others     int           // how many tickets wait elsewhere, as the nodes said last
	ToldAt     time.Duration // when their answers were there
	Subscribed bool          // a quorum of nodes can wake a waiter of this process
}

// StepKind is what a Step demands.
type StepKind uint8

const (
	// StepNone demands nothing.
	StepNone StepKind = iota
	// StepContend has Caller contend at Redis, from At on.
	StepContend
	// StepPass gives Caller the next lease on the same hold.
	StepPass
	// StepCheck has the hold checked by a raise: it mints a new block of tokens, and
	// tells whether somebody waits elsewhere. Checked takes the answer.
	StepCheck
	// StepRelease releases the hold. When Caller is not zero, that caller contends
	// from At on.
	StepRelease
	// StepRefuse tells Caller, which does not wait, that this process holds the lock.
	StepRefuse
	// StepAsk has Caller, which does not wait, ask once beside the contender, since the
	// nodes alone know whether the lock is held or they are out of reach. A lease that
	// comes of it is no part of this queue: it is not passed on.
	StepAsk
)

// Step is what the queue of a process demands next.
type Step struct {
	Kind      StepKind
	Caller    CallerID
	At        time.Duration
	Enqueue   bool // with StepRelease: the release carries Caller's ticket into the queues (WaiterConfig.Enqueued)
	LeaveFree bool // with StepRelease: the nodes wake the head, and reserve the lock for nobody
}

// localPhase is what the head of a local queue is doing.
type localPhase uint8

const (
	localIdle localPhase = iota
	localContending
	localHeld
	localChecking
)

// Local is the queue of one lock name in one process: its callers come in the order
// of their calls, and one of them contends at Redis at a time. The lease passes from
// one caller to the next without Redis, as long as that is safe, and fair to those
// who wait elsewhere. The zero value is an empty queue; it is not safe for concurrent
// use.
type Local struct {
	phase    localPhase
	head     Caller   // who contends or holds
	waiting  []Caller // behind the head
	since    time.Duration
	passes   int           // since then
	handedOn time.Duration // when the lock was last left to somebody elsewhere
	releases int           // of a lock that somebody elsewhere waits for, since one was left free
	stranger time.Duration // until then clients that know no queues are taken to be around
}

// Waiting returns how many callers wait behind the head.
func (l *Local) Waiting() int { return len(l.waiting) }

// Idle reports whether the queue is empty and remembers nothing of use.
func (l *Local) Idle(now time.Duration) bool {
	return l.phase == localIdle && (l.handedOn == 0 || now >= l.handedOn+ReacquireDelay)
}

// Enter takes a new caller.
func (l *Local) Enter(now time.Duration, c Caller) Step {
	if l.phase == localIdle {
		return l.contend(now, c)
	}
	if c.Once && l.phase == localContending {
		return Step{Kind: StepAsk, Caller: c.ID}
	} else if c.Once {
		return Step{Kind: StepRefuse, Caller: c.ID}
	}
	l.waiting = append(l.waiting, c)
	return Step{}
}

// Leave takes that a caller gives up: its wait was cancelled, or its attempts have
// come to nothing. It is not for the holder.
func (l *Local) Leave(now time.Duration, id CallerID) Step {
	if l.phase == localContending && l.head.ID == id {
		return l.next(now)
	}
	for i := range l.waiting {
		if l.waiting[i].ID == id {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			break
		}
	}
	return Step{}
}

// Granted takes that the contender has the lease.
func (l *Local) Granted(now time.Duration) {
	if l.phase == localContending {
		l.phase, l.since, l.passes = localHeld, now, 0
	}
}

// Finished takes that the holder's lease has been given back, and the hold is there
// still.
func (l *Local) Finished(now time.Duration, h *Hold) Step {
	if l.phase != localHeld {
		return Step{}
	}
	return l.decide(now, h, true)
}

// Checked takes the answer to a StepCheck; a check without a quorum of answers leaves
// the hold unproven.
func (l *Local) Checked(now time.Duration, h *Hold) Step {
	if l.phase != localChecking {
		return Step{}
	}
	return l.decide(now, h, false)
}

// Lost takes that the hold is no more.
func (l *Local) Lost(now time.Duration) Step {
	if l.phase != localHeld && l.phase != localChecking {
		return Step{}
	}
	return l.next(now)
}

// NotPassed takes that a StepPass came to nothing, because the hold was lost meanwhile.
// Its caller keeps its place: it contends.
func (l *Local) NotPassed(now time.Duration) Step {
	if l.phase != localHeld {
		return Step{}
	}
	return l.contend(now, l.head)
}

// HandedOn takes that a node has left the lock, released a moment ago, to somebody
// elsewhere.
func (l *Local) HandedOn(now time.Duration) { l.handedOn = now }

// StrangerSeen takes that a client that knows no queues holds the lock.
func (l *Local) StrangerSeen(now time.Duration) { l.stranger = now + strangerMemory }

// decide says what becomes of a hold whose lease has ended. check says that its
// knowledge may be refreshed by a round trip first.
func (l *Local) decide(now time.Duration, h *Hold, check bool) Step {
	if h.Others == 0 && h.ToldAt > l.since {
		l.since, l.passes = h.ToldAt, 0
	}
	if len(l.waiting) == 0 || l.waiting[0].Terms != l.head.Terms || !h.Useful {
		return l.release(now, h)
	}
	proven := h.Proven && h.Tokens > 0
	switch {
	case h.Others > 0 && !(proven && l.fair(now)):
		return l.release(now, h)
	case h.Others > 0, proven && now < h.ToldAt+CheckAfter:
		return l.pass()
	case check:
		l.phase = localChecking
		return Step{Kind: StepCheck}
	default:
		return l.release(now, h)
	}
}

// fair reports whether the next caller may have the lease although somebody waits
// elsewhere: it had called before the hold began, so that a process whose callers
// come back at once does not serve them twice in a row; and the hold has not gone
// from caller to caller for long.
func (l *Local) fair(now time.Duration) bool {
	return l.waiting[0].Arrived <= l.since && l.passes < maxPasses && now < l.since+CheckAfter
}

// pass makes the first of the waiting callers the holder.
func (l *Local) pass() Step {
	l.passes++
	l.phase, l.head = localHeld, l.dequeue()
	return Step{Kind: StepPass, Caller: l.head.ID}
}

// release gives the lock back, and has the next caller contend. When somebody waits
// elsewhere the release carries its ticket, which saves an attempt that would be
// refused.
func (l *Local) release(now time.Duration, h *Hold) Step {
	if h.Others > 0 {
		l.handedOn = now
	}
	s := l.next(now)
	s.Kind = StepRelease
	if h.Others > 0 {
		s.Enqueue, s.LeaveFree = s.Caller != 0 && h.Subscribed, l.leaveFree(now, h.Others)
	}
	return s
}

// leaveFree says whether the nodes leave the lock free until the head of the queue
// asks for it. Clients that know no queues (SET NX, DEL) get a lock that is contended
// for in that moment alone. It costs no time, and waiters with tickets are not in the
// way of the head: a node that finds a free lock with a queue reserves it for the
// head. But such a client that asked every 2 ms once took 79 % of all grants. So one
// release in so many leaves the lock free, an eighth as many as processes want it:
// beside 16 of ours a stranger that never misses such a moment gets a third of the
// grants at the most, and one that asks three times in a hand-over of 1 ms gets about
// half a fair share. As long as none has been seen it is one in sixteen times as many,
// because a waiter that asks in that moment takes it for a sign that the head is dead.
func (l *Local) leaveFree(now time.Duration, others int) bool {
	every := 2 * (others + 1)
	if now < l.stranger {
		every = (others + 1) / 8
	}
	if l.releases++; l.releases < every {
		return false
	}
	l.releases = 0
	return true
}

// next has the first of the waiting callers contend, if there is one.
func (l *Local) next(now time.Duration) Step {
	l.phase, l.head = localIdle, Caller{}
	if len(l.waiting) == 0 {
		return Step{}
	}
	return l.contend(now, l.dequeue())
}

func (l *Local) contend(now time.Duration, c Caller) Step {
	l.phase, l.head = localContending, c
	at := now
	if l.handedOn != 0 {
		at = max(at, l.handedOn+ReacquireDelay)
	}
	return Step{Kind: StepContend, Caller: c.ID, At: at}
}

func (l *Local) dequeue() Caller {
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	return c
}
