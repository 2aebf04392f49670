package node

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// fullFor is how long a server counts as out of memory after an OOM error.
const fullFor = time.Second

// aheadFrom is the number of queued requests from which the next batch is sent before the answers to the previous one
// are delivered. Delivering a few answers takes less time than switching goroutines. The answers may also make a queued
// request pointless, such as the release of a refused acquisition.
const aheadFrom = 32

// transfer is a batch on the wire, with the state that its answers are read with.
type transfer struct {
	batch    []entry
	calls    []call
	commands rueidis.Commands
	loads    int       // leading commands, which load the script
	check    *exchange // the commands behind the calls, nil for none
	single   [1]rueidis.RedisResult
	results  []rueidis.RedisResult

	validity clock.Validity // when it was sent
	steady   clock.Steady   // the same instant
	mono     clock.Mono     // the same instant
	greeted  uint64         // the connection that the batch was meant for
	term     master.Term    // of the group at that instant
	marker   string         // that counted at that instant; lean way only
	lean     bool           // the only call takes the lean way
	received clock.Steady   // when the replies arrived
	// changed means that the client has redialled. Some replies may have come over a
	// connection that was never greeted, perhaps from another server.
	changed bool
	broken  bool // a reply is missing
	// again means that requests must be sent again before the next batch: the server has lost the script, or asks for
	// the companions of locks.
	again    bool
	declined bool // a request that the script has declined is sent again
	// unlisted is why the lists of nodes keep votes from counting at delivery; nil if votes count.
	unlisted error
}

// courier sends batches, and delivers the answers. It keeps the requests that are sent again.
type courier struct {
	*link
	greeter *greeter
	lanes   *lanes

	// toSend and replied have capacity 0. toSend carries a transfer to the transmitter, and
	// replied reports that its replies have arrived. The worker closes toSend; replied is never
	// closed.
	toSend  chan *transfer
	replied chan struct{}

	batch      []entry     // taken from the lanes, and not on the wire yet
	transfers  [2]transfer // one on the wire, and one whose answers are being delivered
	reader     wire.Reader
	reply      wire.Reply
	fullUntil  clock.Steady // until then the server counts as out of memory
	forgetting bool         // a request to drop old registers is queued
	resend     []entry      // requests to send once more
	retryQueue []entry      // requests that insist and wait for a connection, or for retryAt
	retryAt    clock.Steady
	retries    retries
}

// load moves the batch into a transfer.
func (c *courier) load(t *transfer) {
	// The clock is read after take: a request must not seem to be sent before it was
	// made.
	t.validity, t.steady = c.cfg.Clock()
	t.mono, t.greeted = c.mono(), c.greeted
	t.term = c.group.Used()
	t.batch, c.batch = c.batch, t.batch[:0]
	c.pack(t)
}

// transmit sends a transfer and waits for its replies. It runs in the goroutine of the worker or of the transmitter,
// and uses no state of the worker except the transfer. Its contexts never end: at the end of one, rueidis would close
// the connection, and a later release could overtake its acquisition on the next connection.
func (c *courier) transmit(t *transfer) {
	c.debt.asked(t.steady)
	if len(t.commands) == 1 { // DoMulti would allocate
		t.single[0] = c.client.Do(context.Background(), t.commands[0])
		t.results = t.single[:]
	} else {
		t.results = c.client.DoMulti(context.Background(), t.commands...)
	}
	_, t.received = c.cfg.Clock()
	t.changed = c.conns.dialed.Load() != t.greeted
	t.again = t.lean || slices.ContainsFunc(t.results, func(r rueidis.RedisResult) bool { return noScript(r.Error()) || wire.Declines(r) })
	t.broken = slices.ContainsFunc(t.results, func(r rueidis.RedisResult) bool { return r.NonRedisError() != nil })
	if !t.broken {
		c.debt.answered()
	}
}

