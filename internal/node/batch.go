package node

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// fullFor is how long a server counts as out of memory after an OOM error.
const fullFor = time.Second

// aheadFrom is the number of queued requests from which the next batch is sent before the
// answers to the previous one are delivered. Delivering a few answers takes less time
// than the change of goroutines. The answers may also show that a queued request has
// become pointless: the release of an acquisition that was refused.
const aheadFrom = 32

// call is one run of the script, for a part of the batch.
type call struct{ first, last, locks int }

// transfer is a batch on the wire, and what is needed to read its answers.
type transfer struct {
	batch    []entry
	calls    []call
	commands rueidis.Commands
	single   [1]rueidis.RedisResult
	results  []rueidis.RedisResult

	validity, steady time.Duration // when it was sent, by either clock
	at               time.Time
	greeted          uint64        // the connection that it was meant for
	term             master.Term   // of the group then
	received         time.Duration // on the steady clock
	// changed means that the client has redialled. Some replies may have come over a
	// connection that was never greeted, perhaps from another server.
	changed bool
	broken  bool // a reply is missing
	// unlisted is why votes do not count when the answers are delivered, because of the
	// lists of nodes.
	unlisted error
}

// send sends the batch and delivers the answers. When enough requests are queued, it
// sends the next batch before it delivers the answers, so that the server and the callers
// work at the same time. There is never more than one batch on the wire: a release that
// overtook its acquisition would leave a lock behind.
func (n *Node) send() {
	t, next := &n.transfers[0], &n.transfers[1]
	n.load(t)
	n.transmit(t)
	for {
		n.arrived(t)
		if t.broken || !n.undisturbed() || n.lanes.queued() < aheadFrom {
			break
		}
		if n.take(); len(n.batch) == 0 {
			break
		}
		n.load(next)
		n.toSend <- next
		n.handOut(t)
		<-n.replied
		t, next = next, t
	}
	n.handOut(t)
	n.lanes.requeue(n.resend)
	n.resend = nil
}

// undisturbed reports whether the worker has nothing else to do than to send the next
// batch.
func (n *Node) undisturbed() bool {
	return n.ctx.Err() == nil && n.connected() && !n.checkNow.Load() && !n.listNow.Load() && n.now < n.checkAt &&
		len(n.retryQueue) == 0 && n.retries.count() == 0 && n.quarantine.reason == nil
}

// load moves the batch into a transfer.
func (n *Node) load(t *transfer) {
	// The clock is read after take: a request must not seem to be sent before it was
	// made.
	t.validity, t.steady = n.cfg.Clock()
	t.at, t.greeted = time.Now(), n.greeted
	t.term = n.group.Used()
	t.batch, n.batch = n.batch, t.batch[:0]
	n.pack(t)
}

// transmit sends a transfer and waits for its replies. It runs in the goroutine of the
// worker or of the transmitter, and uses no state of the worker except the transfer.
func (n *Node) transmit(t *transfer) {
	n.debt.asked(t.steady)
	if len(t.commands) == 1 { // DoMulti would allocate
		t.single[0] = n.client.Do(context.Background(), t.commands[0])
		t.results = t.single[:]
	} else {
		t.results = n.client.DoMulti(context.Background(), t.commands...)
	}
	_, t.received = n.cfg.Clock()
	t.changed = n.conns.dialed.Load() != t.greeted
	t.broken = slices.ContainsFunc(t.results, func(r rueidis.RedisResult) bool { return r.NonRedisError() != nil })
	if !t.broken {
		n.debt.answered()
	}
}

// transmitter sends batches while the worker delivers the answers to the previous ones.
// Run starts it as a goroutine.
func (n *Node) transmitter() {
	for t := range n.toSend {
		n.transmit(t)
		n.replied <- struct{}{}
	}
}

// arrived records that the replies to a transfer have arrived.
func (n *Node) arrived(t *transfer) {
	n.now, n.pingAt = t.received, t.received+keepAlive
	n.lanes.pace.observe(t.received - t.steady)
}

