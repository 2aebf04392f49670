package quorum

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

const (
	// ReacquireDelay is how long a process waits before it asks again for a lock that it
	// has left to another process. An earlier attempt would be refused, and would compete
	// with the attempt of the next holder.
	ReacquireDelay = 2 * time.Millisecond
	// CheckAfter is the longest time for which a process relies on the nodes' last answer
	// that no other process waits. It counts from the arrival of the answer. If it counted from
	// the sending, every answer of a node more than 5 ms away would be too old at once. It is also
	// the longest time for which a hold is passed on inside the process while another process
	// waits.
	CheckAfter = 5 * time.Millisecond
	// PassFor is the longest time for which a hold is passed on at all. The queues do not show every waiter: a client
	// without queue support, and one that no node may wake, can only find the lock free. With this bound, it is free
	// for at least a hundredth of the time.
	PassFor = 250 * time.Millisecond
	// maxPasses is how often a hold is passed on while another process waits.
	maxPasses = 16
	// strangerMemory is how long a client without queue support is assumed to be active
	// after its lock was seen.
	strangerMemory = 10 * time.Minute
)

// CallerID names a caller inside its process. It is not zero.
type CallerID uint64

// Caller is a call that acquires.
type Caller struct {
	ID      CallerID
	Arrived clock.Validity
	Terms   uint64 // equal for calls that may share a hold: TTL, label, renewal, …
}

// Hold is what a process knows about a lock that it holds, at the end of one of its
// leases on it.
type Hold struct {
	Tokens int  // left in the block of tokens; any positive number without fencing
	Proven bool // q nodes have shown our owner and token since the proof was last reset
	// Useful: the lock is held and renewed, has no limit and no minimum of its age, its TTL has not changed, the
	// Manager is open, and enough validity is left for another lease.
	Useful     bool
	Others     int            // tickets of other processes in the queues, by the answers to the grant or the last check
	Turn       time.Duration  // what this process's turn costs the others, see Turn
	AnsweredAt clock.Validity // when those answers had arrived
	Subscribed bool           // a quorum of nodes can wake a waiter of this process
}

// StepKind is what a Step demands.
type StepKind uint8

const (
	// StepNone demands nothing.
	StepNone StepKind = iota
	// StepContend makes Caller contend at Redis, from At on.
	StepContend
	// StepPass gives Caller the next lease on the same hold.
	StepPass
	// StepCheck checks the hold by a raise. The raise mints a new block of tokens, and
	// reports whether another process waits. Checked takes the answer.
	StepCheck
	// StepRelease releases the hold. When Caller is not zero, that caller contends
	// from At on.
	StepRelease
)

// Step is what the queue of a process demands next.
type Step struct {
	Kind      StepKind
	Caller    CallerID
	At        clock.Validity
	Enqueue   bool // with StepRelease: the release carries Caller's ticket into the queues (WaiterConfig.Enqueued)
	LeaveFree bool // with StepRelease: the nodes wake the head and make no reservation
}

// localPhase is what the head of a local queue is doing.
type localPhase uint8

const (
	localIdle localPhase = iota
	localContending
	localHeld
	localChecking
)

// Local is the queue of one lock name in one process. It orders callers by their
// calls, and one of them contends at Redis at a time. The lease passes from one caller
// to the next without Redis, as long as that is safe and fair to the waiters of other
// processes. The zero value is an empty queue. It is not safe for concurrent use.
type Local struct {
	phase    localPhase
	head     Caller         // the caller that contends or holds
	waiting  []Caller       // behind the head
	granted  clock.Validity // when the hold began
	since    clock.Validity // from then on passes count: when the hold began, or no other process waited
	passes   int
	again    clock.Validity // the lock is not asked for before, because it was left to other processes
	releases int            // while other processes waited, since the lock was last left free
	ahead    float64        // the part of these that the first count leaves out, see Spread
	stranger clock.Validity // until then clients without queue support are assumed to be active
}

