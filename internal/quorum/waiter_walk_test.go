package quorum_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// waiterWalk takes one waiter through random attempts and wake-ups, and checks its
// invariants.
type waiterWalk struct {
	choices
	n      int
	now    time.Duration
	grace  time.Duration
	waiter quorum.Waiter
	config quorum.WaiterConfig
	asking bool
	over   bool
	ask    quorum.Ask

	maybe      quorum.Set            // nodes in whose queues the ticket may be
	earlier    quorum.Set            // the same when the attempt under way began
	reserved   quorum.Set            // nodes that have woken the waiter since the attempt began
	relied     quorum.Set            // the same, when the attempt began
	told       quorum.Set            // nodes that reserve the lock for it, or have it free, since the attempt began
	needed     quorum.Set            // one of these nodes must have the lock free before a quorum can grant it
	unanswered bool                  // the last attempt got no answer in time
	evidence   map[int]time.Duration // from these instants on an attempt may report that a node's reservation lapsed
	attempts   int
	tie        dumbTie
	seen       map[string]int
}

func newWaiterWalk(c choices) *waiterWalk {
	w := &waiterWalk{choices: c, now: origin, needed: quorum.All(quorum.MaxNodes), evidence: map[int]time.Duration{}, seen: map[string]int{}}
	w.n = []int{3, 5, 1, 2, 4}[w.draw(5)]
	w.grace = time.Duration(20+w.draw(180)) * ms
	w.config = quorum.WaiterConfig{
		Nodes: w.n, Arrived: clock.Validity(w.now - time.Duration(w.draw(20))*ms), NotBefore: clock.Validity(w.now), Grace: w.grace,
		Subscribed: quorum.Set(w.draw(1 << w.n)), Once: w.draw(10) == 0, Unanswered: w.draw(8) == 0,
		Timeout: time.Duration(1+w.draw(500)) * ms,
	}
	if !w.config.Once && !w.config.Unanswered && w.draw(4) == 0 {
		w.config.Enqueued = true
		w.maybe = quorum.All(w.n)
	}
	w.unanswered = w.config.Unanswered
	w.waiter = quorum.NewWaiter(w.config)
	return w
}

func (w *waiterWalk) jitter() float64 { return float64(w.draw(100)) / 100 }

// pass advances the time: often to the next attempt.
func (w *waiterWalk) pass() {
	switch w.draw(4) {
	case 0:
	case 1:
		w.now += time.Duration(w.draw(30)) * ms
	case 2:
		w.now += time.Duration(w.draw(300)) * ms
	default:
		if at := w.waiter.At(); at != quorum.Never {
			w.now = time.Duration(max(clock.Validity(w.now), at))
		}
	}
}

func (w *waiterWalk) walk(steps int) string {
	for range steps {
		if !w.more() || w.over && w.draw(4) == 0 {
			break
		}
		w.pass()
		if problem := w.step(); problem != "" {
			return fmt.Sprintf("%+v at %v: %s", w.config, w.now-origin, problem)
		}
		if problem := w.laws(); problem != "" {
			return fmt.Sprintf("%+v at %v: %s", w.config, w.now-origin, problem)
		}
	}
	return ""
}

// laws checks the invariants that hold at any time.
func (w *waiterWalk) laws() string {
	waits := !w.asking && !w.over
	switch at := w.waiter.At(); {
	case waits && !w.config.Once && at == quorum.Never:
		return "no attempt is due"
	case !waits && at != quorum.Never:
		return "an attempt is due while one is under way, or after the end"
	case w.waiter.Unanswered() != w.unanswered && !w.asking && !w.over:
		return "it does not record whether the answer was in time"
	}
	return ""
}

func (w *waiterWalk) step() string {
	switch what := w.draw(12); {
	case what < 4 && !w.asking && !w.over:
		if w.config.Once && w.attempts > 0 {
			return ""
		}
		return w.begin()
	case what == 0 && w.asking && w.draw(3) == 0:
		return w.win()
	case what < 6 && w.asking:
		return w.fail()
	case what == 7 && w.draw(8) == 0:
		return w.done()
	case what == 8:
		return w.subscribe()
	default:
		return w.wake()
	}
}

