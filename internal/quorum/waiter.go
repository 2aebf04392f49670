package quorum

import "time"

const (
	// yieldAfter is how many attempts in a row some nodes grant and no quorum before
	// the waiter lets others go first: the nodes' queues differ in their heads then,
	// and each head keeps its own node. (waiting.md 1.2: without it 64 waiters that
	// began together got no grant in 2.5 s.)
	yieldAfter = 3
	// wakeSpread spreads attempts that several waiters make for the same reason.
	wakeSpread = 2 * time.Millisecond
	// firstPoll is when a waiter asks first whose ticket the release of the lease
	// before it has carried to the nodes, if no wake-up arrives.
	firstPoll = 4 * MinPoll
	// maxScattered is how often a caller that asks once does so again after the votes were
	// scattered: one of the callers is very likely to get the lock then.
	maxScattered = 2
)

// waiterPhase is what a waiter is doing.
type waiterPhase uint8

const (
	phaseWaiting waiterPhase = iota // until at
	phaseAsking                     // an attempt is under way
	phaseHolding                    // won; further nodes may still vote
	phaseDone
)

// Waiter decides for one call that acquires: when it asks, what becomes of its
// ticket in the queues of the nodes, and what a wake-up means. Its attempts alone
// get it a lease. It lives from the call to the end of the lease or of the wait, and
// is not safe for concurrent use.
type Waiter struct {
	nodes      int
	arrived    time.Duration
	grace      time.Duration
	phase      waiterPhase
	once       bool
	ticket     bool // the attempt under way carries the ticket
	left       bool
	hasty      bool // an attempt has begun on less than a quorum of reservations
	scattered  int  // attempts of a caller that asks once after which it asks again
	splits     int  // attempts in a row that some nodes granted, and no quorum
	subscribed Set
	queued     Set             // nodes in whose queues the ticket may be
	reserved   Set             // nodes that have said WakeReserved since the attempt began
	cleared    Set             // nodes that have said WakeAskAgain since the attempt began
	votes      Set             // nodes that granted the lease
	at         time.Duration   // the next attempt; while one is under way, what a wake-up demands
	lapses     []time.Duration // from then on a node's reservation for somebody else is over; 0 without one, and nil without any
	stranger   time.Duration   // since then attempts in a row were refused by a stranger's lock; 0 for none
}

// NewWaiter returns the waiter of one call. Its first attempt is due at At.
func NewWaiter(c WaiterConfig) Waiter {
	w := Waiter{
		nodes: c.Nodes, arrived: c.Arrived, grace: c.Grace, subscribed: c.Subscribed,
		once: c.Once, left: c.Left, at: max(c.NotBefore, c.Arrived),
	}
	if c.Enqueued {
		w.queued = All(c.Nodes)
		w.at += firstPoll
	}
	return w
}

// At returns the instant of the next attempt; Never when none follows.
func (w *Waiter) At() time.Duration {
	if w.phase != phaseWaiting {
		return Never
	}
	return w.at
}

// Left reports whether the last attempt was not answered by a quorum in time. Such
// a process stays out of the queues, because as their head it would keep everybody
// waiting; and so do its later calls (WaiterConfig.Left), until an attempt is
// answered in time.
func (w *Waiter) Left() bool { return w.left }

// Queued returns the nodes in whose queues the ticket may be.
func (w *Waiter) Queued() Set { return w.queued }

// Votes returns the nodes that have granted the lease which the waiter has won.
func (w *Waiter) Votes() Set { return w.votes }

// Begin starts an attempt and returns what it carries.
func (w *Waiter) Begin(now time.Duration) Ask {
	w.hasty = w.hasty || w.reserved != 0 && w.reserved.Len() < Size(w.nodes)
	ask := Ask{Ticket: w.mayQueue(), EnqueuedAt: w.arrived, Lapsed: w.lapsed(now)}
	w.phase, w.ticket = phaseAsking, ask.Ticket
	w.reserved, w.cleared, w.at, w.lapses = 0, 0, Never, nil
	if ask.Ticket {
		w.queued = All(w.nodes)
	}
	return ask
}

// mayQueue reports whether the next attempt carries the ticket. It does not before
// a quorum of nodes can wake the waiter: most Managers never meet contention and
// need no second connection to each node. A ticket that is in some queue is always
// carried: a node that reserves the lock for it gives the lock to nobody else.
func (w *Waiter) mayQueue() bool {
	return !w.once && !w.left && (w.queued != 0 || w.subscribed.Len() >= Size(w.nodes))
}

