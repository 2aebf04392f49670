package election

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
)

// race is a Run with Preference or Health: it passes events to a candidate, and carries out its commands. All fields
// belong to the goroutine of Run, except where a comment says otherwise.
type race struct {
	e *Elector
	settings
	ctx    context.Context // of this Run; it ends with the caller's, or when Run must end
	stop   context.CancelCauseFunc
	core   *candidate
	began  time.Time
	result error // why Run ends, unless ctx ended

	running sync.WaitGroup // all goroutines, started by spawn alone; Run joins them
	// events has capacity 0: a sender waits for the loop, or for the end of ctx, and then drops its event. Never closed.
	events chan happening
	// statuses and wants are the channels of Observe and Lease.Wanted: capacity 1, the latest value replaces one that was
	// not read, closed at the end of the observation or lease. nil before.
	statuses <-chan quorumlock.Status
	wants    [2]<-chan quorumlock.Wanted
	claims   [2]*claim   // the calls that have not ended
	patience *time.Timer // from the close of Yielding to the end of Lead's context; nil before
}

// happening is an event, and the claim that it is about.
type happening struct {
	event
	claim *claim
}

// claim is a call that waits for a lease, and then holds it until it must end. Its goroutine writes lease and end
// before it sends granted, and err and work before it sends ended.
type claim struct {
	which  lease
	ctx    context.Context // of the call
	cancel context.CancelFunc
	answer chan bool // to granted of the name: whether to lead. Capacity 1, one value, never closed
	lease  *quorumlock.Lease
	end    context.CancelCauseFunc // of Lead's context
	err    error                   // what the call returned
	work   error                   // what Lead returned

	led     bool  // the answer was to lead
	yielded error // why Yielding was closed; nil if it was not
	timeUp  bool  // Lead's context has ended by that
}

// campaign runs a candidate until ctx ends or Lead returns, and joins its goroutines.
func (e *Elector) campaign(ctx context.Context, s settings) error {
	r := &race{e: e, settings: s, began: time.Now(), events: make(chan happening)}
	r.ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	r.core = newCandidate(s.rules, rand.Uint64, fmt.Sprintf("%08x", rand.Uint32()))
	var err error
	if r.statuses, err = e.m.Observe(r.ctx, e.cfg.Name); err != nil {
		return err
	}
	defer r.running.Wait() // also when a panic ends the loop
	defer r.stop(nil)
	if e.cfg.Preference != nil {
		r.spawn(r.prefer)
	}
	if e.cfg.Health != nil {
		r.spawn(r.check)
	}
	r.loop()
	r.running.Wait()
	if ctx.Err() == nil {
		return r.result
	}
	return r.ended(ctx)
}

// spawn starts a goroutine. Apart from Run, no other function of this package does.
func (r *race) spawn(f func()) { r.running.Go(f) }

// now returns the monotonic time since the beginning.
func (r *race) now() time.Duration { return time.Since(r.began) }

