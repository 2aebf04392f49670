package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Script is the simulation's script on one node, without the rest of a run. tests/differential runs the same
// operations on it and on the Lua of a server, and compares the answers, the messages and the keys.
type Script struct{ w *world }

// Setting is what all operations of a Script have in common.
type Setting struct {
	TTL     time.Duration // of every lock
	Grace   time.Duration // of every reservation
	Ahead   time.Duration // how far a register may move ahead of the node's clock
	Alone   bool          // the list has this node only
	Permits int           // the largest limit; 0 if the name is a lock
}

// Operation is one operation. Fields that do not apply to it are 0.
type Operation struct {
	Name                string        // as the Lua has it; "detach" and "revoke" are kinds of mark, and "lean" is the acquisition of the lean script
	TTL                 time.Duration // of the lock; 0 for the Setting's TTL
	Client              int
	Owner, From, Ticket uint32 // a revocation of readers has no owner
	Place               int64  // of the ticket, µs
	Token               int64  // that is asked for, or that the lease has
	NotAfter, Held      int64  // µs of the node's clock
	Life                time.Duration
	Lapsed              bool // mode 'l'
	Stays, Yields       bool // the ticket keeps its place; others go first this once
	LeavesFree          bool // mode 'f'
	Slot, Limit         int  // the slot is counted from 0
	OtherMarker         bool // the client knows another marker than the node has
	Deaf                bool // the client is not subscribed at the node, so that its tickets may not queue
}

// Outcome is an answer. Position is −1 for a ticket that does not wait, and Left is in ms.
type Outcome struct {
	Answer                        string
	Moved, Before, Position, Left int64
	Free                          int // a slot that is offered, −1 for none
}

// Message wakes a waiter: kind and ticket are as in the Lua, and the slot is −1 for a message that names none.
type Message struct {
	Kind   string
	Ticket uint32
	Slot   int
}

// State is what the keys of a name show.
type State struct {
	Lots    []LotState // of the lock, or of each slot
	Readers []Member   // that count, in the order of their owners
	Queue   []Place    // in its order
	Rights  []Member   // of waiters that are let in, in the order of their tickets
	Base    int64
}

// LotState is a lock and its register.
type LotState struct {
	Form                  string // lease, reserved, revoked, detached, readers, revoked readers; "" for a free lock
	Owner                 uint32
	Shown, Ends, Register int64
}

// Member is a reader, or a waiter for whom the node keeps a place among readers, or a right.
type Member struct {
	Owner uint32
	Woken bool
	Ends  int64
}

// Place is a ticket in the queue.
type Place struct {
	Ticket uint32
	At     int64
	Reads  bool
	Limit  int
}

// NewScript returns a script whose only key is the marker.
func NewScript(s Setting) *Script {
	w := newWorld()
	w.reset(Params{Nodes: 3, World: Inside})
	if s.Alone {
		w.p.Nodes = 1
	}
	w.config = config{
		clients: maxClients, guard: true, votesMatch: true, ahead: s.Ahead, maxTTL: s.TTL, grace: s.Grace,
		terms: quorum.Terms{Nodes: w.p.Nodes, TTL: s.TTL},
	}
	w.permits.limit = int8(s.Permits)
	w.quiet = true // no message is lost, and every subscription is as it seems
	n := &w.nodes[0]
	*n = node{w: w}
	n.process()
	n.marker.run = n.run
	return &Script{w}
}

// Listens sets whether a client's channel has a subscriber. At first it has one.
func (s *Script) Listens(client int, on bool) {
	s.w.clients[client].life = 0
	if !on {
		s.w.clients[client].life = 1
	}
}

// Lives reports whether the client's channel has a subscriber.
func (s *Script) Lives(client int) bool { return s.w.clients[client].life == 0 }

var driven = map[string]op{
	"acquire": opAcquire, "lean": opAcquire, "anew": opAcquire, "wait": opAcquire, "permit": opAcquire, "extend": opExtend, "heal": opHeal, "raise": opRaise,
	"release": opRelease, "leave": opRelease, "back": opRelease, "pass": opPassOn, "detach": opDetach, "resume": opResume, "drop": opDrop,
	"share": opAcquire | reads, "prolong": opExtend | reads, "restore": opHeal | reads, "align": opRaise | reads, "quit": opRelease | reads,
}

// Run runs an operation at an instant of the node's clock. It returns the answer, the messages, and what the
// oracles have found.
func (s *Script) Run(o *Operation, wall time.Duration) (Outcome, []Message, *Violation) {
	w, n := s.w, &s.w.nodes[0]
	w.config.terms.TTL = cmp.Or(o.TTL, w.config.maxTTL)
	n.expire(wall)
	m := message{
		op: driven[o.Name], client: int8(o.Client), owner: o.Owner, holder: o.From, ticket: o.Ticket, enqueuedAt: o.Place,
		t: o.Token, after: o.NotAfter, held: o.Held, left: o.Life.Milliseconds(), subscribed: !o.Deaf, lapsed: o.Lapsed, leaveFree: o.LeavesFree,
		marker: n.marker, ofSlot: ofSlot{limit: int8(o.Limit)},
	}
	switch {
	case o.Name == "lean":
		m.way, m.ends = leanWay, (wall + w.config.terms.TTL).Milliseconds()
	case o.Name == "anew":
		m.way = anewWay
	case o.Yields:
		m.update = yields
	case o.Stays:
		m.update = keepsPlace
	}
	if o.OtherMarker {
		m.marker.run++
	}
	if w.permits.limit > 0 {
		m.slot = int8(o.Slot) + 1
	}
	n.slots.turnTo(&n.lot, m.slot)
	if o.Name == "revoke" {
		owner := o.Owner
		if owner == 0 {
			owner = everybody
		}
		if !canMark(n, owner, wall) {
			return Outcome{Answer: notDone.String()}, nil, nil
		} else if micros(wall) > o.NotAfter {
			return Outcome{Answer: late.String()}, nil, nil
		}
		revokeLock(n, wall, o.Life)
		return Outcome{Answer: done.String()}, nil, nil
	}
	a := serveLock(n, &m, wall, 0)
	var sent []Message
	for !w.agenda.empty() {
		_, e := w.agenda.next()
		sent = append(sent, messageOf(&e.message))
	}
	return Outcome{a.String(), m.moved, m.before, m.position, m.left, int(m.free) - 1}, sent, w.judge.found
}

