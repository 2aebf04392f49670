package quorum

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

const (
	// yieldAfter is how many attempts in a row may be granted by some nodes but no quorum
	// before the waiter lets others go first. In that case the heads of the nodes' queues
	// differ, and each head keeps its own node. (Measured: without it 64 waiters
	// that began together got no grant in 2.5 s.)
	yieldAfter = 3
	// wakeSpread spreads attempts that several waiters make for the same reason.
	wakeSpread = 2 * time.Millisecond
	// firstPoll is the delay of the first attempt of a waiter whose ticket was carried to
	// the nodes by the release of the lease before, if no wake-up arrives.
	firstPoll = 4 * MinPoll
	// missedTurns is for how many graces a waiter stays out of the queues after it has missed its reservations: its
	// miss kept the nodes waiting for one.
	missedTurns = 4
)

// waiterPhase is what a waiter is doing.
type waiterPhase uint8

const (
	phaseWaiting waiterPhase = iota // until at
	phaseAsking                     // an attempt is under way
	phaseDone
)

// Waiter makes the decisions of one acquiring call: when it asks, where its ticket
// stays in the queues of the nodes, and what a wake-up means. Only an attempt can get
// the lease. The Waiter lives from the call to the grant or to the end of the wait. It is not
// safe for concurrent use.
type Waiter struct {
	nodes      int
	grace      time.Duration
	phase      waiterPhase
	once       bool
	overtaken  bool // the last attempt was, and the one under way follows at once
	unanswered bool
	hasty      bool           // no attempt begins at once on less than a quorum of reservations: one has, or the call is for a permit
	sure       bool           // it waits for a permit
	rounds     int            // attempts of such a waiter that were let in and not granted
	pause      clock.Validity // until then it does not use its right to enter
	ticket     ticket
	reserved   reservations
	blocked    Set // nodes that refused the last attempt, if they are a quorum; otherwise 0
	lapses     lapses
	tie        tie            // of a caller that asks once
	splits     int            // attempts in a row that some nodes but no quorum granted
	stranger   clock.Validity // since then every attempt was refused by a stranger's lock; 0 for none
	at         clock.Validity // the next attempt; while one is under way, what a wake-up demands
}

// NewWaiter returns the waiter of one call. Its first attempt is due at At.
func NewWaiter(c WaiterConfig) Waiter {
	w := Waiter{
		nodes: c.Nodes, grace: c.Grace, ticket: ticket{subscribed: c.Subscribed},
		once: c.Once, hasty: c.Sure, sure: c.Sure, tie: tie{timeout: c.Timeout}, unanswered: c.Unanswered, at: max(c.NotBefore, c.Arrived),
	}
	if c.Enqueued {
		w.ticket.queued = All(c.Nodes)
		w.at = w.at.Add(firstPoll)
	}
	return w
}

// At returns the instant of the next attempt; Never when none follows.
func (w *Waiter) At() clock.Validity {
	if w.phase != phaseWaiting {
		return Never
	}
	return w.at
}

// Unanswered reports whether the last attempt was not answered by a quorum in time. Such a
// process stays out of the queues, because as their head it would delay all waiters.
// Its later calls also stay out (WaiterConfig.Unanswered), until an attempt is answered in
// time.
func (w *Waiter) Unanswered() bool { return w.unanswered }

// Begin starts an attempt and returns what it carries.
func (w *Waiter) Begin(now clock.Validity) Ask {
	w.hasty = w.hasty || w.counts(w.reserved.by) && w.reserved.by.Len() < Size(w.nodes)
	ask := Ask{Ticket: w.mayQueue()}
	if !w.once {
		ask.Lapsed = w.lapses.reached(now)
	}
	w.phase, w.at, w.lapses = phaseAsking, Never, nil
	w.reserved.begin()
	w.ticket.begin(w.nodes, ask.Ticket)
	return ask
}