// Spread shortens the first count of releases, after which the lock is left free, by a part of it, from 0 to 1.
// Processes take turns, so equal counts would end in one round, and a stranger would have no chance before it: next to
// 16 processes for 480 releases, and next to 64 for 8,000. With random parts it has a chance about every 2(others+1)
// releases.
func (l *Local) Spread(part float64) { l.ahead = part }

// Waiting returns how many callers wait behind the head.
func (l *Local) Waiting() int { return len(l.waiting) }

// Waits reports whether a caller waits behind the head.
func (l *Local) Waits(id CallerID) bool {
	return slices.ContainsFunc(l.waiting, func(c Caller) bool { return c.ID == id })
}

// IdleFrom returns the instant from which the queue may be removed; Never while it has callers or a hold. Its knowledge
// of clients without queue support is lost then: they only matter under contention.
func (l *Local) IdleFrom() clock.Validity {
	if l.phase != localIdle {
		return Never
	}
	return l.again
}

// Held returns the queue behind a hold that began at granted, when its first caller comes.
func Held(now, granted clock.Validity, terms uint64) Local {
	return Local{phase: localHeld, head: Caller{Terms: terms}, granted: granted, since: now}
}

// Needed reports whether the queue of a holder has callers, or remembers anything of use. Without a queue, Held makes
// one when the next caller comes.
func (l *Local) Needed(now clock.Validity) bool {
	return len(l.waiting) > 0 || now < l.again || now < l.stranger || l.releases > 0
}

// Enter takes a new caller.
func (l *Local) Enter(now clock.Validity, c Caller) Step {
	if l.phase == localIdle {
		return l.contend(now, c)
	}
	l.waiting = append(l.waiting, c)
	return Step{}
}

