package quorumlock

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// hold is a lock that this Manager holds on the nodes. It carries one lease at a time:
// the one that it was acquired for and, after it, those of callers in this process to
// which it is passed on.
type hold struct {
	m     *Manager
	terms *terms
	lock  string      // the key
	label string      // of the name on metrics, "" for none
	local *localQueue // of callers in this process; nil when the lock was free at the first attempt

	mu      sync.Mutex
	machine quorum.Machine
	window  [5]time.Duration // the machine's, for up to 5 nodes: saves an allocation
	jumped  time.Duration    // of the clock, at the last look
	over    bool             // lost or released
	risky   bool             // counted as at risk
	lease   *Lease           // that stands on it now, or did last
	value   string           // of the lock: owner, token, metadata
	retry   backoff.BackOff
	nodes   []error       // latest error of each node; nil until there is one
	remains time.Duration // when the remnants of a lost hold are released
	proof   quorum.Set    // nodes that have shown owner and token since the last doubt
	// provenFrom is since when requests must have been sent whose answers count as proof:
	// the last doubt, or the check that moved the token.
	provenFrom time.Duration
	next       int64 // the next token of the block that is not in use, up to last
	last       int64
	acquire    *node.Request // until every node has answered it
	waiter     *waiter       // that got it, while nodes may still reserve the lock for it
	others     int           // tickets that wait elsewhere, as the nodes said last
	toldAt     time.Duration // when their answers were there

	// The watchdog's, written under its mutex. wake is also read without: when the watchdog
	// looks at the hold, 0 when it does not.
	wake  atomic.Int64
	index int // in the watchdog's heap; −1 when not there
}

// owner returns the random value that marks the keys. A check of the hold changes the
// value that it is part of.
func (h *hold) owner() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return ownerOf(h.value)
}

// ownerOf returns the owner in a lock's value of ours.
func ownerOf(value string) string { return value[:node.OwnerLen] }

// metadata returns what follows owner and token in the value.
func metadata(value string) string {
	for i := node.OwnerLen + 1; i < len(value); i++ {
		if value[i] == ' ' {
			return value[i+1:]
		}
	}
	return ""
}

// name returns the name of the lock.
func (h *hold) name() string { return h.lock[len(h.m.cfg.prefix):] }

// note keeps the latest error of a node as evidence; nil is good news. h.mu is held.
func (h *hold) note(i int, err error) {
	if h.nodes == nil {
		if err == nil {
			return
		}
		h.nodes = make([]error, h.terms.Nodes)
	}
	h.nodes[i] = err
}

// applyClockStep shortens what a node's vote is worth: its clock was stepped forward,
// so the key expires that much earlier.
func (h *hold) applyClockStep(step *clockStep) {
	h.step(quorum.Input{Kind: quorum.InputClockStep, Node: step.node, By: step.by}, func() {
		h.note(step.node, step)
		h.doubt()
	})
}

// doubt forgets what the nodes have shown: another client may have had the lock since.
// Answers to requests that were sent before do not count any more. h.mu is held.
func (h *hold) doubt() {
	h.proof, h.provenFrom = 0, h.m.clock.Now()
}

// prove takes a node's word on the lock, in answer to a request that was sent then:
// whether it has shown our owner and our token. h.mu is held.
func (h *hold) prove(i int, answer int64, sent time.Duration) {
	switch {
	case answer == node.Ours && sent >= h.provenFrom:
		h.proof = h.proof.With(i)
	case answer == node.Ours:
	case answer == node.OursWithoutToken && (!h.proof.Has(i) || sent < h.provenFrom):
		// A key that was healed, or a node that was ahead: it has never shown the token.
	default:
		h.doubt()
	}
}

// vote takes an answer to the acquisition that came after the grant: one more node that
// holds the lock raises the margin.
func (h *hold) vote(i int, began time.Duration, reply *node.Reply) {
	in := quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: began}
	err := reply.Err
	switch reply.Status {
	case node.Granted:
		in.Kind = quorum.InputConfirmed
	case node.Taken:
		in.Kind, err = quorum.InputTaken, errTaken
	}
	h.step(in, func() {
		h.note(i, err)
		if in.Kind == quorum.InputTaken {
			h.proof = h.proof.Without(i) // it never was ours: no doubt of the others
		}
	})
}

// keepRequest has the keys of a released hold live until the least age of its lease; nil
// when it has that age, or was lost. The watchdog releases it then, so that waiters are
// woken.
func (h *hold) keepRequest() *node.Request {
	if h.terms.minHold == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, now := h.m.clock.Both()
	left := h.lease.granted + h.terms.minHold - h.m.clock.Now()
	if left <= 0 || h.machine.State() != quorum.StateReleased {
		return nil
	}
	left = left.Round(time.Millisecond) + time.Millisecond // at least so long
	return node.NewKeep(h.lock, h.value, strconv.FormatInt(left.Milliseconds(), 10), now+left)
}

// countRisk has the metrics know whether the hold is at risk. h.mu is held.
func (h *hold) countRisk() {
	if risky := h.machine.State() == quorum.StateAtRisk; risky != h.risky {
		h.risky = risky
		change := int64(-1)
		if risky {
			change = 1
		}
		h.m.telemetry.meters.risk(h.label, change)
	}
}

// releaseRequest deletes the lock on every node that may have it. The hold is over, and the
// ticket of the caller that got it leaves the queues of the nodes that have not granted: one
// that reserved the lock for it would keep everybody waiting for nobody.
func (h *hold) releaseRequest(update node.TicketUpdate) *node.Request {
	_, now := h.m.clock.Both()
	expires := now + h.terms.ttl + h.terms.lockDelay // later the keys have expired
	h.mu.Lock()
	w := h.waiter
	h.waiter = nil
	h.mu.Unlock()
	if w != nil && w.forget() {
		w.leaveQueues(w.unvoted())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.acquire != nil {
		h.acquire.Withdraw()
	}
	return node.NewRelease(h.lock, h.value, h.acquire, update, expires)
}
