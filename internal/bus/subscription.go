package bus

import (
	"sync"
	"sync/atomic"
)

// Subscription is a reader's part of a Bus.
type Subscription[E any] struct {
	// events has the capacity given to Add. put drops events that give way from it. Closed by end.
	events  chan E
	wants   func(E) bool // nil for all
	dropped atomic.Uint64
	bus     *Bus[E]

	late    []E            // events that wait for room in events; guarded by the bus's mutex
	feeding sync.WaitGroup // the goroutine of feed, which runs while late is not empty; Add with the bus's mutex held
	over    chan struct{}  // closed by end; never sent on
}

// C returns the channel of events. Close closes it, and so does the Bus's Close.
func (s *Subscription[E]) C() <-chan E { return s.events }

// Dropped returns how many events were dropped because they were not read in time.
func (s *Subscription[E]) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription. It is idempotent and safe for concurrent use.
func (s *Subscription[E]) Close() { s.bus.remove(s) }

// longestTurn bounds how many events are looked at to find one that gives way.
const longestTurn = 64

// put adds an event to the buffer, and never blocks. It returns false for an event that is kept and
// has found no room. The caller is the only sender.
func (s *Subscription[E]) put(e E) bool {
	weight := s.bus.weight(e)
	for range longestTurn {
		select {
		case s.events <- e:
			return true
		default:
		}
		select {
		case oldest := <-s.events:
			if s.bus.weight(oldest) > min(weight, End) {
				// An end is the last event of what it is about, so it may move behind others. The
				// room is its own: only the sender fills it.
				s.events <- oldest
				continue
			}
			s.dropped.Add(1)
		default: // a reader was faster
		}
	}
	if weight < Kept {
		s.dropped.Add(1)
		return true
	}
	return false
}

// send is put, except that events that are kept wait for room. The bus's mutex is held.
func (s *Subscription[E]) send(e E) {
	switch {
	case s.wants != nil && !s.wants(e):
	case len(s.late) == 0 && s.put(e):
	case s.bus.weight(e) < Kept: // while others wait, feed is the only sender
		s.dropped.Add(1)
	default:
		if s.late = append(s.late, e); len(s.late) == 1 {
			s.feeding.Go(s.feed)
		}
	}
}

// feed sends the events that wait, and ends when none is left, or with the subscription.
func (s *Subscription[E]) feed() {
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

// end closes the channel. The subscription no longer belongs to the bus, and the bus's mutex is
// not held.
func (s *Subscription[E]) end() {
	close(s.over)
	s.feeding.Wait()
	for _, e := range s.late {
		if !s.put(e) {
			s.dropped.Add(1)
		}
	}
	close(s.events)
}
