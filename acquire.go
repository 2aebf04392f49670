package quorumlock

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/queue"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Acquire waits until it holds the named lease, or until ctx ends; WithWait bounds the wait.
// The lease does not end with ctx. A name is 1 to 512 bytes of valid UTF-8.
//
// When ctx or the time of WithWait ends, the error explains why the last attempt failed: ErrHeld (a
// *HeldError) or ErrNoQuorum (a *QuorumError), joined with ctx.Err() and context.Cause(ctx) if ctx
// ended. Acquire returns at once: ErrInvalid (an *InvalidError) for a bad name, option or context;
// ErrNoQuorum when the list of nodes is wrong, or when a majority is impossible because nodes have
// refused this Manager from the start (rights, password); ErrClosed; and ErrHeld inside Do or Lead
// of the same name.
//
// Callers get a taken name roughly in the order in which they came, in all processes of the same
// prefix: a release reserves the lock for the next waiter, and the node wakes it. Distant
// processes, 5 ms or more away from the nodes, get turns less often. A waiter also polls
// (WithRetryBackoff). A failed attempt releases what it took.
//
// A lease is not reentrant: a caller that asks for a name which it holds waits for itself, and a
// warning in the log says so.
func (m *Manager) Acquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return acquire(ctx, m, name, opts, true)
}

// TryAcquire asks once for the named lease, and does not wait for a holder. It returns ErrHeld (a
// *HeldError) when another holder has the name, or other callers ask or wait for it, and
// ErrNoQuorum (a *QuorumError) when too few nodes gave an answer that counts within the node
// timeout. All other errors are as for Acquire.
//
// If several callers ask at the same instant and none gets a majority, one caller that holds votes
// wins at random: it asks again until the others have released theirs, for at most two node
// timeouts, and the others get ErrHeld.
func (m *Manager) TryAcquire(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
	return acquire(ctx, m, name, opts, false)
}

