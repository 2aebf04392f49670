package quorumlock

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Holding is what a majority of the nodes says about a name, see Manager.Observe.
type Holding struct {
	Name string
	// Known means that the answers decide it: a majority of the nodes names one holder, or no holder
	// can have a majority. While it is false, only Name, AsOf and Err, which says why, are
	// set, and Slots.
	Known  bool
	Held   bool   // a lease has the name
	Holder Holder // of the lease; zero unless Held
	// Readers is how many hold the name together, each with a shared lease, and Holder is one of them;
	// 0 if Holder has it alone. They count as one holder: a reader that comes or goes is no change.
	Readers int
	// Token is at or above the fencing token of the lease that is held, and below that of the
	// lease of any later holder. The nodes show the last token of a block, whose tokens one
	// process uses one after the other: so compare with "at most". 0 if they show none:
	// without fencing, and for another program's lock.
	Token int64
	// Until is when the holder's keys end on the nodes unless it renews or releases. It is on the
	// wall clock, for people. Zero unless Held, and for keys that never end.
	Until   time.Time
	Waiters int       // how many processes wait, as in Status
	AsOf    time.Time // just before the nodes were asked
	Err     error     // ErrNoQuorum (a *QuorumError); nil if Known
	// Slots has what the nodes say about each slot, for an Observe with Permits; nil otherwise. Then Known means
	// that all of them are known, and Held that one is held; Err is that of a slot that is unknown, and Holder,
	// Readers, Token and Until are those of the slots only.
	Slots []Holding
}

// The bounds and the default of ObserveEvery.
const (
	DefaultObserveEvery = time.Second
	minObserveEvery     = 50 * time.Millisecond
	maxObserveEvery     = time.Minute
)

// ObserveOption is an option of Observe: ObserveEvery, or a Kind.
type ObserveOption interface{ observe(*observing) }

type observing struct {
	every time.Duration
	kind  config.Kind
}

type observeOption func(*observing)

func (f observeOption) observe(o *observing) { f(o) }

func (k Kind) observe(o *observing) { o.kind = o.kind.With(k.kind) }

// ObserveEvery sets how often the nodes are asked: from 50 ms to 1 min, 1 s by default. Observers of
// one name share the shortest interval.
func ObserveEvery(d time.Duration) ObserveOption {
	return observeOption(func(o *observing) { o.every = d })
}

// Observe delivers who holds a name, now and at each change: a holder, nobody, or that the holder is
// unknown because the answers of an interval did not decide it. It asks every node once in
// an interval (ObserveEvery), and when the holder's keys end; all observers of a name in this
// Manager share these questions. Each costs a node about a microsecond.
//
// The channel has capacity 1: a Holding that is not read is replaced by the next one. It is closed
// when ctx or the Manager ends. The first Holding comes with the first answers, and another one
// when the holder or its token changes, or becomes known or unknown. While a majority answers,
// that is within an interval and a node timeout of the change. Holders in between may be missed. A
// holder is never followed by one with a smaller token, whose keys have come back: the holder is
// unknown then. "Nobody" means that no holder has a
// majority of the nodes: a new holder may be about to get one.
//
// A Holding is not a lease: it may be untrue by the time you read it. A process that must be the
// only one acquires; a process that must not follow a former leader compares tokens. An observer
// that starts again compares the first Token with the last one that it has seen.
//
// With Permits(n) it observes the first n slots of the name, and a Holding has all of them (Slots): the first one
// comes when each slot has been answered. Each slot costs a node what a name costs.
//
// It returns ErrInvalid (a name, an interval out of bounds or a bad Kind) and ErrClosed. It is safe for
// concurrent use.
func (m *Manager) Observe(ctx context.Context, name string, opts ...ObserveOption) (<-chan Holding, error) {
	if err := m.inspectable(ctx, name); err != nil {
		return nil, err
	}
	wanted := observing{every: DefaultObserveEvery}
	for _, opt := range opts {
		if opt != nil {
			opt.observe(&wanted)
		}
	}
	if err := invalid(wanted.kind.Check()); err != nil {
		return nil, err
	}
	if wanted.every < minObserveEvery || wanted.every > maxObserveEvery {
		return nil, &InvalidError{What: "ObserveEvery", Value: wanted.every.String(), Bound: "from 50ms to 1m0s", Fix: "choose an interval between them"}
	}
	o := &observation{m: m, name: name, holdings: make(chan Holding, 1), keys: keysOf(m.cfg.Prefix, name, wanted.kind)}
	if wanted.kind.Permits {
		o.slots, o.missing = make([]Holding, len(o.keys)), len(o.keys)
	}
	if !o.begin(ctx, wanted.every) {
		return nil, ErrClosed
	}
	return o.holdings, nil
}

// observation is one call of Observe.
type observation struct {
	m        *Manager
	name     string
	keys     []string
	holdings chan Holding // capacity 1: the last one replaces one that was not read; closed at the end

	mu      sync.Mutex
	slots   []Holding // by key; nil without Permits
	missing int       // slots without a report
	closed  bool
}

// begin adds the observers of the keys. It returns false after Close.
func (o *observation) begin(ctx context.Context, every time.Duration) bool {
	ones := make([]*observe.Observer, len(o.keys))
	var stop func() bool // ends the wait for the end of ctx
	leave := func() {
		for i, key := range o.keys {
			o.m.out.observers.Remove(key, ones[i])
		}
		o.close()
	}
	for i := range ones {
		ones[i] = &observe.Observer{Every: every, Deliver: func(r *observe.Report) { o.deliver(i, r) }, End: func() { stop(); o.close() }}
	}
	stop = context.AfterFunc(ctx, leave)
	for i, key := range o.keys {
		if !o.m.out.observers.Add(key, ones[i]) {
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
	h := o.m.holding(o.name, r)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.slots != nil {
		if o.slots[i].Name == "" {
			o.missing--
		}
		o.slots[i] = h
	}
	if o.closed || o.missing > 0 {
		return
	}
	if o.slots != nil {
		h = together(o.slots)
	}
	select {
	case <-o.holdings: // it was not read
	default:
	}
	o.holdings <- h
}

func (o *observation) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.closed = true
		close(o.holdings)
	}
}

// together returns what is known of a name from what is known of its slots.
func together(slots []Holding) Holding {
	h := Holding{Name: slots[0].Name, Known: true, Slots: slices.Clone(slots)}
	for _, s := range slots {
		if s.AsOf.After(h.AsOf) {
			h.AsOf = s.AsOf
		}
		h.Waiters, h.Held, h.Err = max(h.Waiters, s.Waiters), h.Held || s.Held, cmp.Or(h.Err, s.Err)
		h.Known = h.Known && s.Known
	}
	if !h.Known {
		h.Held, h.Waiters = false, 0
	}
	return h
}

// holding returns a report for users.
func (m *Manager) holding(name string, r *observe.Report) Holding {
	h := Holding{Name: name, Known: r.Known, Held: r.Held, AsOf: m.ensemble.Clock.Time(r.Began)}
	if !r.Known {
		h.Err = noQuorum(m.ensemble, "observe", name, r.Agree, r.Errors)
		return h
	}
	h.Waiters = r.Waiters
	if r.Held {
		h.Holder, h.Readers, h.Token = holder(r.Value), r.Readers, r.Token
		if r.Until != quorum.Never {
			h.Until = m.ensemble.Clock.Time(r.Until)
		}
	}
	return h
}
