package campaign

import (
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Reason says why an attempt has failed.
type Reason uint8

const (
	// Held means that another owner has the lock, or that it is reserved for a waiter.
	Held Reason = iota + 1
	// NoQuorum means that too few nodes gave an answer that counts.
	NoQuorum
	// CutShort means that the caller's context or the Manager ended before the outcome was known.
	CutShort
)

// Failure is why an attempt has failed.
type Failure struct {
	Reason Reason
	Key    string // of the lock that was asked for last
	// Value is the value of the lock that most refusals name; "" if it is reserved for a waiter, or
	// Blank.
	Value string
	Blank bool // another program's lock, whose value is empty
	// Readers is how many readers have that lock together, and Value is the value of one of them; 0 for a writer's
	// lock.
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

// Misconfigured reports whether no quorum returns without an operator. hopeless means that no repair can be expected
// either: the list of nodes is wrong, or too many nodes have never voted for this client.
func (f *Failure) Misconfigured(nodes int, voted quorum.Set) (misconfigured, hopeless bool) {
	broken, never := 0, 0
	for i, err := range f.Errors {
		var config *wire.ConfigError
		if errors.As(err, &config) {
			broken++
			if config.List || !voted.Has(i) {
				never++
			}
		}
	}
	most := nodes - quorum.Size(nodes)
	return f.Reason == NoQuorum && broken > most, f.Reason == NoQuorum && never > most
}

// refusal is the answer of a node that named another owner.
type refusal struct {
	quorum.Refusal                // without Left, which remaining adds
	ends           clock.Validity // when the lock ends
	value          string
	readers        int  // 0 for a writer's lock
	freeSlot       int  // that may be asked for in place of this one, −1 for none
	vacant         bool // no lease has the lock: it is kept for waiters
}

// meaning is the part of a Kind that understands a refusal.
type meaning interface {
	refused(r refusal, reply *wire.Reply, ticket bool) refusal
}

func newRefusal(i int, reply *wire.Reply, now clock.Validity) refusal {
	v := wire.ParseValue(reply.Held)
	r := refusal{ends: quorum.Never, value: reply.Held, freeSlot: int(reply.FreeSlot), Refusal: quorum.Refusal{
		Node: i, Position: int(reply.Position), Reserved: v.Reserved,
		Stranger: v.Since.IsZero() && !v.Reserved, Owner: v.Owner,
	}}
	if reply.TTL >= 0 {
		r.ends = now.Add(reply.TTL)
	}
	if reply.Readers != nil {
		r.value, r.readers = reply.Reading()
		r.Reserved = r.readers == 0 // for readers that have been woken
	}
	r.vacant = r.Reserved
	return r
}

// remaining returns the refusals as they are at now.
func remaining(refusals []refusal, now clock.Validity) []quorum.Refusal {
	all := make([]quorum.Refusal, len(refusals))
	for i, r := range refusals {
		all[i] = r.Refusal
		if all[i].Left = quorum.Endless; r.ends != quorum.Never {
			all[i].Left = max(r.ends.Sub(now), time.Microsecond) // 0 would mean unknown
		}
	}
	return all
}

// holder returns the value that most refusals name, and how many readers have that lock, by the node that shows most.
// named is false if no lease has it.
func holder(refusals []refusal) (best string, readers int, named bool) {
	votes := 0
	for _, r := range refusals {
		if r.vacant {
			continue
		}
		n, together := 0, 0
		for _, other := range refusals {
			if !other.vacant && other.Owner == r.Owner {
				n, together = n+1, max(together, other.readers)
			}
		}
		if n > votes {
			best, readers, votes = r.value, together, n
		}
	}
	return best, readers, votes > 0
}

// free returns when a majority of the nodes could be free, 0 if that is not known. Nodes that
// granted or failed count as free now.
func free(nodes int, refusals []quorum.Refusal) time.Duration {
	window := make(quorum.Window[time.Duration], nodes)
	for i, r := range refusals {
		window[i] = r.Left
	}
	if d := window.Free(); d != quorum.Endless {
		return d
	}
	return 0
}
