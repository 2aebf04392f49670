package quorumlock

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// agenda lists the instants at which the watchdog has to check local queues.
type agenda struct {
	next atomic.Int64 // the earliest instant, 0 for none; written with mu held, read without mu

	mu    sync.Mutex // taken after a queue's mutex
	items []appointment
}

// appointment is void when the queue has an earlier one.
type appointment struct {
	at time.Duration
	q  *localQueue
}

// add adds an instant for a queue, unless the queue has an earlier one. It reports
// whether the instant is the earliest of all queues.
func (a *agenda) add(q *localQueue, at time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.tendAt != 0 && q.tendAt <= at {
		return false
	}
	q.tendAt = at
	heap.Push(a, appointment{at, q})
	a.next.Store(int64(a.items[0].at))
	return a.items[0].at == at
}

// take removes and returns the queues that are due.
func (a *agenda) take(now time.Duration) (due []*localQueue) {
	if now < a.earliest() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.items) > 0 && a.items[0].at <= now {
		item := heap.Pop(a).(appointment)
		if item.q.tendAt == item.at {
			item.q.tendAt = 0
			due = append(due, item.q)
		}
	}
	a.next.Store(0)
	if len(a.items) > 0 {
		a.next.Store(int64(a.items[0].at))
	}
	return due
}

// earliest returns the earliest instant, quorum.Never if there is none.
func (a *agenda) earliest() time.Duration {
	if next := a.next.Load(); next != 0 {
		return time.Duration(next)
	}
	return quorum.Never
}

// The methods of heap.Interface.

func (a *agenda) Len() int           { return len(a.items) }
func (a *agenda) Less(i, j int) bool { return a.items[i].at < a.items[j].at }
func (a *agenda) Swap(i, j int)      { a.items[i], a.items[j] = a.items[j], a.items[i] }
func (a *agenda) Push(x any)         { a.items = append(a.items, x.(appointment)) }

// Pop removes the last item.
func (a *agenda) Pop() any {
	last := len(a.items) - 1
	item := a.items[last]
	a.items[last] = appointment{}
	a.items = a.items[:last]
	return item
}