// append puts a check behind the batch. Sent on its own, the check would delay the next renewals.
func (t *transfer) append(check *exchange) {
	t.check, t.commands = check, append(t.commands, check.commands...)
}

// takeCheck returns the check of a transfer with its answers; nil if there is none, or if not all answers came over one
// connection. A check that fails with its batch is dropped: the releases of the batch are sent again.
func (t *transfer) takeCheck() *exchange {
	check := t.check
	if t.check = nil; check == nil || t.broken || t.changed {
		return nil
	}
	if check.script != nil && t.results[t.loads].Error() != nil && t.results[len(t.results)-1].Error() != nil {
		return nil
	}
	check.results = slices.Clone(t.results[len(t.results)-len(check.commands):])
	check.connection, check.received = t.greeted, t.received
	return check
}

// transmitter sends batches while the worker delivers the answers to the previous ones.
// Run starts it as a goroutine.
func (c *courier) transmitter() {
	for t := range c.toSend {
		c.transmit(t)
		c.replied <- struct{}{}
	}
}

// arrived records that the replies to a transfer have arrived.
func (c *courier) arrived(t *transfer) {
	c.now = t.received
	c.pingAt = c.testAt(t.renewal())
	c.lanes.pace.observe(t.received.Sub(t.steady))
	c.greeter.script.lean.near = t.received.Sub(t.steady) < leanBelow
}

// renewal returns the longest time until the renewal of the first lease that the batch has acquired or prolonged: a
// third of its TTL plus a tenth of that. It returns 0 for none.
func (t *transfer) renewal() time.Duration {
	for _, e := range t.batch {
		if lifetime := e.req.Lifetime(); lifetime > 0 {
			return lifetime * 11 / 30
		}
	}
	return 0
}

// handOut delivers the answers.
func (c *courier) handOut(t *transfer) {
	t.unlisted = c.greeter.unlisted()
	for i, part := range t.calls {
		c.deliver(t, t.batch[part.first:part.last], part, t.results[t.loads+i:])
	}
	if t.broken {
		t.commands = nil // not reused: the call ended early, and rueidis may still read them
		c.retries.orphans.forget(t.mono)
	} else {
		c.lanes.batches.Add(1)
	}
	clear(t.results)
	clear(t.batch)
}

// pack makes the commands of a transfer, each with at most as many operations as one
// script may run.
func (c *courier) pack(t *transfer) {
	t.calls, t.commands, t.declined, t.lean = t.calls[:0], t.commands[:0], false, false
	part, weight, before := call{}, 0, (*wire.Request)(nil)
	// A script that has written once may continue to write, whatever memory that takes. So a full server would grant
	// locks that follow an extension or a release in the same script.
	full := t.steady < c.fullUntil
	for i := range t.batch {
		req := t.batch[i].req
		if part.locks > 0 && (weight+req.Weight(before) > wire.MaxLocks || full && t.batch[i].asks() != t.batch[i-1].asks()) {
			t.calls = append(t.calls, part)
			part, weight, before = call{first: i}, 0, nil
		}
		part.last, part.locks, weight = i+1, part.locks+req.Locks(), weight+req.Weight(before)
		before = req
	}
	t.calls = append(t.calls, part)
	if t.loads = 0; c.greeter.script.lost {
		t.loads, c.greeter.script.lost = 1, false
		t.commands = append(t.commands, c.greeter.script.load(c.client))
	}
	if c.greeter.script.lean.runs(t.batch) {
		// The lean way makes a lock even if the node is not asked for a vote.
		if t.marker = c.greeter.head("").marker; t.marker != quarantineMarker || !t.batch[0].asks() {
			t.lean, t.commands = true, c.greeter.script.leanCall(t.commands, c.client, t.batch[0].req, c.meter.lockEnds(t.steady, t.batch[0].req))
			return
		}
	}
	sent := wire.Micros(t.steady)
	// All calls carry the companions, or none does: a declined call would run after the others.
	whole := c.greeter.script.whole(t.steady, t.batch)
	for i := range t.calls {
		part := &t.calls[i]
		part.whole = whole
		t.commands = append(t.commands, c.greeter.command(sent, t.batch[part.first:part.last], part))
	}
}

