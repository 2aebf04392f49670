package clock

import (
	"math"
	"time"
)

// LeastStep is the smallest jump of a node's clock that [Offset.Observe] reports. The safety margin
// between the stop of a lease and its end covers smaller jumps from a TTL of 125 ms on: it
// is a fifth of a short TTL, and 50 ms at least from a TTL of 250 ms on.
const LeastStep = 25 * time.Millisecond

const (
	// freshFor is how long a reading is kept when a new one is not sharper.
	freshFor = time.Second
	// grain is the resolution of TIME on a node: its clock is ahead of the reported time
	// by less than this.
	grain = time.Microsecond
	// lastInstant bounds the time that a node may report: the year 2116. It leaves room
	// for sums.
	lastInstant = math.MaxInt64 / 2
)

// Offset is a measurement of a node's clock against [Clock.Steady]: the difference lay in
// [Low, Low+Width] at the instant At. With the time since then, the interval widens by
// the bound on clock rates, unless the node's clock was stepped, which Observe finds.
// Offset reads no clock. It is not safe for concurrent use.
type Offset struct {
	rate float64
	best sighting
	// base is the sighting from which steps are measured. After a jump below LeastStep it
	// is older than best, so that small jumps add up, as they do in a clock that is
	// slewed beyond the bound. They add up until the bound on rates allows for them.
	base sighting
}

// sighting is one reading of a node's clock.
type sighting struct {
	low, width time.Duration // the difference lay in [low, low+width]
	sent, at   Steady        // the node read its clock between these instants
}

// Step is a jump of a node's clock.
type Step struct {
	// By is the most that the clock can have jumped: forward above zero, backward below.
	// Keys expire by that much early, or late.
	By time.Duration
}

// Forward reports whether keys have expired before their time. After a step
// backward they live longer, which is safe.
func (s Step) Forward() bool { return s.By > 0 }

// NewOffset returns the offset of a node without any reading. drift is the bound on the
// difference between the rates of its clock and the client's, as a fraction of either:
// 0.01 is one per cent.
func NewOffset(drift float64) Offset { return Offset{rate: drift} }

// Known reports whether the node's clock was ever observed.
func (o *Offset) Known() bool { return o.best != sighting{} }

// Low returns the least possible difference: the node's clock minus the steady instant.
// An instant that is translated with Low is, on the node's clock, not later than it
// should be.
func (o *Offset) Low() time.Duration { return o.best.low }

// High returns the greatest possible difference at an instant after the last reading. An instant that is translated
// with High is, on the node's clock, not earlier than it should be.
func (o *Offset) High(at Steady) time.Duration {
	return o.best.low + o.best.width + drifted(at.Sub(o.best.sent), o.rate)
}

// Mid returns the middle of the interval.
func (o *Offset) Mid() time.Duration { return o.best.low + o.best.width/2 }

// Width returns the length of the interval: one round trip.
func (o *Offset) Width() time.Duration { return o.best.width }

// At returns the steady instant at which the answer behind the interval arrived; 0 if
// there was none.
func (o *Offset) At() Steady { return o.best.at }

// Late returns the least time by which the way back of a reading, which is received now, took longer than the way back
// of the sharpest one; 0 before the first reading. A node that is slow to answer makes no reading late: it reads its
// clock when it answers.
func (o *Offset) Late(nodeClock time.Duration, received Steady) time.Duration {
	if !o.Known() {
		return 0
	}
	return max(time.Duration(received)+o.Low()-nodeClock, 0)
}

// Observe takes a reading of the node's clock, as time since 1970, that the node made
// between the steady instants sent and received. It reports a step when no clock whose
// rate is within the bound could have shown both this reading and an earlier one. Jumps
// of more than the widths of both readings, twice the drift between them and LeastStep
// are always found.
//
// The new reading replaces the old one if the two contradict each other, if the new one
// is much sharper, or if the old one has aged so far that it is no longer the sharper
// one.
func (o *Offset) Observe(nodeClock time.Duration, sent, received Steady) (step Step, found bool) {
	nodeClock = min(max(nodeClock, 0), lastInstant)
	next := sighting{
		low: nodeClock - time.Duration(received), width: max(received.Sub(sent), 0) + grain,
		sent: min(sent, received), at: received,
	}
	if !o.Known() {
		o.best, o.base = next, next
		return Step{}, false
	}
	by := o.base.jump(next, o.rate)
	if by.Abs() >= LeastStep {
		o.best, o.base = next, next
		return Step{By: by}, true
	}
	if o.best.jump(next, o.rate) == 0 && !o.best.yields(next, o.rate) {
		return Step{}, false
	}
	o.best = next
	if by == 0 {
		o.base = next
	}
	return Step{}, false
}

// jump returns the most that a clock can have jumped between the sightings s and next; 0
// if it need not have jumped.
func (s *sighting) jump(next sighting, rate float64) time.Duration {
	// The instants of the two readings are at most this far apart.
	drift := drifted(max(next.at.Sub(s.sent), s.at.Sub(next.sent)), rate)
	switch least, most := next.low-s.low-s.width, next.low+next.width-s.low; {
	case least > drift:
		return most + drift
	case most < -drift:
		return least - drift
	default:
		return 0
	}
}

// yields reports whether next replaces s, when the two agree.
func (s *sighting) yields(next sighting, rate float64) bool {
	if 2*next.width < s.width {
		return true
	}
	age := next.at.Sub(s.at)
	return age >= freshFor && next.width <= s.width+drifted(age, rate)
}

// drifted returns how far two clocks can drift apart in d.
func drifted(d time.Duration, rate float64) time.Duration {
	return time.Duration(float64(d) * rate)
}
