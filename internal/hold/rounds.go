package hold

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the requests to the nodes about locks that are held: rounds of renewal, the heals that follow them, and
// Verify.

// These are the reasons why a key on a node is not ours.
var (
	ErrMissing = errors.New("key is missing")
	// ErrRevoked is the answer to a Detach of a lease that was revoked; a RevokedError also names the revoker.
	ErrRevoked = errors.New("lease was revoked")
	ErrTaken   = errors.New("key belongs to another owner")
	// ErrStray is why a key on a node that grants no locks does not count.
	ErrStray = errors.New("has a key that it did not grant to this lease, and grants no locks now: the key does not count")
	// ErrOvertaken is why a node that has confirmed a longer TTL does not count.
	ErrOvertaken = errors.New("reconnected: an earlier renewal with a shorter TTL may still run after this one")
)

// Renew begins a round of renewal for the lease t, unless that has ended. terms replace the lock's terms if their TTL
// differs; nil keeps these. With the same TTL, a running round serves as well. with runs under the lock's mutex before
// the round. The lease learns of a shorter TTL before a request with it is posted.
func (l *Lock) Renew(t Tenant, terms *config.Terms, with func()) {
	in := quorum.Input{Kind: quorum.InputBegin}
	l.mu.Lock()
	other := func() bool { return terms != nil && terms.TTL != l.Terms().TTL }
	for l.is.unposted > 0 && l.bears(t) && other() { // a request that asks for another TTL must not run after the new one
		l.awaitPosted()
	}
	if !l.bears(t) { // the next lease keeps its own TTL
		l.mu.Unlock()
		return
	}
	if other() {
		if l.acquire != nil {
			l.acquire.Withdraw() // a node that sends it later would shorten the keys
		}
		in.Terms, l.retry = &terms.Terms, nil
		l.terms.Store(terms)
	}
	s := l.stepLocked(in, with)
	l.mu.Unlock()
	l.notify(&s)
	if s.Begin {
		l.of.extend([]*Lock{l}, quorum.All(l.Terms().Nodes))
	}
}

// extend posts one round for these locks to these nodes.
func (s *Locks) extend(locks []*Lock, nodes quorum.Set) {
	for locks := range slices.Chunk(locks, wire.MaxLocks) {
		// Read after InputBegin: answers from before the machine's round do not count for it.
		began, steady := s.clock.Both()
		renewals := wire.NewBatch(wire.Extend, len(locks), steady)
		late := s.ensemble.Late(steady)
		r := &round{of: s, locks: locks, began: began, steady: steady}
		for j, l := range locks {
			l.mu.Lock()
			asked, t := l.asks(r, j), l.machine.Terms()
			l.entry().Extend(renewals, asked.KeyTTL)
			l.is.unposted++
			l.mu.Unlock()
			// A renewal that runs late still prolongs the lease, until the next round. This process may itself be late,
			// with requests that are ahead of this one.
			renewals.Expires = max(renewals.Expires, steady.Add(max(t.Timeout, t.TTL/4)+min(late, t.TTL/4)))
		}
		s.ensemble.PostTo(nodes, renewals, r)
		for _, l := range locks {
			if !l.posted() {
				continue
			}
			// The lock was released in between, and the request that keeps its keys may be ahead of the renewal in the
			// queues. So another one follows. A release needs none: behind it the renewal finds no key.
			if keep, _ := l.keepRequest(); keep != nil {
				s.ensemble.PostTo(nodes, keep, ensemble.Nobody{})
			}
		}
	}
}

// awaitPosted waits until the renewals and heals that were built are posted, or until another lock has none left. l.mu is
// held, but not during the wait.
func (l *Lock) awaitPosted() {
	l.is.awaited = true
	allPosted := &l.of.allPosted
	allPosted.L.Lock()
	l.mu.Unlock()
	allPosted.Wait()
	allPosted.L.Unlock()
	l.mu.Lock()
}

// posted records that a renewal or heal was posted, and reports whether the lock has ended.
func (l *Lock) posted() (over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.is.unposted--; l.is.unposted == 0 && l.is.awaited {
		l.is.awaited = false
		l.of.allPosted.L.Lock()
		l.of.allPosted.Broadcast()
		l.of.allPosted.L.Unlock()
	}
	return l.is.over
}

