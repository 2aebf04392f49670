package ensemble

import (
	"sync"
	"time"
)

// This file has what calls use again and again: timers, and channels of capacity 1.

// Timer returns a timer from a pool; PutTimer returns it there. (A pool of
// the package would move timers from one synctest bubble to another.)
func (e *Ensemble) Timer(d time.Duration) *time.Timer {
	if t, ok := e.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// PutTimer returns a timer to the pool.
func (e *Ensemble) PutTimer(t *time.Timer) {
	t.Stop()
	e.timers.Put(t)
}

type timers = sync.Pool // of *time.Timer

// Signal returns a channel from the pool of signals; PutSignal returns it there.
func (e *Ensemble) Signal() chan struct{} { return e.signals.get() }

// PutSignal returns a channel to its pool, after the last send.
func (e *Ensemble) PutSignal(c chan struct{}) { e.signals.put(c) }

// signals is a pool of channels of capacity 1 that are never closed. A channel goes back
// to the pool after the last send. (A pool of the package would move channels from one
// synctest bubble to another.)
type signals struct{ pool sync.Pool }

func (s *signals) get() chan struct{} {
	if c, ok := s.pool.Get().(chan struct{}); ok {
		return c
	}
	return make(chan struct{}, 1)
}

func (s *signals) put(c chan struct{}) {
	select {
	case <-c: // sent and not received
	default:
	}
	s.pool.Put(c)
}
