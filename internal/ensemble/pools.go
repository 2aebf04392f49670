package ensemble

import (
	"sync"
	"time"
)

// pools has what calls use again and again: timers, and channels of capacity 1. (Pools of
// the package would move them from one synctest bubble to another.)
type pools struct{ timers, signals sync.Pool } // of *time.Timer, and of chan struct{}

// Timer returns a timer from a pool; PutTimer returns it there.
func (p *pools) Timer(d time.Duration) *time.Timer {
	if t, ok := p.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

// PutTimer returns a timer to the pool.
func (p *pools) PutTimer(t *time.Timer) {
	t.Stop()
	p.timers.Put(t)
}

// Signal returns a channel of capacity 1 from a pool; PutSignal returns it there. It is never
// closed.
func (p *pools) Signal() chan struct{} {
	if c, ok := p.signals.Get().(chan struct{}); ok {
		return c
	}
	return make(chan struct{}, 1)
}

// PutSignal returns a channel to its pool, after the last send.
func (p *pools) PutSignal(c chan struct{}) {
	select {
	case <-c: // sent and not received
	default:
	}
	p.signals.Put(c)
}