// acquire carries out Acquire, or TryAcquire, which does not wait.
func acquire(ctx context.Context, m *Manager, name string, opts []AcquireOption, wait bool) (*Lease, error) {
	if ctx == nil {
		return nil, errNilContext()
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	t, limit, err := m.cfg.lease(opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errs.Ended(ctx, nil, "quorumlock: acquire "+strconv.Quote(name))
	}
	if err := m.reentered(ctx, name); err != nil {
		return nil, err
	}
	if !wait && limit.Most > 0 {
		return nil, &InvalidError{What: "WithWait", Value: limit.Most.String(), Bound: "has no use in TryAcquire, which asks once", Fix: "call Acquire"}
	}
	limit.Set = limit.Set || !wait
	waitCtx, cancel := waiting(ctx, limit.Wait)
	defer cancel()
	c := &call{ctx: ctx, name: name, span: m.telemetry.startAcquire(ctx, name, modeOf(limit.Kind), !limit.Once())}
	return ask(waitCtx, m, c, asked(limit.Kind), t, limit)
}

// ask asks for a lease and waits for it, until waitCtx ends. It ends the span.
func ask(waitCtx context.Context, m *Manager, c *call, kind campaign.Kind, t *config.Terms, limit config.Call) (*Lease, error) {
	l, err := (*Lease)(nil), errPanicked
	through := false
	defer func() {
		if !through && l != nil && m.enter() { // the span has panicked, so no caller gets the lease
			l.abandon()
			m.life.calls.Done()
		}
	}()
	defer func() {
		token, owner := int64(0), ""
		if l != nil {
			token, owner = l.token, l.Owner()
		}
		c.span.end(token, owner, err)
		through = true
	}()
	c.m, c.shard, c.failFast, c.mode = m, m.of(c.name), limit.FailFast, modeOf(limit.Kind)
	l, err = c.run(waitCtx, kind, t, limit.Once())
	return l, err
}

// call is one call that acquires: a campaign that asks the nodes, and a place among the other
// callers of this process once it must wait.
type call struct {
	m        *Manager
	shard    *shard          // of the name
	ctx      context.Context // the caller's
	name     string
	span     *acquireSpan // nil without telemetry
	mode     otel.Mode
	failFast bool // it has WithFailFast
	alone    bool // it waits, and not behind others of this process
	campaign campaign.Campaign
	place    *queue.Place     // nil before it waits behind others
	lease    *Lease           // opened by the campaign
	last     error            // of the last completed attempt; nil for none
	delays   *campaign.Delays // nil before the first wait
}

// run runs a call until it has its lease or gives up. Close waits for it, but not for span processors.
func (c *call) run(waitCtx context.Context, kind campaign.Kind, t *config.Terms, once bool) (l *Lease, err error) {
	m := c.m
	if !m.enter() {
		c.span.measure(ErrClosed)
		return nil, ErrClosed
	}
	defer m.life.calls.Done()
	err = errPanicked
	defer func() { c.span.measure(err) }()
	c.shard.campaigns.Begin(&c.campaign, campaign.Call{
		Wait: waitCtx, Key: c.shard.key(c.name), Terms: c.shard.terms(t), Once: once, Kind: kind, TraceParent: c.span.traceParent(), Caller: c,
	})
	defer func() {
		if l == nil { // also when a user's function, such as the backoff, has panicked
			c.giveUp()
		}
	}()
	if l, err := c.stepBack(); l != nil || err != nil {
		return l, err
	}
	return c.contend()
}

// contend asks the nodes when the campaign is due, until an attempt wins or another would be
// useless. Attempts end with the caller's context; the wait between them may end earlier.
func (c *call) contend() (*Lease, error) {
	for {
		due, woken := c.campaign.Sleep()
		if !due {
			return nil, c.endError(c.last)
		}
		if woken {
			c.span.woken()
		}
		failure := c.campaign.Try(c.ctx)
		if failure == nil {
			if c.place != nil {
				c.place.Granted(c.lease.lock)
			}
			c.span.granted()
			return c.lease, nil
		}
		c.failed(failure)
		if !c.goesOn(failure) {
			return nil, c.endError(c.last)
		}
		if failure.Refused && !c.campaign.Once {
			c.campaign.Subscribe()
		}
		if c.place == nil && !c.campaign.Once && !c.alone { // from now on it waits behind the others of this process
			if l, err := c.queueUp(); l != nil || err != nil {
				return l, err
			}
		}
	}
}

// stepBack lets the other callers of this process go first, once it has met contention. It returns what queueUp
// returns.
func (c *call) stepBack() (*Lease, error) {
	if !c.shard.campaigns.Contended() {
		return nil, nil
	}
	if !c.campaign.Once {
		return c.queueUp()
	}
	if !c.campaign.Kind.Queues() {
		return nil, nil
	}
	obstacle, busy := c.shard.queues.Busy(c.campaign.Key)
	if !busy {
		return nil, nil
	}
	err := c.obstacle(obstacle)
	c.span.waits(err)
	return nil, err
}

// queueUp waits behind the other callers of this process, unless they may have the lock together. It
// returns neither a lease nor an error when the call must ask the nodes.
func (c *call) queueUp() (*Lease, error) {
	if !c.campaign.Kind.Queues() {
		c.campaign.Enrol()
		c.alone = true
		return nil, nil
	}
	c.place = c.shard.queues.Enter(c.campaign.Key, queue.Waiting{Caller: c, Terms: c.campaign.Terms, Arrived: c.campaign.Arrived, FailFast: c.failFast})
	if c.span != nil && !c.place.Here() {
		c.span.waits(c.obstacle(c.place.Obstacle()))
	}
	turn, ok := c.place.Wait(c.campaign.Wait)
	switch {
	case !ok && c.campaign.Wait.Err() == nil:
		return nil, ErrClosed
	case !ok:
		return nil, c.endError(c.obstacle(c.place.Obstacle()))
	case turn.Ends:
		return nil, turn.Why.(error)
	}
	if previous, ok := turn.Previous.(*tenant); ok {
		c.span.follows(previous.acquired)
	}
	if lease, ok := turn.Lease.(*tenant); ok {
		return (*Lease)(lease), nil
	}
	if !turn.Enqueued {
		c.campaign.Restart(turn.NotBefore)
	}
	return nil, nil
}

// giveUp ends a call without a lease.
func (c *call) giveUp() {
	c.campaign.GiveUp()
	if c.place != nil {
		c.place.Leave()
	}
}

// fill makes l the lease of the call on a lock.
func (c *call) fill(l *Lease, lock *hold.Lock) *Lease {
	l.m, l.lock, l.mode, l.label, l.values, l.acquired = c.m, lock, c.mode, c.span.nameOnMetrics(), c.ctx, c.span.ref()
	return l
}

// leaseAndLock is a lock and its first lease in one allocation.
type leaseAndLock struct {
	lease Lease
	lock  hold.Lock
}

// Open implements campaign.Caller.
func (c *call) Open() (*hold.Lock, hold.Tenant) {
	both := &leaseAndLock{}
	c.lease = c.fill(&both.lease, &both.lock)
	return &both.lock, (*tenant)(c.lease)
}

// Queue implements campaign.Caller.
func (c *call) Queue() hold.Queue {
	if c.place == nil {
		return nil
	}
	return c.place.Queue()
}

// Tenant implements queue.Caller: another lease on the same lock.
func (c *call) Tenant(l *hold.Lock) hold.Tenant {
	return (*tenant)(c.fill(&Lease{}, l))
}

// CarryTicket implements queue.Caller.
func (c *call) CarryTicket(notBefore clock.Validity) wire.TicketUpdate {
	return c.campaign.CarryTicket(notBefore)
}

// Abandon implements queue.Caller.
func (c *call) Abandon(lease hold.Tenant) { (*Lease)(lease.(*tenant)).abandon() }

// failed records why an attempt has failed. After an attempt that was cut short, the cause of the one before remains.
func (c *call) failed(f *campaign.Failure) {
	if f.Reason == campaign.CutShort {
		return
	}
	c.last = c.failure(f)
	if c.place != nil {
		c.place.Failed(queue.Setback{Why: c.last, NoQuorum: f.Reason == campaign.NoQuorum, TooFewAnswered: f.TooFewAnswered, Stranger: f.Stranger})
	}
	c.span.refused(c.last)
	if held := (*HeldError)(nil); errors.As(c.last, &held) && held.Self && !c.campaign.Once &&
		c.m.clock.Now().Sub(c.campaign.Arrived) > c.campaign.Terms.TTL {
		c.m.said.warnOfSelf(c.m.reporter, c.name)
	}
}

// failure returns the error of an attempt.
func (c *call) failure(f *campaign.Failure) error {
	if f.Reason == campaign.Held {
		by, reads := holder(f.Value), c.mode == otel.Shared && f.Readers > 0
		return &HeldError{Name: c.name, Holder: by, Readers: f.Readers, RetryAfter: f.RetryAfter, Self: c.shard.dog.Has(f.Key, by.Owner), barred: reads, blank: f.Blank}
	}
	err := noQuorum(c.shard.ensemble, "acquire", c.name, f.Granted, f.Errors)
	err.RetryAfter = f.RetryAfter
	return err
}

// goesOn ends a failed attempt. It reports whether another attempt follows, and could succeed.
func (c *call) goesOn(f *campaign.Failure) bool {
	delay, stop := c.poll()
	over := stop || c.campaign.Wait.Err() != nil || c.m.life.ending() || c.last == nil
	misconfigured, hopeless := f.Misconfigured(c.shard.ensemble.Size(), c.shard.campaigns.Voted())
	if over || hopeless || c.failFast && f.TooFewAnswered || !c.campaign.Concede(delay) {
		return false
	}
	if misconfigured {
		c.m.said.warnOfRepair(c.m, c.last)
	}
	return true
}

// blocked returns the error for what blocks a caller in the queue of this process.
func (c *call) obstacle(o queue.Obstacle) error {
	if o.Lock != nil {
		by := holder(o.Lock.Value())
		by.TraceParent = leaseOn(o.Lock).acquired.traceParent() // the value has the first lease's
		return &HeldError{Name: c.name, Holder: by, RetryAfter: o.Lock.Left(), Self: true}
	}
	err, _ := o.Why.(error)
	var held *HeldError
	switch {
	case errors.As(err, &held):
		now := *held
		now.RetryAfter = max(held.RetryAfter-o.Age, 0)
		return &now
	case err != nil:
		return err
	case c.last != nil:
		return c.last
	default:
		return &HeldError{Name: c.name} // other callers wait for it
	}
}

// endError returns the error of a call after its last attempt. err is why that attempt
// failed; nil if no attempt was completed.
func (c *call) endError(err error) error {
	wait := c.campaign.Wait
	if wait.Err() == nil && c.ctx.Err() != nil {
		wait = c.ctx // it ends a moment before the wait, which follows it
	}
	switch {
	case wait.Err() != nil && context.Cause(wait) == errWaitOver: //nolint:errorlint // this very value, not another call's error that wraps it
		if err == nil {
			err = &HeldError{Name: c.name} // no attempt was made, so the lock is reserved for another waiter
		}
		return errs.Several(err.Error()+"; waited "+errs.Readable(c.m.clock.Now().Sub(c.campaign.Arrived)), err)
	case wait.Err() != nil:
		return errs.Waited(wait, err, "quorumlock: acquire "+strconv.Quote(c.name))
	case err == nil || c.m.life.ending():
		return ErrClosed
	}
	return err
}

// poll returns how long the call waits when no wake-up arrives, and whether the user's backoff has
// stopped.
func (c *call) poll() (delay time.Duration, stop bool) {
	if c.campaign.Once {
		return c.campaign.Poll(), false
	}
	if c.delays == nil {
		c.delays = campaign.NewDelays(c.m.cfg.Retry, c.m.reporter)
	}
	delay = c.delays.Next()
	return delay, delay == backoff.Stop
}