// mayQueue reports whether the next attempt carries the ticket.
func (w *Waiter) mayQueue() bool { return !w.once && !w.unanswered && w.ticket.useful(w.nodes) }

// Ended records the end of a failed attempt. poll is the delay of a waiter without any
// other information (the caller's backoff, jittered). jitter lies in [0, 1).
func (w *Waiter) Ended(now clock.Validity, r *AttemptResult, poll time.Duration, jitter float64) Next {
	w.phase = phaseWaiting
	w.ticket.ended(r)
	w.reserved.by &^= r.Granted // those reservations were used, and have been released
	w.blocked = blockers(w.nodes, r.Refusals)
	if w.overtaken = r.Overtaken && !w.overtaken; w.overtaken { // the registers are closer to each other by now
		w.at = now
		return Next{At: now, Keep: true}
	}
	if w.once {
		next := w.tie.onceMore(w.nodes, now, r, poll)
		w.at = next.At
		return next
	}
	if w.unanswered = !answeredInTime(w.nodes, r); w.unanswered {
		return w.leave(now, min(poll, KeepPlace)) // no wake-up comes without a place
	}
	if w.reserved.missed(w.nodes, r.Refusals) {
		return w.startOver(now)
	}
	w.at = min(w.at, now.Add(w.retryDelay(now, r, poll)))
	w.lapses.refused(w.nodes, now, r.Refusals)
	if w.mayQueue() && !w.ticket.carried {
		// The ticket's place counts from the call, and others enter the queue in between.
		w.at = min(w.at, now.Add(min(poll, w.grace)))
	}
	w.pauseForSlots(now, r, jitter)
	w.applyReservations(now, jitter)
	if w.ticket.forgotten(w.nodes) {
		w.at = min(w.at, now.Add(spread(w.grace/2, jitter)))
	}
	return Next{At: w.at, Ticket: w.yield(r)}
}

// pauseForSlots makes a waiter for a permit pause before it uses its right to enter again. Nodes that let it in may
// have different slots free, and let it in again when it gives up what it got there: without a pause it would go round
// forever.
func (w *Waiter) pauseForSlots(now clock.Validity, r *AttemptResult, jitter float64) {
	if !slices.ContainsFunc(r.Refusals, func(r Refusal) bool { return r.LetIn }) && !w.counts(w.reserved.relied) || !w.sure {
		return
	}
	w.rounds++
	w.pause = now.Add(spread(min(time.Millisecond<<min(w.rounds, 10), w.grace/2), jitter))
	w.at = min(w.at, w.pause)
}

// answeredInTime reports whether a quorum of nodes has answered in time, and early enough
// to use the lease if it was granted. Otherwise the waiter must not be the head of a
// queue. A client whose answers always come too late would lock the nodes at each of its
// turns and never get a lease (one among three near clients cost 83 % of all grants).
func answeredInTime(nodes int, r *AttemptResult) bool {
	return !r.TooLate && r.Failed.Len() <= nodes-Size(nodes)
}

// startOver takes the ticket out of the queues after it has missed its reservations. It comes
// back with a new place. Otherwise it would be the head again at once, and a process that
// always comes too late would cost all others a grace at each of their turns.
func (w *Waiter) startOver(now clock.Validity) Next {
	next := w.leave(now, missedTurns*w.grace)
	next.Missed = true
	return next
}

// Relied reports whether the last attempt began on reservations.
func (w *Waiter) Relied() bool { return w.reserved.relied != 0 }

// SetGrace sets how long the nodes are to reserve the lock for the ticket from now on.
func (w *Waiter) SetGrace(grace time.Duration) { w.grace = grace }

// leave removes the ticket from the queues until an attempt is answered in time.
func (w *Waiter) leave(now clock.Validity, poll time.Duration) Next {
	next := Next{At: now.Add(poll), PassOn: w.reserved.by}
	if w.ticket.queued != 0 {
		next.Ticket, next.Leave = TicketLeave, w.ticket.queued
	}
	w.at, w.splits, w.stranger = next.At, 0, 0
	w.ticket.queued, w.reserved.by, w.lapses = 0, 0, nil
	return next
}

