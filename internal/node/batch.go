package node

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// fullFor is how long a server is taken to be out of memory after it has said so.
const fullFor = time.Second

// call is one run of the script: a stretch of the batch.
type call struct{ first, last, locks int }

// send puts the batch on the wire and hands out the replies. It returns when the last
// of them has arrived.
func (n *Node) send() {
	// The look comes behind take: no request may seem to be sent before it was made.
	validity, steady := n.cfg.Clock()
	sentAt := time.Now()
	n.pack(steady)
	var results []rueidis.RedisResult
	if len(n.commands) == 1 { // DoMulti would allocate
		n.single[0] = n.client.Do(n.ctx, n.commands[0])
		results = n.single[:]
	} else {
		results = n.client.DoMulti(n.ctx, n.commands...)
	}
	_, received := n.cfg.Clock()
	n.now = received
	n.pace.observe(received - steady)
	s := sending{
		validity: validity, steady: steady, received: received, at: sentAt,
		// A redial on the way means that some replies came over a connection that was
		// never greeted: perhaps from another server.
		changed: n.dialed.Load() != n.greeted,
	}
	broken := false
	for i, c := range n.calls {
		n.deliver(&s, n.batch[c.first:c.last], c.locks, results[i])
		broken = broken || results[i].NonRedisError() != nil
	}
	if broken {
		n.commands = nil // the call has ended early: rueidis may still be reading them
		n.orphans.forget(sentAt)
	} else {
		n.progress.Add(1)
	}
	clear(results)
	clear(n.batch)
	n.requeue(s.again)
}

// pack makes the commands of the batch, each with no more operations than a script may
// run in one go.
func (n *Node) pack(steady time.Duration) {
	n.calls, n.commands = n.calls[:0], n.commands[:0]
	c := call{}
	// A script that has written may go on to write, whatever memory that takes: a server
	// that is full would grant locks behind an extension or a release.
	full := steady < n.fullUntil
	for i := range n.batch {
		locks := n.batch[i].req.Locks()
		if c.locks > 0 && (c.locks+locks > MaxLocks || full && n.batch[i].asks() != n.batch[i-1].asks()) {
			n.calls = append(n.calls, c)
			c = call{first: i}
		}
		c.last, c.locks = i+1, c.locks+locks
	}
	n.calls = append(n.calls, c)
	sent := strconv.FormatInt(steady.Microseconds(), 10)
	for _, c := range n.calls {
		n.commands = append(n.commands, n.command(sent, n.batch[c.first:c.last], c.locks))
	}
}

// quarantineMarker is no marker: while a node is in quarantine, it raises no register,
// proves no token, and heals what it has lost and nothing else.
const quarantineMarker = "quarantine"

// command makes one call of the script.
func (n *Node) command(sent string, entries []entry, locks int) rueidis.Completed {
	keys := n.client.B().Evalsha().Sha1(n.digest).Numkeys(int64(4+locks)).
		Key(n.registersKey, n.baseKey, n.hintKey, n.markerKey)
	for i := range entries {
		keys = keys.Key(entries[i].req.keys...)
	}
	flags := n.flags
	if n.subscribed.Load() {
		flags = "s" + flags
	}
	marker := n.marker
	if n.quarantineReason != nil || n.withheld != nil {
		marker = quarantineMarker
	}
	args := keys.Arg(n.offsetText, sent, marker, n.channels, n.capText, flags)
	for i := range entries {
		args = args.Arg(entries[i].req.argsFor(1 << n.cfg.Index)...)
	}
	return args.Build()
}

// sending is what the answers of one batch have in common.
type sending struct {
	validity, steady time.Duration // when it was sent, by either clock
	received         time.Duration // on the steady clock
	at               time.Time
	changed          bool
	again            []entry // to be sent once more
}

// answers are the answers to one or more operations: a character for each, and what
// stands behind each '*'.
type answers struct {
	codes   string
	details []rueidis.RedisMessage
}

// next takes the answers to so many operations off the front.
func (a *answers) next(operations int) answers {
	codes := a.codes[:operations]
	details := strings.Count(codes, "*")
	first := answers{codes: codes, details: a.details[:details]}
	a.codes, a.details = a.codes[operations:], a.details[details:]
	return first
}

