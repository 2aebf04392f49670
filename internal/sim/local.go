package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file drives quorum.Local as the Manager does in production. quorum.Local decides
// which caller of a process contends, and whether a hold is passed on or released when
// its lease has ended.

// maxCallers bounds the callers of a process.
const maxCallers = 3

// callers are the calls of one process. A caller calls again later after it has had the
// lock or has cancelled its wait.
type callers struct {
	local   quorum.Local
	current int                       // the caller that contends or has the lease
	behind  [maxCallers]bool          // the caller waits behind the current one
	arrived [maxCallers]time.Duration // when it called last, by the validity clock
}

// localTime converts an instant to the time scale of quorum.Local. Its limits are
// config.pace times longer in this run than in production. They exist for fairness:
// safety must not depend on them.
func (c *client) localTime(at time.Duration) time.Duration { return at / c.w.config.pace }

// callLater schedules a call of a caller within d.
func (c *client) callLater(caller int, d time.Duration) {
	if c.w.config.instant > 0 || succeeds(c) {
		return // each caller asks once in the run, or the client has none
	}
	c.plan(evCall, caller, c.w.upTo(d))
}

// plan schedules an event of a caller.
func (c *client) plan(k kind, caller int, d time.Duration) {
	e := event{kind: k, client: c.id, node: -1, caller: int8(caller), duration: c.arrived[caller]}
	e.life = c.life
	c.w.schedule(c.w.now+d, &e)
}

// serve handles an event of a caller.
func (c *client) serve(e *event) {
	w := c.w
	if c.phase == gone || e.life != c.life {
		return
	}
	if w.now < c.paused {
		w.schedule(c.paused+timersLast, e)
		return
	}
	caller, now := int(e.caller), c.now()
	id := quorum.CallerID(caller + 1)
	switch {
	case e.kind == evCall:
		c.behind[caller], c.arrived[caller] = true, now
		call := quorum.Caller{ID: id, Arrived: clock.Validity(c.localTime(now))}
		if w.rng.IntN(8) == 0 {
			call.Terms = 1
		}
		c.do(now, c.local.Enter(clock.Validity(c.localTime(now)), call))
		if !w.quiet && w.rng.IntN(200) < w.config.giveUp {
			c.plan(evLeave, caller, w.upTo(w.config.terms.TTL))
		}
	case c.behind[caller] && c.arrived[caller] == e.duration:
		w.stats[CallersGone]++
		c.behind[caller] = false
		c.callLater(caller, w.config.terms.TTL/4)
		c.do(now, c.local.Leave(clock.Validity(c.localTime(now)), id))
	}
	c.sleep()
}

// do executes a step of the local queue.
func (c *client) do(now time.Duration, s quorum.Step) {
	switch s.Kind {
	case quorum.StepContend:
		c.contend(now, s)
	case quorum.StepPass:
		c.pass(now, s)
	case quorum.StepCheck:
		if !c.check.open {
			c.startCheck(now)
		}
	case quorum.StepRelease:
		c.release(now, s)
	}
}

// turn makes a caller the current one.
func (c *client) turn(id quorum.CallerID) {
	c.current = int(id) - 1
	c.behind[c.current] = false
}

// contend makes a caller contend at the nodes.
func (c *client) contend(now time.Duration, s quorum.Step) {
	c.turn(s.Caller)
	c.phase, c.owner, c.failures = resting, 0, 0
	c.startWait(now, s)
	c.until = time.Duration(c.wait.At())
}

// pass gives a caller the next lease on the hold, unless the hold was lost since the
// decision. In this simulation a clock jump at that moment can lose it.
func (c *client) pass(now time.Duration, s quorum.Step) {
	w := c.w
	if !w.quiet && w.config.everyJump > 0 && w.rng.IntN(64) == 0 {
		c.jump(w.config.terms.TTL)
		now = c.now()
	}
	if c.stepHold(quorum.Input{Kind: quorum.InputTick}).Events&quorum.Ended != 0 {
		w.stats[PassesRefused]++
		c.do(now, c.local.NotPassed(clock.Validity(c.localTime(now))))
		return
	}
	w.stats[Passes]++
	c.turn(s.Caller)
	c.token = c.next
	c.next++
	c.startLease(now)
	if w.p.Trace != nil {
		w.trace("client %d passes owner %d on with token %d", c.id, c.owner, c.token)
	}
	w.judge.passed(c, now, max(c.shownSince(), c.proofResetAt))
	stale := now > c.answeredAt+w.config.pace*quorum.CheckAfter/2
	if !c.check.open && c.local.Waiting() > 0 && (stale || c.tokens() < 16) {
		c.startCheck(now)
	}
}

// finish ends the lease, because its caller releases it.
func (c *client) finish(now time.Duration) {
	if c.step(quorum.Input{Kind: quorum.InputTick}).Events&quorum.Ended != 0 {
		return
	}
	c.w.judge.once(c)
	if downgrades(c) {
		downgrade(c, now)
		return
	}
	c.vacant = true
	c.callLater(c.current, c.w.config.terms.TTL/4)
	c.do(now, c.local.Finished(clock.Validity(c.localTime(now)), c.state(now)))
}

// tokens returns how many tokens of the block are left.
func (c *client) tokens() int64 { return max(c.lastToken-c.next+1, 0) }

// state returns what quorum.Local needs to know about the hold.
func (c *client) state(now time.Duration) *quorum.Hold {
	w := c.w
	terms := &w.config.terms
	h := quorum.Hold{
		Tokens: int(c.tokens()),
		Proven: c.provenBy.Len() >= quorum.Size(w.p.Nodes) || w.bugs.has(PassUnchecked),
		Useful: !w.quiet && c.ttl == 0 && terms.MaxHold == 0 && c.machine.State() == quorum.StateHeld &&
			c.machine.End().Sub(clock.Validity(now)) > terms.TTL/10,
		Others: c.others, AnsweredAt: clock.Validity(c.localTime(c.answeredAt)),
		Subscribed: c.queues && c.contended,
	}
	if c.reads { // no reader passes its lease on, or leaves the lock to others
		h.Others, h.Useful = 0, false
	}
	if w.bugs.has(PassBeyondBlock) {
		h.Tokens++
	}
	return &h
}
