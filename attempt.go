package quorumlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// errNotAwaited is the error of a node whose answer could not have changed the outcome.
var errNotAwaited = errors.New("its answer was not awaited, because the other nodes had decided")

// errCutShort means that the caller's context or the Manager ended before the outcome was
// known.
var errCutShort = errors.New("attempt cut short")

// errNotRaised means that a node refused a raise: the attempt no longer owns the lock
// there, or the register is ahead of the token.
var errNotRaised = errors.New("key is no longer ours, or its register is past the token")

// errRegister means that a node's register is past every token, because another program
// wrote the register or the base.
var errRegister = &wire.ConfigError{
	Problem: "granted, but its fencing register is no valid token",
	Fix:     "another program wrote to our keys: choose another prefix, or mend the register (see docs/operations.md)",
}

// attempt is one round of asking every node for a lock. The workers' goroutines deliver
// the answers; one caller waits for the outcome.
type attempt struct {
	m      *Manager
	wait   *waiter
	value  string        // the lock's value: owner, proposal, metadata
	began  time.Duration // before the first request was sent: validity counts from here
	steady time.Duration // the same instant on the steady clock

	req wire.Request // acquire

	// decided has capacity 1 and means that the outcome is certain. Sent once, and only
	// until the attempt is over; never closed. It belongs to the Manager's pool.
	decided chan struct{}

	// users counts the caller and the nodes that have not answered. The last one returns
	// the attempt to the pool, unless something else may still refer to it.
	users      atomic.Int32
	mu         sync.Mutex
	ballot     quorum.Ballot
	announced  bool       // decided was sent
	over       bool       // concluded; without a lock, later answers do not count
	lock       *hold.Lock // once the lease was granted
	pending    int        // how many nodes have not answered the acquisition
	waiters    int        // most tickets in a queue of a node that granted
	errs       []error
	refusals   []refusal
	raise      *wire.Request
	kept       quorum.Set // nodes that may have the lock from an earlier attempt with this value
	notApplied quorum.Set // nodes that certainly did not apply the acquisition
	unqueued   quorum.Set // failed nodes that certainly did not queue the ticket
}

// newAttempt returns an attempt that has not asked yet. before is the attempt whose votes
// it keeps, nil for none: nodes that have granted it grant the same value again.
func (m *Manager) newAttempt(w *waiter, ask quorum.Ask, before *attempt) *attempt {
	a, _ := m.attempts.Get().(*attempt)
	if a == nil {
		a = &attempt{}
	}
	a.m, a.wait, a.decided, a.pending = m, w, m.ensemble.Signal(), w.terms.Nodes
	a.users.Store(int32(w.terms.Nodes) + 1)
	a.began, a.steady = m.clock.Both()
	var proposal int64
	if before != nil {
		before.mu.Lock()
		a.value, a.kept = before.value, before.kept|quorum.All(w.terms.Nodes)&^before.notApplied
		before.mu.Unlock()
		proposal = a.proposal()
	} else {
		if !m.cfg.Unfenced {
			proposal = m.ensemble.Time(a.steady).Microseconds()
		}
		a.write(proposal, w.call.traceParent())
	}
	a.ballot = quorum.NewBallot(w.terms.Nodes, !m.cfg.Unfenced, proposal)
	acquisition := wire.Acquisition{
		Lock: w.lock, Value: a.value, KeyTTL: w.terms.KeyTTL, NotAfter: a.steady + w.terms.Timeout, Token: a.token(),
	}
	if ask.Ticket {
		acquisition.Ticket, acquisition.EnqueuedAt, acquisition.Lapsed = w.ticket, w.enqueuedAt, uint32(ask.Lapsed)
	}
	a.req.Init(&acquisition)
	for i := range w.terms.Nodes {
		if a.kept.Has(i) {
			a.req.MadeElsewhere(i)
		}
	}
	return a
}

// write composes the value of the lock in one allocation.
func (a *attempt) write(proposal int64, traceParent string) {
	var random [wire.OwnerLen / 2]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	var buffer [192]byte
	b := hex.AppendEncode(buffer[:0], random[:])
	b = append(b, ' ')
	b = strconv.AppendInt(b, proposal, 10)
	b = append(b, ' ')
	b = wire.AppendMetadata(b, time.Now(), traceParent, a.wait.terms.Label)
	a.value = string(b)
}

// token returns the text of the proposal in the value.
func (a *attempt) token() string {
	text, _, _ := strings.Cut(a.value[wire.OwnerLen+1:], " ")
	return text
}

// leave ends one use of the attempt. The last use returns it to the pool.
func (a *attempt) leave() {
	if a.users.Add(-1) > 0 {
		return
	}
	if a.lock != nil {
		a.lock.Answered()
	}
	if a.raise != nil {
		return // answers to it may still come
	}
	m := a.m
	a.req.Reset()
	a.m, a.wait, a.value, a.decided, a.lock, a.errs = nil, nil, "", nil, nil, nil
	a.announced, a.over, a.waiters, a.refusals = false, false, 0, nil
	a.kept, a.notApplied, a.unqueued = 0, 0, 0
	m.attempts.Put(a)
}

// Receive handles an answer to an acquisition or a raise.
func (a *attempt) Receive(i int, req *wire.Request, reply *wire.Reply) {
	a.receive(i, req, reply)
	if req == &a.req {
		a.leave()
	}
}

