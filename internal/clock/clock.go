// Package clock has the two clocks of a client, and the client's measurement of a node's
// clock.
//
// Go's monotonic clock stands still while the machine is suspended, on Linux and on macOS
// (golang/go#24595). A lease that is timed by it alone outlives its keys by the length of
// the suspend. Two other clocks continue: CLOCK_BOOTTIME on Linux, which counts suspends,
// and the wall clock, which people and time services set as well. A [Clock] makes two
// instants of the three readings:
//
//   - Validity advances with the monotonic clock, and jumps forward with the
//     larger jump of the other two. If the wall clock is set forward, time
//     seems to pass that did not pass. That loses leases early, which is safe.
//   - Steady advances with the monotonic clock, and jumps forward with
//     CLOCK_BOOTTIME alone. Steps of the wall clock do not move it. So a step
//     that the client's machine and a node make together still shows in the
//     node's offset, see [Offset]. Without CLOCK_BOOTTIME, steady misses a
//     suspend, and every node seems to have stepped forward.
package clock

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// tolerance is the largest difference between two clocks that does not count as a
	// jump. It covers the time between the readings of two clocks and the slewing of the
	// wall clock.
	tolerance = 10 * time.Millisecond
	// bootTick is the longest monotonic time between two reads of CLOCK_BOOTTIME, which
	// costs a system call. A suspend moves the wall clock as well, and every read
	// compares that. So the tick matters in one case: a suspend after which the wall
	// clock was set back by as much stays hidden for at most this long. The safety margin between
	// the stop of a lease and its end is longer: 20 ms at the shortest TTL, 50 ms from a
	// TTL of 250 ms on.
	bootTick = 10 * time.Millisecond
	// never is a tick for machines without CLOCK_BOOTTIME. Half of the range
	// leaves room to add to it.
	never = math.MaxInt64 / 2
)

// Clock is a source of instants: durations since an origin shortly before it was made.
// Neither of its two instants ever goes back. It is safe for concurrent use.
type Clock struct {
	start     time.Time
	startWall int64          // the wall clock at the start, ns since 1970
	read      func() Reading // for tests; nil means the system's clocks
	tick      time.Duration  // see bootTick

	// A read without a jump uses these two and takes no lock.
	jumps atomic.Pointer[jumps]
	due   atomic.Int64 // the monotonic instant at which CLOCK_BOOTTIME is read again

	mu sync.Mutex // held while all three clocks are compared
}

// Reading is one reading of the three clocks.
type Reading struct {
	Mono, Boot, Wall time.Duration
}

// jumps is what a clock has accepted so far. It never changes once published.
type jumps struct {
	boot, wall       time.Duration // how far these clocks are ahead of the monotonic one
	validity, steady time.Duration // the sum of the jumps of each instant
}

// New returns a clock that starts now.
func New() *Clock {
	now := time.Now()
	c := &Clock{start: now, startWall: now.UnixNano(), tick: never}
	if _, ok := bootTime(); ok && trusted() {
		c.tick = bootTick
	}
	return c.accept()
}

// From returns a clock that takes its readings from a function, for tests of jumps. Every
// read compares all three clocks of the reading, because only the system's clocks need to
// save reads of CLOCK_BOOTTIME.
func From(read func() Reading) *Clock {
	return (&Clock{start: time.Now(), read: read}).accept()
}

// accept records the differences between the clocks at the start.
func (c *Clock) accept() *Clock {
	c.jumps.Store(&jumps{})
	mono, _ := c.glance()
	r := c.reading(&jumps{})
	// The differences are taken from the earlier instant: a start that was interrupted
	// must not look like a jump afterwards.
	c.jumps.Store(&jumps{boot: r.Boot - mono, wall: r.Wall - mono})
	c.due.Store(int64(r.Mono + c.tick))
	return c
}

// Now returns the instant by which validity counts, since the clock's origin.
func (c *Clock) Now() Validity {
	validity, _ := c.Both()
	return validity
}

