package sim

import "time"

// op is an operation of the script apply.
type op uint8

const (
	opAcquire op = iota + 1
	opExtend
	opHeal
	opRaise
	opRelease
	opPassOn
	opDetach // mark, of the kind 'd'
	opResume // an acquire that replaces the owner of a detached lock
	opDrop
	opGreet    // runs the restart guard and reads the clock, on a new connection
	opWake     // no request: the node wakes a waiter
	opLook     // asks whether keys of the slot are leaving
	opWithdraw // makes the marker name no server

	// reads turns an operation of a writer into a reader's: acquire, extend, heal, raise and release into share,
	// prolong, restore, align and quit.
	reads op = 1 << 4
)

var opNames = [...]string{"?", "acquire", "extend", "heal", "raise", "release", "pass on", "detach", "resume", "drop", "greet", "wake", "look", "withdraw"}

var readerNames = [...]string{"?", "share", "prolong", "restore", "align", "quit"}

func (o op) String() string {
	if o&reads != 0 {
		return readerNames[o&^reads]
	}
	return opNames[o]
}

// of returns the operation for a reader or a writer.
func (o op) of(reader bool) op {
	if reader {
		return o | reads
	}
	return o
}

// plain returns the operation without regard to whether a reader asks.
func (o op) plain() op { return o &^ reads }

// asks reports whether it is a request of an attempt for the lock.
func (o op) asks() bool { return o.plain() == opAcquire || o == opResume }

// aside reports whether it is a question about the node, and concerns no lease.
func (o op) aside() bool { return o == opGreet || o == opLook || o == opWithdraw }

// insists reports whether it is sent again over a new connection if its answer is missing.
func (o op) insists() bool { return o.plain() == opRelease || o == opPassOn || o == opDrop }

// usesHandle reports whether it may change a detached lock, if it names the right owner.
func (o op) usesHandle() bool { return o == opDetach || o == opResume || o == opDrop }

// answer of a node.
type answer uint8

const (
	granted       answer = iota + 1 // acquire, resume
	made                            // lean: the lock is there, with what decides whether it is a vote
	notMade                         // lean: there is one already
	behind                          // lean: the register is not below the proposal, or may not move so far
	unknown                         // acquire: the lock may be made, but isn't a vote
	taken                           // acquire, resume, extend, heal: another owner's, or reserved for another ticket
	late                            // acquire, resume, heal, detach: arrived after its limit. Not applied
	markerChanged                   // acquire, resume: the marker differs from the one that the client knows. Not applied
	notConnected                    // any: not applied
	notMaster                       // any: not applied, and the connection to the group has ended
	halfMoved                       // any: not applied, keys of the slot are leaving
	confirmed                       // extend: our owner and our token; heal
	withoutToken                    // extend: our owner, and another token
	withoutVote                     // extend: our owner, and the marker differs
	missing                         // extend: no lock, or a reservation
	done                            // raise, release, pass on, greet, detach, drop
	notDone                         // raise, release, pass on, detach, drop
	forTicket                       // wake: the lock is reserved for the ticket
	leftFree                        // wake: the lock is free, and the ticket is the head
	forNext                         // wake: the lock is reserved for a ticket before it
	askAgain                        // wake: the node has emptied the queue
)

var answerNames = [...]string{
	"?", "granted", "made", "not made", "behind", "unknown", "taken", "late", "marker changed", "not connected", "not the master", "half moved", "confirmed", "confirmed without token",
	"confirmed without vote", "missing", "done", "not done", "reserved", "free", "next", "ask again",
}

func (a answer) String() string { return answerNames[a] }

// ticketUpdate is the change that a release makes to the ticket.
type ticketUpdate uint8

const (
	leaves     ticketUpdate = iota // the ticket leaves the queue
	keepsPlace                     // the ticket keeps its place
	yields                         // the ticket keeps its place, but others go first this time
)

// message is a request, or its answer on the way back.
type message struct {
	op     op
	answer answer
	reply  bool
	client int8
	node   int8

	subscribed   bool // the client's channel has a subscriber, so that the ticket may queue, and keep its place
	lapsed       bool // acquire: the client has waited for the end of an unused reservation
	clockSuspect bool // greet: start a quarantine
	unguarded    bool // greet: the term is not confirmed, so the restart guard does not run
	forced       bool // greet: keys may have left since the marker was written, so start a quarantine
	open         bool // reply to greet and look: keys of the slot are leaving
	reservation  bool // taken: by a reservation; release: the lock is reserved for another client now
	leaveFree    bool // release: wake the head of the queue, and make no reservation
	update       ticketUpdate
	again        bool // granted: the second copy of a request has found its lock
	rank         int8 // wake: of a ticket behind the head, among those that are woken

	life   uint32 // of the client; a crash starts a new one, without state
	server int8   // of a group
	epoch  uint32 // of the term whose master was dialled
	line   uint32 // the connection: it breaks when the node goes down
	owner  uint32
	holder uint32 // taken: the owner of the lock in the way; resume: the owner that has detached the lock; release: the owner of the handle to which it is given back
	ticket uint32 // of the waiter; 0 for none

	enqueuedAt int64 // acquire, release: the score of the ticket, µs
	position   int64 // taken: the number of tickets before ours, or -1; granted, raise: how many wait, 0 for a second copy
	left       int64 // taken: how long the blocking lock lives, ms; detach: how long it is kept

	t      int64  // acquire, resume: the proposal; raise: the new top; extend, heal: the token of the lease. µs
	moved  int64  // granted: the position that this attempt moved the register to; 0 if the node was ahead
	before int64  // granted, raise: the position before
	held   int64  // heal: where the marker differs, void after this, µs of the node's clock
	marker marker // acquire, resume: as the client knows it; to a group every request; reply to greet: as the node has it
	after  int64  // acquire, resume, heal, detach: void after this, µs of the node's clock
	clock  int64  // reply: the node's clock, µs

	ofSlot
	ofLean
	stamps
}

// way is how an acquisition is made.
type way uint8

const (
	usualWay way = iota // by the script apply
	leanWay             // by the lean script, and commands behind it
	anewWay             // by apply, which deletes a lock of this owner first
)

// ofLean is what a message says about the lean way.
type ofLean struct {
	way  way
	step int8   // commands of the batch that have run
	read bool   // MGET has answered
	hint bool   // it shows a queue
	base int64  // and this base
	seen marker // and this marker
	ends int64  // of the lock, ms of the node's clock
}

// ofSlot is what a message says about slots.
type ofSlot struct {
	slot  int8 // that is asked for, or that a wake-up names; 0 for none
	limit int8 // acquire: of the client
	free  int8 // taken: a slot that may be asked for at once, 0 if there is none
}

// stamps are the instants of a message.
type stamps struct {
	sent   time.Duration // by the client's validity clock
	steady time.Duration // and by its steady clock
	issued time.Duration // and in true time, for the judge
	bound  time.Duration // the same limit as after, by the client's steady clock
	slack  time.Duration // the error of that conversion
	ttl    time.Duration // extend, heal: what the lease asks for; 0 for the usual TTL
}

// marker is the marker of the restart guard. It names the server process that the data
// belongs to. It is part of the data, and is lost with it.
type marker struct {
	run   uint32 // 0: there is no marker
	epoch uint32 // of a group's term; 0 for a node that is one server
	until int64  // end of the quarantine, µs of the node's clock; 0 if there never was one
}

// place returns the fate of a release's ticket: a client that no message reaches loses its place.
func (m *message) place() ticketUpdate {
	if !m.subscribed {
		return leaves
	}
	return m.update
}
