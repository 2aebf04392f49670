package quorumlock

import (
	"container/heap"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// errQueueFull: so much waits for the node that it must be hanging.
var errQueueFull = errors.New("queue full")

// stride is how many arguments extend and heal take for each lease.
const stride = 3

// patience bounds the watchdog's sleep: its timer stands still while the
// machine sleeps, and after a resume a lost lease has to be told soon.
const patience = 250 * time.Millisecond

// together is how far ahead the watchdog looks for leases to renew in one
// script, and the most that a round is early for it.
const together = 100 * time.Millisecond

// watchdog renews the leases of a Manager and tells their loss in time. It is
// one goroutine, whatever the number of leases, and it never waits for a node:
// it posts, and the answers come in the goroutines of the nodes' workers.
//
// Every change of a lease goes through Lease.step, under the lease's mutex, so
// that each lease has one line of events whoever found them.
type watchdog struct {
	m      *Manager
	signal chan struct{} // capacity 1: an earlier wake than the timer's; never closed
	halt   chan struct{} // closed by stop
	halted chan struct{} // closed by run when it ends

	mu     sync.Mutex // taken after a lease's, never before
	leases leaseHeap
	due    []*Lease      // those that run is just looking at, some of them back in leases
	asleep time.Duration // until when; 0 while awake, when it needs no signal
	rung   time.Duration // when it was signalled since it fell asleep; 0 for never
	lag    quorum.Lag    // how late it has been
	expect time.Duration // how late it has to be expected to be: what leases are told
	heard  time.Duration // every lease has been told as much, or more
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
		if d.measure(due, jumped) {
			d.tell()
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

// measure takes note of how late the watchdog is through with what was due:
// its timer, the scheduler, and all the other leases. Jumps of the clock since
// it stood at jumped do not count, they are no sign of work. It reports whether
// that is so much worse than before that every lease has to be told now: those
// that wake by what they heard last would be looked at too late.
func (d *watchdog) measure(due, jumped time.Duration) bool {
	now := d.m.clock.Now()
	late := now - due - (d.m.clock.Jumped() - jumped)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lag.Saw(now, late)
	d.expect = d.lag.Expect(now)
	d.heard = min(d.heard, d.expect)
	if d.expect-d.heard <= max(5*time.Millisecond, d.heard/4) {
		return false
	}
	d.heard = d.expect
	return true
}

// tell has every lease look when its end is, by how late the watchdog is.
func (d *watchdog) tell() {
	var heal healing
	for _, l := range d.live() {
		heal.add(l, l.step(quorum.Input{Kind: quorum.Tick}, nil).Heal)
	}
	d.heal(heal)
}

// lagging returns how late a loss has to be expected to be told.
func (d *watchdog) lagging() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expect
}

// take removes the leases that wake by then. The slice is good until the next
// sleep.
func (d *watchdog) take(then time.Duration) []*Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asleep = 0
	for len(d.leases) > 0 && d.leases[0].wake <= then {
		d.due = append(d.due, heap.Pop(&d.leases).(*Lease))
	}
	return d.due
}

// tend looks at leases whose time has come, and renews those that are due.
// Each goes back to the heap by itself, unless it has ended.
func (d *watchdog) tend(now time.Duration, due []*Lease) {
	var renew []*Lease
	var heal healing
	for _, l := range due {
		if l.lost() {
			d.bury(l, now)
			continue
		}
		tick := l.step(quorum.Input{Kind: quorum.Tick}, nil)
		heal.add(l, tick.Heal)
		if tick.ended || !l.due(now) {
			continue
		}
		if l.step(quorum.Input{Kind: quorum.Begin}, nil).Begin {
			renew = append(renew, l)
		}
	}
	d.heal(heal)
	// Read again: no round may seem to have begun before its machine knows.
	d.extend(d.m.clock.Now(), renew)
}

// bury releases what is left of a lost lease, which speeds up its successor.
// Not at once: whoever was told of the loss has the guard to stop working in.
func (d *watchdog) bury(l *Lease, now time.Duration) {
	if now < l.buried {
		d.schedule(l, l.buried)
		return
	}
	req := l.releaseRequest()
	for i := range d.m.nodes {
		d.m.post(i, req, nobody{})
	}
}

// sleep returns how long there is nothing to do, and false when there is no
// lease at all.
func (d *watchdog) sleep() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.due)
	d.due, d.rung = d.due[:0], 0
	if len(d.leases) == 0 {
		d.asleep = quorum.Never
		d.expect, d.heard = 0, 0 // nothing is measured until the next lease, which has it measured at once
		return 0, false
	}
	now := d.m.clock.Now()
	d.asleep = min(d.leases[0].wake, now+patience) // which may have gone by
	return max(d.asleep-now, 0), true
}