// retryDelay returns how long to wait if no wake-up arrives.
func (w *Waiter) retryDelay(now clock.Validity, r *AttemptResult, poll time.Duration) time.Duration {
	// If refusals alone block the attempt, a failed node counts as free. Otherwise its
	// state is unknown.
	need := Size(w.nodes) - r.Granted.Len()
	if r.Outcome == OutcomeHeld {
		need = len(r.Refusals) - (w.nodes - Size(w.nodes))
	}
	delay := RetryDelay(r.Refusals, need, poll, w.grace)
	if !strangerAhead(r.Refusals) {
		w.stranger = 0
		return delay
	}
	if w.stranger == 0 {
		w.stranger = now
	}
	return min(delay, max(StrangerPoll, now.Sub(w.stranger)/16))
}

// strangerAhead reports whether only a stranger's lock is before the waiter on some
// node. A stranger's release does not wake the head of the queue.
func strangerAhead(refusals []Refusal) bool {
	for _, r := range refusals {
		if r.Stranger && r.Position == 0 {
			return true
		}
	}
	return false
}

// yield returns the update of the ticket after a failed attempt.
func (w *Waiter) yield(r *AttemptResult) TicketUpdate {
	// A quorum of refusals is not a split: only a spare node was free. Of an even number of
	// nodes, half can refuse the attempt without being a quorum.
	if w.splits++; len(r.Refusals) >= Size(w.nodes) || r.Granted == 0 {
		w.splits = 0
	}
	switch {
	case !w.ticket.carried:
		return TicketNone
	case w.splits >= yieldAfter:
		return TicketYield
	default:
		return TicketKeep
	}
}

// Won ends the wait with a lease. It returns the nodes that have reserved the lock for the
// ticket since the attempt began, and have not granted it: the lease may take these
// reservations, see WakeReserved.
func (w *Waiter) Won(granted Set) (reserved Set) {
	reserved = w.reserved.by &^ granted
	w.phase, w.ticket.queued, w.reserved.by = phaseDone, 0, 0
	return reserved
}

// Done ends the wait without a lease. It returns the nodes whose queues the ticket must
// leave, and the nodes that reserve the lock for the ticket. If a reservation becomes known
// later, no waiter uses it, and Wake returns ReactionUnused.
func (w *Waiter) Done() (leave, passOn Set) {
	leave, passOn = w.ticket.queued, w.reserved.by
	w.phase, w.ticket.queued, w.reserved.by = phaseDone, 0, 0
	return leave, passOn
}

// Subscribed records that wake-ups of a node arrive from now on. The waiter may have
// missed an earlier one, so it asks soon. The jitter keeps all waiters from asking at
// once.
func (w *Waiter) Subscribed(now clock.Validity, node int, jitter float64) Reaction {
	w.ticket.subscribed = w.ticket.subscribed.With(node)
	if w.phase == phaseDone || !w.mayQueue() {
		return ReactionNone
	}
	return w.sooner(now.Add(spread(w.grace, jitter)))
}

