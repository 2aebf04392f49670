// Package vote decides whether the votes of one node count for this client: whether the client asks
// the node for a vote, whether the vote counts when it comes, and what keeps the node from voting. It
// reads no clock and sends nothing: internal/node and the simulation drive it alike.
//
// Two decisions are made elsewhere, because they concern more than one node, or more than votes:
// failover.Tracker knows whether the master of a failover group may vote, and quorum.Lists whether the
// lists of nodes that clients use let this node vote. They come in as [Others].
package vote

import (
	"cmp"
	"errors"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
)

const (
	// MinDrift is the least fraction by which a quarantine is prolonged.
	MinDrift = 0.01
	// RetryEvery is how often a node that needs an operator is greeted again.
	RetryEvery = time.Second
	// judgeEvery is how often a greeting checks, after a step of the node's clock, whether the step is the node's own,
	// and judgeFor for how long.
	judgeEvery = 25 * time.Millisecond
	judgeFor   = 2 * time.Second
)

var (
	// ErrReconnected means that the answer may have come over a connection that was never greeted.
	ErrReconnected = errors.New("reconnected before the answer came, so the answer does not count")
	// ErrLapsed means that the node has not been able to register the list for too long.
	ErrLapsed = errors.New("not reached for so long that the node may have accepted clients with another list of nodes")
)

// Others are the decisions of other parts about the votes of a node. Both errors are nil for a vote that counts.
type Others struct {
	Term  error // why the master of a failover group does not vote; nil for one server
	Lists error // why the lists of nodes keep it from voting
}

// Cast has the circumstances under which a request was sent.
type Cast struct {
	Sent      clock.Mono
	Steady    clock.Steady // the same instant
	Changed   bool         // another connection was dialled before all answers had come
	Former    bool         // the term of the group at that instant is no longer in use
	Outlasted bool         // Former, or no majority had confirmed the term for the window
}

// Vote is the state of the votes of one node. It is not safe for concurrent use.
type Vote struct {
	// Refused means that the last greeting has found a problem that an operator must fix, and the node is not used.
	Refused bool
	// Withheld is why the node may not vote though it was greeted; all other requests are sent.
	Withheld error
	// Unguarded means that the last greeting ran no guard, because no majority confirmed the term of the
	// group, or keys were leaving it.
	Unguarded bool
	// Evicted means that the node may have dropped locks since the last run of the guard.
	Evicted bool
	// Remembers is the instant until which the node at least remembers the list of this client; 0 if it remembers none.
	Remembers clock.Steady

	guard time.Duration // the longest lease, if there is a restart guard
	drift float64
	// suspect means that the node's clock was found set forward at since, and that a greeting may need to start
	// a quarantine for all clients.
	suspect bool
	since   clock.Steady
	// The end and the reason of the last quarantine. Votes that were sent before the end do not count.
	until  clock.Mono
	reason error
	lasts  bool // Ended has not reported the end yet
}

// New returns the votes of a node before it was greeted. guard is the longest lease for the restart guard, 0
// without one. The node's clock may run slower than ours by drift.
func New(guard time.Duration, drift float64) Vote {
	return Vote{guard: guard, drift: max(drift, MinDrift)}
}

// Quarantine keeps the votes of the node from counting for at least d, measured by the node's clock.
func (v *Vote) Quarantine(at clock.Mono, d time.Duration, reason error) {
	d += time.Duration(float64(d) * v.drift)
	if end := at.Add(d); end > v.until {
		v.until, v.reason, v.lasts = end, reason, true
	}
}

// Marked records the quarantine that a new marker of the guard shows: from now until stop, in µs of the node's
// clock. The marker was written in the past. So if the end is further away than the longest lease, the node's
// clock was set back, and the longest lease counts.
func (v *Vote) Marked(at clock.Mono, stop, now int64, reason error) {
	left := min(stop-now, v.guard.Microseconds())
	if stop <= 0 || left <= 0 {
		return
	}
	v.Quarantine(at, time.Duration(left)*time.Microsecond, cmp.Or(v.Quarantined(at), reason))
}

// Stepped records that the node's clock was found set forward: keys have expired before their time, so the
// node may have lost locks. d is the longest lease that any client may hold on it.
func (v *Vote) Stepped(at clock.Mono, now clock.Steady, d time.Duration, reason error) {
	v.Quarantine(at, d, reason)
	v.suspect, v.since = v.guard > 0, now
}

// Suspected returns whether the next greeting must find out whether the step of the clock, found at since, was
// the node's own. If it was, the greeting starts a quarantine for all clients.
func (v *Vote) Suspected() (since clock.Steady, suspect bool) { return v.since, v.suspect }

// Guarded records that the guard has run. sure means that it is known which clock was stepped.
func (v *Vote) Guarded(now clock.Steady, sure bool) {
	v.Evicted = false
	if sure || now > v.since.Add(judgeFor) {
		v.suspect = false
	}
}

// Recheck returns how soon a node that was greeted is greeted again because something keeps it from voting; 0 for its
// usual time.
func (v *Vote) Recheck(o Others) time.Duration {
	switch {
	case v.Withheld != nil || v.Unguarded:
		return RetryEvery
	case v.suspect:
		return judgeEvery
	case o.Lists != nil && !v.lasts:
		return RetryEvery
	}
	return 0
}

// Ended reports whether the quarantine has ended since the last call.
func (v *Vote) Ended(at clock.Mono) bool {
	ended := v.lasts && at >= v.until
	v.lasts = v.lasts && !ended
	return ended
}

// Lasts reports whether a quarantine has begun, and Ended has not reported its end.
func (v *Vote) Lasts() bool { return v.lasts }

// Left returns how long the quarantine still lasts, 0 for none.
func (v *Vote) Left(at clock.Mono) time.Duration { return max(v.until.Sub(at), 0) }

// Quarantined returns why the node is in quarantine, nil if it is not.
func (v *Vote) Quarantined(at clock.Mono) error {
	if at >= v.until {
		return nil
	}
	return v.reason
}

// May returns why the node must not be asked for a vote now, nil if it may.
func (v *Vote) May(at clock.Mono, o Others) error {
	if v.Withheld == nil && at < v.until {
		return v.reason
	}
	return v.Barred(o)
}

// Barred returns what keeps the node from voting apart from a quarantine, which ends by itself.
func (v *Vote) Barred(o Others) error {
	switch {
	case v.Withheld != nil:
		return v.Withheld
	case o.Term != nil:
		return o.Term
	case v.Unguarded:
		return failover.ErrUnconfirmed
	}
	return o.Lists
}

// Counts returns why a vote of the node that has arrived does not count, nil if it does.
func (v *Vote) Counts(c Cast, o Others) error {
	switch {
	case c.Changed:
		return ErrReconnected
	case c.Sent < v.until: // this answer or an earlier one has shown that the clock was stepped
		return v.reason
	case o.Term != nil || v.Unguarded || c.Former:
		return failover.ErrUnconfirmed
	}
	return o.Lists
}

// Keeps returns why no lease may rely on what the node has confirmed, nil if one may. lifetime is how long the lease
// relies on that. A lease may rely only on a term that a majority has confirmed within the window: later, another
// master may be about to vote. And the node must not forget the list of this client before the lease ends.
func (v *Vote) Keeps(c Cast, lifetime func() time.Duration) error {
	if c.Outlasted {
		return failover.ErrUnconfirmed
	}
	if left := v.Remembers.Sub(c.Steady); v.Remembers > 0 && left < v.guard && lifetime() > max(left, 0) {
		return ErrLapsed
	}
	return nil
}