// healing lists, by node, the locks whose keys must be created again.
type healing map[int][]*Lock

// with returns the list with a lock's keys on these nodes.
func (h healing) with(l *Lock, nodes quorum.Set) healing {
	for i := range nodes.All() {
		if h == nil {
			h = healing{}
		}
		h[i] = append(h[i], l)
	}
	return h
}

// heal posts requests that create lost keys again.
func (s *Locks) heal(keys healing) {
	for i, all := range keys {
		for locks := range slices.Chunk(all, wire.MaxLocks) {
			s.healOn(i, locks)
		}
	}
}

func (s *Locks) healOn(i int, locks []*Lock) {
	began, steady := s.clock.Both()
	req := wire.NewBatch(wire.Heal, len(locks), steady)
	r := &round{of: s, locks: locks, began: began, steady: steady}
	for j, l := range locks {
		l.heal(i, req, r, j)
		req.Expires = max(req.Expires, steady.Add(l.Terms().Timeout))
	}
	s.ensemble.Post(i, req, r)
	for _, l := range locks {
		if l.posted() {
			// The lock has ended in between, and its release may be ahead of the heal in the
			// queue. So another release follows the heal.
			last, _ := l.lastRequest(wire.TicketUpdate{})
			s.ensemble.Post(i, last, ensemble.Nobody{})
		}
	}
}

// heal adds the lock to the request of r, as lock j of the round, so that node i creates the key again.
func (l *Lock) heal(i int, req *wire.Request, r *round, j int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.is.unposted++
	began, steady := r.began, r.steady
	// A heal that arrives after the lock has ended must not lock. So it is void after the node
	// timeout, and by the stop at the latest: a release may end the lock earlier, and overtake
	// the heal on another connection.
	left := min(l.machine.Stop().Sub(began), l.machine.Terms().Timeout)
	if l.is.over {
		left = 0
	}
	if l.acquire != nil {
		l.acquire.MadeElsewhere(i)
	}
	var heldUntil clock.Steady
	if until := l.machine.HeldUntil(i); until > 0 {
		heldUntil = max(steady.Add(until.Sub(began)), 0)
	}
	l.entry().Heal(req, l.asks(r, j).KeyTTL, steady.Add(left), heldUntil)
}

// asks returns the terms that lock j of a round asks for, and notes them in the round if the lock was granted with
// other terms. l.mu is held.
func (l *Lock) asks(r *round, j int) *config.Terms {
	t := l.Terms()
	if l.machine.Changed() {
		if r.terms == nil {
			r.terms = make([]*quorum.Terms, len(r.locks))
		}
		r.terms[j] = &t.Terms
	}
	return t
}

// round is one extend or heal that was posted for several locks, and the receiver of its answers.
type round struct {
	of     *Locks
	locks  []*Lock
	terms  []*quorum.Terms // that the locks ask for; an entry is nil for the terms of the grant, and terms is nil if all are
	began  clock.Validity  // the instant before it was posted
	steady clock.Steady    // the same
}

// Receive steps every lock of the round.
func (r *round) Receive(i int, req *wire.Request, reply *wire.Reply) {
	r.of.ensemble.Answered(i, req, reply)
	if reply.Status == wire.Done && len(reply.Answers) != len(r.locks) {
		reply.Status, reply.Err = wire.Unknown, errors.New("the reply does not match the request")
	}
	var keys healing
	missing := false
	for j, l := range r.locks {
		m := r.meaning(i, j, req.Kind, reply)
		missing = missing || m.in.Kind == quorum.InputMissing
		keys = keys.with(l, l.take(m))
	}
	r.of.heal(keys)
	if missing {
		r.of.ensemble.Nodes()[i].Check() // a flushed or evicting node is reported now, and not at the next regular check
	}
}

// meaning is what the answer of a node means for one lock of a round.
type meaning struct {
	in     quorum.Input
	err    error     // evidence; nil if the node has confirmed the lock
	shows  int64     // what the node shows of our owner value and token, see proof; wire.Unanswered for nothing
	want   wire.Want // who wants the lock
	healed bool      // it is the answer to a heal
}

