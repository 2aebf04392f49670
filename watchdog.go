package quorumlock

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// longestSleep bounds the watchdog's sleep. Its timer stands still while the machine is
// suspended, and after a resume a lost lease has to be reported soon.
const longestSleep = 250 * time.Millisecond

// together is how far ahead the watchdog looks for holds to renew in one script. A round
// starts at most that long before it is due, see terms.slack.
const together = 100 * time.Millisecond

// watchdog renews the holds of a Manager and reports every loss in time. It is one
// goroutine, whatever the number of leases. It never waits for a node: it posts requests,
// and the workers' goroutines deliver the answers.
//
// Every step of a hold's machine and every event of its leases happens under the hold's
// mutex. So the events of each lease have one order, whichever goroutine causes them.
type watchdog struct {
	m      *Manager
	signal chan struct{} // capacity 1: an earlier wake than the timer's; never closed
	halt   chan struct{} // closed by stop
	halted chan struct{} // closed by run when it ends

	mu       sync.Mutex // taken after a hold's mutex, never before
	holds    holdHeap
	due      []*hold       // holds that run is processing; some are back in holds
	asleep   time.Duration // the end of the sleep; 0 while awake, when it needs no signal
	used     bool          // a hold was scheduled since the last sleep began
	rung     time.Duration // the first signal since the sleep began; 0 for none
	lag      quorum.Lag    // recent delays of the watchdog
	expected atomic.Int64  // the expected delay, which each step of a hold uses; read without mu
	applied  time.Duration // every hold has been stepped with this delay or a longer one
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
	timer := time.NewTimer(longestSleep)
	defer timer.Stop()
	due, jumped := d.m.clock.Now(), d.m.clock.Jumped() // the instant of the due wake, and the clock's jumps until then
	for {
		now := d.m.clock.Now()
		d.tend(now, d.take(now+together))
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

// overdue returns when the watchdog should have woken: by its timer or by a signal,
// whichever was first.
func (d *watchdog) overdue() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rung != 0 {
		return min(d.rung, d.asleep)
	}
	return d.asleep
}

// measure records how late the watchdog finished what was due: the delay of its timer, of
// the scheduler, and the work on all the other holds. Jumps of the clock since jumped was
// read do not count, because they are no sign of load. It reports whether the delay has
// grown so much that every hold has to be stepped now: its next wake was computed with the
// old, shorter delay, and would be too late.
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

// stepAll steps every hold, so that its next wake allows for the expected delay.
func (d *watchdog) stepAll() {
	var heal healing
	for _, h := range d.live() {
		heal.add(h, h.step(quorum.Input{Kind: quorum.InputTick}, nil).Heal)
	}
	d.heal(heal)
}

// expectedLag returns the expected delay before a reader observes a loss.
func (d *watchdog) expectedLag() time.Duration { return time.Duration(d.expected.Load()) }

// take removes the holds that wake by then. The slice is valid until the next sleep.
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

// tend steps the holds that are due, and renews those whose round is due. Each step
// returns the hold to the heap, unless the hold is over.
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
	d.extend(renew, quorum.All(d.m.ensemble.Size()))
	// The release does not follow a loss at once: the holder has the guard to stop its
	// work.
	d.m.clear(remnants)
}

// releaseAll returns requests that delete the locks of holds that are over, so that
// waiters need not wait for the TTL. stayed is how many of the holds Close waits for: the
// caller takes them off m.calls when it has posted the requests.
func (m *Manager) releaseAll(holds []*hold) (requests []*wire.Request, stayed int) {
	_, now := m.clock.Both()
	for holds := range slices.Chunk(holds, wire.MaxLocks) {
		plain := make([][2]string, 0, len(holds))
		expires := now
		for _, h := range holds {
			h.mu.Lock()
			special, value := h.ticket.queued != 0 || h.acquire != nil, h.value
			delayed := h.machine.State() == quorum.StateLost && h.terms.lockDelay > 0 && m.clock.Now() < h.remains
			if h.stays {
				h.stays = false
				stayed++
			}
			h.mu.Unlock()
			if delayed { // Close: the keys of a lost lease expire by themselves, after the delay
				continue
			}
			if keep := h.keepRequest(); keep != nil {
				requests = append(requests, keep)
				continue
			}
			if special {
				requests = append(requests, h.releaseRequest(wire.TicketUpdate{}))
				continue
			}
			plain = append(plain, [2]string{h.lock, value})
			expires = max(expires, now+h.terms.ttl+h.terms.lockDelay)
		}
		if len(plain) > 0 {
			requests = append(requests, wire.NewReleases(plain, expires))
		}
	}
	return requests, stayed
}

// sleep returns how long the watchdog may sleep, and false when nothing is scheduled.
func (d *watchdog) sleep() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.due)
	d.due, d.rung = d.due[:0], 0
	now := d.m.clock.Now()
	if len(d.holds) == 0 {
		// Without holds nothing is measured; the next hold starts it again. The watchdog
		// still wakes once more: otherwise a single caller that acquires and releases in
		// turn would signal it every time.
		d.applied = 0
		d.expected.Store(0)
		if !d.used {
			d.asleep = quorum.Never
			return 0, false
		}
		d.asleep, d.used = now+longestSleep, false
		return longestSleep, true
	}
	d.asleep = min(d.holds[0].wake, now+longestSleep) // possibly in the past
	return max(d.asleep-now, 0), true
}

// wakeBy makes the watchdog wake at an instant, if its sleep ends later. d.mu is held.
func (d *watchdog) wakeBy(at time.Duration) {
	if at < d.asleep && d.rung == 0 {
		d.rung = d.m.clock.Now()
		select {
		case d.signal <- struct{}{}:
		default: // a signal from before the sleep is still in the channel
		}
	}
}

// schedule puts a hold into the heap under its next wake; quorum.Never removes it.
func (d *watchdog) schedule(h *hold, wake time.Duration) {
	// A wake that is too early is harmless: the hold is scheduled anew then. So the lock is not
	// taken only to move a wake to a later instant. Most calls end here.
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

// renewAtRisk renews the holds that are at risk, because node i is back: by a new round, or
// by asking the node again in the round under way, which may have begun without it.
func (d *watchdog) renewAtRisk(i int) {
	var renew, again []*hold
	for _, h := range d.live() {
		h.mu.Lock()
		risk := !h.over && h.machine.State() == quorum.StateAtRisk
		waiting := h.machine.Waiting()
		h.mu.Unlock()
		switch {
		case !risk:
		case !h.terms.manual && h.step(quorum.Input{Kind: quorum.InputBegin}, nil).Begin:
			renew = append(renew, h)
		case waiting:
			again = append(again, h)
		}
	}
	d.extend(renew, quorum.All(d.m.ensemble.Size()))
	d.extend(again, quorum.Set(0).With(i))
}

// live returns every hold that is not over, and some that are, each once.
func (d *watchdog) live() []*hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*hold, 0, len(d.holds)+len(d.due))
	for i := range d.holds {
		all = append(all, d.holds[i].hold)
	}
	for _, h := range d.due {
		if h.index < 0 { // otherwise it is back in the heap
			all = append(all, h)
		}
	}
	return all
}

// The errors for a key that is not ours.
var (
	errMissing = errors.New("key is missing")
	errTaken   = errors.New("key belongs to another owner")
)

// isOver reports whether the hold was lost or released.
func (h *hold) isOver() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over
}

// nobody is a receiver that discards the answers.
type nobody struct{}

// Receive discards the answer.
func (nobody) Receive(int, *wire.Request, *wire.Reply) {}
