package campaign

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// attempt asks every node for a lock, once. The workers' goroutines deliver
// the answers; one caller waits for the outcome.
type attempt struct {
	c      *Campaign
	key    string // of the lock: the campaign's, or the key of a slot
	ask    quorum.Ask
	value  string         // the lock's value: owner, proposal, metadata
	began  clock.Validity // before the first request was sent: validity counts from here
	steady clock.Steady   // the same instant on the steady clock

	req wire.Request // acquire

	// decided has capacity 1 and means that the outcome is certain. Sent once, and only
	// until the attempt is concluded; never closed. It belongs to the Ensemble's pool.
	decided chan struct{}

	// users counts the campaign and the nodes that have not answered. The last one returns an
	// attempt that was granted to the pool, unless something else may still refer to it.
	users     atomic.Int32
	mu        sync.Mutex
	votes     votes
	announced bool       // decided was sent
	concluded bool       // without a lock, later answers do not count
	lock      *hold.Lock // once it was opened
	raise     *wire.Request
	kept      quorum.Set // nodes that may have a lock with this value: from an earlier attempt, or from the lease that becomes shared
}

// newAttempt returns an attempt that has not asked yet. before is the attempt whose votes
// it keeps, nil for none: nodes that have granted it grant the same value again.
func (s *Campaigns) newAttempt(c *Campaign, key string, ask quorum.Ask, before *attempt) *attempt {
	a, _ := s.attempts.Get().(*attempt)
	if a == nil {
		a = &attempt{}
	}
	nodes := c.Terms.Nodes
	a.c, a.key, a.ask, a.decided = c, key, ask, s.ensemble.Signal()
	a.users.Store(int32(nodes) + 1)
	a.began, a.steady = s.clock.Both()
	var unheard quorum.Set // nodes that have not granted before, and may have its lock
	if before != nil {
		before.mu.Lock()
		a.key, a.value, a.votes.proposal, a.kept = before.key, before.value, before.votes.proposal, before.kept|quorum.All(nodes)&^before.votes.notApplied
		unheard = a.kept &^ before.votes.ballot.Votes().Granted()
		before.mu.Unlock()
	} else {
		c.Kind.propose(a)
	}
	a.votes.ballot, a.votes.meaning, a.votes.ticket = c.Kind.ballot(a), c.Kind, ask.Ticket
	acquisition := c.Kind.acquisition(wire.Acquisition{
		Lock: a.key, Value: a.value, KeyTTL: c.Terms.KeyTTL, NotAfter: a.steady.Add(c.Terms.Timeout), Token: a.token(),
	})
	if ask.Ticket {
		acquisition.Ticket, acquisition.EnqueuedAt, acquisition.Lapsed = c.ticket, c.score, uint32(ask.Lapsed)
	}
	a.req.Init(&acquisition)
	for i := range a.kept.All() {
		a.req.MadeElsewhere(i)
	}
	if unheard != 0 && a.req.Lean() { // what before asked for in the lean way may still make a lock that isn't a vote
		a.req.MarkUnproven(uint32(unheard))
	}
	return a
}

// write composes the value of the lock in one allocation.
func (a *attempt) write(traceParent, label string) {
	var random [wire.OwnerLen / 2]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	var buffer [192]byte
	b := hex.AppendEncode(buffer[:0], random[:])
	b = append(b, ' ')
	b = strconv.AppendInt(b, a.votes.proposal, 10)
	b = append(b, ' ')
	b = wire.AppendMetadata(b, time.Now(), traceParent, label)
	a.value = string(b)
}

// token returns the text of the proposal in the value.
func (a *attempt) token() string {
	end := wire.OwnerLen + 1
	for a.value[end] != ' ' {
		end++
	}
	return a.value[wire.OwnerLen+1 : end]
}

