// Package bus hands the events of a process to its subscriptions, and never waits for a reader.
//
//	Bus.Send ──▶ Subscription.put ──▶ C, the reader's channel
//	                    │ no room for an event that is kept
//	                    └──▶ late ──▶ feed ──▶ C
//
// Goroutines: one for each subscription while events wait for room; Close joins it. The only mutex is
// the Bus's, and no code of a user runs under it.
package bus

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Weight says which events give way: events of less weight to events of more.
type Weight int

const (
	// News gives way to everything.
	News Weight = iota
	// End gives way to other ends only.
	End
	// Kept is an end that waits for room, and is never dropped while the Bus is open.
	Kept
)

// Bus has the subscriptions of a process.
type Bus[E any] struct {
	weight func(E) Weight
	// watched is how many subscriptions there are. While there are none, no event needs to be made.
	watched atomic.Int32

	mu     sync.Mutex
	subs   []*Subscription[E]
	closed bool
}

// New returns a Bus without subscriptions.
func New[E any](weight func(E) Weight) *Bus[E] { return &Bus[E]{weight: weight} }

// Watched reports whether there is a subscription.
func (b *Bus[E]) Watched() bool { return b.watched.Load() > 0 }

// Add adds a subscription with a buffer of that many events, at least one. It gets the events that
// wants reports true for; nil means all. After Close its channel is closed.
func (b *Bus[E]) Add(buffer int, wants func(E) bool) *Subscription[E] {
	s := &Subscription[E]{events: make(chan E, max(buffer, 1)), wants: wants, bus: b, over: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(s.events)
		return s
	}
	b.subs = append(b.subs, s)
	b.watched.Add(1)
	return s
}

func (b *Bus[E]) remove(s *Subscription[E]) {
	b.mu.Lock()
	i := slices.Index(b.subs, s)
	if i >= 0 {
		b.subs = slices.Delete(b.subs, i, i+1)
		b.watched.Add(-1)
	}
	b.mu.Unlock()
	if i >= 0 {
		s.end()
	}
}

// Send never blocks. The mutex makes it the only sender of the subscriptions for which no event
// waits.
func (b *Bus[E]) Send(e E) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s.send(e)
	}
}

// Close ends all subscriptions, and those that are added later.
func (b *Bus[E]) Close() {
	b.mu.Lock()
	subs := b.subs
	b.subs, b.closed = nil, true
	b.watched.Store(0)
	b.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
}
