package campaign

import (
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Kind says why an attempt has failed.
type Kind uint8

const (
	// Held means that another owner has the lock, or that it is reserved for a waiter.
	Held Kind = iota + 1
	// NoQuorum means that too few nodes gave an answer that counts.
	NoQuorum
	// CutShort means that the caller's context or the Manager ended before the outcome was known.
	CutShort
)

// Failure is why an attempt has failed.
type Failure struct {
	Kind Kind
	Key  string // of the lock that was asked for last
	// Value is the value of the lock that most refusals name; "" if it is reserved for a waiter.
	Value string
	// Readers is how many readers have that lock together, and Value is that of one of them; 0 for a
	// writer's.
	Readers int
	// RetryAfter is when a majority of the nodes could be free (Held) or could vote (NoQuorum); 0
	// if that is not known.
	RetryAfter time.Duration
	Granted    int     // how many nodes have granted the lock
	Errors     []error // of the nodes; nil for none

	Refused        bool // a node named another owner
	Stranger       bool // one of these is a client without queue support
	TooFewAnswered bool // the nodes that have not failed are too few for a quorum
}

// Hopeless reports whether no quorum can come back by itself, so that another attempt is of no
// use: somebody has to correct the configuration of too many nodes.
func (f *Failure) Hopeless(nodes int) bool {
	broken := 0
	for _, err := range f.Errors {
		var config *wire.ConfigError
		if errors.As(err, &config) {
			broken++
		}
	}
	return f.Kind == NoQuorum && broken > nodes-quorum.Size(nodes)
}

// refusal is the answer of a node that named another owner.
type refusal struct {
	quorum.Refusal // Left is the instant at which the lock ends; remaining makes it a duration
	value          string
	readers        int // 0 for a writer's lock
	freeSlot       int // of a permit, −1 for none
}

func newRefusal(i int, reply *wire.Reply, now time.Duration) refusal {
	v := wire.ParseValue(reply.Held)
	r := refusal{value: reply.Held, freeSlot: int(reply.FreeSlot), Refusal: quorum.Refusal{
		Node: i, Left: quorum.Never, Position: int(reply.Position), Reserved: v.Reserved,
		Stranger: v.Since.IsZero() && !v.Reserved, Owner: v.Owner,
	}}
	if reply.TTL >= 0 {
		r.Left = now + reply.TTL
	}
	if reply.Readers != nil {
		r.value, r.readers = reply.Reading()
		r.Reserved = r.readers == 0 // for readers that have been woken
	}
	return r
}

// slot makes it the refusal of a slot. One that is free is kept for waiters that were let in: the next one
// asks again when their rights end, and the others are woken then. A waiter that is not in the queue has
// been let in itself.
func (r *refusal) slot(reply *wire.Reply, ticket bool) {
	if reply.Held == "" {
		r.Stranger, r.Reserved = false, r.Position == 0
		if !r.Reserved {
			r.Left = quorum.Never
		}
	}
	r.LetIn = ticket && r.Position < 0
}

// remaining returns the refusals as they are at now.
func remaining(refusals []refusal, now time.Duration) []quorum.Refusal {
	all := make([]quorum.Refusal, len(refusals))
	for i, r := range refusals {
		all[i] = r.Refusal
		if r.Left != quorum.Never {
			all[i].Left = max(r.Left-now, time.Microsecond) // 0 would mean unknown
		}
	}
	return all
}

// holder returns the value that most refusals name, "" if the lock is reserved; and of how many
// readers it is one, by the node that shows most.
func holder(refusals []refusal) (best string, readers int) {
	votes := 0
	for _, r := range refusals {
		if r.Reserved {
			continue
		}
		n, together := 0, 0
		for _, other := range refusals {
			if !other.Reserved && other.Owner == r.Owner {
				n, together = n+1, max(together, other.readers)
			}
		}
		if n > votes {
			best, readers, votes = r.value, together, n
		}
	}
	return best, readers
}

// free returns when a majority of the nodes could be free, 0 if that is not known. Nodes that
// granted or failed count as free now.
func free(nodes int, refusals []quorum.Refusal) time.Duration {
	window := make(quorum.Window, nodes)
	for i, r := range refusals {
		window[i] = r.Left
	}
	if d := window.Free(); d != quorum.Never {
		return d
	}
	return 0
}

// freeSlots returns the slot that each node has offered in place of the one that it refused, −1 for none.
func freeSlots(nodes, limit int, refusals []refusal) []int {
	all := make([]int, nodes)
	for i := range all {
		all[i] = -1
	}
	for _, r := range refusals {
		if r.freeSlot < limit {
			all[r.Node] = r.freeSlot
		}
	}
	return all
}