// Wake handles a message of a node about the waiter's ticket. rank is the rank of a WakeNext, and jitter lies in [0,
// 1). For an unknown ticket, the caller treats a WakeReserved or WakeFree like ReactionUnused, and ignores every other
// message.
func (w *Waiter) Wake(now clock.Validity, node int, what WakeUp, rank int, jitter float64) Reaction {
	if what == WakeReserved || what == WakeFree {
		return w.wakeReserved(now, node, what == WakeFree, jitter)
	}
	if w.phase == phaseDone || !w.ticket.queued.Has(node) {
		return ReactionNone
	}
	switch what {
	case WakeNext:
		// The tickets before this one may belong to dead processes. The waiter of rank 1
		// asks after one grace. If it is dead as well, another asks before three have passed.
		lapse := now.Add(w.grace + time.Millisecond)
		w.lapses.endsBy(w.nodes, node, lapse)
		if !w.counts(Set(0).With(node)) {
			return ReactionNone
		}
		return w.sooner(lapse.Add(time.Millisecond + behind(rank, w.grace) + spread(wakeSpread, jitter)))
	case WakeAskAgain:
		w.ticket.cleared = w.ticket.cleared.With(node)
		w.reserved.by = w.reserved.by.Without(node)
		w.lapses.moves(node)
		if w.ticket.forgotten(w.nodes) {
			return w.sooner(now.Add(spread(w.grace/2, jitter)))
		}
	}
	return ReactionNone
}

// behind returns how much later than the waiter of rank 1 one of another rank asks: waiters of
// rank 2 to 9 after a grace more, each a tenth of a grace after the one before.
func behind(rank int, grace time.Duration) time.Duration {
	if rank <= 1 {
		return 0
	}
	return grace + time.Duration(rank-2)*grace/10
}

// wakeReserved handles the message that a node reserves the lock for the ticket, or that the
// lock is free.
func (w *Waiter) wakeReserved(now clock.Validity, node int, free bool, jitter float64) Reaction {
	if w.phase == phaseDone || w.unanswered || w.once {
		return ReactionUnused
	}
	w.reserved.add(node, free)
	w.lapses.moves(node)
	if w.phase == phaseAsking {
		return ReactionNone // Ended or Won decides: the node's answer may be newer
	}
	before := w.at
	w.applyReservations(now, jitter)
	if w.at < before || w.at <= now { // a timer may be late
		return ReactionReschedule
	}
	return ReactionNone
}

// applyReservations moves the next attempt forward according to the reservations.
//
//   - A quorum of nodes reserves the lock: the attempt begins at once. Once in each wait,
//     one node less is enough: a release goes to all nodes at the same time, so the last
//     node has very likely applied it when the attempt arrives. If this was allowed again
//     and again, two waiters could keep taking nodes from each other.
//   - Fewer nodes reserve it: the others have a different head, or their wake-ups were
//     lost. The attempt begins after half the grace. After a whole grace, the second in
//     the queue would consider this waiter dead.
//   - Only nodes that cannot be enough reserve it, see counts.
func (w *Waiter) applyReservations(now clock.Validity, jitter float64) {
	need := Size(w.nodes)
	if !w.hasty {
		need--
	}
	switch {
	case !w.counts(w.reserved.by):
	case w.reserved.by.Len() >= need:
		w.at = min(w.at, max(now, w.pause))
	default:
		w.at = min(w.at, now.Add(w.grace/2+spread(wakeSpread, jitter)))
	}
}

// counts reports whether reservations of these nodes are a reason to ask. If no quorum is without a node that has blocked
// the last attempt, one of those must become free. The others may be free because the lease is not on them: a
// waiter that asked would get those, give them back, and have them reserved for it again, 90 times a second.
func (w *Waiter) counts(nodes Set) bool {
	if w.blocked != 0 {
		nodes &= w.blocked
	}
	return nodes != 0
}

// blockers returns the nodes of the refusals if no quorum is without them, 0 otherwise.
func blockers(nodes int, refusals []Refusal) (by Set) {
	if len(refusals) <= nodes-Size(nodes) {
		return 0
	}
	for _, r := range refusals {
		by = by.With(r.Node)
	}
	return by
}

// sooner moves the next attempt forward.
func (w *Waiter) sooner(at clock.Validity) Reaction {
	if at >= w.at {
		return ReactionNone
	}
	w.at = at
	if w.phase == phaseAsking {
		return ReactionNone // Ended returns it
	}
	return ReactionReschedule
}

// spread returns the fraction jitter of d.
func spread(d time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(d) * jitter)
}
