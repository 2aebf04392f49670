package quorum

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Sight is the answer of one node about a name.
type Sight struct {
	Held   bool           // a lease has the lock; a reservation for a waiter isn't a lease
	Owner  string         // of the lease; another program's value as a whole
	Reused bool           // other leases of the name may have this Owner, too
	Token  int64          // that the node shows; 0 if it shows none
	Until  clock.Validity // when the node's key ends; Never for no end
}

// Holding is the common answer of the nodes about a name.
type Holding struct {
	// Known means that a majority names one owner, or that no owner can have a majority, whatever the silent nodes
	// would answer.
	Known  bool
	Held   bool // a majority names Owner
	Owner  string
	Reused bool
	Token  int64          // the largest that a node shows of this owner
	Until  clock.Validity // until then a majority keeps the owner's keys; Never for no end
	Agree  int            // the largest number of nodes that say the same
	Older  bool           // not Known because the owner that a majority names is older than an earlier one
}

// maxFormer is how many former owners an Observer remembers. A poll adds one at most, and the keys of a former owner
// end with its TTL.
const maxFormer = 64

// Observer decides what the observers of a name get. It never goes back in the order of tokens: an owner with a smaller
// token than an earlier one is an old one, whose key has come back. If no node shows its token, because each node has
// restored the key, or a late request has made the key anew, the Observer recognises it by its name. An owner that is
// reused comes back with a larger token. It is not safe for concurrent use.
type Observer struct {
	any     bool           // there was a result
	last    Holding        // the last result
	owner   string         // the last owner, also while the name is not held
	token   int64          // its largest token
	newest  int64          // the largest token
	former  []string       // owners before it that had tokens, the oldest first
	knownAt clock.Validity // when the last poll began after which the holder was known
}

// NewObserver returns an observer that begins at an instant.
func NewObserver(now clock.Validity) Observer { return Observer{knownAt: now} }

// Last returns the last result, and false before the first one.
func (o *Observer) Last() (Holding, bool) { return o.last, o.any }

// KnownAt returns when the last poll began after which the holder was known.
func (o *Observer) KnownAt() clock.Validity { return o.knownAt }

// Polled takes the answers to a poll that began at an instant. sights has one for each node, and answered the nodes
// that have answered. The holder counts as unknown when no poll within patience has shown it. Polled returns true if
// the result has changed: another owner, another token, or whether the holder is known.
func (o *Observer) Polled(began clock.Validity, patience time.Duration, sights []Sight, answered Set) bool {
	h := Agreed(sights, answered)
	switch {
	case h.Held && h.Owner == o.owner:
		h.Token = max(h.Token, o.newest) // a node that has restored the key shows no token
	case h.Held && h.Token != 0 && h.Token < o.newest, h.Held && (!h.Reused || h.Token <= o.newest) && slices.Contains(o.former, h.Owner):
		h = Holding{Older: true}
	}
	if !h.Known && began.Sub(o.knownAt) < patience {
		return false
	}
	if h.Known {
		o.knownAt = began
	}
	if h.Held {
		if h.Owner != o.owner && o.token != 0 {
			o.former = append(o.former, o.owner)
			o.former = o.former[max(len(o.former)-maxFormer, 0):]
		}
		o.owner, o.token, o.newest = h.Owner, h.Token, max(h.Token, o.newest)
	}
	before, first := o.last, !o.any
	o.last, o.any = h, true
	before.Until, before.Agree = h.Until, h.Agree
	return first || before != h
}

// Agreed returns the common answer of the nodes. sights has one for each node; answered are the nodes that answered.
func Agreed(sights []Sight, answered Set) Holding {
	most, held, of := 0, 0, Sight{}
	for i := range sights {
		if !answered.Has(i) || !sights[i].Held {
			continue
		}
		held++
		votes := 0
		for j := range sights {
			if answered.Has(j) && sights[j].Held && sights[j].Owner == sights[i].Owner {
				votes++
			}
		}
		if votes > most {
			most, of = votes, sights[i]
		}
	}
	need, silent := Size(len(sights)), len(sights)-answered.Len()
	if most < need {
		return Holding{Known: most+silent < need, Agree: max(most, answered.Len()-held)}
	}
	h := Holding{Known: true, Held: true, Owner: of.Owner, Reused: of.Reused, Agree: most}
	left := make(Window[clock.Validity], len(sights))
	for i, s := range sights {
		if answered.Has(i) && s.Held && s.Owner == h.Owner {
			left[i], h.Token = s.Until, max(h.Token, s.Token)
		}
	}
	h.Until = left.Deadline()
	return h
}
