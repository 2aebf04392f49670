package balance

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a model of Redis and of processes in virtual time, in which members spread names. One store stands for a
// majority: internal/sim covers the nodes among each other.
type world struct {
	now    time.Duration
	events eventHeap
	count  int
	chance *rand.Rand
	locks  map[string]*lock
	procs  []*proc
	opts   options
	away   bool // no majority answers

	log      func(line string) // of a trace; nil for none
	moves    int
	owner    map[string]*proc         // the process that last ran a name
	gone     map[string]time.Duration // when a name that was given away lost its runner
	gaps     []time.Duration          // of names that were given away
	dropped  map[string]time.Duration // when a name of a member that left lost its runner
	drops    []time.Duration          // the gaps of these names
	asks     int
	looks    int
	counts   int
	wrong    []string      // broken promises
	disturbs time.Duration // the last event that makes a group uneven
}

// options are the planted bugs, and the faults that last for a whole run.
type options struct {
	rules                                                               func(*Rules)
	wrongView                                                           float64 // the fraction of wrong counts, off by one
	releaseEarly, alwaysConsent, noWaiter, noNumber, ghosts, endsAtLoss bool    // planted bugs
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, k int) bool {
	return h[i].at < h[k].at || h[i].at == h[k].at && h[i].seq < h[k].seq
}
func (h eventHeap) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func newWorld(seed uint64, opts options) *world {
	return &world{
		chance: rand.New(rand.NewPCG(seed, 7)), locks: map[string]*lock{}, opts: opts,
		owner: map[string]*proc{}, gone: map[string]time.Duration{}, dropped: map[string]time.Duration{},
	}
}

// after runs do later.
func (w *world) after(d time.Duration, do func()) {
	w.count++
	heap.Push(&w.events, event{w.now + max(d, 0), w.count, do})
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now + d
	for len(w.events) > 0 && w.events[0].at <= end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

// between returns a random time.
func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.chance.Int64N(int64(b-a)+1))
}

// latency returns the time of a request and its answer.
func (w *world) latency() time.Duration { return w.between(time.Millisecond/2, 3*time.Millisecond) }

func (w *world) fail(format string, args ...any) {
	if len(w.wrong) < 20 {
		w.wrong = append(w.wrong, fmt.Sprintf("%v: ", w.now)+fmt.Sprintf(format, args...))
	}
}

// disturbed says that something has changed, up to an instant.
func (w *world) disturbed(until time.Duration) { w.disturbs = max(w.disturbs, until) }

// lock is a name on the nodes.
type lock struct {
	name     string
	holder   *hold
	queue    []*waiter
	reserved time.Duration // for the head of the queue, until then
}

// waiter is a process in a queue.
type waiter struct {
	p    *proc
	died time.Duration // 0 while it lives
}

// hold is a lease, and the function that runs under it.
type hold struct {
	p              *proc
	lock           *lock
	expires, valid time.Duration
	asked          string
	runs           bool // the function
	ending         bool
	released, lost bool
	shown          string // the last value of Wanted
}

func (w *world) lock(key string) *lock {
	l := w.locks[key]
	if l == nil {
		l = &lock{name: key}
		w.locks[key] = l
	}
	return l
}

// free reports whether a lock has no holder, and forgets a holder that has expired.
func (w *world) free(l *lock) bool {
	if l.holder != nil && l.holder.expires <= w.now {
		l.holder = nil
	}
	return l.holder == nil
}

// waiters counts the waiters in a queue, and a dead one for a minute.
func (w *world) waiters(l *lock) int {
	l.queue = slices.DeleteFunc(l.queue, func(one *waiter) bool { return one.died > 0 && w.now-one.died > time.Minute })
	return len(l.queue)
}

// hand gives a free lock to the head of its queue. For a head that cannot take it, the lock is reserved for a second.
func (w *world) hand(l *lock) {
	if !w.free(l) || w.now < l.reserved || w.waiters(l) == 0 {
		return
	}
	head := l.queue[0]
	if head.died == 0 && !head.p.cut && !w.away && head.p.stopped <= w.now {
		l.queue = l.queue[1:]
		head.p.granted(l)
		return
	}
	l.reserved = w.now + time.Second
	w.after(time.Second, func() {
		if !w.free(l) {
			return
		}
		l.reserved = 0
		if len(l.queue) > 0 && l.queue[0] == head {
			l.queue = append(slices.Clone(l.queue[1:]), head)
		}
		if slices.ContainsFunc(l.queue, func(one *waiter) bool { return one.died == 0 }) {
			w.hand(l)
		}
	})
}

// grantTo makes a lease.
func (w *world) grantTo(p *proc, l *lock) *hold {
	h := &hold{p: p, lock: l, expires: w.now + p.ttl, valid: w.now + p.ttl*97/100 - 2*time.Millisecond}
	l.holder, l.reserved = h, 0
	w.watch(h)
	return h
}

// watch passes the lock on when its keys end.
func (w *world) watch(h *hold) {
	until := h.expires
	w.after(until-w.now+w.between(0, 300*time.Millisecond), func() {
		if h.expires > until {
			w.watch(h)
		} else if !h.released {
			w.hand(h.lock)
		}
	})
}