// loop handles events, one after the other.
func (r *race) loop() {
	period := min(time.Second, r.rules.ttl/8)
	if r.rules.checks {
		period = min(period, max(r.rules.every/2, 10*time.Millisecond))
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	r.step(event{what: ticked}, nil)
	for r.ctx.Err() == nil {
		var impatient <-chan time.Time
		if r.patience != nil {
			impatient = r.patience.C
		}
		select {
		case <-r.ctx.Done():
		case h := <-r.events:
			r.handle(h)
		case s, ok := <-r.statuses:
			r.observed(s, ok)
		case w, ok := <-r.wants[nameLease]:
			r.wanted(nameLease, w, ok)
		case w, ok := <-r.wants[nextLease]:
			r.wanted(nextLease, w, ok)
		case <-impatient:
			r.timeUp()
		case <-tick.C:
			r.step(event{what: ticked}, nil)
		}
	}
	if r.patience != nil {
		r.patience.Stop()
	}
}

// finish ends Run with a result.
func (r *race) finish(err error) {
	r.result = err
	r.stop(err)
}

// handle takes an event of a goroutine.
func (r *race) handle(h happening) {
	switch c := h.claim; h.what {
	case granted:
		if c.which == nextLease {
			r.wants[nextLease] = c.lease.Wanted()
		}
	case ended:
		r.claims[c.which], r.wants[c.which] = nil, nil
		over, err := r.outcome(c)
		c.cancel()
		if over {
			r.finish(err)
			return
		}
	default:
	}
	r.step(h.event, h.claim)
}

// outcome reports whether the return of a call ends Run, and with which error. The context of a call that the candidate
// has left has ended.
func (r *race) outcome(c *claim) (over bool, err error) {
	lost := errors.Is(c.err, quorumlock.ErrLost)
	switch {
	case errors.Is(c.err, quorumlock.ErrClosed):
		return c.led || c.ctx.Err() == nil, c.err
	case c.led && (lost || c.timeUp):
		if work := c.work; work != nil && !errors.Is(work, quorumlock.ErrLost) && !errors.Is(work, context.Canceled) && (c.yielded == nil || !errors.Is(work, c.yielded)) {
			r.log.Warn("election: Lead returned an error after its context had ended; Run continues", "name", r.e.cfg.Name, "error", work)
		}
		return false, nil
	case c.led && c.yielded != nil && c.err == nil:
		return false, nil
	case c.led:
		return true, c.err
	}
	return c.err != nil && !lost && c.ctx.Err() == nil, c.err
}

func (r *race) observed(s quorumlock.Status, ok bool) {
	if !ok {
		r.statuses = nil
		if r.claims == [2]*claim{} { // otherwise the claims end as well, and report it
			r.finish(quorumlock.ErrClosed)
		}
		return
	}
	r.step(event{what: observed, sight: sight{known: s.Known, held: s.Held, owner: s.Holder.Owner}}, nil)
}

func (r *race) wanted(l lease, w quorumlock.Wanted, ok bool) {
	if !ok {
		r.wants[l] = nil
		return
	}
	r.step(event{what: wanted, lease: l, waiters: w.Waiters, ask: w.Reason}, nil)
}

// step gives the candidate an event, and carries out its commands. c is the claim of the event, nil for none.
func (r *race) step(e event, c *claim) {
	for _, cmd := range r.core.step(e, r.now()) {
		switch cmd.act {
		case actQueue:
			r.claim(cmd.lease)
		case actLeave:
			if c := r.claims[cmd.lease]; c != nil {
				c.cancel()
			}
		case actLead:
			r.lead(c)
		case actRefuse:
			c.answer <- false
		case actYield:
			r.yield(cmd.cause)
		case actAsk:
			r.spawn(func() { r.ask(cmd) })
		}
	}
}

func (r *race) lead(c *claim) {
	yielding := make(chan struct{})
	r.e.yielding.Store(&yielding)
	r.e.lease.Store(c.lease)
	r.wants[nameLease] = c.lease.Wanted()
	c.led = true
	c.answer <- true
}

func (r *race) yield(cause error) {
	c := r.claims[nameLease]
	c.yielded = cause
	close(*r.e.yielding.Load())
	if r.e.cfg.YieldWithin == 0 {
		r.timeUp()
		return
	}
	r.patience = time.NewTimer(r.e.cfg.YieldWithin)
}

// timeUp ends Lead's context after a yield.
func (r *race) timeUp() {
	r.patience = nil
	if c := r.claims[nameLease]; c != nil && c.yielded != nil {
		c.timeUp = true
		c.end(c.yielded)
	}
}

// tell hands an event to the loop, and reports whether the loop took it: not after the end of Run.
func (r *race) tell(e event, c *claim) bool {
	select {
	case r.events <- happening{e, c}:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// claim begins to wait for a lease.
func (r *race) claim(which lease) {
	c := &claim{which: which, answer: make(chan bool, 1)}
	c.ctx, c.cancel = context.WithCancel(r.ctx)
	r.claims[which] = c
	name, opts, hold := r.e.cfg.Name, r.options(), c.leadIt
	if which == nextLease {
		// Options that keep a name after its lease would only delay the next candidate.
		name, hold = name+nextSuffix, c.keep
		opts = append(opts, quorumlock.WithMaxHold(0), quorumlock.WithMinHold(0), quorumlock.WithLockDelay(0))
	}
	r.spawn(func() {
		c.err = r.e.m.Do(c.ctx, name, func(ctx context.Context, l *quorumlock.Lease) error { return hold(ctx, r, l) }, opts...)
		r.tell(event{what: ended, lease: which}, c)
	})
}

func (r *race) options() []quorumlock.AcquireOption {
	return append(append([]quorumlock.AcquireOption(nil), r.e.cfg.Acquire...), quorumlock.WithTTL(r.rules.ttl))
}

// keep holds NAME/next until the claim ends.
func (c *claim) keep(ctx context.Context, r *race, l *quorumlock.Lease) error {
	c.lease = l
	r.tell(event{what: granted, lease: nextLease}, c)
	<-ctx.Done()
	return nil
}

// leadIt runs Lead, if the candidate still wants to.
func (c *claim) leadIt(ctx context.Context, r *race, l *quorumlock.Lease) error {
	c.lease = l
	ctx, c.end = context.WithCancelCause(ctx)
	defer c.end(nil)
	if !r.tell(event{what: granted, lease: nameLease}, c) {
		return nil
	}
	// The loop has taken the event, so it answers before it takes another one.
	if !<-c.answer {
		return nil
	}
	c.work = r.e.cfg.Lead(ctx, l)
	return c.work
}

// ask asks the holder of a lease for it. The candidate repeats an ask that is not delivered.
func (r *race) ask(cmd command) {
	ctx, cancel := context.WithTimeout(r.ctx, r.rules.ttl/2)
	defer cancel()
	name := r.e.cfg.Name
	if cmd.lease == nextLease {
		name += nextSuffix
	}
	_ = r.e.m.AskRelease(ctx, name, cmd.text) // the Manager warns of its nodes
	r.tell(event{what: asked}, nil)
}

// pause waits, and reports whether Run continues.
func (r *race) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// prefer calls Preference.
func (r *race) prefer() {
	for r.tell(event{what: preferred, value: r.e.cfg.Preference()}, nil) && r.pause(preferenceEvery) {
	}
}

// check calls Health.
func (r *race) check() {
	for r.tell(event{what: checking}, nil) {
		ctx, cancel := context.WithTimeout(r.ctx, r.rules.every)
		err := r.e.cfg.Health(ctx)
		cancel()
		if !r.tell(event{what: checked, ok: err == nil}, nil) || !r.pause(r.rules.every) {
			return
		}
	}
}

// ended returns the error of Run when the caller's context has ended: a call's error, with the context's and its cause.
func (r *race) ended(ctx context.Context) error {
	err := r.result
	for _, which := range []lease{nameLease, nextLease} {
		if c := r.claims[which]; c != nil && err == nil {
			err = c.err
		}
	}
	for _, end := range []error{ctx.Err(), context.Cause(ctx)} {
		switch {
		case err == nil:
			err = end
		case !errors.Is(err, end):
			err = fmt.Errorf("%w: %w", err, end) // on one line, unlike errors.Join
		}
	}
	return fmt.Errorf("election %q ended: %w", r.e.cfg.Name, err)
}