// deliver reads the reply to one call, the first of results, and delivers the answers.
func (c *courier) deliver(t *transfer, entries []entry, part call, results []rueidis.RedisResult) {
	all, failure := c.answers(t, entries, part, results)
	declined := all.Declined() && !part.whole
	if declined && t.lean {
		entries[0].declined = true
		c.resend = append(c.resend, entries[0])
		return
	}
	if declined {
		c.greeter.script.queued = t.received.Add(queuedFor)
	}
	for i := range entries {
		e := entries[i]
		var answers wire.Answers
		if failure.Status == 0 {
			answers = all.Next(e.req.Locks())
		}
		if declined && answers.Declined() {
			c.resend, t.declined = append(c.resend, e), true
			continue
		}
		if t.declined {
			c.since, _ = c.cfg.Clock() // requests that were declined before this one run after it
		}
		r := &c.reply
		*r = wire.Reply{Sent: t.validity, Since: c.since, Again: e.again}
		if t.changed {
			r.Since = math.MaxInt64
		}
		if failure.Status != 0 {
			r.Status, r.Err = failure.Status, failure.Err
		} else {
			c.reader.Read(e.req, answers, r)
			if r.Status != wire.Failed && r.Status != wire.Misconfigured {
				e.req.ClearUnproven(1 << c.cfg.Index)
			}
			if r.Status == wire.MayRepeat { // the markers differ
				c.regreet()
			}
		}
		if c.conclude(t, e, r) {
			e.to.Receive(c.cfg.Index, e.req, r)
		}
	}
}

// answers returns the answers to the operations of one call, or a Reply with the reason
// why there are none.
func (c *courier) answers(t *transfer, entries []entry, part call, results []rueidis.RedisResult) (wire.Answers, wire.Reply) {
	if t.lean {
		return c.leanAnswer(t, &entries[0], results)
	}
	message, err := results[0].ToMessage()
	if err != nil {
		return c.failed(t, err)
	}
	clock, all, err := wire.Unpack(&message, part.locks)
	if err != nil {
		return wire.Answers{}, wire.Reply{Status: wire.Misconfigured, Err: wire.NotUnderstood("apply", err)}
	}
	c.meter.observe(clock, t.steady, t.received, c.greeter.stepped)
	return all, wire.Reply{}
}

// leanAnswer returns the answer to the operation of a lean call: done, or an answer that leaves it to the usual script.
func (c *courier) leanAnswer(t *transfer, e *entry, results []rueidis.RedisResult) (wire.Answers, wire.Reply) {
	s := &c.greeter.script
	made, look, err := s.readLean(e.req, results)
	if look != nil {
		c.meter.observe(look.Clock, t.steady, t.received, c.greeter.stepped)
	}
	if err != nil {
		if answers, failure := c.failed(t, err); failure.Status != wire.Failed && failure.Status != wire.Misconfigured {
			return answers, failure
		}
	}
	counts := look != nil && look.Counts(e.req.Proposal(), t.marker)
	switch {
	case made == 1 && (counts || e.req.Kind == wire.Release):
		return wire.AnswerOf("1"), wire.Reply{}
	case made == 1 || made == leanStuck: // the lock isn't a vote: from here on it is deleted first
		c.orphaned(t, e.req)
	}
	s.lean.rests = made != leanBehind // a proposal that is a little too low now and then is normal
	if e.req.Kind == wire.Release || look != nil && look.Hint != "" {
		s.queued = t.received.Add(queuedFor)
	}
	return wire.AnswerOf("?"), wire.Reply{}
}

