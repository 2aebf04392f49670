package quorumlock

import (
	"sync"
	"time"
)

// This file has what the Manager uses again and again: timers, and channels of capacity 1.

// timer returns a timer from the Manager's pool; putTimer returns it there. (A pool of
// the package would move timers from one synctest bubble to another.)
func (m *Manager) timer(d time.Duration) *time.Timer {
	if t, ok := m.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (m *Manager) putTimer(t *time.Timer) {
	t.Stop()
	m.timers.Put(t)
}

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
