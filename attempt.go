package quorumlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// errNoAnswer means that the node did not answer within the node timeout.
var errNoAnswer = errors.New("no answer in time")

// errCutShort means that the caller's context or the Manager ended before the outcome was
// known.
var errCutShort = errors.New("attempt cut short")

// errNotRaised means that a node refused a raise: the attempt no longer owns the lock
// there, or the register is ahead of the token.
var errNotRaised = errors.New("key is no longer ours, or its register is past the token")

// errRegister means that a node's register is past every token, because another program
// wrote the register or the base.
var errRegister = &node.ConfigError{
	Problem: "granted, but its fencing register is no valid token",
	Fix:     "another program wrote to our keys: choose another prefix, or mend the register (see docs/operations.md)",
}

// errTooSlow means that the majority came when too little of the lease was left.
var errTooSlow = errors.New("granted too late for the lease to be of use")

// errNoneLeft means that the clock of a node that granted was stepped forward during the
// attempt.
var errNoneLeft = errors.New("granted, and the node's clock was stepped forward meanwhile")

// blockSize is the largest number of tokens that one grant reserves for callers of this
// process. The highest token of a block is an instant in µs, so no token of the block is
// older than blockSize before it.
const blockSize = int64(100 * time.Millisecond / time.Microsecond)

// attempt is one round of asking every node for a lock. The workers' goroutines deliver
// the answers; one caller waits for the outcome.
type attempt struct {
	m      *Manager
	wait   *waiter
	value  string        // the lock's value: owner, proposal, metadata
	began  time.Duration // before the first request was sent: validity counts from here
	steady time.Duration // the same instant on the steady clock

	req node.Request // acquire

	// decided has capacity 1 and means that the outcome is certain. Sent once, and only
	// until the attempt is over; never closed. It belongs to the Manager's pool.
	decided chan struct{}

	// users counts the caller and the nodes that have not answered. The last one returns
	// the attempt to the pool, unless something else may still refer to it.
	users atomic.Int32
	// ticketed means that the waiter had a ticket when the attempt began, so wake-ups may
	// refer to this attempt.
	ticketed bool

	mu        sync.Mutex
	ballot    quorum.Ballot
	announced bool  // decided was sent
	over      bool  // concluded; without a hold, later answers do not count
	hold      *hold // once the lease was granted
	pending   int   // how many nodes have not answered the acquisition
	waiters   int   // most tickets in a queue of a node that granted
	errs      []error
	refusals  []refusal
	raise     *node.Request
	unsent    quorum.Set // nodes that certainly did not apply the acquisition
	unqueued  quorum.Set // failed nodes that certainly did not queue the ticket
}

// refusal is the answer of a node that named another owner.
type refusal struct {
	quorum.Refusal // Left is the instant at which the lock ends; result makes it a duration
	value          string
}

func (m *Manager) newAttempt(w *waiter, ask quorum.Ask) *attempt {
	a, _ := m.attempts.Get().(*attempt)
	if a == nil {
		a = &attempt{}
	}
	a.m, a.wait, a.decided, a.pending = m, w, m.signals.get(), w.terms.Nodes
	a.users.Store(int32(w.terms.Nodes) + 1)
	a.ticketed = w.ticket != ""
	a.began, a.steady = m.clock.Both()
	var proposal int64
	if !m.cfg.unfenced {
		proposal = m.clusterTime(a.steady).Microseconds()
	}
	a.ballot = quorum.NewBallot(w.terms.Nodes, !m.cfg.unfenced, proposal)
	token := a.write(proposal, w.call.traceParent())
	acquisition := node.Acquisition{
		Lock: w.lock, Value: a.value, KeyTTL: w.terms.keyTTL, NotAfter: a.steady + w.terms.Timeout, Token: token,
	}
	if ask.Ticket {
		acquisition.Ticket, acquisition.EnqueuedAt, acquisition.Lapsed = w.ticket, w.enqueuedAt, uint32(ask.Lapsed)
	}
	a.req.Init(&acquisition)
	return a
}