func (w *waiterWalk) begin() string {
	quorumWakes := (w.config.Subscribed).Len() >= quorum.Size(w.n)
	w.ask = w.waiter.Begin(clock.Validity(w.now))
	w.asking = true
	w.attempts++
	w.relied, w.reserved, w.told = w.reserved, 0, 0
	want := !w.config.Once && !w.unanswered && (w.maybe != 0 || quorumWakes)
	switch {
	case w.ask.Ticket != want:
		return fmt.Sprintf("carries its ticket: %v, want %v", w.ask.Ticket, want)
	case w.config.Once && w.ask.Lapsed != 0:
		return "TryAcquire reports a lapsed reservation"
	}
	for i := range w.n {
		at, ok := w.evidence[i]
		if want := ok && w.now >= at && !w.config.Once; want != w.ask.Lapsed.Has(i) {
			return fmt.Sprintf("the reservation of node %d has lapsed: %v, reported: %v", i, want, !want)
		}
	}
	w.earlier = w.maybe
	if w.ask.Ticket {
		w.maybe = quorum.All(w.n)
		w.seen["ticket"]++
	}
	if w.ask.Lapsed != 0 {
		w.seen["lapsed"]++
	}
	clear(w.evidence)
	return ""
}

func (w *waiterWalk) win() string {
	granted := quorum.Set(w.draw(1 << w.n))
	for i := 0; granted.Len() < quorum.Size(w.n); i++ {
		granted = granted.With(i)
	}
	want := w.reserved &^ granted // since the attempt began, except that a node empties its queue
	if got := w.waiter.Won(granted); got&^granted != got || want&^got != 0 {
		return fmt.Sprintf("takes the reservations of %b, known are those of %b", got, want)
	}
	w.asking, w.over = false, true
	w.seen["won"]++
	return ""
}

// fail ends the attempt without a lease.
func (w *waiterWalk) fail() string {
	r := quorum.AttemptResult{Outcome: quorum.OutcomeSplit, TooLate: w.draw(16) == 0}
	for i := range w.n {
		switch w.draw(6) {
		case 0:
			r.Granted = r.Granted.With(i)
		case 1:
			r.Failed = r.Failed.With(i)
			if w.draw(4) == 0 {
				r.Unqueued = r.Unqueued.With(i)
				if !w.earlier.Has(i) {
					w.maybe = w.maybe.Without(i)
				}
			}
		case 2: // silent
		default:
			f := quorum.Refusal{Node: i, Owner: string(rune('b' + w.draw(3))), Left: time.Duration(w.draw(400)) * ms, Position: w.draw(8) - 1, Reserved: w.draw(2) == 0}
			if w.config.Once {
				f.Reserved = f.Reserved && w.draw(8) == 0
			}
			f.Stranger = !f.Reserved && w.draw(4) == 0
			if !w.ask.Ticket {
				f.Position = -1
			}
			if w.draw(8) == 0 {
				f.Left = time.Duration(quorum.Never)
			}
			if f.Position < 0 && w.ask.Ticket {
				w.maybe = w.maybe.Without(i)
			}
			if f.Reserved && clock.Validity(f.Left) != quorum.Never {
				w.reservedElsewhere(i, w.now+f.Left+ms)
			} else {
				delete(w.evidence, i)
			}
			r.Refusals = append(r.Refusals, f)
		}
	}
	missed := w.relied.Len() >= quorum.Size(w.n)
	for i := range w.n {
		refused := slices.ContainsFunc(r.Refusals, func(f quorum.Refusal) bool { return f.Node == i })
		missed = missed && (refused || !w.relied.Has(i))
	}
	w.reserved &^= r.Granted
	w.told &^= r.Granted
	q := quorum.Size(w.n)
	w.needed = quorum.All(w.n)
	if len(r.Refusals) >= w.n-q+1 { // no quorum is without one of them
		w.needed = 0
	}
	for _, f := range r.Refusals {
		w.needed = w.needed.With(f.Node)
	}
	switch {
	case len(r.Refusals) >= w.n-q+1:
		r.Outcome = quorum.OutcomeHeld
	case r.Failed.Len() >= w.n-q+1:
		r.Outcome = quorum.OutcomeNoQuorum
	}
	r.Owner = string(rune('a'+w.draw(3))) + "a" // never one of the others
	poll := time.Duration(1+w.draw(1000)) * ms
	next := w.waiter.Ended(clock.Validity(w.now), &r, poll, w.jitter())
	w.asking = false
	if w.config.Once {
		return w.once(&r, next, poll)
	}
	w.unanswered = r.TooLate || w.n-r.Failed.Len() < q
	missed = missed && !w.unanswered
	gone := w.unanswered || missed
	switch {
	case missed != next.Missed:
		return fmt.Sprintf("has missed its reservations: %v, reported: %v", missed, next.Missed)
	case missed && next.At != clock.Validity(w.now+4*w.grace):
		return "comes back too soon after it has missed its reservations"
	case next.At != w.waiter.At():
		return "two different instants of the next attempt"
	case next.At > clock.Validity(w.now+max(poll, quorum.MaxPoll)):
		return "asks later than any poll"
	case w.unanswered && next.At < clock.Validity(w.now+poll):
		return "does not back off after an attempt that was not answered in time"
	case gone && (next.Ticket == quorum.TicketKeep || next.Ticket == quorum.TicketYield):
		return "stays in the queues after an attempt that was not answered in time"
	case gone && next.Leave != w.maybe:
		return fmt.Sprintf("leaves the queues of %b, but may be in those of %b", next.Leave, w.maybe)
	case !gone && next.Ticket == quorum.TicketLeave:
		return "leaves the queues without need"
	case !gone && w.ask.Ticket != (next.Ticket != quorum.TicketNone):
		return "loses its ticket, or has one that it never sent"
	case next.Ticket == quorum.TicketYield && (r.Granted == 0 || len(r.Refusals) >= q):
		return "yields without a split"
	case !gone && next.PassOn != 0:
		return "passes on a reservation that it waits for"
	}
	if missed {
		w.seen["missed"]++
		w.config.Arrived = next.At
	}
	if gone {
		w.seen["left"]++
		w.maybe, w.reserved, w.told = 0, 0, 0
		clear(w.evidence)
	}
	if next.Ticket == quorum.TicketYield {
		w.seen["yield"]++
	}
	return ""
}

