package quorumlock

import (
	"container/heap"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// errOverloaded says that more acquisitions wait for the node than it answers in time.
var errOverloaded = errors.New("overloaded: too many acquisitions wait for this node")

// patience bounds the watchdog's sleep: its timer stands still while the
// machine sleeps, and after a resume a lost lease has to be told soon.
const patience = 250 * time.Millisecond

// together is how far ahead the watchdog looks for holds to renew in one
// script, and the most that a round is early for it.
const together = 100 * time.Millisecond

// watchdog renews the holds of a Manager and has every loss reported in time. It is one
// goroutine, whatever the number of leases, and it never waits for a node: it posts, and
// the answers come in the goroutines of the nodes' workers.
//
// Every change of a hold goes through hold.step, under the hold's mutex, so that each
// lease has one line of events, whichever goroutine found them.
type watchdog struct {
	m      *Manager
	signal chan struct{} // capacity 1: an earlier wake than the timer's; never closed
	halt   chan struct{} // closed by stop
	halted chan struct{} // closed by run when it ends

	mu       sync.Mutex // taken after a hold's, never before
	holds    holdHeap
	due      []*hold       // those that run is just looking at, some of them back in holds
	asleep   time.Duration // until when; 0 while awake, when it needs no signal
	used     bool          // a hold was scheduled since it fell asleep
	rung     time.Duration // when it was signalled since it fell asleep; 0 for never
	lag      quorum.Lag    // how late it has been
	expected atomic.Int64  // how late it has to be expected to be, as holds are stepped with; read without mu
	applied  time.Duration // every hold has been stepped with as much, or more
}

func newWatchdog(m *Manager) *watchdog {
	return &watchdog{
		m:      m,
		signal: make(chan struct{}, 1), halt: make(chan struct{}), halted: make(chan struct{}),
	}
}

// stop ends run and waits for it.
func (d *watchdog) stop() {
	close(d.halt)
	<-d.halted
}

// run is the watchdog's goroutine.
func (d *watchdog) run() {
	defer close(d.halted)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	due, jumped := d.m.clock.Now(), d.m.clock.Jumped() // when it had to look, and before that
	for {
		now := d.m.clock.Now()
		d.tend(now, d.take(now+together))
		d.m.locals.tend(now)
		if d.measure(due, jumped) {
			d.stepAll()
		}
		jumped = d.m.clock.Jumped()
		if wait, ok := d.sleep(); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-d.signal:
		case <-d.halt:
			return
		}
		due = d.overdue()
	}
}

// overdue returns since when the watchdog has had to be awake, by its timer or
// by a signal, whichever was first.
func (d *watchdog) overdue() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rung != 0 {
		return min(d.rung, d.asleep)
	}
	return d.asleep
}

// measure takes note of how late the watchdog is through with what was due: its timer,
// the scheduler, and all the other holds. Jumps of the clock since it stood at jumped do
// not count, they are no sign of work. It reports whether that is so much worse than
// before that every hold has to be stepped now: those that wake by what they were stepped
// with last would be looked at too late.
func (d *watchdog) measure(due, jumped time.Duration) bool {
	now := d.m.clock.Now()
	late := now - due - (d.m.clock.Jumped() - jumped)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lag.Saw(now, late)
	expected := d.lag.Expect(now)
	d.expected.Store(int64(expected))
	d.applied = min(d.applied, expected)
	if expected-d.applied <= max(5*time.Millisecond, d.applied/4) {
		return false
	}
	d.applied = expected
	return true
}

// stepAll has every hold look when its end is, by how late the watchdog is.
func (d *watchdog) stepAll() {
	var heal healing
	for _, h := range d.live() {
		heal.add(h, h.step(quorum.Input{Kind: quorum.InputTick}, nil).Heal)
	}
	d.heal(heal)
}

// expectedLag returns the expected delay before a reader observes a loss.
func (d *watchdog) expectedLag() time.Duration { return time.Duration(d.expected.Load()) }

// take removes the holds that wake by then. The slice is good until the next sleep.
func (d *watchdog) take(then time.Duration) []*hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asleep = 0
	for len(d.holds) > 0 && d.holds[0].wake <= then {
		h := d.holds[0].hold
		d.holds.remove(h)
		d.due = append(d.due, h)
	}
	return d.due
}

// tend looks at holds whose time has come, and renews those that are due. Each goes back
// to the heap by itself, unless it is over.
func (d *watchdog) tend(now time.Duration, due []*hold) {
	var renew, remnants []*hold
	var heal healing
	for _, h := range due {
		switch live, begin := h.tick(now, &heal); {
		case begin:
			renew = append(renew, h)
			h.remind(now)
		case live:
		case now < h.remains:
			d.schedule(h, h.remains)
		default:
			remnants = append(remnants, h)
		}
	}
	d.heal(heal)
	d.extend(renew)
	// Not at once after a loss: the holder has the guard to stop working in.
	for _, req := range d.m.releaseAll(remnants) {
		for i := range d.m.nodes {
			d.m.post(i, req, nobody{})
		}
	}
}