func (a *attempt) receive(i int, req *wire.Request, reply *wire.Reply) {
	a.m.ensemble.Answered(i, req, reply)
	a.mu.Lock()
	if req == &a.req {
		a.pending--
	}
	if l := a.lock; l != nil {
		a.mu.Unlock()
		if req.Kind == wire.Acquire { // one more vote for the lease
			l.Vote(i, a.began, reply)
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
		a.raise = wire.NewRaise(a.wait.lock, wire.OwnerOf(a.value), a.ballot.Token(), wire.MetadataOf(a.value), now+a.wait.terms.Timeout)
	}
	req = a.raise
	a.decide()
	a.mu.Unlock()
	for j := 0; raise != 0; j++ {
		if raise.Has(j) {
			a.m.ensemble.Post(j, req, a)
			raise = raise.Without(j)
		}
	}
}

// count counts an answer in the ballot. a.mu is held.
func (a *attempt) count(i int, req *wire.Request, reply *wire.Reply) (raise quorum.Set) {
	if req.Kind == wire.Raise {
		ok := reply.Status == wire.Done && reply.Before >= 0
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
	case wire.Granted:
		moved, before := reply.Moved, reply.Before
		a.waiters = max(a.waiters, int(reply.Waiters))
		if moved == wire.AsProposed {
			moved = a.proposal()
			before = moved - 1
		}
		raise = a.ballot.Grant(i, moved, before)
		if !a.ballot.Votes().Granted().Has(i) {
			a.fail(i, errRegister)
		}
		return raise
	case wire.Taken:
		a.ballot.Refuse(i)
		a.fail(i, hold.ErrTaken)
		a.notApplied = a.notApplied.With(i)
		a.refusals = append(a.refusals, newRefusal(i, reply, a.m.clock.Now()))
		return 0
	case wire.NotApplied:
		a.notApplied, a.unqueued = a.notApplied.With(i), a.unqueued.With(i)
	}
	a.ballot.Fail(i)
	a.fail(i, reply.Err)
	return 0
}

// proposal returns the token that the attempt proposed.
func (a *attempt) proposal() int64 {
	value := a.value[wire.OwnerLen+1:]
	n := int64(0)
	for i := 0; value[i] != ' '; i++ {
		n = 10*n + int64(value[i]-'0')
	}
	return n
}

func (a *attempt) fail(i int, err error) {
	if a.errs == nil {
		a.errs = make([]error, a.wait.terms.Nodes)
	}
	a.errs[i] = err
}

// decide wakes the caller when the outcome is certain. a.mu is held.
func (a *attempt) decide() {
	outcome := a.ballot.Outcome()
	if a.announced || outcome == quorum.OutcomePending {
		return
	}
	if a.wait.once && outcome == quorum.OutcomeHeld && a.ballot.Votes().Silent() != 0 && quorum.AwaitsVotes(a.wait.terms.Nodes, a.result(outcome)) {
		return
	}
	a.announced = true
	a.decided <- struct{}{}
}

// run asks every node and waits for the outcome. It returns the lease, or the reason why
// it was not granted.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	a.m.ensemble.Ask(&a.req, a, a.steady)
	timeout := a.wait.terms.Timeout
	timer := a.m.ensemble.Timer(timeout)
	defer a.m.ensemble.PutTimer(timer)
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
	a.m.ensemble.PutSignal(a.decided)
	return l, err
}

// expire fails the votes that have not arrived; with all, it fails the raises too.
func (a *attempt) expire(all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.wait.terms.Nodes {
		if a.ballot.Votes().Silent().Has(i) {
			a.fail(i, ensemble.Silence(a.wait.terms.Timeout))
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
			reserved := a.wait.won(l.lock, votes.Granted())
			a.mu.Unlock()
			l.lock.TakeReservations(reserved & votes.Refused())
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

// release releases the locks that the attempt has created or may have created. It skips
// nodes that certainly hold nothing of the attempt.
func (a *attempt) release(update wire.TicketUpdate) {
	a.mu.Lock()
	notApplied := a.notApplied &^ a.kept
	a.mu.Unlock()
	_, now := a.m.clock.Both()
	t := a.wait.terms
	req := wire.NewUndo(a.wait.lock, a.value, &a.req, update, now+t.TTL+t.LockDelay)
	for i := range a.m.ensemble.Nodes() {
		if !notApplied.Has(i) {
			a.m.ensemble.Post(i, req, ensemble.Nobody{})
		}
	}
}

// grant returns the lease, or the reason why it is of no use. a.mu is held.
func (a *attempt) grant(values context.Context) (*Lease, error) {
	granted := &struct {
		Lease
		lock hold.Lock
	}{}
	l := &granted.Lease
	l.m, l.lock, l.granted, l.values = a.m, &granted.lock, a.began, values
	l.label, l.acquired = a.wait.call.metricLabel(), a.wait.call.ref()
	g := hold.Grant{
		Terms: a.wait.terms, Key: a.wait.lock, Value: a.value, Proposal: a.proposal(), Ballot: &a.ballot, Began: a.began, Steady: a.steady,
		Queued: a.wait.ticket != "", Others: a.waiters, Errors: a.errs, Acquire: &a.req,
	}
	if a.wait.local != nil {
		g.Owner = a.wait.local
	}
	if err := a.m.dog.Open(&g, l.lock, (*tenant)(l)); err != nil {
		return nil, err
	}
	a.lock = l.lock
	return l, nil
}
