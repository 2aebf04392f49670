package sim

import (
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// World is the kind of faults that a run may have.
type World uint8

const (
	// Inside is the world of the fault model: clock rates that differ by less
	// than 1 % and no steps of the nodes' clocks; nodes that lose their data
	// only under the restart guard.
	Inside World = iota + 1
	// Anything is the world of clocks that step or run at any rate. Nodes lose
	// data only where the quarantine is longer than their clocks differ.
	Anything
	// Stepped is Inside without loss of data, and the clocks of any number of
	// nodes are set ahead by 2 TTL or more, those of others back. Clients do not
	// come and go: each knows every clock from before. A clock that goes back
	// and ahead between two looks of a client is not among them: it may look as
	// if it had gone back alone, and then no client doubts its votes.
	Stepped
)

var worldNames = [...]string{"?", "inside", "anything", "stepped"}

// String returns the name that the flag of TestOne takes.
func (w World) String() string { return worldNames[w] }

// ParseWorld returns the world of that name.
func ParseWorld(name string) (w World, ok bool) {
	for i, n := range worldNames {
		if n == name && i > 0 {
			return World(i), true
		}
	}
	return 0, false
}

// Params make a run: equal Params, equal run.
type Params struct {
	Seed  int64
	Nodes int // 1 … maxNodes
	World World
	// Span is how many TTLs the faults go on.
	Span int
	// Mutation is a planted bug. Its runs are drawn where it can show.
	Mutation Mutation
	// Innocent draws the runs of Mutation and leaves the bug out.
	Innocent bool
	// Trace, if set, gets every event.
	Trace func(format string, args ...any)
}

// String returns the flags that run it again.
func (p Params) String() string {
	s := fmt.Sprintf("-seed=%d -nodes=%d -world=%v -span=%d", p.Seed, p.Nodes, p.World, p.Span)
	if p.Mutation != 0 {
		s += fmt.Sprintf(" -mutation=%q", p.Mutation)
	}
	if p.Innocent {
		s += " -innocent"
	}
	return s
}

// maxNodes and maxClients bound the arrays of a world; usualClients are as
// many as most runs have at the most.
const (
	maxNodes     = 5
	maxClients   = 8
	usualClients = 4
)

// config is the setting of a run, drawn from its seed first.
type config struct {
	clients    int
	terms      quorum.Terms
	maxTTL     time.Duration // of the restart guard
	late       time.Duration // timers are late by less
	lag        time.Duration // what clients know of that, beyond terms.Early
	ahead      time.Duration // a register moves no further ahead of the node's clock
	renew      time.Duration // from one renewal to the next, about
	backoffCap time.Duration // longest wait between two attempts
	hold       time.Duration // longest hold
	grace      time.Duration // how long a lock is reserved
	faults     time.Duration // when they stop

	rate   int64         // clock rates lie within ± this, in millionths
	offset time.Duration // the nodes' wall clocks start within ± this
	apart  bool          // at the one end or the other
	step   time.Duration // and may step within ± this; 0 for none

	misjudged time.Duration // proposals are off the cluster's time within ± this
	grain     time.Duration // and multiples of this, so that they collide; 0 for any
	block     int64         // tokens that a client asks for
	callers   int           // of each client
	pace      time.Duration // how many times longer than in production the limits of quorum.Local are

	queues       int  // clients of 100 that queue, the others ask again and again
	giveUp       int  // failed attempts of 1000 that end the wait
	unsubscribed int  // of 1000: a channel has no subscriber, or seems to have one and has none
	orderly      bool // nothing goes wrong, and all queue

	fifo    bool // links keep the order of their messages
	loss    int  // messages of 1000
	slow    int  // messages of 1000 that are late by up to 3 TTL
	repeat  int  // messages of 1000 that come twice
	latency time.Duration
	service time.Duration // of a node for a request; 0: it is never busy

	everyPause    time.Duration // mean time between two faults of a kind; 0 for none
	everyCrash    time.Duration
	everyQuit     time.Duration
	everyJump     time.Duration // of a client's wall clock
	everyDown     time.Duration
	everyFlush    time.Duration
	everyCheck    time.Duration // clients greet nodes again, over connections that stand
	everyStall    time.Duration
	everyFreeze   time.Duration
	everyTrim     time.Duration
	everyCut      time.Duration
	everyDistance time.Duration
	everyStep     time.Duration
	everyCommon   time.Duration
	everyBlip     time.Duration

	guard     bool // the restart guard is on
	known     bool // and has seen the nodes before
	amnesia   bool // nodes may lose data: at a restart, and by a flush
	stepAware bool // clients look for steps of the nodes' clocks
}

// minGrace and maxGrace bound how long a lock is reserved: a few round trips.
const (
	minGrace = 20 * time.Millisecond
	maxGrace = 200 * time.Millisecond
)

// modelRate is the most that a clock inside the fault model is fast or slow, in
// millionths: two of them differ by less than 1 %.
const modelRate = 4900
