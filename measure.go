package quorumlock

import (
	"context"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has what a Manager measures. Leases, calls and workers leave it in the outbox,
// under their own mutexes if need be; the reporter passes it on to the user's instruments.

// histogram names a histogram.
type histogram uint8

const (
	acquireDuration histogram = iota
	waitDuration
	holdDuration
	renewalValidity
	operationDuration
)

// A measurement is one value for a histogram.
type measurement struct {
	of      histogram
	node    uint8 // operationDuration: the node, the kind of request and the status of the answer
	kind    wire.Kind
	status  wire.Status
	value   time.Duration
	label   string          // of the name, "" for none
	outcome string          // of a call or a hold
	ctx     context.Context // of the call, for exemplars; nil for none
}

// counter names a counter that goes up, or up and down.
type counter uint8

const (
	leasesActive counter = iota
	leasesAtRisk
	waitersActive
	leasesLost
	handovers
)

// A sum is one series of a counter.
type sum struct {
	of    counter
	label string // of the name, "" for none
	attr  string // leasesLost: the reason; handovers: the path
}

// outboxSize is how many measurements wait for the reporter at most: 1 MiB, and 60 ms of a
// Manager that 512 callers keep busy.
const outboxSize = 16384

// outbox holds measurements until the reporter takes them. Those of histograms are dropped
// and counted when it is full. The changes of a counter are added up instead, one entry for
// each series, and never dropped: a lost −1 would leave a gauge wrong for ever.
type outbox struct {
	bell chan struct{} // capacity 1: something waits; never closed

	mu      sync.Mutex // no other is taken under it, and no code of a user runs
	values  []measurement
	sums    map[sum]int64
	dropped int64

	// Used only by Flush: empty, and of the size that was needed.
	spareValues []measurement
	spareSums   map[sum]int64
}

func newOutbox() outbox {
	return outbox{bell: make(chan struct{}, 1), sums: map[sum]int64{}, spareSums: map[sum]int64{}}
}

// put leaves a value for a histogram.
func (o *outbox) put(one measurement) {
	o.mu.Lock()
	first := len(o.values) == 0 && len(o.sums) == 0
	if len(o.values) < outboxSize {
		o.values = append(o.values, one)
	} else {
		o.dropped++
	}
	o.mu.Unlock()
	o.ring(first)
}

// count leaves a change of a counter.
func (o *outbox) count(one sum, change int64) {
	o.mu.Lock()
	first := len(o.values) == 0 && len(o.sums) == 0
	o.sums[one] += change
	o.mu.Unlock()
	o.ring(first)
}

// ring wakes the reporter for the first that waits.
func (o *outbox) ring(first bool) {
	if !first {
		return
	}
	select {
	case o.bell <- struct{}{}:
	default:
	}
}

// Pending implements report.Meters; nil without metrics.
func (i *instruments) Pending() <-chan struct{} {
	if i == nil {
		return nil
	}
	return i.bell
}

// Flush implements report.Meters. Only the reporter calls it.
func (i *instruments) Flush(call func(func())) (dropped int64) {
	if i == nil {
		return 0
	}
	i.mu.Lock()
	values, sums := i.values, i.sums
	i.values, i.sums = i.spareValues, i.spareSums
	dropped, i.dropped = i.dropped, 0
	i.mu.Unlock()
	for k := range values {
		call(func() { i.record(&values[k]) })
	}
	for one, change := range sums {
		call(func() { i.add(one, change) })
	}
	clear(values) // they keep contexts of calls alive
	clear(sums)
	i.spareValues, i.spareSums = values[:0], sums
	return dropped
}

// acquired measures a call that has ended.
func (i *instruments) acquired(ctx context.Context, label string, took, waited time.Duration, outcome string) {
	if i == nil {
		return
	}
	i.put(measurement{of: acquireDuration, value: took, label: label, outcome: outcome, ctx: ctx})
	if waited > 0 {
		i.put(measurement{of: waitDuration, value: waited, label: label, outcome: outcome, ctx: ctx})
	}
}

// waiter counts a call that waits, or has waited.
func (i *instruments) waiter(label string, change int64) {
	if i != nil {
		i.count(sum{of: waitersActive, label: label}, change)
	}
}

// The ways in which a lease goes to a waiter.
const (
	pathProcess = "process" // passed on inside it
	pathNodes   = "nodes"   // from a queue on the nodes
)

// opened counts a lease that was granted. path says how it came to a waiter; "" if nobody
// waited.
func (i *instruments) opened(label, path string) {
	if i == nil {
		return
	}
	i.count(sum{of: leasesActive, label: label}, 1)
	if path != "" {
		i.count(sum{of: handovers, label: label, attr: path}, 1)
	}
}

// held measures a lease that has ended. lost is nil after a release.
func (i *instruments) held(label string, took time.Duration, lost *LostError) {
	if i == nil {
		return
	}
	i.count(sum{of: leasesActive, label: label}, -1)
	end := "released"
	if lost != nil {
		end = "lost"
		i.count(sum{of: leasesLost, label: label, attr: lost.Reason.slug()}, 1)
	}
	i.put(measurement{of: holdDuration, value: took, label: label, outcome: end})
}

// renewed measures a renewal.
func (i *instruments) renewed(label string, validity time.Duration) {
	if i != nil {
		i.put(measurement{of: renewalValidity, value: validity, label: label})
	}
}

// risk counts a lease that is at risk, or no longer.
func (i *instruments) risk(label string, risky bool) {
	if i == nil {
		return
	}
	change := int64(-1)
	if risky {
		change = 1
	}
	i.count(sum{of: leasesAtRisk, label: label}, change)
}

// node measures how long node n took to answer a request; 0 if it was not sent.
func (i *instruments) node(n int, kind wire.Kind, reply *wire.Reply, now func() time.Duration) {
	if i == nil {
		return
	}
	var took time.Duration
	if reply.Sent > 0 {
		took = max(now()-reply.Sent, 0)
	}
	i.put(measurement{of: operationDuration, node: uint8(n), kind: kind, status: reply.Status, value: took})
}
