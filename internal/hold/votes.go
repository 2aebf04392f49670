package hold

import (
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the effects of the acquisition after the grant: late votes, and reservations for the ticket of the
// waiter that acquired the lock.

// Vote handles an answer to the acquisition that arrives after the grant: one more node that
// holds the lock raises the margin.
func (l *Lock) Vote(i int, began clock.Validity, reply *wire.Reply) {
	in := quorum.Input{Kind: quorum.InputNoAnswer, Node: i, At: began}
	err := reply.Err
	switch reply.Status {
	case wire.Granted:
		in.Kind = quorum.InputConfirmed
	case wire.Taken:
		in.Kind, err = quorum.InputTaken, ErrTaken
	}
	take := quorum.Set(0)
	l.step(in, func() {
		l.note(i, err)
		if l.acquire != nil && l.acquire.Unproven(1<<i) {
			l.proof.nodes, l.proof.unproven = l.proof.nodes.Without(i), l.proof.unproven.With(i)
		}
		switch in.Kind {
		case quorum.InputTaken:
			l.proof.nodes = l.proof.nodes.Without(i) // this key was never ours, so the other nodes' proof stands
			if l.ticket != nil {
				take = l.ticket.reserved & quorum.Set(0).With(i)
			}
		case quorum.InputConfirmed:
			if l.ticket == nil {
				break
			}
			if l.ticket.queued = l.ticket.queued.Without(i); l.ticket.queued == 0 {
				l.ticket = nil // most tickets of leases end here, and each would cost its lease 72 B
			}
		}
	})
	l.TakeReservations(take)
}

// Answered drops the acquisition, which every node has answered: its request is used again now, and
// no release can skip a node because of it.
func (l *Lock) Answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acquire = nil
}

// RecordTicket records the ticket with which the lock was acquired: the nodes that may have it in
// their queues, and those that have reserved the lock for it.
func (l *Lock) RecordTicket(text string, queued, reserved quorum.Set) {
	if queued != 0 {
		l.mu.Lock()
		l.ticket = &ticket{text: text, queued: queued, reserved: reserved}
		l.mu.Unlock()
	}
}

// TakeReservations makes the lock take the reservations for its ticket on these nodes: a heal makes each of them one
// more vote. Messages cause most of these calls, so a node that has the lock, or has not answered the last time, is not
// asked. It reports whether the lock still lives: one that has ended takes none.
func (l *Lock) TakeReservations(nodes quorum.Set) (lives bool) {
	var heal healing
	for i := range nodes.All() {
		l.mu.Lock()
		if !l.is.over && l.machine.HeldUntil(i) == 0 && !l.is.taking.Has(i) {
			l.is.taking = l.is.taking.With(i)
			heal = heal.with(l, quorum.Set(0).With(i))
		}
		lives = !l.is.over
		l.mu.Unlock()
	}
	l.of.heal(heal)
	return lives
}
