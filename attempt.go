package quorumlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// fenceMillis is fenceLife as the scripts take it.
var fenceMillis = strconv.FormatInt(fenceLife.Milliseconds(), 10)

// errSilent: the node timeout went by.
var errSilent = errors.New("no answer in time")

// errCutShort: the caller's context or the Manager ended before the outcome was
// known.
var errCutShort = errors.New("attempt cut short")

// errPassed: the answer of raise.lua to who does not own the lock any more, or
// finds the counter ahead.
var errPassed = errors.New("key is no longer ours, or its fence counter is past the token")

// errTooSlow: a vote that came when little of the lease was left.
var errTooSlow = errors.New("granted too late for the lease to be of use")

// notAfterArg is the place of "not after" among the arguments of acquire.lua.
const notAfterArg = 6

// attempt is one round of asking every node for a lease. Its answers come in
// the goroutines of the nodes' workers; one caller waits for the outcome.
type attempt struct {
	m        *Manager
	terms    *terms
	wait     *waiter
	owner    string // random, for this attempt alone
	tail     string
	acquired *spanRef
	began    time.Duration // before anything was sent: validity counts from here

	req  node.Request // acquire
	keys lockKeys
	args [9]string // of acquire.lua, see there

	// decided has capacity 1: the outcome is certain. Sent once, never closed.
	decided chan struct{}

	mu     sync.Mutex
	claim  quorum.Claim
	told   bool // decided was sent
	over   bool // concluded; without a lease nothing counts any more
	lease  *Lease
	errs   []error // of the nodes that failed; nil until one did
	taken  []taken // what the nodes said that named another owner
	raise  *node.Request
	unsent quorum.Set // nodes that certainly did not apply the acquire
	outof  quorum.Set // nodes in whose queues it certainly is not
}

type taken struct {
	value string
	end   time.Duration // of the key; quorum.Never if there is none
	place int           // in the queue; −1 for not in it
}

// left returns how long the key is still there, at least an instant: 0 would be
// not known.
func (t *taken) left(now time.Duration) time.Duration {
	if t.end == quorum.Never {
		return quorum.Never
	}
	return max(t.end-now, time.Microsecond)
}

func (m *Manager) newAttempt(w *waiter, span *acquireSpan) *attempt {
	a := &attempt{
		m: m, terms: w.terms, wait: w, acquired: span.ref(), keys: w.keys,
		decided: make(chan struct{}, 1),
		claim:   quorum.NewClaim(w.terms.Nodes, !m.cfg.unfenced),
		began:   m.clock.Now(),
	}
	seed, notAfter := a.write(span.traceParent())
	a.args = [9]string{
		a.owner, a.tail, w.terms.px, fenceMillis, seed, m.fenceClamp, notAfter, w.ticket, w.place,
	}
	a.req = node.Request{
		Kind: node.Acquire, Keys: m.keys(&a.keys), Args: a.args[:], Expires: a.began + w.terms.Timeout,
	}
	return a
}

// write makes the texts of the attempt, in two allocations: those that the
// lease keeps, and those that it does not.
func (a *attempt) write(traceParent string) (seed, notAfter string) {
	var random [node.OwnerLen / 2]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	var buffer [128]byte
	b := hex.AppendEncode(buffer[:0], random[:])
	b = node.AppendTail(b, time.Now(), traceParent, a.terms.label)
	kept := string(b)
	a.owner, a.tail = kept[:node.OwnerLen], kept[node.OwnerLen:]

	b = strconv.AppendInt(buffer[:0], a.m.clusterTime(a.began).Microseconds(), 10)
	n := len(b)
	b = strconv.AppendInt(b, (a.began + a.terms.Timeout).Microseconds(), 10)
	end := len(b)
	queues := a.wait.ticket == "" && a.m.queues(a.wait)
	if queues {
		b = a.m.appendTicket(b)
	}
	args := string(b)
	if queues { // the wait began here
		a.wait.ticket, a.wait.place, a.wait.told = args[end:], args[:n], make(chan struct{}, 1)
		a.m.waiters.add(a.wait)
	}
	return args[:n], args[n:end]
}

// Receive takes an answer to acquire or raise.
func (a *attempt) Receive(i int, req *node.Request, reply *node.Reply) {
	a.m.telemetry.node(req.Kind, reply.Status)
	a.mu.Lock()
	if l := a.lease; l != nil {
		a.mu.Unlock()
		if req.Kind == node.Acquire {
			l.vote(i, a.began, reply)
			if reply.Status == node.Granted {
				a.wait.got(quorum.Set(0).With(i))
			}
		}
		return
	}
	if a.over {
		a.mu.Unlock()
		return // the caller has sent releases after everything
	}
	raise := a.count(i, req, reply)
	token := a.claim.Token()
	if raise != 0 && a.raise == nil {
		a.raise = &node.Request{
			Kind: node.Raise, Keys: a.keys[:2], Expires: a.m.clock.Now() + a.terms.Timeout,
			Args: []string{a.owner, strconv.FormatInt(token, 10), fenceMillis},
		}
	}
	writeBack := a.raise
	a.decide()
	a.mu.Unlock()
	for j := range a.m.nodes {
		if raise.Has(j) {
			a.m.post(j, writeBack, a)
		}
	}
}