// Steady returns the instant by which node clocks are measured, since the
// clock's origin. It is never ahead of [Clock.Now].
func (c *Clock) Steady() Steady {
	_, steady := c.Both()
	return steady
}

// Both returns the instants of Now and of Steady from one reading of the clocks.
func (c *Clock) Both() (validity Validity, steady Steady) {
	mono, wall := c.glance()
	j := c.jumps.Load()
	if j.differs(wall-mono) || int64(mono) >= c.due.Load() {
		mono, j = c.look()
	}
	return Validity(mono + j.validity), Steady(mono + j.steady)
}

// Jumped returns the sum of the jumps in Now: time in which no timer of this
// process ran.
func (c *Clock) Jumped() time.Duration { return c.jumps.Load().validity }

// Time returns the wall-clock time of an instant of Now, for reports. No decision may
// compare it with anything.
func (c *Clock) Time(at Validity) time.Time {
	return time.Now().Add(at.Sub(c.Now()))
}

// differs reports whether the wall clock's lead over the monotonic clock has changed from
// what was accepted.
func (j *jumps) differs(wall time.Duration) bool { return (wall - j.wall).Abs() > tolerance }

// look compares all three clocks and accepts their jumps. It reads the clocks under the
// lock, so readings are accepted in the order in which they were made.
func (c *Clock) look() (mono time.Duration, j *jumps) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mono, wall := c.glance()
	j = c.jumps.Load()
	if !j.differs(wall-mono) && int64(mono) < c.due.Load() {
		return mono, j // another caller has compared in between, or the first glance was interrupted
	}
	r := c.reading(j)
	if next := j.after(mono, r); next != *j {
		j = &next
		c.jumps.Store(j)
	}
	c.due.Store(int64(r.Mono + c.tick))
	return r.Mono, j
}

// after returns the accepted jumps after reading r, all of which was made since the
// monotonic instant before. Boot and wall were read between before and r.Mono;
// measurements show that a busy machine can hold a thread between two readings for
// milliseconds. So a clock counts as ahead only if it is ahead of the later instant, and
// as behind only if it is behind the earlier one: an interruption cannot look like a
// jump.
func (j *jumps) after(before time.Duration, r Reading) jumps {
	boot := jump(r.Boot-before, r.Boot-r.Mono, j.boot)
	wall := jump(r.Wall-before, r.Wall-r.Mono, j.wall)
	return jumps{
		boot: j.boot + boot, wall: j.wall + wall,
		validity: j.validity + max(boot, wall, 0), steady: j.steady + max(boot, 0),
	}
}

// jump returns how far a clock has jumped. Its lead over the monotonic clock is now
// between least and most, and was accepted before. The result is 0 within the tolerance.
func jump(most, least, accepted time.Duration) time.Duration {
	switch {
	case least > accepted+tolerance:
		return least - accepted
	case most < accepted-tolerance:
		return most - accepted
	default:
		return 0
	}
}

// glance reads the monotonic clock and the wall clock, the wall clock first.
func (c *Clock) glance() (mono, wall time.Duration) {
	if c.read != nil {
		r := c.read()
		return r.Mono, r.Wall
	}
	now := time.Now()
	// One nanosecond keeps zero free for "never".
	return now.Sub(c.start) + 1, time.Duration(now.UnixNano()-c.startWall) + 1
}

// reading reads all three clocks, the monotonic one last. If CLOCK_BOOTTIME cannot be
// read, boot keeps the accepted lead.
func (c *Clock) reading(j *jumps) Reading {
	if c.read != nil {
		return c.read()
	}
	boot, ok := time.Duration(0), false
	if c.tick != never {
		boot, ok = bootTime()
	}
	mono, wall := c.glance()
	if !ok {
		boot = j.boot + mono
	}
	return Reading{Mono: mono, Boot: boot, Wall: wall}
}