// dumbTie is what a second implementation of a tie remembers.
type dumbTie struct {
	since time.Duration // when the first attempt of the tie failed
	gap   time.Duration
}

// once checks what follows an attempt of a caller that asks once.
func (w *waiterWalk) once(r *quorum.AttemptResult, next quorum.Next, poll time.Duration) string {
	votes, first, reserved := map[string]int{r.Owner: r.Granted.Len()}, r.Granted != 0, false
	for _, f := range r.Refusals {
		votes[f.Owner]++
		first, reserved = first && r.Owner < f.Owner, reserved || f.Reserved
	}
	most := 0
	for _, n := range votes {
		most = max(most, n)
	}
	q := quorum.Size(w.n)
	scattered := len(r.Refusals) > 0 && !reserved && most < q && w.n-r.Failed.Len() >= q
	pending := w.n > r.Granted.Len()+len(r.Refusals)+r.Failed.Len()
	switch {
	case quorum.AwaitsVotes(w.n, r) != (scattered && pending):
		return "waits for votes where nothing depends on them, or does not wait"
	case next.Ticket != quorum.TicketNone:
		return "TryAcquire has a ticket"
	case next.Keep != (next.At != quorum.Never):
		return "asks again without its votes, or keeps them and asks no more"
	case !scattered && next.Keep:
		return "TryAcquire goes on without a tie"
	case scattered && !first:
		w.seen["give way"]++
		if next.Keep {
			return "does not give way"
		}
	case scattered:
		w.seen["keep"]++
		if w.tie.since == 0 {
			w.tie = dumbTie{w.now, poll / 8}
		}
		if next.Keep != (w.now-w.tie.since < 2*w.config.Timeout) {
			return fmt.Sprintf("goes on after %v: %v", w.now-w.tie.since, next.Keep)
		}
		if w.tie.gap = min(2*w.tie.gap, poll); next.Keep && next.At.Add(-w.now) != clock.Validity(w.tie.gap) {
			return fmt.Sprintf("asks again after %v, want %v", next.At.Add(-w.now), w.tie.gap)
		}
	}
	return ""
}

