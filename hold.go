package quorumlock

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// hold is a lock that this Manager holds on the nodes. It carries one lease at a time:
// first the lease that it was acquired for, then those of callers in this process to
// which it is passed on.
type hold struct {
	m     *Manager
	terms *terms
	lock  string // the key
	label string // of the name on metrics, "" for none

	mu      sync.Mutex
	local   *localQueue // of callers in this process; nil while no other caller is known to want the lock
	machine quorum.Machine
	window  [5]time.Duration // the machine's window for up to 5 nodes: saves an allocation
	jumped  time.Duration    // clock.Jumped at the last step
	over    bool             // lost or released
	risky   bool             // counted as at risk
	stays   bool             // Close waits until the keys are deleted, see shut
	lease   *Lease           // the current lease, or the last one
	value   string           // the lock's value: owner, token, metadata
	retry   backoff.BackOff
	nodes   []error       // latest error of each node; nil until there is one
	remains time.Duration // when the watchdog deletes the keys of a hold that is over
	proof   quorum.Set    // nodes that have shown owner and token since proof was last reset
	// provenFrom is the earliest send time of a request whose answer counts as proof: the
	// last reset of proof, or the check that moved the token.
	provenFrom time.Duration
	next       int64 // the next unused token of the block, which ends at last
	last       int64
	acquire    *wire.Request // until every node has answered it
	ticket     ticket        // of the waiter that acquired it
	others     int           // tickets of other processes in the queues, by the latest answers
	answeredAt time.Duration // when these answers arrived

	// The watchdog owns these and writes them under its mutex. wake is also read without
	// the mutex: it is when the watchdog next checks the hold, 0 when it does not.
	wake  atomic.Int64
	index int // in the watchdog's heap; −1 when not in it
}

// A ticket may be left in queues by a waiter that has its lease.
type ticket struct {
	text     string     // "" for none
	queued   quorum.Set // nodes that may have it in their queues, because they have not granted
	reserved quorum.Set // nodes that reserved the lock for it before they answered the acquisition
	taking   quorum.Set // nodes that were asked to let the lease take their reservations, and have not answered
}

// recordTicket records the ticket with which the lock was acquired: the nodes that may have it in their
// queues, and those that have reserved the lock for it.
func (h *hold) recordTicket(text string, queued, reserved quorum.Set) {
	if queued != 0 {
		h.mu.Lock()
		h.ticket = ticket{text: text, queued: queued, reserved: reserved}
		h.mu.Unlock()
	}
}

// owner returns the random value that marks the keys. It needs the mutex, because a check
// replaces the whole value.
func (h *hold) owner() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return ownerOf(h.value)
}

// ownerOf returns the owner part of a value that this package composed.
func ownerOf(value string) string { return value[:wire.OwnerLen] }

// metadata returns what follows owner and token in the value.
func metadata(value string) string {
	_, rest, _ := strings.Cut(value[wire.OwnerLen+1:], " ")
	return rest
}

// name returns the name of the lock.
func (h *hold) name() string { return h.lock[len(h.m.cfg.prefix):] }

// note records the latest error of a node as evidence; nil clears it. h.mu is held.
func (h *hold) note(i int, err error) {
	if h.nodes == nil {
		if err == nil {
			return
		}
		h.nodes = make([]error, h.terms.Nodes)
	}
	h.nodes[i] = err
}

// applyClockStep shortens a node's vote: the node's clock was stepped forward, so the key
// expires that much earlier.
func (h *hold) applyClockStep(step *ensemble.Step) {
	h.step(quorum.Input{Kind: quorum.InputClockStep, Node: step.Node, By: step.By}, func() {
		h.note(step.Node, step)
		h.resetProof()
	})
}

// resetProof resets the proof: another client may have had the lock since. Answers to requests
// that were sent earlier do not count any more. h.mu is held.
func (h *hold) resetProof() {
	h.proof, h.provenFrom = 0, h.m.clock.Now()
}

// recordProof records whether a node shows our owner and our token, in answer to a request that
// was sent at sent. h.mu is held.
func (h *hold) recordProof(i int, answer int64, sent time.Duration) {
	switch {
	case answer == wire.Ours && sent >= h.provenFrom:
		h.proof = h.proof.With(i)
	case answer == wire.Ours:
	case answer == wire.OursWithoutToken && (!h.proof.Has(i) || sent < h.provenFrom):
		// The key was healed, or its register was ahead: it has never shown the token.
	default:
		h.resetProof()
	}
}

// vote handles an answer to the acquisition that arrives after the grant: one more node
// that holds the lock raises the margin.
func (h *hold) vote(i int, began time.Duration, reply *wire.Reply) {
	in := quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: began}
	err := reply.Err
	switch reply.Status {
	case wire.Granted:
		in.Kind = quorum.InputConfirmed
	case wire.Taken:
		in.Kind, err = quorum.InputTaken, errTaken
	}
	take := quorum.Set(0)
	h.step(in, func() {
		h.note(i, err)
		switch in.Kind {
		case quorum.InputTaken:
			h.proof = h.proof.Without(i) // this key was never ours, so the other nodes' proof stands
			take = h.ticket.reserved & quorum.Set(0).With(i)
		case quorum.InputConfirmed:
			h.ticket.queued = h.ticket.queued.Without(i)
		}
	})
	h.takeReservations(take)
}

// takeReservations has the lease take the reservations for its ticket on these nodes: a heal
// makes each of them one more vote. A message causes it, so a node that has the lock, or has not
// answered the last time, is not asked.
func (h *hold) takeReservations(nodes quorum.Set) {
	var heal healing
	for i := 0; nodes != 0; i++ {
		if !nodes.Has(i) {
			continue
		}
		nodes = nodes.Without(i)
		h.mu.Lock()
		if !h.over && h.machine.HeldUntil(i) == 0 && !h.ticket.taking.Has(i) {
			h.ticket.taking = h.ticket.taking.With(i)
			heal.add(h, quorum.Set(0).With(i))
		}
		h.mu.Unlock()
	}
	h.m.dog.heal(heal)
}

// keepRequest returns a request that keeps the keys of a released hold until its lease
// reaches the minimum hold time. It returns nil when the lease is that old, or was lost.
// The watchdog releases the keys at that time, so that waiters are woken.
func (h *hold) keepRequest() *wire.Request {
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
	left = left.Round(time.Millisecond) + time.Millisecond // never shorter than the rest
	return wire.NewKeep(h.lock, h.value, strconv.FormatInt(left.Milliseconds(), 10), now+left)
}

// countRisk updates the metric of leases at risk. h.mu is held.
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

// releaseRequest returns a request that deletes the lock on every node that may have it.
// The hold is over. The ticket of the waiter that acquired it leaves the queues of the
// nodes that have not granted: otherwise a node could reserve the lock for a waiter that
// is gone, and keep the others waiting.
func (h *hold) releaseRequest(update wire.TicketUpdate) *wire.Request {
	_, now := h.m.clock.Both()
	expires := now + h.terms.ttl + h.terms.lockDelay // after that the keys have expired
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ticket.queued != 0 {
		if update.Ticket == "" {
			update.Ticket = h.ticket.text // the release takes it along, at no cost
		} else {
			h.m.leaveQueues(h.lock, h.ticket.text, h.ticket.queued)
		}
		h.ticket = ticket{}
	}
	if h.acquire != nil {
		h.acquire.Withdraw()
	}
	return wire.NewRelease(h.lock, h.value, h.acquire, update, expires)
}
