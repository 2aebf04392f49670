package sim

import (
	"math/rand/v2"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// operator revokes leases, as Manager.Revoke does, in one of revokedRuns runs, and in the runs of its planted
// bugs. It draws from a generator of its own.
type operator struct {
	timeout time.Duration
	bug     Mutation
	pcg     rand.PCG
	decides quorum.Revocation
	owner   uint32                         // the victim
	began   time.Duration                  // when the nodes were read
	lived   [quorum.MaxNodes]time.Duration // remaining life of its lock on each node that marked it
	already quorum.Set                     // nodes that had marked it before
	answers [quorum.MaxNodes]time.Duration // when each answer comes; 0 for none
	life    time.Duration                  // of the marks of this round
}

const revokedRuns = 8

// reset begins a run.
func (o *operator) reset(seed int64, timeout time.Duration, bug Mutation) {
	*o = operator{timeout: timeout, bug: bug}
	o.pcg.Seed(uint64(seed), 0x0be7)
}

// upTo returns a time in [0, d).
func (o *operator) upTo(d time.Duration) time.Duration {
	return time.Duration(o.pcg.Uint64() % uint64(d))
}

// reads takes what the nodes show, and reports whether an owner has a majority of them.
func (o *operator) reads(nodes int, show func(node int) sighted) bool {
	votes, longest := map[uint32]int{}, time.Duration(0)
	o.owner = 0
	for i := range nodes {
		s := show(i)
		if votes[s.owner]++; s.owner != 0 && votes[s.owner] >= quorum.Size(nodes) {
			o.owner = s.owner
		}
	}
	for i := range nodes {
		if s := show(i); s.owner == o.owner {
			longest = max(longest, s.left)
		}
	}
	o.decides = quorum.NewRevocation(nodes, 2*o.timeout, longest, 0.01, false)
	return o.owner != 0
}

// begin begins a round. It returns the instants at which the nodes get the request, or -1.
func (o *operator) begin(now time.Duration, nodes int) (arrives [quorum.MaxNodes]time.Duration) {
	o.decides.Begin(clock.Validity(now))
	o.answers, o.already = [quorum.MaxNodes]time.Duration{}, 0
	o.life = o.decides.Life()
	if o.bug == MarksLiveTooShort {
		o.life = time.Millisecond
	}
	for i := range nodes {
		arrives[i] = now + o.upTo(o.timeout)
		if o.pcg.Uint64()%8 == 0 {
			arrives[i] = -1
		}
	}
	return arrives
}

// marked records that a node has marked the lock.
func (o *operator) marked(node int, now, lived time.Duration, already bool) {
	if already {
		o.already = o.already.With(node)
	}
	o.lived[node], o.answers[node] = lived, now+o.upTo(2*o.timeout)
}

// until ends a round. It returns when the victim's lease has ended, and whether that is known, or whether another round
// follows.
func (o *operator) until(now time.Duration) (at time.Duration, known, repeat bool) {
	for i, came := range o.answers {
		if came != 0 && came <= now {
			lived := o.lived[i]
			if o.bug == OneRoundIsEnough {
				lived = 0
			}
			o.decides.Marked(clock.Validity(came), i, lived, o.already.Has(i))
		}
	}
	over, known := o.decides.Until()
	return time.Duration(over), known || o.bug == OneMarkIsEnough && o.decides.Count() > 0, o.decides.Repeat()
}
