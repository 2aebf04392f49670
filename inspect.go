package quorumlock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Status is the state of a name on the nodes, as Inspect, List and Observe return it. From Observe, only Name, AsOf
// and Err are set while Known is false, and with Permits what is known of the slots; Holders, Fence and Nodes are
// never set.
type Status struct {
	Name string
	// Known means that the answers decide it: a majority of the nodes names one holder, or no holder
	// can have a majority.
	Known  bool
	Held   bool   // a majority of the nodes names the same owner
	Holder Holder // the holder that most nodes name, even without a majority; from Observe, zero unless Held
	Votes  int    // how many nodes name Holder, or say that readers have the name
	// Readers is how many hold the name together, each with a shared lease: the most on any node, including
	// those that are still acquiring. Holders are those that a majority of the nodes names, at most 16, the
	// longest first; Holder is one of them. 0 and nil if Holder has the name alone.
	Readers int
	Holders []Holder
	// Token is at or above the fencing token of the lease that is held, and below the token of
	// any later lease. The nodes show the last token of a block, whose tokens one
	// process uses one after the other: so compare with "at most". 0 unless Held, and if they show
	// none: without fencing, and for another program's lock.
	Token int64
	// TTL is how long after AsOf a majority keeps Holder's key unless it renews or releases: until Until, which is on
	// the wall clock, for people. TTL is negative and Until zero for no end; both are zero unless Held.
	TTL   time.Duration
	Until time.Time
	// Fence is the highest fencing register of the nodes that answered. With a majority of answers no token
	// is above it, except a token of readers, which is one more.
	Fence int64
	// Waiters is how many wait in the queue, this process included: the largest number on any node.
	// Of the callers of one process for an exclusive lease only the first is in it. A call that was
	// not refused yet may be missing, and one that ended a moment ago may be counted. A node leaves out processes
	// whose connection has ended, such as killed ones. One that is stopped, or cut off with its
	// connection still open, counts until its turn comes or nothing has waited for a minute. So
	// does a killed one behind the first 500 in a queue, or where the user lacks +pubsub|numsub.
	Waiters int
	// Queue has the first of these Waiters, at most 8, in their order: of the node that counts the most. Only Inspect
	// sets it. It may be shorter than Waiters says, and is nil if there are none. With Permits the Slots have none.
	Queue []Waiter  `json:",omitzero"`
	AsOf  time.Time // just before the nodes were asked
	Err   error     // from Observe, why it is not Known: ErrNoQuorum (a *QuorumError). Inspect and List return theirs
	Nodes []NodeStatus
	// Slots has the state of each slot, for a call with Permits; nil otherwise. Then Known means that all of them are
	// known, Held that one of them is held, Waiters, Queue, AsOf and Err sum them up, and the slots alone have the rest.
	Slots []Status `json:",omitzero"`
}

// Waiter is a caller that waits for a name in the queue on the nodes; for an exclusive lease, the first one of its
// process. The queue knows neither its label nor the others.
type Waiter struct {
	// Process is random for each Manager, in a whole cluster for each of its buckets, 16 hex
	// digits: the nodes wake it on the channel prefix, "\xffw", Process.
	Process string
	Own     bool // it is this Manager
	// Since is when its call began, or when it came back after it had missed its turn. It comes from the nodes'
	// clocks, and is shown by this machine's: Status.AsOf.Sub(Since) is how long it has waited.
	Since   time.Time
	Shared  bool // it wants a shared lease
	Permits int  // it wants a permit of that many; 0 for other leases
}

// Inspect asks every node for the holder of a name, and changes nothing. It waits for all
// nodes, one node timeout at most, and returns their answers. It does not wait for a node that
// has been silent for a node timeout already, unless too few others are left. When fewer than a majority
// answered, it also returns ErrNoQuorum (a *QuorumError), joined with ctx.Err() and ctx's
// cause when ctx ended first.
//
// With Permits(n) it asks for the first n slots of the name: Status.Slots has the state of each, and the error is
// the first one of a slot.
func (m *Manager) Inspect(ctx context.Context, name string, kind ...Kind) (Status, error) {
	if err := m.inspectable(ctx, name); err != nil {
		return Status{}, err
	}
	wanted, err := lookedAt(kind)
	if err != nil {
		return Status{}, err
	}
	sh := m.of(name)
	if wanted.Permits {
		return sh.inspectSlots(ctx, name, keysOf(sh.key(name), wanted))
	}
	timeout := sh.timeout()
	answers := sh.read(wire.NewInspect, sh.key(name), timeout)
	answers.Wait(ctx, timeout)
	return sh.status(name, answers), enough(ctx, sh.ensemble, "inspect", name, answers)
}