// count enters an answer into the claim. a.mu is held.
func (a *attempt) count(i int, req *node.Request, reply *node.Reply) (raise quorum.Set) {
	if req.Kind == node.Raise {
		ok := reply.Status == node.Done && reply.N == 1
		a.claim.Raised(i, ok)
		if err := reply.Err; !ok {
			if err == nil {
				err = errPassed
			}
			a.fail(i, err)
		}
		return 0
	}
	switch reply.Status {
	case node.Granted:
		return a.claim.Grant(i, reply.N)
	case node.Taken:
		a.claim.Refuse(i)
		a.fail(i, errForeign)
		a.unsent = a.unsent.With(i)
		end := quorum.Never // a stranger's key without an end
		if reply.TTL >= 0 {
			end = a.m.clock.Now() + reply.TTL
		}
		a.taken = append(a.taken, taken{reply.Value, end, int(reply.Place)})
		if reply.Place < 0 {
			a.outof = a.outof.With(i)
		}
		return 0
	case node.Unsent:
		a.unsent, a.outof = a.unsent.With(i), a.outof.With(i)
	}
	a.claim.Fail(i)
	a.fail(i, reply.Err)
	return 0
}

func (a *attempt) fail(i int, err error) {
	if a.errs == nil {
		a.errs = make([]error, a.terms.Nodes)
	}
	a.errs[i] = err
}

// decide wakes the caller when the outcome is certain. a.mu is held.
func (a *attempt) decide() {
	if !a.told && a.claim.Outcome() != quorum.Pending {
		a.told = true
		a.decided <- struct{}{}
	}
}

// run asks every node and waits for the outcome. It returns the lease, or why
// there is none; then everything that was or may have been locked is being
// released, and no answer that is still to come can change that.
func (a *attempt) run(ctx context.Context) (*Lease, error) {
	for i := range a.m.nodes {
		a.m.post(i, &a.req, a)
	}
	timer := a.m.timer(a.terms.Timeout)
	defer a.m.putTimer(timer)
	cut := false
	for late, waiting := false, true; waiting; {
		select {
		case <-a.decided:
			waiting = false
		case <-timer.C:
			// The votes had their time; a write-back that they led to gets as
			// much again.
			a.expire(late)
			late = true
			timer.Reset(a.terms.Timeout)
		case <-ctx.Done():
			cut, waiting = true, false
		case <-a.m.closing:
			cut, waiting = true, false
		}
	}
	return a.conclude(ctx, cut)
}

// expire fails the votes that have not come, and at the second call the
// write-backs.
func (a *attempt) expire(all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.terms.Nodes {
		if a.claim.Votes().Silent().Has(i) {
			a.fail(i, errSilent)
		}
	}
	a.claim.Votes().Expire()
	if all {
		a.claim.Expire()
	}
	a.decide()
}

// conclude turns the outcome into a lease or an error.
func (a *attempt) conclude(values context.Context, cut bool) (*Lease, error) {
	a.mu.Lock()
	a.over = true
	outcome := a.claim.Outcome()
	if outcome == quorum.Won && !cut {
		// The last look before anything is promised: what was won too slowly
		// is not worth having (etcd-io/etcd#11456).
		if l := a.grant(values); l != nil {
			// Opened before any answer can step it, so that its first event is
			// Acquired.
			a.lease = l
			var kept quorum.Set
			if l.ticket = a.wait.ticket; l.ticket != "" {
				kept = a.wait.has(a)
			}
			a.m.open(l)
			a.mu.Unlock()
			for i := range a.m.nodes {
				if kept.Has(i) {
					a.ask(i)
				}
			}
			if err := a.doubted(l); err != nil {
				return nil, err
			}
			return l, nil
		}
		outcome = quorum.NoQuorum
		for i := range a.terms.Nodes {
			if a.claim.Votes().Granted().Has(i) {
				a.fail(i, errTooSlow)
			}
		}
	}
	err := a.failure(outcome)
	spared := a.unsent
	a.wait.queue(a)
	// Not if a quorum refused, and some spare node was merely free.
	split := outcome != quorum.Held && a.claim.Votes().Granted() != 0
	a.mu.Unlock()
	a.release(spared, a.wait.yield(split, cut))
	return nil, err
}

// doubted takes the steps of clocks into account that were found since the
// attempt began, when the lease was not yet among those that are told. It
// returns an error when no quorum is left: the lease has told its loss, and the
// watchdog releases what is left of it.
func (a *attempt) doubted(l *Lease) error {
	l.doubtSince(a.began)
	if l.Err() == nil {
		return nil
	}
	err := &QuorumError{Op: "acquire", Name: l.Name(), Need: a.m.quorum()}
	l.mu.Lock()
	defer l.mu.Unlock()
	err.Nodes = a.m.nodeErrors(l.nodes)
	return err
}