// write composes the value of the lock in one allocation, and returns the token's text in
// it.
func (a *attempt) write(proposal int64, traceParent string) (token string) {
	var random [node.OwnerLen / 2]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	var buffer [192]byte
	b := hex.AppendEncode(buffer[:0], random[:])
	b = append(b, ' ')
	b = strconv.AppendInt(b, proposal, 10)
	end := len(b)
	b = append(b, ' ')
	b = node.AppendMetadata(b, time.Now(), traceParent, a.wait.terms.label)
	a.value = string(b)
	return a.value[node.OwnerLen+1 : end]
}

// leave ends one use of the attempt. The last use returns it to the pool.
func (a *attempt) leave() {
	if a.users.Add(-1) > 0 || a.raise != nil || a.ticketed {
		return // answers may still come, to a raise or to a repeated acquisition
	}
	if h := a.hold; h != nil {
		h.mu.Lock()
		h.acquire = nil
		h.mu.Unlock()
	}
	m := a.m
	a.req.Reset()
	a.m, a.wait, a.value, a.decided, a.hold, a.errs = nil, nil, "", nil, nil, nil
	a.announced, a.over, a.waiters, a.unsent, a.unqueued, a.refusals = false, false, 0, 0, 0, nil
	m.attempts.Put(a)
}

// Receive handles an answer to an acquisition or a raise.
func (a *attempt) Receive(i int, req *node.Request, reply *node.Reply) {
	a.receive(i, req, reply)
	if req == &a.req {
		a.leave()
	}
}

func (a *attempt) receive(i int, req *node.Request, reply *node.Reply) {
	a.m.answered(i, req, reply)
	a.mu.Lock()
	if req.Kind == node.Acquire && req == &a.req {
		a.pending--
	}
	if h := a.hold; h != nil {
		a.mu.Unlock()
		if req.Kind == node.Acquire { // one more vote for the lease
			h.vote(i, a.began, reply)
			a.wait.vote(a, i, reply.Status == node.Granted)
		}
		return
	}
	if a.over {
		a.mu.Unlock()
		return // the caller has sent releases, and they run after the requests
	}
	raise := a.count(i, req, reply)
	if raise != 0 && a.raise == nil {
		_, now := a.m.clock.Both()
		a.raise = node.NewRaise(a.wait.lock, a.value[:node.OwnerLen], a.ballot.Token(), metadata(a.value), now+a.wait.terms.Timeout)
	}
	req = a.raise
	a.decide()
	a.mu.Unlock()
	for j := 0; raise != 0; j++ {
		if raise.Has(j) {
			a.m.post(j, req, a)
			raise = raise.Without(j)
		}
	}
}

// count counts an answer in the ballot. a.mu is held.
func (a *attempt) count(i int, req *node.Request, reply *node.Reply) (raise quorum.Set) {
	if req.Kind == node.Raise {
		ok := reply.Status == node.Done && reply.Before >= 0
		a.ballot.Raised(i, reply.Before, ok)
		if err := reply.Err; !ok {
			if err == nil {
				err = errNotRaised
			}
			a.fail(i, err)
		}
		return 0
	}
	switch reply.Status {
	case node.Granted:
		moved, before := reply.Moved, reply.Before
		a.waiters = max(a.waiters, int(reply.Waiters))
		if moved == node.AsProposed {
			moved = a.proposal()
			before = moved - 1
		}
		raise = a.ballot.Grant(i, moved, before)
		if !a.ballot.Votes().Granted().Has(i) {
			a.fail(i, errRegister)
		}
		return raise
	case node.Taken:
		a.ballot.Refuse(i)
		a.fail(i, errTaken)
		a.unsent = a.unsent.With(i)
		a.refusals = append(a.refusals, newRefusal(i, reply, a.m.clock.Now()))
		return 0
	case node.Unsent:
		a.unsent, a.unqueued = a.unsent.With(i), a.unqueued.With(i)
	}
	a.ballot.Fail(i)
	a.fail(i, reply.Err)
	return 0
}

