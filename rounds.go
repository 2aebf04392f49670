package quorumlock

import (
	"errors"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the rounds of renewal, and the heals that follow them.

// extend posts one round for these holds to these nodes.
func (d *watchdog) extend(holds []*hold, nodes quorum.Set) {
	for holds := range slices.Chunk(holds, wire.MaxLocks) {
		// Read after InputBegin: answers from before the machine's round do not count for it.
		began, steady := d.m.clock.Both()
		r := &round{m: d.m, holds: holds, began: began, steady: steady}
		renewals, expires := wire.NewRenewals(len(holds)), steady
		for _, h := range holds {
			h.mu.Lock()
			renewals.Add(h.lock, h.value, h.terms.keyTTL)
			h.mu.Unlock()
			// A late renewal still prolongs the lease, until the next round.
			expires = max(expires, steady+max(h.terms.Timeout, h.terms.ttl/4))
		}
		req := renewals.Request(expires)
		for i := range d.m.ensemble.Nodes() {
			if nodes.Has(i) {
				d.m.ensemble.Post(i, req, r)
			}
		}
	}
}

// healing lists, by node, the holds whose keys have to be created again.
type healing map[int][]*hold

func (l *healing) add(h *hold, nodes quorum.Set) {
	for i := 0; nodes != 0; i++ {
		if nodes.Has(i) {
			if *l == nil {
				*l = healing{}
			}
			(*l)[i] = append((*l)[i], h)
			nodes = nodes.Without(i)
		}
	}
}

// heal posts requests that create lost keys again.
func (d *watchdog) heal(lost healing) {
	for i, all := range lost {
		for holds := range slices.Chunk(all, wire.MaxLocks) {
			d.healOn(i, holds)
		}
	}
}

func (d *watchdog) healOn(i int, holds []*hold) {
	began, steady := d.m.clock.Both()
	locks, expires := make([]wire.Healing, 0, len(holds)), steady
	for _, h := range holds {
		h.mu.Lock()
		// A heal that arrives after the hold is over must not lock. So it is void after
		// the node timeout, and by the stop at the latest: a release may end the hold
		// earlier, and overtake the heal on another connection.
		left := min(h.machine.Stop()-began, h.terms.Timeout)
		if h.over {
			left = 0
		}
		if h.acquire != nil {
			h.acquire.MadeElsewhere(i)
		}
		heldUntil := time.Duration(0)
		if until := h.machine.HeldUntil(i); until > 0 {
			heldUntil = max(steady+until-began, 0)
		}
		locks = append(locks, wire.Healing{
			HeldUntil: heldUntil, Lock: h.lock, Owner: ownerOf(h.value), Metadata: metadata(h.value), KeyTTL: h.terms.keyTTL, NotAfter: steady + left,
		})
		h.mu.Unlock()
		expires = max(expires, steady+h.terms.Timeout)
	}
	d.m.ensemble.Post(i, wire.NewHeal(locks, expires), &round{m: d.m, holds: holds, began: began, steady: steady})
	for _, h := range holds {
		if h.isOver() {
			// The hold ended meanwhile, and its release may be ahead of the heal in the
			// queue. So another release follows the heal.
			d.m.ensemble.Post(i, h.releaseRequest(wire.TicketUpdate{}), nobody{})
		}
	}
}

// round is one extend or heal of several holds, and the receiver of its answers.
type round struct {
	m             *Manager
	holds         []*hold
	began, steady time.Duration // the instant before it was posted, by either clock
}

// Receive steps every hold of the round.
func (r *round) Receive(i int, req *wire.Request, reply *wire.Reply) {
	r.m.ensemble.Answered(i, req, reply)
	if reply.Status == wire.Done && len(reply.Answers) != len(r.holds) {
		reply.Status, reply.Err = wire.Unknown, errors.New("answers for other locks")
	}
	var lost healing
	missing := false
	for j, h := range r.holds {
		in := quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: r.began}
		err, answer := reply.Err, int64(wire.Unanswered)
		if reply.Status == wire.Done {
			in.At, answer = reply.Sent, reply.Answers[j]
			switch answer {
			case wire.Ours, wire.OursWithoutToken:
				in.Kind, err = quorum.InputConfirmed, nil
				if req.Kind == wire.Heal {
					answer = wire.OursWithoutToken
				}
			case wire.Another:
				in.Kind, err = quorum.InputTaken, errTaken
			case wire.Missing:
				if err = wire.ErrLate; req.Kind == wire.Extend {
					in.Kind, err, missing = quorum.InputMissing, errMissing, true
					if step := r.m.ensemble.LastStep(i); step != nil && step.At >= r.steady {
						err = step // the reason why the key is missing
					}
				}
			default: // the operation failed by itself
			}
		}
		lost.add(h, h.step(in, func() {
			h.note(i, err)
			if req.Kind == wire.Heal {
				h.ticket.taking = h.ticket.taking.Without(i)
			}
			if in.Kind != quorum.InputNoAnswer {
				h.recordProof(i, answer, in.At)
			}
		}).Heal)
	}
	r.m.dog.heal(lost)
	if missing {
		r.m.ensemble.Nodes()[i].Check() // a flushed or evicting node is reported now, and not at the next regular check
	}
}
