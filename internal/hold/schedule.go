package hold

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// schedule knows when each of its members needs the watchdog next. It is a heap by the instant of the wake; the alarm
// of a member has this instant and the member's place in the heap.
type schedule[T any] struct {
	now    func() clock.Validity
	signal chan struct{} // capacity 1: an earlier wake than the timer's; never closed

	mu     sync.Mutex // taken after a member's mutex, never before
	heap   alarms[T]
	due    []*alarm[T]    // members that are being processed; some are back in the heap
	asleep clock.Validity // the end of the sleep; 0 while awake, when it needs no signal
	used   bool           // a member was added since the last sleep began
	rung   clock.Validity // the first signal since the sleep began; 0 for none
}

// alarm is when one member is due, and its place in the heap. wake is written with the schedule's mutex held, and also
// read without it: 0 means that the member is not in the heap.
type alarm[T any] struct {
	of    T
	wake  atomic.Int64
	index int // in the heap; −1 when not in it
}

func newSchedule[T any](now func() clock.Validity) schedule[T] {
	return schedule[T]{now: now, signal: make(chan struct{}, 1)}
}

// at makes the watchdog look at a member at wake, or earlier. quorum.Never removes the member.
func (s *schedule[T]) at(one *alarm[T], wake clock.Validity) {
	// A wake that is too early is harmless: the member is then scheduled anew. So moving a wake to a later instant does
	// not take the mutex. Most calls end here.
	if known := one.wake.Load(); known != 0 && int64(wake) >= known && wake != quorum.Never {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if wake == quorum.Never {
		if one.index >= 0 {
			s.heap.remove(one)
		}
		return
	}
	s.heap.file(one, wake)
	s.used = true
	if wake < s.asleep && s.rung == 0 {
		s.rung = s.now()
		select {
		case s.signal <- struct{}{}:
		default: // a signal from before the sleep is still in the channel
		}
	}
}

// take removes the members that wake by then. The slice is valid until the next sleep.
func (s *schedule[T]) take(then clock.Validity) []*alarm[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = 0
	for len(s.heap) > 0 && s.heap[0].wake <= then {
		one := s.heap[0].alarm
		s.heap.remove(one)
		s.due = append(s.due, one)
	}
	return s.due
}

// all returns each member once: those in the heap, and those that take has removed.
func (s *schedule[T]) all() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.heap)+len(s.due))
	for i := range s.heap {
		all = append(all, s.heap[i].alarm.of)
	}
	for _, one := range s.due {
		if one.index < 0 { // otherwise it is back in the heap
			all = append(all, one.of)
		}
	}
	return all
}

// sleep begins a sleep of at most longest. It returns how long the sleep lasts, and false when nothing is scheduled.
// empty means that nothing is in the heap.
func (s *schedule[T]) sleep(longest time.Duration) (wait time.Duration, empty, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.due)
	s.due, s.rung = s.due[:0], 0
	now := s.now()
	switch {
	case len(s.heap) > 0:
		s.asleep = min(s.heap[0].wake, now.Add(longest)) // possibly in the past
		return max(s.asleep.Sub(now), 0), false, true
	case s.used:
		// The watchdog wakes once more: otherwise a single caller that acquires and releases in
		// turn would signal it every time.
		s.asleep, s.used = now.Add(longest), false
		return longest, true, true
	default:
		s.asleep = quorum.Never
		return 0, true, false
	}
}

// overdue returns when the sleep should have ended: by the timer or by a signal, whichever was
// first.
func (s *schedule[T]) overdue() clock.Validity {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rung != 0 {
		return min(s.rung, s.asleep)
	}
	return s.asleep
}

// alarms is the heap. It has a copy of each wake, because reading it from the alarm costs a cache
// miss.
type alarms[T any] []scheduled[T]

type scheduled[T any] struct {
	wake  clock.Validity
	alarm *alarm[T]
}

// file puts a member into the heap under its wake, or moves it there.
func (h *alarms[T]) file(one *alarm[T], wake clock.Validity) {
	one.wake.Store(int64(wake))
	if one.index < 0 { // heap.Push would allocate
		one.index = len(*h)
		*h = append(*h, scheduled[T]{alarm: one})
	}
	(*h)[one.index].wake = wake
	heap.Fix(h, one.index)
}

// remove removes a member.
func (h *alarms[T]) remove(one *alarm[T]) {
	heap.Remove(h, one.index)
	one.wake.Store(0)
}

func (h alarms[T]) Len() int { return len(h) }

func (h alarms[T]) Less(i, j int) bool { return h[i].wake < h[j].wake }

func (h alarms[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].alarm.index, h[j].alarm.index = i, j
}

// Push is part of heap.Interface; file does not use it.
func (h *alarms[T]) Push(x any) {
	one := x.(scheduled[T])
	one.alarm.index = len(*h)
	*h = append(*h, one)
}

// Pop is part of heap.Interface.
func (h *alarms[T]) Pop() any {
	last := len(*h) - 1
	one := (*h)[last].alarm
	(*h)[last] = scheduled[T]{}
	*h = (*h)[:last]
	one.index = -1
	return one
}