// proposal returns the token that the attempt proposed.
func (a *attempt) proposal() int64 {
	value := a.value[node.OwnerLen+1:]
	n := int64(0)
	for i := 0; value[i] != ' '; i++ {
		n = 10*n + int64(value[i]-'0')
	}
	return n
}

func newRefusal(i int, reply *node.Reply, now time.Duration) refusal {
	v := node.ParseValue(reply.Held)
	r := refusal{value: reply.Held, Refusal: quorum.Refusal{
		Node: i, Left: quorum.Never, Position: int(reply.Position), Reserved: v.Reserved,
		Stranger: v.Since.IsZero() && !v.Reserved,
	}}
	if reply.TTL >= 0 {
		r.Left = now + reply.TTL
	}
	return r
}

func (a *attempt) fail(i int, err error) {
	if a.errs == nil {
		a.errs = make([]error, a.wait.terms.Nodes)
	}
	a.errs[i] = err
}

// decide wakes the caller when the outcome is certain. a.mu is held.
func (a *attempt) decide() {
	if !a.announced && a.ballot.Outcome() != quorum.OutcomePending {
		a.announced = true
		a.decided <- struct{}{}
	}
}

// run asks every node and waits for the outcome. It returns the lease, or the reason why
// it was not granted.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	for i := range a.m.nodes {
		a.m.post(i, &a.req, a)
	}
	timeout := a.wait.terms.Timeout
	timer := a.m.timer(timeout)
	defer a.m.putTimer(timer)
	cut := false
	for late, waiting := false, true; waiting; {
		select {
		case <-a.decided:
			waiting = false
		case <-timer.C:
			// The first timeout ends the vote. A raise that follows gets as much time
			// again.
			a.expire(late)
			late = true
			timer.Reset(timeout)
		case <-ctx.Done():
			cut, waiting = true, false
		case <-a.m.closing:
			cut, waiting = true, false
		}
	}
	l, err := a.conclude(ctx, cut)
	a.m.signals.put(a.decided)
	return l, err
}

// expire fails the votes that have not arrived; with all, it fails the raises too.
func (a *attempt) expire(all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.wait.terms.Nodes {
		if a.ballot.Votes().Silent().Has(i) {
			a.fail(i, errNoAnswer)
		}
	}
	a.ballot.Votes().Expire()
	if all {
		a.ballot.Expire()
	}
	a.decide()
}

// conclude turns the outcome into a lease or an error. After an error, the caller must
// release the attempt.
func (a *attempt) conclude(values context.Context, cut bool) (*Lease, error) {
	a.mu.Lock()
	a.over = true
	outcome := a.ballot.Outcome()
	if outcome == quorum.OutcomeWon && !cut {
		l, err := a.grant(values)
		if l != nil {
			votes := a.ballot.Votes()
			again := a.wait.won(a, votes.Granted(), votes.Refused())
			a.mu.Unlock()
			a.askAgain(again)
			return l, nil
		}
		outcome = quorum.OutcomeNoQuorum
		for i := range a.wait.terms.Nodes {
			if a.ballot.Votes().Granted().Has(i) && (a.errs == nil || a.errs[i] == nil) {
				a.fail(i, err)
			}
		}
	}
	err := a.failure(outcome)
	a.mu.Unlock()
	a.req.Withdraw()
	return nil, err
}

