// Package clock measures elapsed time that goes on while the machine sleeps.
//
// Go's monotonic clock stands still in a suspend, on Linux and on macOS
// (golang/go#24595), so a lease timed by it alone would outlive its keys by
// the length of the nap. A [Clock] therefore adds up the forward jumps of two
// other clocks against the monotonic one: CLOCK_BOOTTIME, which counts
// suspended time, and the wall clock, which is all there is elsewhere. A wall
// clock that is set forward makes time seem to pass that did not; that loses
// leases early, which is the safe side.
package clock

import (
	"sync"
	"time"
)

// tolerance is how far two clocks may come apart before it counts as a jump.
// Reading them takes two calls, and a busy machine was measured to hold a
// goroutine between the two for milliseconds.
const tolerance = 10 * time.Millisecond

// Clock is a source of instants: durations since an origin shortly before it
// was made. It never goes back. It is safe for concurrent use.
type Clock struct {
	start time.Time
	read  func() reading

	mu     sync.Mutex
	boot   time.Duration // boot − mono, as last accepted
	wall   time.Duration // wall − mono, as last accepted
	jumped time.Duration
}

// reading is one look at the three clocks.
type reading struct {
	mono, boot, wall time.Duration
}

// New returns a clock that starts now.
func New() *Clock {
	c := &Clock{start: time.Now()}
	c.read = c.system
	if !trusted() {
		c.read = c.runtime
	}
	r := c.read()
	c.boot, c.wall = r.boot-r.mono, r.wall-r.mono
	return c
}

// Now returns the time elapsed since the clock's origin.
func (c *Clock) Now() time.Duration {
	r := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apart(r) {
		// Looked at twice: the first look may have been torn by the scheduler.
		if r = c.read(); c.apart(r) {
			c.jumped += max(r.boot-r.mono-c.boot, r.wall-r.mono-c.wall, 0)
			c.boot, c.wall = r.boot-r.mono, r.wall-r.mono
		}
	}
	return r.mono + c.jumped
}

// Jumped returns how much of Now is forward jumps: time in which no timer of
// this process ran.
func (c *Clock) Jumped() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jumped
}

// Time returns the wall clock's name for an instant, for reports. It must not
// be compared with.
func (c *Clock) Time(at time.Duration) time.Time {
	return time.Now().Add(at - c.Now())
}

func (c *Clock) apart(r reading) bool {
	return (r.boot-r.mono-c.boot).Abs() > tolerance || (r.wall-r.mono-c.wall).Abs() > tolerance
}

// system looks at all three clocks.
func (c *Clock) system() reading {
	r := c.runtime()
	if boot, ok := bootTime(); ok {
		r.boot = boot
	}
	return r
}

// runtime looks at what the Go runtime tells, which a synctest bubble fakes.
func (c *Clock) runtime() reading {
	now := time.Now()
	// One nanosecond keeps zero free for "never".
	mono := now.Sub(c.start) + 1
	return reading{mono: mono, boot: mono, wall: now.Round(0).Sub(c.start.Round(0)) + 1}
}
