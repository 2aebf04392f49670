package quorumlock

import (
	"context"
	"sync"

	"github.com/quorumlock/quorumlock/internal/observe"
)

// Observe delivers who holds a name, now and at each change: a holder, no holder, or that it is
// unknown because too few nodes answered. It asks the nodes at least once in an interval
// (WithObserveEvery). All observers of a name in this Manager share these questions.
//
// A Status is not a lease: it may be untrue by the time you read it. A process that must be the
// only one acquires; a process that must not follow a former leader compares tokens, also with the
// last one from before a restart. A holder is never followed by one with a smaller token.
//
// The channel has capacity 1: a Status that is not read is replaced by the next one. It is closed
// when ctx or the Manager ends. While a majority answers, a change arrives within an interval and a
// node timeout; holders in between may be missed.
//
// With Permits(n) it observes the first n slots of the name, and a Status has all of them (Slots).
// Each slot costs a node what a name costs. It returns ErrInvalid for a bad name or Kind, and
// ErrClosed.
func (m *Manager) Observe(ctx context.Context, name string, kind ...Kind) (<-chan Status, error) {
	if err := m.inspectable(ctx, name); err != nil {
		return nil, err
	}
	wanted, err := lookedAt(kind)
	if err != nil {
		return nil, err
	}
	sh := m.of(name)
	o := &observation{shard: sh, name: name, statuses: make(chan Status, 1), keys: keysOf(sh.key(name), wanted)}
	if wanted.Permits {
		o.slots, o.missing = make([]Status, len(o.keys)), len(o.keys)
	}
	if !o.begin(ctx) {
		return nil, ErrClosed
	}
	return o.statuses, nil
}

// observation is one call of Observe.
type observation struct {
	shard    *shard
	name     string
	keys     []string
	statuses chan Status // capacity 1: the last one replaces one that was not read; closed at the end

	mu      sync.Mutex
	slots   []Status // by key; nil without Permits
	missing int      // slots without a report
	closed  bool
}

// begin adds the observers of the keys. It returns false after Close.
func (o *observation) begin(ctx context.Context) bool {
	ones := make([]*observe.Observer, len(o.keys))
	var stop func() bool // ends the wait for the end of ctx
	leave := func() {
		for i, key := range o.keys {
			o.shard.observers.Remove(key, ones[i])
		}
		o.close()
	}
	for i := range ones {
		ones[i] = &observe.Observer{Deliver: func(r *observe.Report) { o.deliver(i, r) }, End: func() { stop(); o.close() }}
	}
	stop = context.AfterFunc(ctx, leave)
	for i, key := range o.keys {
		if !o.shard.observers.Add(key, ones[i]) {
			stop()
			leave()
			return false
		}
	}
	if ctx.Err() != nil {
		leave() // the first call may have come before Add
	}
	return true
}

// deliver takes a report about a key.
func (o *observation) deliver(i int, r *observe.Report) {
	s := o.shard.observed(o.name, r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.slots != nil {
		if o.slots[i].Name == "" {
			o.missing--
		}
		o.slots[i] = s
	}
	if o.closed || o.missing > 0 {
		return
	}
	if o.slots != nil {
		s = together(o.name, o.slots)
	}
	latest(o.statuses, s)
}

func (o *observation) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.statuses)
	}
}

// observed converts a report for users.
func (sh *shard) observed(name string, r *observe.Report) Status {
	s := Status{Name: name, Known: r.Known, Held: r.Held, AsOf: sh.m.clock.Time(r.Began)}
	if !r.Known {
		s.Err = noQuorum(sh.ensemble, "observe", name, r.Agree, r.Errors)
		return s
	}
	s.Waiters = r.Waiters
	if r.Held {
		s.Holder, s.Readers, s.Votes = holder(r.Value), r.Readers, r.Agree
		s.Holder.Asked = holder(r.Lock).Asked
		sh.addEnd(&s, &r.Holding, r.Began)
	}
	return s
}