// reservedElsewhere records that node i reserves the lock for another waiter, until at.
func (w *waiterWalk) reservedElsewhere(i int, at time.Duration) {
	if end, ok := w.evidence[i]; !ok || at < end {
		w.evidence[i] = at
	}
}

func (w *waiterWalk) done() string {
	leave, passOn := w.waiter.Done()
	switch {
	case !w.over && leave&w.maybe != w.maybe:
		return fmt.Sprintf("leaves the queues of %b, but may be in those of %b", leave, w.maybe)
	case w.over && leave|passOn != 0:
		return "ends twice"
	}
	w.asking, w.over = false, true
	return ""
}

func (w *waiterWalk) subscribe() string {
	before := w.waiter.At()
	i := w.draw(w.n)
	w.config.Subscribed = w.config.Subscribed.With(i)
	reaction := w.waiter.Subscribed(clock.Validity(w.now), i, w.jitter())
	if w.waiter.At() > before {
		return "asks later because it is woken"
	}
	if reaction == quorum.ReactionReschedule && w.waiter.At() == before {
		return "a reschedule to the same instant"
	}
	return ""
}

func (w *waiterWalk) wake() string {
	before := w.waiter.At()
	i, what := w.draw(w.n), quorum.WakeUp(1+w.draw(4))
	reaction := w.waiter.Wake(clock.Validity(w.now), i, what, 1+w.draw(9), w.jitter())
	at := w.waiter.At()
	waits := !w.asking && !w.over
	switch what {
	case quorum.WakeReserved, quorum.WakeFree:
		if !w.over && !w.unanswered && !w.config.Once {
			delete(w.evidence, i)
			w.told = w.told.With(i)
			if w.reserved = w.reserved.With(i); what == quorum.WakeFree {
				w.reserved = w.reserved.Without(i)
			}
		}
	case quorum.WakeNext:
		if (waits || w.asking) && w.maybe.Has(i) {
			w.reservedElsewhere(i, w.now+w.grace+ms)
		}
	case quorum.WakeAskAgain:
		if (waits || w.asking) && w.maybe.Has(i) {
			delete(w.evidence, i)
			w.reserved, w.told = w.reserved.Without(i), w.told.Without(i)
		}
	}
	reserved := what == quorum.WakeReserved || what == quorum.WakeFree
	unwanted := reserved && (w.over || w.unanswered || w.config.Once)
	wanted := reserved && waits && !unwanted
	w.seen[fmt.Sprint("reaction ", reaction)]++
	switch {
	case at > before:
		return "asks later because it is woken"
	case (reaction == quorum.ReactionReschedule) != (at < before || wanted && at <= clock.Validity(w.now)):
		return "the reported change of the next attempt is wrong"
	case unwanted != (reaction == quorum.ReactionUnused):
		return fmt.Sprintf("an unwanted reservation: %v, reported: %v", unwanted, reaction == quorum.ReactionUnused)
	case wanted && at > clock.Validity(w.now+w.grace/2+3*ms) && w.told&w.needed != 0:
		return "a reservation for it goes by unused"
	case at < before && !w.needed.Has(i) && (what == quorum.WakeNext || reserved && w.told&w.needed == 0):
		return "asks because a node is free that is not enough"
	}
	if waits && !w.needed.Has(i) {
		w.seen["not needed"]++
	}
	return ""
}

func TestWaiterKeepsItsLawsOnRandomWalks(t *testing.T) {
	const walks, steps = 20_000, 60
	seen := walkAll(t, walks, 3, func(c choices) (map[string]int, string) {
		w := newWaiterWalk(c)
		problem := w.walk(steps)
		return w.seen, problem
	})
	for _, what := range []string{"ticket", "lapsed", "won", "left", "missed", "yield", "give way", "keep", "not needed", "reaction 1", "reaction 2"} {
		if seen[what] < walks/100 {
			t.Errorf("%q only %d times: the walks miss something", what, seen[what])
		}
	}
}

func FuzzWaiter(f *testing.F) {
	fuzz(f, func(c choices) string { return newWaiterWalk(c).walk(1000) })
}