// newHold returns the hold that the attempt has won, and its first lease. No other goroutine
// sees them yet. a.mu is held.
func (a *attempt) newHold(values context.Context) (*hold, *Lease) {
	t, m := a.wait.terms, a.m
	votes := a.ballot.Votes()
	granted := &struct {
		h hold
		l Lease
	}{}
	h, l := &granted.h, &granted.l
	h.m, h.terms, h.lock, h.local, h.index, h.jumped = m, t, a.wait.lock, a.wait.local, -1, m.clock.Jumped()
	h.lease, h.value, h.others, h.label = l, a.value, a.waiters, a.wait.call.metricLabel()
	first, last := a.ballot.Tokens(a.block())
	l.hold, l.token, l.granted, l.values, l.acquired = h, first, a.began, values, a.wait.call.ref()
	h.next, h.last = first+1, last
	if last != a.proposal() {
		h.value = node.Compose(ownerOf(a.value), last, metadata(a.value))
	}
	h.proof = a.ballot.Counted()
	if m.cfg.unfenced {
		h.proof = votes.Granted()
	}
	window := quorum.Window(h.window[:min(t.Nodes, len(h.window))])
	if t.Nodes > len(h.window) {
		window = make(quorum.Window, t.Nodes)
	}
	h.machine = quorum.NewMachine(&t.Terms, window, a.began, votes.Granted(), quorum.All(t.Nodes)&^votes.Silent())
	h.machine.SetLag(m.dog.expectedLag())
	h.nodes = a.errs // evidence, if the lease is at risk from the start
	h.acquire = &a.req
	if !t.manual {
		h.machine.Arm(a.began + h.nextRound())
	}
	return h, l
}

// grant returns the lease, or the reason why it is of no use. This is the only place that
// grants a lease. The hold is complete before any other goroutine sees it, with the clock
// steps that were found since the attempt began. a.mu is held.
func (a *attempt) grant(values context.Context) (*Lease, error) {
	m := a.m
	h, l := a.newHold(values)
	m.steps.mu.Lock()
	defer m.steps.mu.Unlock()
	for _, step := range m.steps.recent {
		if step.at >= a.steady {
			h.machine.Step(m.clock.Now(), quorum.Input{Kind: quorum.InputClockStep, Node: step.node, By: step.by})
			h.note(step.node, step)
			h.resetProof()
		}
	}
	if s := h.machine.State(); s == quorum.StateLost {
		return nil, errNoneLeft
	}
	// The last check of the clock before the grant: a lease that was won too slowly is of
	// no use (etcd-io/etcd#11456).
	h.answeredAt = m.clock.Now()
	if h.machine.End()-h.answeredAt < h.terms.minUseful {
		return nil, errTooSlow
	}
	h.mu.Lock()
	l.stop.Store(int64(h.machine.Stop()))
	a.hold = h
	path := ""
	if a.ticketed {
		path = pathNodes
	}
	m.open(l, path)
	h.countRisk()
	m.dog.schedule(h, h.machine.Wake())
	m.own.add(h)
	h.mu.Unlock()
	return l, nil
}

// block returns how many tokens to reserve: blockSize if callers in this process queue
// for the lock, otherwise one.
func (a *attempt) block() int64 {
	if a.wait.local == nil || a.m.cfg.unfenced {
		return 1
	}
	return blockSize
}

// open reports the start of a lease to metrics and subscriptions. path is how the lease
// came to a waiter. The hold's mutex is held.
func (m *Manager) open(l *Lease, path string) {
	m.telemetry.meters.opened(l.hold.label, path)
	if m.bus.watched.Load() > 0 {
		now := m.clock.Now()
		m.bus.send(Acquired{
			Name: l.Name(), Token: l.token,
			ValidUntil: m.clock.Time(l.hold.machine.Stop()), Margin: l.hold.machine.Margin(now),
		})
	}
}

// failure returns the error of a failed attempt. a.mu is held.
func (a *attempt) failure(outcome quorum.Outcome) error {
	switch outcome {
	case quorum.OutcomeHeld:
		holder := a.holder()
		return &HeldError{
			Name: a.wait.name(), Holder: holder, RetryAfter: a.retryAfter(), Self: a.m.own.has(a.m, a.wait.lock, holder.Owner),
		}
	case quorum.OutcomeWon, quorum.OutcomePending:
		return errCutShort
	}
	return &QuorumError{
		Op: "acquire", Name: a.wait.name(), Need: a.m.quorum(), Got: a.ballot.Votes().Granted().Len(),
		of: len(a.m.nodes), Nodes: a.m.nodeErrors(a.errs),
	}
}

// holder returns the holder that most refusals name, the zero Holder if the lock is
// reserved. a.mu is held.
func (a *attempt) holder() Holder {
	best, votes := Holder{}, 0
	for _, r := range a.refusals {
		if r.Reserved {
			continue
		}
		h, n := holder(r.value), 0
		for _, other := range a.refusals {
			if !other.Reserved && holder(other.value).Owner == h.Owner {
				n++
			}
		}
		if n > votes {
			best, votes = h, n
		}
	}
	return best
}