// deliver reads the reply to one call and hands out the answers.
func (n *Node) deliver(s *sending, entries []entry, locks int, result rueidis.RedisResult) {
	all, failure := n.answers(s, locks, result)
	for i := range entries {
		e := entries[i]
		r := &n.reply
		*r = Reply{Sent: s.validity}
		if failure.Status != 0 {
			r.Status, r.Err = failure.Status, failure.Err
		} else {
			n.read(e.req, all.next(e.req.Locks()), r)
		}
		if n.conclude(s, e, r) {
			e.to.Receive(n.cfg.Index, e.req, r)
		}
	}
}

// answers returns the answers to the operations of one call, or why there are none.
func (n *Node) answers(s *sending, locks int, result rueidis.RedisResult) (answers, Reply) {
	message, err := result.ToMessage()
	if err != nil {
		if noScript(err) { // SCRIPT FLUSH or a restart: greet again, then send again
			n.regreet()
			return answers{}, Reply{Status: notApplied, Err: err}
		}
		status, err := classify(err)
		return answers{}, Reply{Status: status, Err: missingRight(err)}
	}
	clock, all, err := unpack(&message, locks)
	if err != nil {
		return answers{}, Reply{Status: Misconfigured, Err: notUnderstood("apply", err)}
	}
	n.observe(clock, s.steady, s.received)
	return all, Reply{}
}

// unpack splits the reply of the script.
func unpack(message *rueidis.RedisMessage, operations int) (clock int64, all answers, err error) {
	parts, err := message.ToArray()
	if err != nil {
		return 0, answers{}, err
	}
	if len(parts) < 2 {
		return 0, answers{}, errReply
	}
	if clock, err = integerOf(&parts[0]); err != nil {
		return 0, answers{}, err
	}
	if all.codes, err = stringOf(&parts[1]); err != nil {
		return 0, answers{}, err
	}
	all.details = parts[2:]
	if len(all.codes) != operations || strings.Count(all.codes, "*") != len(all.details) {
		return 0, answers{}, errReply
	}
	return clock, all, nil
}

// conclude decides what an answer is worth now that all of the connection and of the
// node's clock is known. It reports whether the receiver gets it; otherwise the request
// is sent again.
func (n *Node) conclude(s *sending, e entry, r *Reply) bool {
	switch {
	case r.Status == notApplied:
		r.Status = Unsent
		if !e.resent && (e.req.insists || e.req.Kind == Acquire && !e.req.urgent || e.req.Kind == Extend || e.req.Kind == Read) {
			// What creates a lock for a lease that exists is not sent again: the release
			// of the lease may be on its way.
			e.resent = true
			s.again = append(s.again, e)
			return false
		}
	case r.Status == Unknown:
		n.orphans.add(e.req, n.voidAt(e.req, s.steady, s.at))
	case r.Status == Granted && s.changed:
		r.Status, r.Err = Unknown, ErrReconnected
	case r.Status == Granted && n.quarantineReason != nil:
		// The clock was stepped, as this very reply shows or one before it.
		r.Status, r.Err = Unknown, n.quarantineReason
	case r.Status == Done && e.req.Kind == Release:
		n.retryRelease(e.req, s.at)
	}
	if r.Status == Failed && strings.Contains(r.Err.Error(), "OOM") {
		n.fullUntil = s.received + fullFor
	}
	switch {
	case !e.req.insists:
	case (r.Status == Unknown || r.Status == Unsent) && n.ctx.Err() == nil:
		s.again = append(s.again, e)
		return false
	case r.Status == Failed && len(n.retryQueue) < retryMax:
		n.retryQueue = append(n.retryQueue, e)
		n.retryAt = s.received + retryAfter
		return false
	}
	return true
}

// postpone answers the batch without a connection: requests that insist wait for the
// next one, the others fail.
func (n *Node) postpone() {
	status, err := Unsent, n.health.Load().Err
	switch {
	case n.refusal != nil:
		status = Misconfigured
	case err == nil || n.withheld != nil:
		err = ErrConnecting // it broke a moment ago
	}
	failed := n.batch[:0]
	for _, e := range n.batch {
		if e.req.insists {
			n.retryQueue = append(n.retryQueue, e)
		} else {
			failed = append(failed, e)
		}
	}
	if over := len(n.retryQueue) - retryMax; over > 0 {
		fail(n.cfg.Index, n.retryQueue[:over], Unsent, ErrExpired)
		n.retryQueue = slices.Clone(n.retryQueue[over:])
	}
	fail(n.cfg.Index, failed, status, err)
	clear(n.batch) // the next one may be shorter, and each entry leads to its caller's context
}
