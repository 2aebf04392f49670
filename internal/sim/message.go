package sim

import "time"

// op is an operation; each is one of those that the script apply runs.
type op uint8

const (
	opAcquire op = iota + 1
	opExtend
	opHeal
	opRaise
	opRelease
	opPassOn
	opLook  // the lapsed form of pass on: empties the queue of a free lock
	opGreet // the restart guard and a look at the clock, on a new connection
	opWake  // no request: the node wakes a waiter
)

var opNames = [...]string{"?", "acquire", "extend", "heal", "raise", "release", "pass on", "look", "greet", "wake"}

func (o op) String() string { return opNames[o] }

// answer of a node.
type answer uint8

const (
	granted       answer = iota + 1 // acquire
	taken                           // acquire, extend, heal: another owner's, or reserved for another ticket
	late                            // acquire, heal: after the instant it was limited to. Not applied
	markerChanged                   // acquire: the marker is not the one that the client knows. Not applied
	notConnected                    // any: not applied
	confirmed                       // extend: our owner and our token; heal
	withoutToken                    // extend: our owner, and another token
	missing                         // extend: no lock, or a reservation
	done                            // raise, release, pass on, greet
	notDone                         // raise, release, pass on
	forTicket                       // wake: the lock is reserved for the ticket
	forNext                         // wake: the lock is reserved for the ticket before it
	askAgain                        // wake: the queue is gone
)

var answerNames = [...]string{
	"?", "granted", "taken", "late", "marker changed", "not connected", "confirmed", "confirmed without token",
	"missing", "done", "not done", "reserved", "next", "ask again",
}

func (a answer) String() string { return answerNames[a] }

// ticketUpdate says what a release does with the ticket.
type ticketUpdate uint8

const (
	leaves     ticketUpdate = iota // the ticket leaves the queue
	keepsPlace                     // it keeps its place
	yields                         // it keeps its place, and others go first this once
)

// message is a request, or its answer on the way back.
type message struct {
	op     op
	answer answer
	reply  bool
	client int8
	node   int8

	subscribed  bool // acquire: the client's channel has a subscriber, so that the ticket may queue
	lapsed      bool // acquire: the client has waited out a reservation that nobody used
	distrust    bool // greet: start a quarantine
	reservation bool // taken: by a reservation; release: the lock is reserved for another client now
	leaveFree   bool // release: the head of the queue is woken, and the lock reserved for nobody
	update      ticketUpdate

	life   uint32 // of the client, which forgets all when it crashes
	line   uint32 // the connection: it breaks when the node goes down
	owner  uint32
	ticket uint32 // of the waiter; 0 for none

	enqueuedAt int64 // acquire, release: the score of the ticket, µs
	position   int64 // taken: the number of tickets before ours, or -1; granted, raise: how many wait
	left       int64 // taken: how long the lock in the way lives, ms

	t      int64  // acquire: the proposal; raise: the new top; extend, heal: the token of the lease. µs
	moved  int64  // granted: the position that this attempt moved the register to; 0 if the node was ahead
	before int64  // granted, raise: the position before
	marker marker // acquire: as the client knows it; greet, reply: as it is
	after  int64  // acquire, heal: void after this, µs of the node's clock
	clock  int64  // reply: the node's clock, µs

	sent   time.Duration // by the client's validity clock
	steady time.Duration // and by its steady clock
	issued time.Duration // and in true time, for the judge
	bound  time.Duration // the meaning of after, by the client's steady clock
	slack  time.Duration // the error of that
}

// marker is the restart guard's: it names the process that the data belongs
// to. It is data like any other, and lost with it.
type marker struct {
	run   uint32 // 0: there is no marker
	until int64  // end of the quarantine, µs of the node's clock; 0 if there never was one
}