// meaning returns what node i has answered about lock j.
func (r *round) meaning(i, j int, kind wire.Kind, reply *wire.Reply) meaning {
	m := meaning{in: quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: r.began}, err: reply.Err, shows: wire.Unanswered, healed: kind == wire.Heal}
	if r.terms != nil {
		m.in.Terms = r.terms[j]
	}
	if reply.Status != wire.Done {
		return m
	}
	m.in.At, m.in.Since, m.shows = reply.Sent, reply.Since, reply.Answers[j]
	if k := slices.IndexFunc(reply.Wants, func(w wire.Want) bool { return w.Lock == j }); k >= 0 {
		m.want = reply.Wants[k]
	}
	switch m.shows {
	case wire.Ours, wire.OursWithoutToken, wire.OursWithoutVote:
		m.in.Kind, m.in.NoVote, m.err = quorum.InputConfirmed, m.shows == wire.OursWithoutVote, nil
		if m.healed || m.in.NoVote {
			m.shows = wire.OursWithoutToken
		}
	case wire.Another:
		if m.in.Kind, m.err = quorum.InputTaken, ErrTaken; m.want.Marked {
			m.in.Kind, m.err = quorum.InputRevoked, &RevokedError{m.want.Note}
		}
	case wire.Missing:
		if m.healed {
			m.err = wire.ErrLate
			break
		}
		m.in.Kind, m.err = quorum.InputMissing, ErrMissing
		if step := r.of.ensemble.LastStep(i); step != nil && step.At >= r.steady {
			m.err = step // the reason why the key is missing
		}
	default: // the operation failed by itself
	}
	return m
}

// take applies the answer of a node, and returns the nodes on which the key must be created
// again.
func (l *Lock) take(m meaning) (heal quorum.Set) {
	return l.step(m.in, func() {
		switch {
		case m.in.Kind != quorum.InputConfirmed:
		case l.machine.Overtaken(m.in):
			m.err = ErrOvertaken
		case l.machine.Stray(l.of.clock.Now(), m.in):
			m.err = ErrStray
		}
		l.note(m.in.Node, m.err)
		if m.healed {
			l.is.taking = l.is.taking.Without(m.in.Node)
		} else if w := l.others.wants.Load(); w != nil {
			want := m.want
			want.Marked = want.Marked && m.in.Kind != quorum.InputRevoked // a revocation is not a request
			w.record(m.in.Node, want, l.ticket != nil && l.ticket.queued.Has(m.in.Node))
		}
		if m.in.Kind != quorum.InputNoAnswer {
			l.proof.record(m.in.Node, m.shows, m.in.At, l.of.clock.Now())
		}
	}).Heal
}

// Verify asks the nodes whether they still have the lock, and waits for a quorum that has it. A denial may end the
// lease.
func (l *Lock) Verify(ctx context.Context) *ensemble.Answers {
	_, now := l.of.clock.Both()
	l.mu.Lock()
	timeout := l.Terms().Timeout
	req := l.entry().Read(now.Add(timeout))
	l.mu.Unlock()
	answers := l.of.ensemble.Collect(ctx, req, timeout, l.of.ensemble.Quorum(), l.owns)
	var keys healing
	for i := range answers.Replies {
		in := quorum.Input{Kind: quorum.InputTaken, Node: i, At: answers.Replies[i].Sent}
		err := answers.Err(i)
		switch revoked := (*RevokedError)(nil); {
		case errors.As(err, &revoked):
			in.Kind = quorum.InputRevoked
		case errors.Is(err, ErrMissing):
			in.Kind = quorum.InputMissing
		case !errors.Is(err, ErrTaken):
			continue // it has not answered, or it is ours
		}
		keys = keys.with(l, l.step(in, func() {
			l.note(i, err)
			l.resetProof()
		}).Heal)
	}
	l.of.heal(keys)
	return answers
}

// owns returns nil if the key on a node is ours, and the reason if not.
func (l *Lock) owns(reply *wire.Reply) error {
	l.mu.Lock()
	owner := wire.OwnerOf(l.value)
	l.mu.Unlock()
	switch held := wire.ParseValue(reply.Held); {
	case strings.HasPrefix(reply.Held, owner+" "):
		return nil
	case held.Revoked && (held.Owner == owner || l.is.shared && held.Owner == wire.Nobody):
		return &RevokedError{held.Note}
	case reply.Free(), reply.Readers != nil && l.is.shared, held.Detached: // a heal takes it
		return ErrMissing
	default:
		return ErrTaken
	}
}