// Ended takes the end of an attempt without success. poll is how long a waiter waits
// that knows nothing (the caller's backoff, jittered); jitter lies in [0, 1).
func (w *Waiter) Ended(now time.Duration, r *AttemptResult, poll time.Duration, jitter float64) Next {
	w.phase = phaseWaiting
	w.enteredQueues(r)
	w.reserved &^= r.Granted // those reservations were used, and have been given back
	if w.once {
		w.at = w.onceMore(now, r, poll, jitter)
		return Next{At: w.at}
	}
	if w.left = !answeredInTime(w.nodes, r); w.left {
		return w.leave(now, poll)
	}
	w.at = min(w.at, now+w.retryDelay(now, r, poll))
	w.waitOut(now, r.Refusals)
	if w.mayQueue() && !w.ticket {
		// Its place counts from the call, and others enter before it every moment.
		w.at = min(w.at, now+min(poll, w.grace))
	}
	w.heed(now, jitter)
	return Next{At: w.at, Ticket: w.yield(r)}
}

// onceMore returns when a caller that asks once does so again where the votes were
// scattered: soon, and not all callers at one instant. Otherwise it returns Never.
func (w *Waiter) onceMore(now time.Duration, r *AttemptResult, poll time.Duration, jitter float64) time.Duration {
	if !r.Scattered || w.scattered >= maxScattered {
		return Never
	}
	w.scattered++
	return now + poll + spread(poll, jitter)
}

// enteredQueues notes where the ticket may be now.
func (w *Waiter) enteredQueues(r *AttemptResult) {
	if !w.ticket {
		return
	}
	w.queued &^= r.Unqueued
	for _, refusal := range r.Refusals {
		if refusal.Position < 0 {
			w.queued = w.queued.Without(refusal.Node)
		}
	}
}

// answeredInTime reports whether a quorum of nodes has answered in time, and with
// grants that left time to use them. Where it has not, the waiter must not be the
// head of a queue: a client whose answers always come too late would lock at each of
// its turns and never hold (one among three near ones cost 83 % of all grants).
func answeredInTime(nodes int, r *AttemptResult) bool {
	return !r.TooLate && r.Failed.Len() <= nodes-Size(nodes)
}

// leave takes the ticket out of the queues, until an attempt is answered in time.
func (w *Waiter) leave(now, poll time.Duration) Next {
	next := Next{At: now + poll, PassOn: w.reserved}
	if w.queued != 0 {
		next.Ticket, next.Leave = TicketLeave, w.queued
	}
	w.at, w.queued, w.reserved, w.splits, w.stranger = next.At, 0, 0, 0, 0
	w.lapses = nil
	return next
}

// retryDelay returns how long to wait if no wake-up arrives.
func (w *Waiter) retryDelay(now time.Duration, r *AttemptResult, poll time.Duration) time.Duration {
	// A node that failed counts as free where the refusals alone are in the way;
	// otherwise what it has is not known.
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
	return min(delay, max(StrangerPoll, (now-w.stranger)/16))
}

// strangerAhead reports whether a stranger's lock alone is before the waiter on some
// node. Nobody wakes the head of the queue when a stranger releases.
func strangerAhead(refusals []Refusal) bool {
	for _, r := range refusals {
		if r.Stranger && r.Position == 0 {
			return true
		}
	}
	return false
}

// waitOut notes when the reservations for others are over that have refused the
// attempt. Where a lease has refused it, there is none; should the node have said
// WakeNext after that, the attempt that follows finds this waiter the head.
func (w *Waiter) waitOut(now time.Duration, refusals []Refusal) {
	for _, r := range refusals {
		if r.Reserved && r.Left != Never {
			w.lapseBy(r.Node, now+r.Left+time.Millisecond)
		} else {
			w.moves(r.Node)
		}
	}
}

func (w *Waiter) lapseBy(node int, at time.Duration) {
	if w.lapses == nil { // most waiters never meet a reservation
		w.lapses = make([]time.Duration, w.nodes)
	}
	if w.lapses[node] == 0 || at < w.lapses[node] {
		w.lapses[node] = at
	}
}

// moves notes that the queue of a node moves.
func (w *Waiter) moves(node int) {
	if w.lapses != nil {
		w.lapses[node] = 0
	}
}

// lapsed returns the nodes whose reservation for somebody else the waiter has waited
// out, without a word that the queue moves. It is about each node alone: on another
// one the lock may be free because its head has just given it back to try again.
func (w *Waiter) lapsed(now time.Duration) (nodes Set) {
	for i, at := range w.lapses {
		if at != 0 && now >= at && !w.once {
			nodes = nodes.With(i)
		}
	}
	return nodes
}

// yield says what becomes of the ticket.
func (w *Waiter) yield(r *AttemptResult) TicketUpdate {
	// A quorum of refusals is no split: some spare node was merely free.
	if w.splits++; r.Outcome == OutcomeHeld || r.Granted == 0 {
		w.splits = 0
	}
	switch {
	case !w.ticket:
		return TicketNone
	case w.splits >= yieldAfter:
		return TicketYield
	default:
		return TicketKeep
	}
}

// Won takes the success of an attempt. It returns the nodes that refused the attempt
// and have reserved the lock for its ticket since: each can give one more vote.
func (w *Waiter) Won(granted, refused Set) (ask Set) {
	w.phase, w.votes = phaseHolding, granted
	ask = w.reserved & refused &^ granted
	w.reserved &^= granted | refused
	return ask
}

