package quorumlock

import (
	"context"
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file turns an attempt that was won into a lease.

// errTooSlow means that the majority came when too little of the lease was left.
var errTooSlow = errors.New("granted too late for the lease to be of use")

// errNoneLeft means that the clock of a node that granted was stepped forward during the
// attempt.
var errNoneLeft = errors.New("granted, and the node's clock was stepped forward meanwhile")

// blockSize is the largest number of tokens that one grant reserves for callers of this
// process: 100,000. The highest one is an instant in µs, so the lowest is 100 ms before it.
const blockSize = int64(100 * time.Millisecond / time.Microsecond)

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
		h.value = wire.Compose(ownerOf(a.value), last, metadata(a.value))
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
	m.ensemble.Steps.Lock()
	defer m.ensemble.Steps.Unlock()
	if m.ending() {
		return nil, errCutShort // with the mutex held: see endAll
	}
	for _, step := range m.ensemble.Steps.Since(a.steady) {
		h.machine.Step(m.clock.Now(), quorum.Input{Kind: quorum.InputClockStep, Node: step.Node, By: step.By})
		h.note(step.Node, step)
		h.resetProof()
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
	if a.wait.ticket != "" {
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