// scattered reports whether several callers asked at one instant and each got some of the
// votes: the attempt was refused, and no caller has a majority. a.mu is held.
func (a *attempt) scattered(outcome quorum.Outcome) bool {
	if outcome != quorum.OutcomeHeld {
		return false
	}
	votes := map[string]int{}
	for _, r := range a.refusals {
		owner := holder(r.value).Owner
		if votes[owner]++; r.Reserved || votes[owner] >= a.m.quorum() {
			return false
		}
	}
	return true
}

// retryAfter returns when a majority of nodes could be free, 0 if that is not known.
// Nodes that granted or failed count as free now. a.mu is held.
func (a *attempt) retryAfter() time.Duration {
	left := make(quorum.Window, a.wait.terms.Nodes)
	for i, r := range a.result(quorum.OutcomeHeld).Refusals {
		left[i] = r.Left
	}
	if d := left.Free(); d != quorum.Never {
		return d
	}
	return 0
}

// result returns what the waiter's decisions need to know of a failed attempt. a.mu is
// held.
func (a *attempt) result(outcome quorum.Outcome) *quorum.AttemptResult {
	now := a.m.clock.Now()
	votes := a.ballot.Votes()
	r := &quorum.AttemptResult{
		Outcome: outcome, Granted: votes.Granted(), Failed: quorum.All(a.wait.terms.Nodes) &^ (votes.Granted() | votes.Refused()),
		Unqueued: a.unqueued, Refusals: make([]quorum.Refusal, len(a.refusals)),
	}
	r.TooLate, r.Scattered = outcome == quorum.OutcomeWon, a.scattered(outcome)
	for i, refusal := range a.refusals {
		r.Refusals[i] = refusal.Refusal
		if refusal.Left != quorum.Never {
			r.Refusals[i].Left = max(refusal.Left-now, time.Microsecond) // 0 would mean unknown
		}
	}
	return r
}

// release releases the locks that the attempt has created or may have created. It skips
// nodes that certainly hold nothing of the attempt.
func (a *attempt) release(update node.TicketUpdate) {
	a.mu.Lock()
	unsent := a.unsent
	a.mu.Unlock()
	_, now := a.m.clock.Both()
	t := a.wait.terms
	req := node.NewUndo(a.wait.lock, a.value, &a.req, update, now+t.ttl+t.lockDelay)
	for i := range a.m.nodes {
		if !unsent.Has(i) {
			a.m.post(i, req, nobody{})
		}
	}
}

// askAgain asks nodes for the lock again. These nodes reserve the lock for this waiter
// now, which has already got the lease from the others. The new votes count from the
// start of the attempt, which is never too late.
func (a *attempt) askAgain(nodes quorum.Set) {
	if nodes == 0 {
		return
	}
	h, t := a.hold, a.wait.terms
	h.mu.Lock()
	left, over := h.machine.Stop(), h.over
	h.mu.Unlock()
	validity, steady := a.m.clock.Both()
	left = min(left-validity, t.Timeout)
	if over || left <= 0 {
		return // the reservations end with the grace
	}
	req := &node.Request{}
	req.Init(&node.Acquisition{
		Lock: a.wait.lock, Value: a.value, KeyTTL: t.keyTTL, NotAfter: steady + left, Token: a.value[node.OwnerLen+1 : len(a.value)-len(metadata(a.value))-1],
		Ticket: a.wait.ticket, EnqueuedAt: a.wait.enqueuedAt, Again: true,
	})
	for i := 0; nodes != 0; i++ {
		if !nodes.Has(i) {
			continue
		}
		nodes = nodes.Without(i)
		a.m.post(i, req, a)
		if h.isOver() {
			a.m.post(i, h.releaseRequest(node.TicketUpdate{}), nobody{}) // its release may be ahead of the request in the queue
		}
	}
}