// unref ends one use of the attempt. The last use returns it to the pool.
func (a *attempt) unref() {
	if a.users.Add(-1) > 0 {
		return
	}
	if a.lock == nil {
		return // its release may still wait for a node, and looks at the node's answer
	}
	a.lock.Answered()
	if a.raise != nil {
		return // answers to it may still come
	}
	pool := &a.c.of.attempts
	a.req.Reset()
	a.c, a.key, a.value, a.decided, a.votes, a.lock = nil, "", "", nil, votes{}, nil
	a.announced, a.concluded, a.kept = false, false, 0
	pool.Put(a)
}

// Receive handles an answer to an acquisition or a raise.
func (a *attempt) Receive(i int, req *wire.Request, reply *wire.Reply) {
	a.receive(i, req, reply)
	if req == &a.req {
		a.unref()
	}
}

func (a *attempt) receive(i int, req *wire.Request, reply *wire.Reply) {
	c, nodes := a.c, a.c.Terms.Nodes
	c.of.ensemble.Answered(i, req, reply)
	if (reply.Status == wire.Granted || reply.Status == wire.Taken) && !c.of.Voted().Has(i) {
		c.of.voted.Or(1 << i)
	}
	a.mu.Lock()
	if l := a.lock; l != nil {
		a.mu.Unlock()
		if req.Kind == wire.Acquire { // one more vote for the lease
			l.Vote(i, a.began, reply)
			if reply.Status != wire.Granted {
				c.Kind.passedBy(c, quorum.Set(0).With(i))
			}
		}
		return
	}
	if a.concluded {
		a.mu.Unlock()
		return // the caller has sent releases, and they run after the requests
	}
	raise := quorum.Set(0)
	if req.Kind == wire.Raise {
		a.votes.countRaise(i, nodes, reply)
	} else {
		raise = a.votes.count(i, nodes, reply, c.of.clock.Now())
	}
	if raise != 0 && a.raise == nil {
		_, now := c.of.clock.Both()
		a.raise = c.Kind.entry(a).Raise(a.votes.ballot.Top(), now.Add(c.Terms.Timeout))
	}
	req = a.raise
	a.decide()
	a.mu.Unlock()
	if raise != 0 {
		c.of.ensemble.PostTo(raise, req, a)
	}
}

// decide wakes the caller when the outcome is certain. a.mu is held.
func (a *attempt) decide() {
	outcome := a.votes.ballot.Outcome()
	if a.announced || outcome == quorum.OutcomePending {
		return
	}
	if a.c.Once && outcome == quorum.OutcomeHeld && a.votes.ballot.Votes().Silent() != 0 && quorum.AwaitsVotes(a.c.Terms.Nodes, a.resultLocked(outcome)) {
		return
	}
	a.announced = true
	a.decided <- struct{}{}
}

// await waits for the outcome. It returns why the lock was not granted, nil when it is open.
func (a *attempt) await(ctx context.Context) *Failure {
	e := a.c.of.ensemble
	timeout := a.c.Terms.Timeout
	timer := e.Timer(a.began.Add(timeout).Sub(a.c.of.clock.Now()))
	defer e.PutTimer(timer)
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
			timer.Reset(a.began.Add(2 * timeout).Sub(a.c.of.clock.Now()))
		case <-ctx.Done():
			cut, waiting = true, false
		case <-a.c.of.closing.Done():
			cut, waiting = true, false
		}
	}
	failure := a.conclude(cut)
	e.PutSignal(a.decided)
	return failure
}

// expire fails the votes that have not arrived; with raises, it fails those as well.
func (a *attempt) expire(raises bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.votes.expire(a.c.Terms.Nodes, ensemble.Silence(a.c.Terms.Timeout), raises)
	a.decide()
}