// failed returns why there are no answers to a call that has failed.
func (c *courier) failed(t *transfer, err error) (wire.Answers, wire.Reply) {
	if noScript(err) { // after SCRIPT FLUSH: send again, behind the script
		c.greeter.script.flushed()
		return wire.Answers{}, wire.Reply{Status: wire.MayRepeat, Err: err}
	}
	status, err := classify(timed(err, t.received.Sub(t.steady)))
	return wire.Answers{}, wire.Reply{Status: status, Err: wire.MissingRight(err)}
}

// conclude decides whether an answer counts, from the present state of the connection and of the node's clock. It
// returns true if the receiver gets the answer, and false if the request is sent again.
func (c *courier) conclude(t *transfer, e entry, r *wire.Reply) bool {
	switch {
	case r.Status == wire.Taken:
		e.req.MarkRefused(1 << c.cfg.Index)
	case r.Status == wire.MayRepeat && e.flushed < flushedMax && e.req.Kind != wire.Heal && noScript(r.Err):
		e.flushed++
		c.resend = append(c.resend, e)
		c.since, _ = c.cfg.Clock() // it may run after requests that were sent in between
		return false
	case r.Status == wire.MayRepeat:
		r.Status = wire.NotApplied
		if !e.resent && repeatable(e.req) {
			e.resent = true
			c.resend = append(c.resend, e)
			return false
		}
	case r.Status == wire.Unknown:
		c.orphaned(t, e.req)
	case r.Status == wire.Granted:
		if err := c.vote.Counts(c.cast(t), vote.Others{Term: c.group.Votes(), Lists: t.unlisted}); err != nil {
			r.Status, r.Err = wire.Unknown, err
		}
	case r.Status == wire.Done && keeps(e.req):
		if err := c.vote.Keeps(c.cast(t), e.req.Lifetime); err != nil {
			r.Status, r.Err, r.Answers = wire.Unknown, err, nil
		}
	case r.Status == wire.Done && e.req.Kind == wire.Release:
		c.retries.released(e.req, t.mono)
	}
	if wire.Away(r.Err) { // a renewal has such an error for each lock, and is Done
		c.conns.hangUp()
	}
	r.Status = left(c.cfg.Index, e.req, r.Status)
	if r.Err != nil && errors.Is(r.Err, wire.ErrMoving) && c.group.FoundMove() {
		c.regreet()
	}
	if r.Status == wire.Failed && strings.Contains(r.Err.Error(), "OOM") {
		c.fullUntil = t.received.Add(fullFor)
		c.forget()
	}
	switch {
	case !e.req.Insists:
	case (r.Status == wire.Unknown || r.Status == wire.NotApplied) && c.life.Err() == nil:
		e.again = e.again || r.Status == wire.Unknown
		c.resend = append(c.resend, e)
		return false
	case r.Status == wire.Failed && len(c.retryQueue) < retryMax:
		e.req, e.again = e.req.Repeated(), true // an operation may fail after its first write
		c.retryQueue = append(c.retryQueue, e)
		c.retryAt = t.received.Add(retryAfter)
		return false
	}
	return true
}

// cast returns the circumstances under which a transfer was sent.
func (c *courier) cast(t *transfer) vote.Cast {
	former, outlasted := c.group.Since(t.term, t.validity, c.cfg.Window)
	return vote.Cast{Sent: t.mono, Steady: t.steady, Changed: t.changed, Former: former, Outlasted: outlasted}
}

// repeatable reports whether a request that was not applied may be sent again. One that creates a lock for
// an existing lease may not: the lease's release may be on its way.
func repeatable(req *wire.Request) bool {
	switch req.Kind {
	case wire.Acquire, wire.Extend, wire.Mark, wire.Read, wire.Scan:
		return true
	default:
		return req.Insists
	}
}

// keeps reports whether a lease, or a revocation, may rely on the answer to a request. A request that
// insists prolongs no lease: it is a release, or keeps keys whose lease has ended.
func keeps(req *wire.Request) bool {
	return !req.Insists && (req.Kind == wire.Extend || req.Kind == wire.Heal || req.Kind == wire.Raise || req.Kind == wire.Mark)
}