// grant returns the lease, nil if too little of it is left. a.mu is held.
func (a *attempt) grant(values context.Context) *Lease {
	votes := a.claim.Votes()
	l := &Lease{
		m: a.m, terms: a.terms, keys: a.keys,
		owner: a.owner, tail: a.tail, token: a.claim.Token(),
		granted: a.began, values: values, acquired: a.acquired, index: -1, jumped: a.m.clock.Jumped(),
	}
	window := quorum.Window(l.window[:min(a.terms.Nodes, len(l.window))])
	if a.terms.Nodes > len(l.window) {
		window = make(quorum.Window, a.terms.Nodes)
	}
	l.machine = quorum.NewMachine(&a.terms.Terms, window, a.began,
		votes.Granted(), quorum.All(a.terms.Nodes)&^votes.Silent())
	now := a.m.clock.Now()
	l.machine.SetLag(a.m.dog.lagging())
	l.nodes = a.errs // evidence, should the lease be at risk from the start
	if !a.terms.manual {
		l.machine.Arm(a.began + l.nextRound())
	}
	l.stop.Store(int64(l.machine.Stop()))
	if l.machine.End()-now < a.terms.least {
		return nil
	}
	return l
}

// failure returns the error of an attempt that came to nothing. a.mu is held.
func (a *attempt) failure(outcome quorum.Outcome) error {
	name := a.keys[0][len(a.m.cfg.prefix):]
	if outcome == quorum.Held {
		return &HeldError{Name: name, Holder: a.holder(), RetryAfter: a.retryAfter()}
	}
	if outcome == quorum.Won || outcome == quorum.Pending {
		return errCutShort
	}
	return &QuorumError{
		Op: "acquire", Name: name, Need: a.m.quorum(), Got: a.claim.Votes().Granted().Len(),
		Nodes: a.m.nodeErrors(a.errs),
	}
}

// holder returns whom most of the refusals name, nobody if the lock is kept for
// those who wait. a.mu is held.
func (a *attempt) holder() Holder {
	best, votes := Holder{}, 0
	for _, t := range a.taken {
		if node.ParseValue(t.value).Kept {
			continue
		}
		h, n := holder(t.value), 0
		for _, other := range a.taken {
			if holder(other.value).Owner == h.Owner {
				n++
			}
		}
		if n > votes {
			best, votes = h, n
		}
	}
	return best
}

// retryAfter returns when a quorum could be free, 0 if that is not known: nodes
// that granted or failed are taken for free now. a.mu is held.
func (a *attempt) retryAfter() time.Duration {
	now := a.m.clock.Now()
	left := make(quorum.Window, a.terms.Nodes)
	for i, t := range a.taken {
		left[i] = t.left(now)
	}
	if d := left.Free(); d != quorum.Never {
		return d
	}
	return 0
}

// look returns how long to wait before asking again, if poll is how long one
// waits for whom nobody tells anything. It is for an attempt that is over.
func (a *attempt) look(poll time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.m.clock.Now()
	refusals := make([]quorum.Refusal, len(a.taken))
	for i, t := range a.taken {
		refusals[i] = quorum.Refusal{Left: t.left(now), Place: t.place}
	}
	// What failed is taken for free if so many refused that they are in the way;
	// otherwise what these nodes have is not known.
	need := a.m.quorum() - a.claim.Votes().Granted().Len()
	if a.claim.Votes().Outcome() == quorum.Held {
		need = len(refusals) - (a.terms.Nodes - a.m.quorum())
	}
	return quorum.Look(refusals, need, poll)
}

// release takes back what the attempt has locked or may have locked. A node
// that certainly holds nothing of ours is spared.
func (a *attempt) release(spared quorum.Set, w wait) {
	req := a.m.releaseRequest(a.terms, a.keys, a.owner, 0, w)
	for i := range a.m.nodes {
		if !spared.Has(i) {
			a.m.post(i, req, nobody{})
		}
	}
}

// ask asks node i once more, which keeps the lock for us now: we have the lease
// from others. The vote counts from when the attempt began, which is too early if
// anything.
func (a *attempt) ask(i int) {
	l := a.lease
	until := min(time.Duration(l.stop.Load()), a.m.clock.Now()+a.terms.Timeout)
	if until == 0 {
		return // it has ended: what is kept for it is so for the grace
	}
	args := a.args // a copy
	args[notAfterArg] = strconv.FormatInt(until.Microseconds(), 10)
	a.m.post(i, &node.Request{Kind: node.Acquire, Keys: a.req.Keys, Args: args[:], Expires: until}, a)
	if l.stop.Load() == 0 {
		// It ended meanwhile, and its release may be ahead in the queue.
		a.m.post(i, l.releaseRequest(), nobody{})
	}
}

// vote takes an answer to the acquisition that came after the grant: one more
// node that holds the lease raises its margin.
func (l *Lease) vote(i int, began time.Duration, reply *node.Reply) {
	in := quorum.Input{Kind: quorum.Mute, Node: i, At: began}
	err := reply.Err
	switch reply.Status {
	case node.Granted:
		in.Kind = quorum.Kept
	case node.Taken:
		in.Kind, err = quorum.Foreign, errForeign
	}
	l.step(in, func() { l.note(i, err) })
}