// schedule files a lease under the instant of its next wake; quorum.Never
// takes it out.
func (d *watchdog) schedule(l *Lease, wake time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case wake == quorum.Never:
		if l.index >= 0 {
			heap.Remove(&d.leases, l.index)
		}
		return
	case l.index < 0:
		l.wake = wake
		heap.Push(&d.leases, l)
	case wake < l.wake:
		l.wake = wake
		heap.Fix(&d.leases, l.index)
	default:
		return // too early is put right when it wakes; moving it now costs more
	}
	if wake < d.asleep && d.rung == 0 {
		d.rung = d.m.clock.Now()
		select {
		case d.signal <- struct{}{}:
		default: // one that it has not taken yet, from before it fell asleep
		}
	}
}

// live returns every lease that has not ended and some that have, each once.
func (d *watchdog) live() []*Lease {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone([]*Lease(d.leases))
	for _, l := range d.due {
		if l.index < 0 { // otherwise it is back already
			all = append(all, l)
		}
	}
	return all
}

// extend posts one round for these leases to every node.
func (d *watchdog) extend(now time.Duration, leases []*Lease) {
	fenced := !d.m.cfg.unfenced
	for leases := range slices.Chunk(leases, node.MaxBatch) {
		n := len(leases)
		r := &round{m: d.m, leases: leases, began: now}
		r.req = node.Request{
			Kind: node.Extend, Keys: make([]string, 0, 2*n),
			Args: append(make([]string, 0, 2+stride*n), keysPerLock(fenced), fenceMillis),
		}
		for _, l := range r.leases {
			r.req.Keys = append(r.req.Keys, l.keys[0])
			if fenced {
				r.req.Keys = append(r.req.Keys, l.keys[1])
			}
			r.req.Expires = max(r.req.Expires, now+l.terms.Timeout)
			r.req.Args = append(r.req.Args, l.owner, l.terms.px, strconv.FormatInt(l.token, 10))
		}
		for i := range d.m.nodes {
			d.m.post(i, &r.req, r)
		}
	}
}

// healing is leases whose keys have to be re-created, by node.
type healing map[int][]*Lease

func (h *healing) add(l *Lease, nodes quorum.Set) {
	for i := 0; nodes != 0; i++ {
		if nodes.Has(i) {
			if *h == nil {
				*h = healing{}
			}
			(*h)[i] = append((*h)[i], l)
			nodes = nodes.Without(i)
		}
	}
}

// heal posts the re-creation of keys.
func (d *watchdog) heal(lost healing) {
	now := d.m.clock.Now()
	for i, all := range lost {
		for leases := range slices.Chunk(all, node.MaxBatch) {
			r := &round{m: d.m, leases: leases, began: now}
			r.req = node.Request{Kind: node.Heal}
			for _, l := range leases {
				r.req.Keys = append(r.req.Keys, l.keys[0])
				r.req.Expires = max(r.req.Expires, now+l.terms.Timeout)
				// A heal that arrives after the lease has ended must not lock. Not
				// until the stop, because a release may end the lease before, and
				// overtake the heal on another connection.
				notAfter := min(time.Duration(l.stop.Load()), now+l.terms.Timeout)
				r.req.Args = append(r.req.Args,
					node.Compose(l.owner, l.token, l.tail), l.terms.px, strconv.FormatInt(notAfter.Microseconds(), 10))
			}
			d.m.post(i, &r.req, r)
			for _, l := range leases {
				if l.stop.Load() == 0 {
					// It ended meanwhile, and its release may be ahead of the
					// heal in the queue: one more goes behind it.
					d.m.post(i, l.releaseRequest(), nobody{})
				}
			}
		}
	}
}

// keysPerLock is the argument of the extend script of that name.
func keysPerLock(fenced bool) string {
	if fenced {
		return "2"
	}
	return "1"
}