// Vote takes an answer of a node that came after the grant, and reports whether to
// ask that node once more: it has reserved the lock since it refused.
func (w *Waiter) Vote(node int, granted bool) (ask bool) {
	if w.phase == phaseDone {
		return false
	}
	if granted {
		w.votes = w.votes.With(node)
		return false
	}
	ask = w.phase == phaseHolding && w.reserved.Has(node) && !w.votes.Has(node)
	w.reserved = w.reserved.Without(node)
	return ask
}

// Done ends the wait, or the lease that it led to. Without a lease it returns the
// nodes whose queues the ticket has to leave (a lease's release does that), and the
// nodes that reserve the lock for it. A reservation that becomes known later is for
// nobody, and Wake has it passed on.
func (w *Waiter) Done() (leave, passOn Set) {
	if w.phase != phaseHolding && w.phase != phaseDone {
		leave, passOn = w.queued, w.reserved
	}
	w.phase, w.queued, w.reserved = phaseDone, 0, 0
	return leave, passOn
}

// Subscribed takes that the wake-ups of a node arrive from now on. The node may have
// woken the waiter before, so it asks soon, and not all waiters at once.
func (w *Waiter) Subscribed(now time.Duration, node int, jitter float64) Reaction {
	w.subscribed = w.subscribed.With(node)
	if w.phase == phaseHolding || w.phase == phaseDone || !w.mayQueue() {
		return ReactionNone
	}
	return w.sooner(now + spread(w.grace, jitter))
}

// Wake takes a message of a node about the waiter's ticket; jitter lies in [0, 1).
// For a ticket that nobody knows the answer is ReactionPassOn to a WakeReserved, and
// nothing to anything else.
func (w *Waiter) Wake(now time.Duration, node int, what WakeUp, jitter float64) Reaction {
	if what == WakeReserved {
		return w.wakeReserved(now, node, jitter)
	}
	if w.phase == phaseHolding || w.phase == phaseDone || !w.queued.Has(node) {
		return ReactionNone
	}
	switch what {
	case WakeNext:
		// The ticket before this one may be a dead process's. It costs one grace.
		w.lapseBy(node, now+w.grace+time.Millisecond)
		return w.sooner(now + w.grace + 2*time.Millisecond + spread(wakeSpread, jitter))
	case WakeAskAgain:
		w.cleared = w.cleared.With(node)
		w.reserved = w.reserved.Without(node)
		w.moves(node)
		if w.forgotten() {
			return w.sooner(now + spread(w.grace/2, jitter))
		}
	}
	return ReactionNone
}

// wakeReserved takes that a node reserves the lock for the ticket.
func (w *Waiter) wakeReserved(now time.Duration, node int, jitter float64) Reaction {
	switch {
	case w.votes.Has(node):
		return ReactionNone // the vote has used the reservation; the message was slower
	case w.phase == phaseHolding:
		return ReactionAskForVote
	case w.phase == phaseDone, w.left, w.once:
		return ReactionPassOn
	}
	w.reserved = w.reserved.With(node)
	w.moves(node)
	if w.phase == phaseAsking {
		return ReactionNone // Ended or Won judges it: the answer may be the newer one
	}
	before := w.at
	w.heed(now, jitter)
	if w.at < before || w.at <= now { // a timer may be late
		return ReactionReschedule
	}
	return ReactionNone
}

// heed moves the next attempt forward to what the reservations demand. It begins at
// once when a quorum of nodes reserves the lock. Once, one node less is enough: a
// release goes to all nodes at the same time, so the last one has very likely
// carried it out when it is asked. A waiter that went on like that would trade nodes
// with others all the time. When fewer nodes reserve the lock, the others have a
// different head or their wake-ups were lost: the waiter asks when half the grace is
// over. Later, the second in the queue would take it for dead.
func (w *Waiter) heed(now time.Duration, jitter float64) {
	need := Size(w.nodes)
	if !w.hasty {
		need = max(1, need-1)
	}
	switch {
	case w.reserved.Len() >= need:
		w.at = min(w.at, now)
	case w.reserved != 0:
		w.at = min(w.at, now+w.grace/2+spread(wakeSpread, jitter))
	}
	if w.forgotten() {
		w.at = min(w.at, now+spread(w.grace/2, jitter))
	}
}

// forgotten reports whether the ticket is left in the queues of less than a quorum:
// then nobody may wake the waiter. While a quorum has it, the next poll is soon
// enough for the others, and not everybody asks at once.
func (w *Waiter) forgotten() bool {
	return w.cleared != 0 && (w.queued&^w.cleared).Len() < Size(w.nodes)
}

// sooner moves the next attempt forward.
func (w *Waiter) sooner(at time.Duration) Reaction {
	if at >= w.at {
		return ReactionNone
	}
	w.at = at
	if w.phase == phaseAsking {
		return ReactionNone // Ended returns it
	}
	return ReactionReschedule
}

// spread returns jitter as a part of d.
func spread(d time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(d) * jitter)
}
