package report

import "sync"

// outboxSize is the largest number of values that wait for the reporter: 1 MiB, and 60 ms of a Manager that 512 callers
// keep busy.
const outboxSize = 16384

// Outbox holds measurements until the reporter takes them: values V of histograms, and changes of
// counters, one entry for each series S. Leases, calls and workers leave them here, under their
// own mutexes if need be. Values are dropped and counted when the outbox is full. Changes are added
// up instead, and never dropped: a lost −1 would leave a gauge wrong forever.
type Outbox[V any, S comparable] struct {
	bell chan struct{} // capacity 1: something waits; never closed

	mu      sync.Mutex // no other is taken under it, and no code of a user runs
	values  []V
	sums    map[S]int64
	dropped int64

	// Used only by Flush: empty, and of the size that was needed.
	spareValues []V
	spareSums   map[S]int64
}

// NewOutbox returns an empty outbox.
func NewOutbox[V any, S comparable]() *Outbox[V, S] {
	return &Outbox[V, S]{bell: make(chan struct{}, 1), sums: map[S]int64{}, spareSums: map[S]int64{}}
}

// Put leaves a value of a histogram.
func (o *Outbox[V, S]) Put(value V) {
	o.mu.Lock()
	first := len(o.values) == 0 && len(o.sums) == 0
	if len(o.values) < outboxSize {
		o.values = append(o.values, value)
	} else {
		o.dropped++
	}
	o.mu.Unlock()
	o.ring(first)
}

// Count leaves a change of a counter.
func (o *Outbox[V, S]) Count(series S, change int64) {
	o.mu.Lock()
	first := len(o.values) == 0 && len(o.sums) == 0
	o.sums[series] += change
	o.mu.Unlock()
	o.ring(first)
}

// ring wakes the reporter for the first that waits.
func (o *Outbox[V, S]) ring(first bool) {
	if !first {
		return
	}
	select {
	case o.bell <- struct{}{}:
	default:
	}
}

// Pending delivers when something waits.
func (o *Outbox[V, S]) Pending() <-chan struct{} { return o.bell }

// Flush passes what waits to the user's instruments, each in a call of its own, and returns how many
// values were dropped. Only the reporter calls it.
func (o *Outbox[V, S]) Flush(call func(func()), record func(*V), add func(S, int64)) (dropped int64) {
	o.mu.Lock()
	values, sums := o.values, o.sums
	o.values, o.sums = o.spareValues, o.spareSums
	dropped, o.dropped = o.dropped, 0
	o.mu.Unlock()
	for k := range values {
		call(func() { record(&values[k]) })
	}
	for series, change := range sums {
		call(func() { add(series, change) })
	}
	clear(values) // they keep contexts of calls alive
	clear(sums)
	o.spareValues, o.spareSums = values[:0], sums
	return dropped
}