// Leave removes a caller whose wait was cancelled or whose attempts failed. It must
// not be called for the holder.
func (l *Local) Leave(now clock.Validity, id CallerID) Step {
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

// Granted records that the contender has the lease.
func (l *Local) Granted(now clock.Validity) {
	if l.phase == localContending {
		l.phase, l.granted, l.since, l.passes = localHeld, now, now, 0
	}
}

// Finished records that the holder has released its lease, while the hold continues.
func (l *Local) Finished(now clock.Validity, h *Hold) Step {
	if l.phase != localHeld {
		return Step{}
	}
	return l.decide(now, h, true)
}

// Checked records the answer to a StepCheck. Without a quorum of answers the hold
// stays unproven.
func (l *Local) Checked(now clock.Validity, h *Hold) Step {
	if l.phase != localChecking {
		return Step{}
	}
	return l.decide(now, h, false)
}

// Lost records that the hold has ended.
func (l *Local) Lost(now clock.Validity) Step {
	if l.phase != localHeld && l.phase != localChecking {
		return Step{}
	}
	return l.next(now)
}

// NotPassed records that a StepPass failed because the hold was lost in between. Its
// caller stays the head, and contends.
func (l *Local) NotPassed(now clock.Validity) Step {
	if l.phase != localHeld {
		return Step{}
	}
	return l.contend(now, l.head)
}

// HandedOn records that a node has left the lock, which was just released, to a waiter
// of another process. turn is as in Hold.
func (l *Local) HandedOn(now clock.Validity, turn time.Duration) { l.leaveTo(1, now, turn) }

// leaveTo records that the lock was left to that many other processes. This one asks for it
// again when each of them has had as much of the time as its own turn took. Turn by turn, a
// distant process would have the lock most of the time: with one 50 ms away, three near
// ones got a third of what they get alone.
func (l *Local) leaveTo(others int, now clock.Validity, turn time.Duration) {
	l.again = max(l.again, now.Add(max(ReacquireDelay, min(time.Duration(others)*turn, MaxPoll))))
}

// StrangerSeen records that a client without queue support holds the lock.
func (l *Local) StrangerSeen(now clock.Validity) { l.stranger = now.Add(strangerMemory) }

// decide returns the next step for a hold whose lease has ended. check allows a round
// trip first, which refreshes h.
func (l *Local) decide(now clock.Validity, h *Hold, check bool) Step {
	if h.Others == 0 && h.AnsweredAt > l.since {
		l.since, l.passes = h.AnsweredAt, 0
	}
	if len(l.waiting) == 0 || l.waiting[0].Terms != l.head.Terms || !h.Useful {
		return l.release(now, h)
	}
	if now >= l.granted.Add(PassFor) {
		l.leaveTo(0, now, 0)
		return l.release(now, h)
	}
	proven := h.Proven && h.Tokens > 0
	switch {
	case h.Others > 0 && !(proven && l.fair(now)):
		return l.release(now, h)
	case h.Others > 0, proven && now < h.AnsweredAt.Add(CheckAfter):
		return l.pass()
	case check:
		l.phase = localChecking
		return Step{Kind: StepCheck}
	default:
		return l.release(now, h)
	}
}

// fair reports whether the next caller may get the lease while another process waits.
// The caller must have called before the hold began, so that callers which come back
// at once do not get the lease twice in a row. And the hold must not have been passed
// on too often or for too long.
func (l *Local) fair(now clock.Validity) bool {
	return l.waiting[0].Arrived <= l.since && l.passes < maxPasses && now < l.since.Add(CheckAfter)
}

// pass makes the first of the waiting callers the holder.
func (l *Local) pass() Step {
	l.passes++
	l.phase, l.head = localHeld, l.dequeue()
	return Step{Kind: StepPass, Caller: l.head.ID}
}

// release releases the lock, and the next caller contends. When another process waits,
// the release carries the next caller's ticket. That saves an attempt that would be
// refused.
func (l *Local) release(now clock.Validity, h *Hold) Step {
	if h.Others > 0 {
		l.leaveTo(h.Others, now, h.Turn)
	}
	s := l.next(now)
	s.Kind = StepRelease
	if h.Others > 0 {
		s.Enqueue, s.LeaveFree = s.Caller != 0 && h.Subscribed && s.At <= now.Add(ReacquireDelay), l.leaveFree(now, h.Others)
	}
	return s
}

// leaveFree reports whether a release leaves the lock free until the head of the queue asks
// for it. A stranger is a client without queue support (SET NX, DEL): under contention it
// can get the lock only in that moment. The moment costs no time, because a node that finds
// a free lock with a queue reserves it for the head. But if each release left the lock
// free, a stranger that asks every 2 ms would take most grants (79 % were seen).
//
// So, if others+1 processes want the lock, one release in (others+1)/8 leaves it free. Next to
// 16 of our processes, a stranger that hits each such moment gets at most a third of the
// grants, and one that asks three times per hand-over of 1 ms about half a fair share. While
// no stranger has been seen, it is one release in 2(others+1): a waiter that asks in such a
// moment may take the head for dead.
func (l *Local) leaveFree(now clock.Validity, others int) bool {
	every := 2 * (others + 1)
	if now < l.stranger {
		every = (others + 1) / 8
	}
	if l.releases++; l.releases < every-int(l.ahead*float64(every)) {
		return false
	}
	l.releases, l.ahead = 0, 0
	return true
}

// next makes the first of the waiting callers contend, if there is one.
func (l *Local) next(now clock.Validity) Step {
	l.phase, l.head = localIdle, Caller{}
	if len(l.waiting) == 0 {
		return Step{}
	}
	return l.contend(now, l.dequeue())
}

func (l *Local) contend(now clock.Validity, c Caller) Step {
	l.phase, l.head = localContending, c
	return Step{Kind: StepContend, Caller: c.ID, At: max(now, l.again)}
}

func (l *Local) dequeue() Caller {
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	return c
}
