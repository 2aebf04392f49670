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
	read  func() Reading

	mu     sync.Mutex
	boot   time.Duration // boot − mono, as last accepted
	wall   time.Duration // wall − mono, as last accepted
	jumped time.Duration
}

// Reading is one look at the three clocks.
type Reading struct {
	Mono, Boot, Wall time.Duration
}

// New returns a clock that starts now.
func New() *Clock {
	c := &Clock{start: time.Now()}
	if c.read = c.system; !trusted() {
		c.read = c.runtime
	}
	return c.accept()
}

// From returns a clock that takes its readings from a function, for tests of
// what jumps do.
func From(read func() Reading) *Clock { return (&Clock{start: time.Now(), read: read}).accept() }

// accept takes how far the clocks are apart at the start for given.
func (c *Clock) accept() *Clock {
	r := c.read()
	c.boot, c.wall = r.Boot-r.Mono, r.Wall-r.Mono
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
			c.jumped += max(r.Boot-r.Mono-c.boot, r.Wall-r.Mono-c.wall, 0)
			c.boot, c.wall = r.Boot-r.Mono, r.Wall-r.Mono
		}
	}
	return r.Mono + c.jumped
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

func (c *Clock) apart(r Reading) bool {
	return (r.Boot-r.Mono-c.boot).Abs() > tolerance || (r.Wall-r.Mono-c.wall).Abs() > tolerance
}

// system looks at all three clocks.
func (c *Clock) system() Reading {
	r := c.runtime()
	if boot, ok := bootTime(); ok {
		r.Boot = boot
	}
	return r
}

// runtime looks at what the Go runtime tells, which a synctest bubble fakes.
func (c *Clock) runtime() Reading {
	now := time.Now()
	// One nanosecond keeps zero free for "never".
	mono := now.Sub(c.start) + 1
	return Reading{Mono: mono, Boot: mono, Wall: now.Round(0).Sub(c.start.Round(0)) + 1}
}