// round is one extend or heal of several leases, and the receiver of its
// answers.
type round struct {
	m      *Manager
	leases []*Lease
	began  time.Duration
	req    node.Request
}

// Receive steps every lease of the round.
func (r *round) Receive(i int, req *node.Request, reply *node.Reply) {
	r.m.telemetry.node(req.Kind, reply.Status)
	if reply.Status == node.Done && len(reply.Many) != len(r.leases) {
		reply.Status, reply.Err = node.Unknown, errors.New("answers for other locks")
	}
	var lost healing
	gone := false
	for j, l := range r.leases {
		in := quorum.Input{Kind: quorum.Mute, Node: i, At: r.began}
		err := reply.Err
		if reply.Status == node.Done {
			in.At = reply.Sent
			switch reply.Many[j] {
			case 1:
				in.Kind = quorum.Kept
			case -1:
				in.Kind, err = quorum.Foreign, errForeign
			default:
				if req.Kind == node.Heal {
					err = node.ErrLate
				} else {
					in.Kind, err, gone = quorum.Gone, errGone, true
					if step := r.m.steps[i].Load(); step != nil && step.at >= r.began {
						err = step // says why
					}
				}
			}
		}
		lost.add(l, l.step(in, func() { l.note(i, err) }).Heal)
	}
	r.m.dog.heal(lost)
	if gone {
		r.m.nodes[i].Check() // it was flushed, or has begun to evict: told now, and not at the next check
	}
}

// What a node says of a key that is not ours.
var (
	errGone    = errors.New("key is gone")
	errForeign = errors.New("key is somebody else's")
)

// stepped is what a step has done.
type stepped struct {
	quorum.Output
	now   time.Duration
	ended bool // by this step
}

// step takes one input through the lease's decisions and does what they ask
// for, except Begin and Heal, which are the caller's to post. with runs under
// the lease's mutex, if the lease is live, before the step.
func (l *Lease) step(in quorum.Input, with func()) (s stepped) {
	l.mu.Lock()
	s.now = l.m.clock.Now()
	if l.err != nil {
		l.mu.Unlock()
		return s
	}
	if with != nil {
		with()
	}
	jumped := l.m.clock.Jumped()
	// Found past the deadline itself: nobody in this process looked in time.
	in.Jump = jumped != l.jumped || s.now > l.machine.Deadline() && l.machine.Deadline() > 0
	l.jumped = jumped
	in.Lag = l.m.dog.lagging()
	s.Output = l.machine.Step(s.now, in)
	switch l.machine.State() {
	case quorum.Lost:
		// The guard is for work to stop in, and S is until when Remaining said
		// that it may go on.
		l.buried = max(s.now, l.machine.Stop()) + l.terms.Guard
		l.m.dog.schedule(l, l.buried)
		at := l.m.clock.Time(s.now)
		until := at
		if stop := time.Duration(l.stop.Load()); stop < s.now { // found late
			until = at.Add(stop - s.now)
		}
		l.end(&LostError{Lost{
			Name: l.Name(), Token: l.token, Reason: lostReason(l.machine.Reason()),
			At: at, ValidUntil: until, Nodes: l.m.nodeErrors(l.nodes),
		}})
	case quorum.Released:
		l.m.dog.schedule(l, quorum.Never)
		l.end(ErrReleased)
	default:
		l.settle(s.now, s.Output)
	}
	s.ended = l.err != nil
	l.mu.Unlock()
	if s.ended {
		l.m.telemetry.held(l, s.now)
	}
	return s
}

// settle tells what a step of a live lease has changed, and plans the next.
// l.mu is held.
func (l *Lease) settle(now time.Duration, out quorum.Output) {
	l.stop.Store(int64(l.machine.Stop()))
	for i := range l.terms.Nodes {
		if out.Silent.Has(i) && (l.nodes == nil || l.nodes[i] == nil) {
			l.note(i, errSilent)
		}
	}
	switch {
	case l.terms.manual:
	case out.Begin:
		l.machine.Arm(now + l.nextRound())
	case out.Missed:
		if l.retry == nil {
			l.retry = backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(l.terms.ttl/20), backoff.WithMaxInterval(l.terms.interval),
				backoff.WithMaxElapsedTime(0))
		}
		l.machine.Arm(now + l.retry.NextBackOff())
	}
	if out.Confirmed {
		l.retry = nil
	}
	l.finish(out)
	if out.Events&quorum.Renewed != 0 {
		l.tellRenewed(now)
	}
	if out.Events&quorum.AtRisk != 0 {
		l.tellAtRisk(now)
	}
	l.m.dog.schedule(l, max(now, l.machine.Wake())) // from now on it can be late for it
}