// conclude opens the lock, or returns why it cannot. After a failure, the campaign must release the
// attempt.
func (a *attempt) conclude(cut bool) *Failure {
	a.mu.Lock()
	a.concluded = true
	outcome := a.votes.ballot.Outcome()
	if outcome == quorum.OutcomeWon && !cut {
		l, err := a.grant()
		if err == nil {
			tally := a.votes.ballot.Votes()
			reserved := a.c.won(l, tally.Granted())
			a.mu.Unlock()
			a.c.Kind.takeUp(a.c, l, reserved&tally.Refused())
			a.c.Kind.passedBy(a.c, quorum.All(a.c.Terms.Nodes)&^(tally.Granted()|tally.Silent()))
			return nil
		}
		if !errors.Is(err, hold.ErrEnded) { // nodes have granted it, and that is of no use
			outcome = quorum.OutcomeNoQuorum
			for i := range a.votes.ballot.Votes().Granted().All() {
				if a.votes.errs == nil || a.votes.errs[i] == nil {
					a.votes.fail(i, a.c.Terms.Nodes, err)
				}
			}
		}
	}
	f := a.failure(outcome)
	a.mu.Unlock()
	a.req.Withdraw()
	return f
}

// grant opens the lock, or returns the reason why it is of no use. a.mu is held.
func (a *attempt) grant() (*hold.Lock, error) {
	c := a.c
	l, tenant := c.Caller.Open()
	err := c.of.locks.Open(&hold.Grant{
		Terms: c.Terms, Entry: c.Kind.entry(a), Proposal: a.votes.proposal, Ballot: &a.votes.ballot, Began: a.began, Steady: a.steady,
		Queue: c.Caller.Queue(), Others: a.votes.others, Errors: a.votes.errs, Acquire: &a.req,
	}, l, tenant)
	if err != nil {
		return nil, err
	}
	a.lock = l
	return l, nil
}

// failure returns why the attempt has failed. a.mu is held.
func (a *attempt) failure(outcome quorum.Outcome) *Failure {
	v, nodes := &a.votes, a.c.Terms.Nodes
	f := &Failure{
		Key:     a.key,
		Granted: v.ballot.Votes().Granted().Len(), Refused: len(v.refusals) > 0, Stranger: v.strange(),
		TooFewAnswered: v.ballot.Outcome() == quorum.OutcomeNoQuorum && v.failed(nodes).Len() > nodes-quorum.Size(nodes),
	}
	switch tie := a.c.Once && quorum.Scattered(nodes, a.resultLocked(outcome)); {
	case outcome == quorum.OutcomeHeld, tie:
		f.Reason, f.RetryAfter = Held, free(nodes, remaining(v.refusals, a.c.of.clock.Now()))
		var named bool
		f.Value, f.Readers, named = holder(v.refusals)
		f.Blank = named && f.Value == ""
	case outcome == quorum.OutcomeWon, outcome == quorum.OutcomePending:
		f.Reason = CutShort
	default:
		v.failSilent(nodes, errNotAwaited)
		f.Reason, f.Errors, f.RetryAfter = NoQuorum, v.errs, a.c.of.ensemble.Quarantined()
	}
	return f
}

// result returns what the Waiter's decisions need to know of the failed attempt.
func (a *attempt) result() *quorum.AttemptResult {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.resultLocked(a.votes.ballot.Outcome())
}

func (a *attempt) resultLocked(outcome quorum.Outcome) *quorum.AttemptResult {
	r := a.votes.result(a.c.Terms.Nodes, outcome, wire.OwnerOf(a.value), a.c.of.clock.Now())
	a.c.Kind.result(a, r)
	return r
}

// release releases the locks that the attempt has created or may have created. It skips
// nodes that certainly hold nothing of the attempt.
func (a *attempt) release(update wire.TicketUpdate) {
	e, t := a.c.of.ensemble, a.c.Terms
	a.mu.Lock()
	notApplied := a.votes.notApplied &^ a.kept
	_, now := a.c.of.clock.Both()
	req := a.c.Kind.undo(a, update, now.Add(t.TTL+t.LockDelay))
	a.mu.Unlock()
	e.PostTo(quorum.All(t.Nodes)&^notApplied, req, ensemble.Nobody{})
}