// inspectSlots asks for all slots at once.
func (sh *shard) inspectSlots(ctx context.Context, name string, keys []string) (s Status, err error) {
	timeout, reads := sh.timeout(), make([]*ensemble.Answers, len(keys))
	request := wire.NewInspect
	for i, key := range keys {
		reads[i] = sh.read(request, key, timeout)
		request = wire.NewRead // the slots have one queue
	}
	slots := make([]Status, len(keys))
	for i, answers := range reads {
		answers.Wait(ctx, timeout)
		slots[i] = sh.status(name, answers)
		if err == nil {
			err = enough(ctx, sh.ensemble, "inspect", name, answers)
		}
	}
	s = together(name, slots)
	s.Nodes = sh.nodes()
	return s, err
}

// together combines the states of a name's slots.
func together(name string, slots []Status) Status {
	s := Status{Name: name, Known: true, Slots: slices.Clone(slots), Queue: slots[0].Queue}
	s.Slots[0].Queue = nil
	for _, slot := range slots {
		if slot.AsOf.After(s.AsOf) {
			s.AsOf = slot.AsOf
		}
		s.Known, s.Held = s.Known && slot.Known, s.Held || slot.Held
		s.Waiters, s.Err = max(s.Waiters, slot.Waiters), cmp.Or(s.Err, slot.Err)
	}
	return s
}

// lookedAt returns the kind that an Inspect or Observe asks for.
func lookedAt(kinds []Kind) (wanted config.Kind, err error) {
	for _, k := range kinds {
		wanted = wanted.With(k.kind)
	}
	return wanted, invalid(wanted.Check())
}

// addEnd adds the token of the lease that is held, and when its keys end.
func (sh *shard) addEnd(s *Status, h *quorum.Holding, asOf clock.Validity) {
	s.Token, s.TTL = h.Token, wire.Endless
	if h.Until != quorum.Never {
		s.TTL, s.Until = h.Until.Sub(asOf), sh.m.clock.Time(h.Until)
	}
}

// inspectable returns the error of a request that cannot be sent to the nodes.
func (m *Manager) inspectable(ctx context.Context, name string) error {
	if ctx == nil {
		return errNilContext()
	}
	if err := checkName(name); err != nil {
		return err
	}
	if m.life.ending() {
		return ErrClosed
	}
	return nil
}

// ownerOn returns the owner value that a node shows for a holder. All readers have the same value.
func ownerOn(h Holder, readers int) string {
	if readers > 0 {
		return wire.Nobody
	}
	return h.Owner
}

// readersOf returns the readers that a majority of the nodes names.
func (sh *shard) readersOf(answers *ensemble.Answers) (all []Holder) {
	votes := map[string]int{}
	for i := range answers.Replies {
		r := &answers.Replies[i]
		if r.Status != wire.Done || r.Readers == nil {
			continue
		}
		for _, value := range r.Readers.Values {
			h := holder(value)
			if votes[h.Owner]++; votes[h.Owner] == sh.ensemble.Quorum() {
				all = append(all, h)
			}
		}
	}
	slices.SortFunc(all, func(a, b Holder) int { return a.Since.Compare(b.Since) })
	return all[:min(len(all), listedReaders)]
}

// waiters returns the waiters whose tickets a node has shown.
func (sh *shard) waiters(tickets []wire.Ticket, asked clock.Validity, asOf time.Time) (all []Waiter) {
	validity, steady := sh.m.clock.Both()
	now := sh.ensemble.Time(steady.Add(asked.Sub(validity))).Microseconds()
	for _, t := range tickets {
		waited := time.Duration(max(now-t.EnqueuedAt, 0)) * time.Microsecond
		all = append(all, Waiter{
			Process: t.Manager, Own: t.Manager == sh.campaigns.Manager(), Since: asOf.Add(-waited), Shared: t.Shared, Permits: t.Limit,
		})
	}
	return all
}

// listedReaders is how many readers Inspect names.
const listedReaders = 16

func (sh *shard) status(name string, answers *ensemble.Answers) Status {
	s := Status{Name: name, AsOf: sh.m.clock.Time(answers.Began), Nodes: make([]NodeStatus, sh.ensemble.Size())}
	votes, tickets := map[string]int{}, []wire.Ticket(nil)
	for i := range answers.Replies {
		r, n := &answers.Replies[i], &s.Nodes[i]
		*n = nodeStatus(sh.ensemble, i)
		n.TTL, n.Fence, n.Err = r.TTL, r.Register, nil
		health := sh.ensemble.Nodes()[i].Health()
		s.Fence = max(s.Fence, r.Register)
		if health.Withheld {
			if n.Warning = health.Err; health.Warning != nil {
				n.Warning = errs.Join(health.Err, health.Warning)
			}
		}
		if r.Status != wire.Done {
			n.Err = answers.Err(i)
			continue
		}
		if waiters := int(r.Waiters); waiters > s.Waiters {
			s.Waiters, tickets = waiters, r.Tickets
		}
		if r.Free() {
			n.TTL = wire.Absent // a reservation is not a lease
			continue
		}
		n.Holder = holder(r.Held)
		if r.Readers != nil {
			asked := n.Holder.Asked
			value, count := r.Reading()
			n.Holder, n.Readers = holder(value), count
			n.Holder.Asked = asked
		}
		owner := ownerOn(n.Holder, n.Readers)
		if votes[owner]++; votes[owner] > s.Votes {
			s.Votes, s.Holder, s.Readers = votes[owner], n.Holder, n.Readers
		}
	}
	if s.Readers > 0 {
		s.Holders = sh.readersOf(answers)
		listed := slices.ContainsFunc(s.Holders, func(h Holder) bool { return h.Owner == s.Holder.Owner })
		if len(s.Holders) > 0 && !listed { // only one node has that reader
			asked := s.Holder.Asked
			s.Holder = s.Holders[0]
			s.Holder.Asked = asked
		}
		for _, n := range s.Nodes {
			s.Readers = max(s.Readers, n.Readers)
		}
	}
	s.Queue = sh.waiters(tickets, answers.Began, s.AsOf)
	h := quorum.Agreed(observe.Sights(answers))
	if s.Known, s.Held = h.Known, h.Held; s.Held {
		sh.addEnd(&s, &h, answers.Began)
	}
	return s
}

