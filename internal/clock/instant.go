package clock

import "time"

// Validity is an instant by which leases are timed, since the origin of a [Clock]; zero is free for "never" or "none".
// It and Steady are types of their own, so code that mixes the two does not compile: [time.Duration] is for the time
// between two instants of one clock.
type Validity time.Duration

// Steady is an instant by which the clocks of nodes are measured, since the origin of a [Clock];
// zero is free for "never" or "none".
type Steady time.Duration

// Mono is an instant of the monotonic clock, which neither jumps nor counts a suspend; zero is free for
// "never". A wait that must not end too early, whatever the other clocks show, is measured by it.
type Mono time.Duration

// Add returns the instant d later.
func (v Validity) Add(d time.Duration) Validity { return v + Validity(d) }

// Sub returns the time since w.
func (v Validity) Sub(w Validity) time.Duration { return time.Duration(v - w) }

// String returns the time since the origin.
func (v Validity) String() string { return time.Duration(v).String() }

// Add returns the instant d later.
func (s Steady) Add(d time.Duration) Steady { return s + Steady(d) }

// Sub returns the time since r.
func (s Steady) Sub(r Steady) time.Duration { return time.Duration(s - r) }

// String returns the time since the origin.
func (s Steady) String() string { return time.Duration(s).String() }

// Add returns the instant d later.
func (m Mono) Add(d time.Duration) Mono { return m + Mono(d) }

// Sub returns the time since n.
func (m Mono) Sub(n Mono) time.Duration { return time.Duration(m - n) }
