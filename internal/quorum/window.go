package quorum

import (
	"slices"
	"time"
)

// Drift returns how much of ttl is subtracted because clocks run at different rates:
// the fraction factor of ttl, plus 2 ms for the resolution of Redis expiry.
func Drift(ttl time.Duration, factor float64) time.Duration {
	return time.Duration(float64(ttl)*factor) + 2*time.Millisecond
}

// SafetyMargin returns how long before the deadline work must stop. It is 2 % of ttl. It is
// at least 50 ms, because timers were measured up to 24 ms late on busy machines. It is
// at most a fifth of ttl, so that a short lease stays usable.
func SafetyMargin(ttl time.Duration) time.Duration {
	return min(max(50*time.Millisecond, ttl/50), ttl/5)
}

// Early returns how long before the stop a loss is found, for this safety margin. It is the
// measured delay of timers on busy machines, so that the loss is still reported by the
// stop, but at most half the safety margin.
func Early(margin time.Duration) time.Duration {
	return min(25*time.Millisecond, margin/2)
}

// MaxLag returns how much earlier still a loss may be found when timers are late. It is
// a tenth of ttl, but at most two thirds of spare. The spare is the rest of a ttl after
// a renewal that begins on time and takes its longest allowed time. The last third
// covers the late start of that renewal, which is half the lag.
func MaxLag(ttl, spare time.Duration) time.Duration {
	return max(0, min(ttl/10, spare*2/3))
}

// Margin returns how many of the held nodes may lose their data before another client
// can find a quorum: q + held − n − 1. It is negative if the held nodes are fewer than
// a quorum.
func Margin(n, held int) int { return Size(n) + held - n - 1 }

// Window holds, for each node, the instant until which the node keeps the key at least.
// If the node does not keep it, the entry is zero or negative, see [Machine.HeldUntil]. T is an
// instant, or how long the key still lives.
type Window[T ~int64] []T

// Deadline returns the q-th largest instant: until then a quorum keeps the
// key.
func (w Window[T]) Deadline() T {
	sorted := w.ascending()
	return sorted[len(w)-Size(len(w))]
}

// Free returns the q-th smallest instant: from then on a quorum no longer keeps the
// key. It equals Deadline if n is odd.
func (w Window[T]) Free() T {
	sorted := w.ascending()
	return sorted[Size(len(w))-1]
}

// FreedBy returns the k-th shortest life of keys: after it k
// of them have ended. If fewer than k end, because the others are Endless, FreedBy
// returns the last end. It returns zero if no key ends.
func FreedBy(ends []time.Duration, k int) time.Duration {
	ends = slices.DeleteFunc(slices.Clone(ends), func(e time.Duration) bool { return e == Endless })
	if len(ends) == 0 {
		return 0
	}
	slices.Sort(ends)
	return ends[min(max(k, 1), len(ends))-1]
}

// ascending returns the instants from the smallest on.
func (w Window[T]) ascending() (sorted [MaxNodes]T) {
	for i, e := range w {
		sorted[i] = max(e, 0) // not held now
	}
	slices.Sort(sorted[:len(w)])
	return sorted
}

// Held returns how many nodes keep the key at now.
func (w Window[T]) Held(now T) int {
	held := 0
	for _, e := range w {
		if e > now {
			held++
		}
	}
	return held
}