// releaseAll returns requests that delete the locks of holds that are over, which speeds
// up their successors.
func (m *Manager) releaseAll(holds []*hold) (requests []*node.Request) {
	_, now := m.clock.Both()
	for holds := range slices.Chunk(holds, node.MaxLocks) {
		plain := make([][2]string, 0, len(holds))
		expires := now
		for _, h := range holds {
			h.mu.Lock()
			special, value := h.waiter != nil || h.acquire != nil, h.value
			h.mu.Unlock()
			if keep := h.keepRequest(); keep != nil {
				requests = append(requests, keep)
				continue
			}
			if special {
				requests = append(requests, h.releaseRequest(node.TicketUpdate{}))
				continue
			}
			plain = append(plain, [2]string{h.lock, value})
			expires = max(expires, now+h.terms.ttl+h.terms.lockDelay)
		}
		if len(plain) > 0 {
			requests = append(requests, node.NewReleases(plain, expires))
		}
	}
	return requests
}

// sleep returns how long there is nothing to do, and false when there is nothing to come.
func (d *watchdog) sleep() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.due)
	d.due, d.rung = d.due[:0], 0
	next := d.m.locals.agenda.earliest()
	now := d.m.clock.Now()
	if len(d.holds) == 0 {
		// Nothing is measured until the next hold has it measured. One caller that acquires and
		// releases in turn would wake the watchdog each time if it slept for ever at once.
		d.applied = 0
		d.expected.Store(0)
		d.asleep = next
		if d.used {
			d.asleep = min(next, now+patience)
		}
		d.used = false
		if d.asleep == quorum.Never {
			return 0, false
		}
		return max(d.asleep-now, 0), true
	}
	d.asleep = min(d.holds[0].wake, now+patience, next) // which may have gone by
	return max(d.asleep-now, 0), true
}

// wakeBy has the watchdog look at an instant that is earlier than it knows. d.mu is held.
func (d *watchdog) wakeBy(at time.Duration) {
	if at < d.asleep && d.rung == 0 {
		d.rung = d.m.clock.Now()
		select {
		case d.signal <- struct{}{}:
		default: // one that it has not taken yet, from before it fell asleep
		}
	}
}

// schedule files a hold under the instant of its next wake; quorum.Never takes it out.
func (d *watchdog) schedule(h *hold, wake time.Duration) {
	// Too early is put right when it wakes; moving it now costs more. Most answers end here.
	if known := h.wake.Load(); known != 0 && int64(wake) >= known && wake != quorum.Never {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if wake == quorum.Never {
		if h.index >= 0 {
			d.holds.remove(h)
		}
		return
	}
	d.holds.file(h, wake)
	d.used = true
	d.wakeBy(wake)
}

// live returns every hold that is not over and some that are, each once.
func (d *watchdog) live() []*hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*hold, 0, len(d.holds)+len(d.due))
	for i := range d.holds {
		all = append(all, d.holds[i].hold)
	}
	for _, h := range d.due {
		if h.index < 0 { // otherwise it is back already
			all = append(all, h)
		}
	}
	return all
}

// extend posts one round for these holds to every node.
func (d *watchdog) extend(holds []*hold) {
	for holds := range slices.Chunk(holds, node.MaxLocks) {
		// Read now: no round may seem to have begun before its machine knows.
		began, steady := d.m.clock.Both()
		r := &round{m: d.m, holds: holds, began: began, steady: steady}
		renewals, expires := node.NewRenewals(len(holds)), steady
		for _, h := range holds {
			h.mu.Lock()
			renewals.Add(h.lock, h.value, h.terms.keyTTL)
			h.mu.Unlock()
			// One that comes late prolongs the lease all the same, until the next round.
			expires = max(expires, steady+max(h.terms.Timeout, h.terms.ttl/4))
		}
		req := renewals.Request(expires)
		for i := range d.m.nodes {
			d.m.post(i, req, r)
		}
	}
}

// healing is holds whose keys have to be created again, by node.
type healing map[int][]*hold

func (l *healing) add(h *hold, nodes quorum.Set) {
	for i := 0; nodes != 0; i++ {
		if nodes.Has(i) {
			if *l == nil {
				*l = healing{}
			}
			(*l)[i] = append((*l)[i], h)
			nodes = nodes.Without(i)
		}
	}
}

// heal posts the creation of lost keys.
func (d *watchdog) heal(lost healing) {
	for i, all := range lost {
		for holds := range slices.Chunk(all, node.MaxLocks) {
			d.healOn(i, holds)
		}
	}
}