// Nodes returns the state of each node from memory, for a health endpoint for example. It
// sends no request and never blocks.
func (m *Manager) Nodes() (all []NodeStatus) {
	for _, sh := range m.shards {
		all = append(all, sh.nodes()...)
	}
	return all
}

func (sh *shard) nodes() []NodeStatus {
	all := make([]NodeStatus, sh.ensemble.Size())
	for i := range all {
		all[i] = nodeStatus(sh.ensemble, i)
	}
	return all
}

// LeaseStatus is the state of a lease of this process.
type LeaseStatus struct {
	Name      string
	Token     int64
	Slot      int  // of a permit, from 0; -1 for other leases
	Shared    bool // it is a shared lease
	Since     time.Time
	TTL       time.Duration
	Remaining time.Duration // until work must stop unless the lease is renewed
	AtRisk    bool          // see AtRisk
	Margin    int           // as in Renewed
	Wanted    Wanted        // who wants the lease, see Leases
	Nodes     []*NodeError  // the latest errors, of the nodes that have one
}

// Leases returns the leases that this Manager holds, in no order, for a page that people look at.
// It reads memory, sends no request and never blocks. Work under a lease calls Lease.Valid instead.
// It is empty after Close.
//
// Wanted counts the callers of this process that want an exclusive lease at once, and others from
// the first renewal after the first call of Leases. From then on the Manager needs more memory for
// each lease.
func (m *Manager) Leases() []LeaseStatus {
	all := []LeaseStatus{}
	for _, sh := range m.shards {
		all = append(all, sh.leases()...)
	}
	return all
}

func (sh *shard) leases() []LeaseStatus {
	locks, now := sh.dog.All(), sh.m.clock.Now()
	all, asOf := make([]LeaseStatus, 0, len(locks)), sh.m.clock.Time(now)
	for _, lock := range locks {
		v, ok := lock.View(now, sh.queues.Tell)
		if !ok {
			continue
		}
		l, w := (*Lease)(v.Tenant.(*tenant)), v.Want
		all = append(all, LeaseStatus{
			Name: l.Name(), Token: l.token, Slot: l.Slot(), Shared: l.Shared(), Since: asOf.Add(v.Granted.Sub(now)),
			TTL: lock.Terms().TTL, Remaining: max(v.Stop.Sub(now), 0), AtRisk: v.State == quorum.StateAtRisk, Margin: v.Margin,
			Wanted: Wanted{Waiters: w.Waiters, Asked: w.Asked, By: w.Note.By, Reason: w.Note.Reason},
			Nodes:  nodeErrors(sh.ensemble, v.Errors),
		})
	}
	return all
}

// Ready returns nil while a majority of the nodes can grant locks: for a readiness probe. It reads
// memory, sends no request and never blocks.
//
// It returns ErrNoQuorum (a *QuorumError with each node that grants no locks, and RetryAfter if
// quarantines are the only reason), and ErrClosed after Close has begun. A lease that is held may
// still be valid: do not restart a program because it is not ready. With WithRestartGuard, nodes
// that are new are in quarantine, and a Manager is not ready, for the time of the guard.
func (m *Manager) Ready() error {
	if m.life.ending() {
		return ErrClosed
	}
	votes, problems := 0, make([]error, len(m.nodes))
	for i, s := range m.Nodes() {
		if s.Voting {
			votes++
		} else {
			problems[i] = s.Err
		}
	}
	if votes >= quorum.Size(len(m.nodes)) {
		return nil
	}
	err := m.noQuorum("ready", votes, problems)
	err.RetryAfter = ensemble.Quarantined(m.nodes)
	return err
}

func holder(value string) Holder {
	v := wire.ParseValue(value)
	h := Holder{Label: v.Label, Owner: v.Owner, TraceParent: v.TraceParent, Since: v.Since, Detached: v.Detached}
	if v.Asked {
		h.Asked = v.Note.String()
	}
	if v.Revoked {
		h.Revoked = v.Note.String()
	}
	return h
}