// handOut delivers the answers.
func (n *Node) handOut(t *transfer) {
	t.unlisted = n.unlisted()
	for i, c := range t.calls {
		n.deliver(t, t.batch[c.first:c.last], c.locks, t.results[i])
	}
	if t.broken {
		t.commands = nil // not reused: the call ended early, and rueidis may still read them
		n.retries.orphans.forget(t.at)
	} else {
		n.progress.Add(1)
	}
	clear(t.results)
	clear(t.batch)
}

// pack makes the commands of a transfer, each with at most as many operations as one
// script may run.
func (n *Node) pack(t *transfer) {
	t.calls, t.commands = t.calls[:0], t.commands[:0]
	c := call{}
	// A script that has written may go on to write, whatever memory that takes. So a full
	// server would grant locks that follow an extension or a release in the same script.
	full := t.steady < n.fullUntil
	for i := range t.batch {
		locks := t.batch[i].req.Locks()
		if c.locks > 0 && (c.locks+locks > wire.MaxLocks || full && t.batch[i].asks() != t.batch[i-1].asks()) {
			t.calls = append(t.calls, c)
			c = call{first: i}
		}
		c.last, c.locks = i+1, c.locks+locks
	}
	t.calls = append(t.calls, c)
	sent := strconv.FormatInt(t.steady.Microseconds(), 10)
	for _, c := range t.calls {
		t.commands = append(t.commands, n.command(sent, t.batch[c.first:c.last], c.locks))
	}
}

// quarantineMarker matches no marker. The calls carry it while a node is in quarantine, its
// votes are withheld, or its term is not confirmed: the node then raises no register,
// proves no token, and heals only what it has lost.
const quarantineMarker = "quarantine"

// command makes one call of the script.
func (n *Node) command(sent string, entries []entry, locks int) rueidis.Completed {
	// The builder of EVALSHA would compute a cluster slot for every key.
	words := n.client.B().Arbitrary("EVALSHA", n.digest, strconv.Itoa(4+locks), n.registersKey, n.baseKey, n.hintKey, n.markerKey)
	for i := range entries {
		words = words.Args(entries[i].req.Keys()...)
	}
	flags := n.flags
	if n.subscriber.confirmed.Load() {
		flags = "s" + flags
	}
	marker := n.marker
	if n.quarantine.reason != nil || n.withheld != nil || n.termError() != nil || n.unlisted() != nil {
		marker = quarantineMarker
	}
	words = words.Args(n.meter.text, sent, marker, n.channels, n.capText, flags)
	for i := range entries {
		words = words.Args(entries[i].req.ArgsFor(1 << n.cfg.Index)...)
	}
	return words.Build()
}

// deliver reads the reply to one call and delivers the answers.
func (n *Node) deliver(t *transfer, entries []entry, locks int, result rueidis.RedisResult) {
	all, failure := n.answers(t, locks, result)
	for i := range entries {
		e := entries[i]
		r := &n.reply
		*r = wire.Reply{Sent: t.validity}
		if failure.Status != 0 {
			r.Status, r.Err = failure.Status, failure.Err
		} else {
			n.reader.Read(e.req, all.Next(e.req.Locks()), r)
			if r.Status == wire.MayRepeat { // the markers differ
				n.regreet()
			}
		}
		if n.conclude(t, e, r) {
			e.to.Receive(n.cfg.Index, e.req, r)
		}
	}
}

// answers returns the answers to the operations of one call, or a Reply with the reason
// why there are none.
func (n *Node) answers(t *transfer, locks int, result rueidis.RedisResult) (wire.Answers, wire.Reply) {
	message, err := result.ToMessage()
	if err != nil {
		if noScript(err) { // SCRIPT FLUSH or a restart: greet again, then send again
			n.regreet()
			return wire.Answers{}, wire.Reply{Status: wire.MayRepeat, Err: err}
		}
		status, err := classify(timed(err, t.received-t.steady))
		return wire.Answers{}, wire.Reply{Status: status, Err: wire.MissingRight(err)}
	}
	clock, all, err := wire.Unpack(&message, locks)
	if err != nil {
		return wire.Answers{}, wire.Reply{Status: wire.Misconfigured, Err: wire.NotUnderstood("apply", err)}
	}
	n.meter.observe(clock, t.steady, t.received, n.stepped)
	return all, wire.Reply{}
}