func (d *watchdog) healOn(i int, holds []*hold) {
	began, steady := d.m.clock.Both()
	locks, expires := make([]node.Healing, 0, len(holds)), steady
	for _, h := range holds {
		h.mu.Lock()
		// A heal that arrives after the hold is over must not lock: until the stop at the
		// latest, because a release may end the hold before, and overtake the heal on
		// another connection.
		left := min(h.machine.Stop()-began, h.terms.Timeout)
		if h.over {
			left = 0
		}
		if h.acquire != nil {
			h.acquire.MadeElsewhere(i)
		}
		heldUntil := time.Duration(0)
		if until := h.machine.HeldUntil(i); until > 0 {
			heldUntil = max(steady+until-began, 0)
		}
		locks = append(locks, node.Healing{
			HeldUntil: heldUntil, Lock: h.lock, Owner: ownerOf(h.value), Metadata: metadata(h.value), KeyTTL: h.terms.keyTTL, NotAfter: steady + left,
		})
		h.mu.Unlock()
		expires = max(expires, steady+h.terms.Timeout)
	}
	d.m.post(i, node.NewHeal(locks, expires), &round{m: d.m, holds: holds, began: began, steady: steady})
	for _, h := range holds {
		if h.isOver() {
			// It ended meanwhile, and its release may be ahead of the heal in the queue: one
			// more goes behind it.
			d.m.post(i, h.releaseRequest(node.TicketUpdate{}), nobody{})
		}
	}
}

// round is one extend or heal of several holds, and the receiver of its answers.
type round struct {
	m             *Manager
	holds         []*hold
	began, steady time.Duration // before it was posted, by either clock
}

// Receive steps every hold of the round.
func (r *round) Receive(i int, req *node.Request, reply *node.Reply) {
	r.m.answered(i, req, reply)
	if reply.Status == node.Done && len(reply.Answers) != len(r.holds) {
		reply.Status, reply.Err = node.Unknown, errors.New("answers for other locks")
	}
	var lost healing
	gone := false
	for j, h := range r.holds {
		in := quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: r.began}
		err, answer := reply.Err, int64(node.Unanswered)
		if reply.Status == node.Done {
			in.At, answer = reply.Sent, reply.Answers[j]
			switch answer {
			case node.Ours, node.OursWithoutToken:
				in.Kind, err = quorum.InputConfirmed, nil
				if req.Kind == node.Heal {
					answer = node.OursWithoutToken
				}
			case node.Another:
				in.Kind, err = quorum.InputTaken, errTaken
			case node.Missing:
				if err = node.ErrLate; req.Kind == node.Extend {
					in.Kind, err, gone = quorum.InputMissing, errMissing, true
					if step := r.m.steps.last(i); step != nil && step.at >= r.steady {
						err = step // says why
					}
				}
			default: // the operation failed by itself
			}
		}
		lost.add(h, h.step(in, func() {
			h.note(i, err)
			if in.Kind != quorum.InputNoAnswer {
				h.prove(i, answer, in.At)
			}
		}).Heal)
	}
	r.m.dog.heal(lost)
	if gone {
		r.m.nodes[i].Check() // it was flushed, or has begun to evict: reported now, and not at the next check
	}
}

// What a node says of a key that is not ours.
var (
	errMissing = errors.New("key is gone")
	errTaken   = errors.New("key is somebody else's")
)

// isOver reports whether the hold was lost or released.
func (h *hold) isOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// nobody receives answers that nobody waits for.
type nobody struct{}

// Receive drops the answer.
func (nobody) Receive(int, *node.Request, *node.Reply) {}

// holdHeap orders holds by their next wake. It has a copy of that of each: to look into
// the holds costs a miss of the cache each time.
type holdHeap []scheduled

type scheduled struct {
	wake time.Duration
	hold *hold
}

// file puts a hold under the instant of its wake, in or anew.
func (h *holdHeap) file(one *hold, wake time.Duration) {
	one.wake.Store(int64(wake))
	if one.index < 0 { // heap.Push would allocate
		one.index = len(*h)
		*h = append(*h, scheduled{hold: one})
	}
	(*h)[one.index].wake = wake
	heap.Fix(h, one.index)
}

// remove takes a hold out.
func (h *holdHeap) remove(one *hold) {
	heap.Remove(h, one.index)
	one.wake.Store(0)
}

func (h holdHeap) Len() int           { return len(h) }
func (h holdHeap) Less(i, j int) bool { return h[i].wake < h[j].wake }

func (h holdHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].hold.index, h[j].hold.index = i, j
}

// Push is heap.Interface's; file does without.
func (h *holdHeap) Push(x any) {
	one := x.(scheduled)
	one.hold.index = len(*h)
	*h = append(*h, one)
}

// Pop is heap.Interface's.
func (h *holdHeap) Pop() any {
	last := len(*h) - 1
	one := (*h)[last].hold
	(*h)[last] = scheduled{}
	*h = (*h)[:last]
	one.index = -1
	return one
}
