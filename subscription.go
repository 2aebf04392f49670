package quorumlock

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Subscribe returns a subscription to the events of all leases and nodes, or to those of the
// given kinds. Its buffer holds that many events (at least 1); Subscription says what happens
// when it is full. Unknown kinds select nothing.
func (m *Manager) Subscribe(buffer int, kinds ...EventKind) *Subscription {
	return m.bus.add(buffer, kinds)
}

// Subscription delivers the events of all leases of a Manager, or those of some kinds; those
// of one lease in the order in which they happened.
//
// The watchdog never waits for a reader, so a reader that is slow misses events once the
// buffer is full. A Lost is never among these: losses that do not fit wait in memory until the
// buffer has room, one for each lease that was lost. A Released gives way to the end of another
// lease only. Of the other events the newest replaces the oldest, or is dropped itself if the
// buffer is full of ends.
//
// After the Manager's Close, the channel still has what its buffer holds, with the ends of
// leases first to stay; a Lost that has found no room until then is dropped.
type Subscription struct {
	// events has the capacity given to Subscribe. Closed by end.
	events  chan Event
	kinds   []EventKind // none for all
	dropped atomic.Uint64
	bus     *bus

	late    []Event        // losses that wait for room in events; guarded by the bus's mutex
	feeding sync.WaitGroup // the goroutine of feed, which runs while late is not empty; Add with the bus's mutex held
	over    chan struct{}  // closed by end; never sent on
}

// C returns the channel of events. Close closes it, and so does the Manager when it has
// closed and sent its last event.
func (s *Subscription) C() <-chan Event { return s.events }

// Dropped returns how many events were dropped because they were not read in time.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription. It is idempotent and safe for concurrent use.
func (s *Subscription) Close() { s.bus.remove(s) }

// longestTurn bounds how many events are looked at to find one that gives way.
const longestTurn = 64

// weight says which events give way: those of less weight to those of more.
func weight(e Event) int {
	switch e.kind() {
	case EventLost:
		return 2
	case EventReleased:
		return 1
	default:
		return 0
	}
}

// put adds an event to the buffer, and never blocks. It returns false for a Lost that has found
// no room. The caller is the only sender.
func (s *Subscription) put(e Event) bool {
	for range longestTurn {
		select {
		case s.events <- e:
			return true
		default:
		}
		select {
		case oldest := <-s.events:
			if weight(oldest) > min(weight(e), 1) {
				// The end of a lease is its last event, so it may move behind others. The room
				// is its own: only the sender fills it.
				s.events <- oldest
				continue
			}
			s.dropped.Add(1)
		default: // a reader was faster
		}
	}
	if weight(e) < 2 {
		s.dropped.Add(1)
		return true
	}
	return false
}

// send is put, except that losses wait for room. The bus's mutex is held.
func (s *Subscription) send(e Event) {
	switch {
	case len(s.kinds) > 0 && !slices.Contains(s.kinds, e.kind()):
	case len(s.late) == 0 && s.put(e):
	case weight(e) < 2: // while losses wait, feed is the only sender
		s.dropped.Add(1)
	default:
		if s.late = append(s.late, e); len(s.late) == 1 {
			s.feeding.Go(s.feed)
		}
	}
}

// feed sends the losses that wait, and ends when none is left, or with the subscription.
func (s *Subscription) feed() {
	for sent := 0; ; sent = 1 {
		s.bus.mu.Lock()
		if s.late = s.late[sent:]; len(s.late) == 0 {
			s.late = nil
			s.bus.mu.Unlock()
			return
		}
		next := s.late[0]
		s.bus.mu.Unlock()
		select {
		case s.events <- next:
		case <-s.over:
			return
		}
	}
}

// end closes the channel. The subscription is no longer one of the bus's, and the bus's mutex is
// not held.
func (s *Subscription) end() {
	close(s.over)
	s.feeding.Wait()
	for _, e := range s.late {
		if !s.put(e) {
			s.dropped.Add(1)
		}
	}
	close(s.events)
}

// bus hands events to the subscriptions.
type bus struct {
	// watched is how many subscriptions there are. While there are none, leases make no
	// events for them.
	watched atomic.Int32

	mu     sync.Mutex
	subs   []*Subscription
	closed bool
}

func (b *bus) add(buffer int, kinds []EventKind) *Subscription {
	s := &Subscription{events: make(chan Event, max(buffer, 1)), kinds: slices.Clone(kinds), bus: b, over: make(chan struct{})}
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

func (b *bus) remove(s *Subscription) {
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

// send never blocks. The mutex makes it the only sender of the subscriptions for which no loss
// waits.
func (b *bus) send(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s.send(e)
	}
}

func (b *bus) close() {
	b.mu.Lock()
	subs := b.subs
	b.subs, b.closed = nil, true
	b.watched.Store(0)
	b.mu.Unlock()
	for _, s := range subs {
		s.end()
	}
}