// nextRound returns a renewal interval with its jitter, −5 % … +10 %: up to
// 5 % more of earliness comes from going together with other leases.
func (l *Lease) nextRound() time.Duration {
	return time.Duration(float64(l.terms.interval) * (0.95 + 0.15*rand.Float64()))
}

// finish answers the callers of Renew whose round is over. l.mu is held.
func (l *Lease) finish(out quorum.Output) {
	if l.watch == nil || len(l.watch.rounds) == 0 || !out.Confirmed && !out.Missed || out.Begin {
		return
	}
	var err error
	if out.Missed {
		err = &QuorumError{
			Op: "renew", Name: l.Name(), Need: l.m.quorum(),
			Got: l.machine.Confirmed(), Nodes: l.m.nodeErrors(l.nodes),
		}
	}
	for _, round := range l.watch.rounds {
		round <- err
	}
	l.watch.rounds = nil
}

func (l *Lease) tellRenewed(now time.Duration) {
	watched := l.m.bus.watched.Load() > 0
	l.m.telemetry.renewed(time.Duration(l.stop.Load()) - now)
	if l.watch == nil && !watched {
		return
	}
	e := Renewed{
		Name: l.Name(), Token: l.token,
		ValidUntil: l.m.clock.Time(l.machine.Stop()), Margin: l.machine.Margin(now),
	}
	if l.watch != nil {
		latest(l.watch.renewed, e)
	}
	l.m.bus.send(e)
}

func (l *Lease) tellAtRisk(now time.Duration) {
	l.m.telemetry.atRisk()
	if l.watch == nil && l.m.bus.watched.Load() == 0 {
		return
	}
	e := AtRisk{
		Name: l.Name(), Token: l.token, Remaining: l.machine.Stop() - now,
		Margin: l.machine.Margin(now), Nodes: l.m.nodeErrors(l.nodes),
	}
	if l.watch != nil {
		latest(l.watch.atRisk, e)
	}
	l.m.bus.send(e)
}

// end ends the lease, in the order that readers may rely on. l.mu is held.
func (l *Lease) end(err error) {
	l.err = err
	l.stop.Store(0)
	l.retry = nil
	if l.watch != nil {
		l.watch.end(err)
	}
	if l.m.bus.watched.Load() > 0 {
		var e Event = Released{Name: l.Name(), Token: l.token}
		var lost *LostError
		if errors.As(err, &lost) {
			e = lost.Lost
		}
		l.m.bus.send(e)
	}
}

// doubt shortens what a node's vote is worth: its clock was stepped forward, so
// the key expires that much earlier.
func (l *Lease) doubt(step *step) {
	l.step(quorum.Input{Kind: quorum.Stepped, Node: step.node, By: step.by}, func() {
		l.note(step.node, step)
	})
}

// doubtSince does the same for steps that were found while the lease was being
// granted, when it was not yet among those that are told.
func (l *Lease) doubtSince(began time.Duration) {
	for i := range l.m.steps {
		if step := l.m.steps[i].Load(); step != nil && step.at >= began {
			l.doubt(step)
		}
	}
}

// lost reports whether the lease ended by a loss.
func (l *Lease) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.err, ErrLost)
}

// due reports whether a round may start now, to go with others.
func (l *Lease) due(now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.machine.Due(now + l.terms.slack)
}

// note keeps the latest error of a node as evidence; nil is good news. l.mu is
// held.
func (l *Lease) note(i int, err error) {
	if l.nodes == nil {
		if err == nil {
			return
		}
		l.nodes = make([]error, l.terms.Nodes)
	}
	l.nodes[i] = err
}

// nobody receives answers that nobody waits for.
type nobody struct{}

// Receive drops the answer.
func (nobody) Receive(int, *node.Request, *node.Reply) {}

// leaseHeap orders leases by their next wake.
type leaseHeap []*Lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].wake < h[j].wake }

func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is heap.Interface's.
func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
	l.index = len(*h)
	*h = append(*h, l)
}

// Pop is heap.Interface's.
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.index = -1
	return l
}