// conclude decides whether an answer counts, by what is now known of the connection and
// of the node's clock. It returns true if the receiver gets the answer, and false if the
// request is sent again.
func (n *Node) conclude(t *transfer, e entry, r *wire.Reply) bool {
	switch {
	case r.Status == wire.Taken:
		e.req.MarkRefused(1 << n.cfg.Index)
	case r.Status == wire.MayRepeat:
		r.Status = wire.NotApplied
		if !e.resent && (e.req.Insists || e.req.Kind == wire.Acquire && !e.req.Urgent || e.req.Kind == wire.Extend || e.req.Kind == wire.Read) {
			// A request that creates a lock for an existing lease is not sent again: the
			// lease's release may be on its way.
			e.resent = true
			n.resend = append(n.resend, e)
			return false
		}
	case r.Status == wire.Unknown:
		n.retries.orphans.add(e.req, n.voidAt(e.req, t.steady, t.at))
	case r.Status == wire.Granted && t.changed:
		r.Status, r.Err = wire.Unknown, wire.ErrReconnected
	case r.Status == wire.Granted && n.quarantine.reason != nil:
		// This reply or an earlier one shows that the clock was stepped.
		r.Status, r.Err = wire.Unknown, n.quarantine.reason
	case r.Status == wire.Done && n.outlasted(e.req, t):
		r.Status, r.Err, r.Answers = wire.Unknown, master.ErrUnconfirmed, nil
	case r.Status == wire.Granted && (n.termError() != nil || n.group.Used() != t.term):
		r.Status, r.Err = wire.Unknown, master.ErrUnconfirmed
	case r.Status == wire.Granted && t.unlisted != nil:
		r.Status, r.Err = wire.Unknown, t.unlisted
	case r.Status == wire.Done && e.req.Kind == wire.Release:
		n.retries.released(e.req, t.at)
	}
	if wire.Away(r.Err) { // renewals have such an error for each lock, and are Done
		n.conns.hangUp()
	}
	if r.Status == wire.Failed && strings.Contains(r.Err.Error(), "OOM") {
		n.fullUntil = t.received + fullFor
		n.forget()
	}
	switch {
	case !e.req.Insists:
	case (r.Status == wire.Unknown || r.Status == wire.NotApplied) && n.ctx.Err() == nil:
		n.resend = append(n.resend, e)
		return false
	case r.Status == wire.Failed && len(n.retryQueue) < retryMax:
		n.retryQueue = append(n.retryQueue, e)
		n.retryAt = t.received + retryAfter
		return false
	}
	return true
}

// outlasted reports whether no lease may rely on an answer: when the request was sent, no
// majority had confirmed the term for the window, and another master may be about to vote. A
// request that insists prolongs no lease: it is a release, or keeps keys whose lease is over.
func (n *Node) outlasted(req *wire.Request, t *transfer) bool {
	if n.group == nil || req.Insists || req.Kind != wire.Extend && req.Kind != wire.Heal && req.Kind != wire.Raise {
		return false
	}
	return !n.group.Renews(t.term, t.validity, n.cfg.Window)
}

// postpone handles the batch without a connection: requests that insist wait for the next
// connection, the others fail.
func (n *Node) postpone() {
	status, err := wire.NotApplied, n.health.Load().Err
	switch {
	case n.refusal != nil:
		status = wire.Misconfigured
	case err == nil || n.withheld != nil:
		err = wire.ErrConnecting // the connection has just broken
	}
	failed := n.batch[:0]
	for _, e := range n.batch {
		if e.req.Insists {
			n.retryQueue = append(n.retryQueue, e)
		} else {
			failed = append(failed, e)
		}
	}
	if over := len(n.retryQueue) - retryMax; over > retryMax { // dropping them one by one would move the others each time
		fail(n.cfg.Index, n.retryQueue[:over], wire.NotApplied, wire.ErrExpired)
		n.retryQueue = slices.Clone(n.retryQueue[over:])
	}
	fail(n.cfg.Index, failed, status, err)
	clear(n.batch) // the next one may be shorter, and an old entry would keep its caller's context alive
}