// messageOf returns a message as the Lua publishes it.
func messageOf(m *message) Message {
	kind := map[answer]string{forTicket: "r", leftFree: "f", askAgain: "a"}[m.answer]
	if m.answer == forNext {
		kind = string('0' + rune(m.rank))
	}
	return Message{kind, m.ticket, int(m.slot) - 1}
}

// State returns the keys at an instant.
func (s *Script) State(wall time.Duration) State {
	n := &s.w.nodes[0]
	n.expire(wall)
	state := State{Base: n.base}
	if limit := s.w.permits.limit; limit == 0 {
		state.Lots = append(state.Lots, lotState(&n.lot, n.reserved))
	} else {
		for k := range limit {
			state.Lots = append(state.Lots, lotState(n.slots.of(&n.lot, k+1), false))
		}
	}
	if n.owner == everybody {
		for _, r := range n.set.members[:n.set.count] {
			if r.ends > wall.Milliseconds() {
				state.Readers = append(state.Readers, Member{r.owner, r.woken, r.ends})
			}
		}
		sortMembers(state.Readers)
	}
	for _, v := range n.queue[:n.queued] {
		state.Queue = append(state.Queue, Place{v.ticket, v.enqueuedAt, v.reads, int(v.limit)})
	}
	for _, r := range n.slots.rights[:n.slots.let] {
		if r.ends > wall.Milliseconds() {
			state.Rights = append(state.Rights, Member{r.ticket, true, r.ends})
		}
	}
	sortMembers(state.Rights)
	return state
}

// Load replaces the keys by the keys of a state. What the state does not show is forgotten: which tickets were woken,
// and which writers were probed.
func (s *Script) Load(state State) {
	n := &s.w.nodes[0]
	n.data = data{marker: n.marker, base: state.Base}
	for _, v := range state.Queue[:min(len(state.Queue), maxQueue)] {
		n.queue[n.queued] = waiting{ticket: v.Ticket, enqueuedAt: v.At, reads: v.Reads, limit: int8(v.Limit)}
		n.queued++
	}
	if s.w.permits.limit > 0 {
		for k, l := range state.Lots {
			n.slots.lots[k+1], _ = loaded(l)
		}
		for _, r := range state.Rights {
			n.slots.admit(r.Owner, r.Ends)
		}
		return
	}
	n.lot, n.reserved = loaded(state.Lots[0])
	n.set.ends = n.expires
	for _, r := range state.Readers {
		n.set.put(r.Owner, r.Woken, r.Ends)
		n.set.ends = max(n.set.ends, r.Ends)
	}
}

// loaded returns a lock as lotState shows it, and whether it is reserved.
func loaded(s LotState) (l lot, reserved bool) {
	l = lot{owner: s.Owner, shown: s.Shown, expires: s.Ends, register: s.Register}
	switch s.Form {
	case "reserved":
		return l, true
	case "readers":
		l.owner = everybody
	case "revoked readers":
		l.owner, l.form = everybody, revokedForm
	case "revoked":
		l.form = revokedForm
	case "detached":
		l.form = detachedForm
	}
	return l, false
}

func sortMembers(all []Member) {
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.Owner, b.Owner) })
}

func lotState(l *lot, reserved bool) LotState {
	form := [...]string{ownedForm: "lease", revokedForm: "revoked", detachedForm: "detached"}[l.form]
	s := LotState{form, l.owner, l.shown, l.expires, l.register}
	switch {
	case l.owner == 0:
		return LotState{Register: l.register}
	case reserved:
		s.Form = "reserved"
	case l.owner == everybody && l.form == revokedForm:
		s.Form, s.Owner = "revoked readers", 0
	case l.owner == everybody:
		s.Form, s.Owner = "readers", 0
	}
	return s
}

// Instants returns when keys and their parts end, ms. What happens at such an instant depends on the server's
// millisecond.
func (s *Script) Instants() (all []int64) {
	n := &s.w.nodes[0]
	all = append(all, n.expires, n.set.ends, n.watchedUntil.Milliseconds(), n.set.probe.since+1000, n.set.probe.since+2000)
	for _, r := range n.set.members[:n.set.count] {
		all = append(all, r.ends)
	}
	for _, r := range n.slots.rights[:n.slots.let] {
		all = append(all, r.ends)
	}
	for k := range n.slots.lots {
		all = append(all, n.slots.lots[k].expires)
	}
	return all
}
