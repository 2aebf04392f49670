package sim

import (
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// World is the kind of faults that a run may have.
type World uint8

const (
	// Inside is the world of the fault model. Clock rates differ by less than 1 %. The
	// nodes' clocks do not step. Nodes lose data only under the restart guard.
	Inside World = iota + 1
	// Anything is the world of clocks that step or run at any rate. Nodes lose
	// data only if the quarantine is longer than the difference of their clocks.
	Anything
	// Stepped is Inside without loss of data. The clocks of any number of nodes are set
	// ahead by 2 TTL or more, and other nodes' clocks back. Clients do not come and go:
	// each knows every clock before it steps. No clock goes back and ahead between two
	// readings of a client. Such a clock may look as if it had only gone back, and then
	// the client accepts its votes.
	Stepped
	// Groups is Inside with nodes that are failover groups: one node, or all of them. Their
	// servers' clocks do not step, but each server has its own.
	Groups
	// Together is Inside with callers that ask once. In half of the runs there are no faults
	// but these: all callers ask at one instant, over distances of their own, and a minority
	// of the nodes does not answer.
	Together
)

var worldNames = [...]string{"?", "inside", "anything", "stepped", "groups", "together"}

// String returns the name that the flag of TestOne takes.
func (w World) String() string { return worldNames[w] }

// plain reports whether every promise holds: no clock of a node steps, and all nodes are
// single servers.
func (w World) plain() bool { return w == Inside || w == Together }

// ParseWorld returns the world of that name.
func ParseWorld(name string) (w World, ok bool) {
	for i, n := range worldNames {
		if n == name && i > 0 {
			return World(i), true
		}
	}
	return 0, false
}

// Params define a run: equal Params give equal runs.
type Params struct {
	Seed  int64
	Nodes int // 1 … maxNodes
	World World
	// Span is how many TTLs the faults last.
	Span int
	// Mutation is a planted bug. Its runs get settings in which the bug can show.
	Mutation Mutation
	// Innocent keeps the settings of Mutation but leaves the bug out.
	Innocent bool
	// Trace, if set, is called for every event.
	Trace func(format string, args ...any)
}

// String returns the flags that repeat the run.
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

// Result is the outcome of a run.
type Result struct {
	Params
	Stats
	Violation *Violation // the first; nil if there was none
}

// maxNodes and maxClients bound the arrays of a world. Most runs have at most
// usualClients clients.
const (
	maxNodes     = 5
	maxClients   = 8
	usualClients = 4
)

// nodeSet is a set of nodes, one bit for each.
type nodeSet uint8

// config has the settings of a run. They are drawn from its seed first.
type config struct {
	clients    int
	terms      quorum.Terms
	maxTTL     time.Duration // of the restart guard
	late       time.Duration // timers are late by less than this
	lag        time.Duration // the part of that delay that clients expect, beyond terms.Early
	ahead      time.Duration // how far a register may move ahead of the node's clock
	renew      time.Duration // approximate time between two renewals
	backoffCap time.Duration // longest wait between two attempts
	hold       time.Duration // longest hold
	grace      time.Duration // how long a lock is reserved
	faults     time.Duration // when the faults stop

	rate   int64         // clock rates lie within ± this, in millionths
	offset time.Duration // the nodes' wall clocks start within ± this
	apart  bool          // exactly at one end of that range
	step   time.Duration // and may step within ± this; 0 for none

	misjudged time.Duration // proposals differ from the cluster's time by up to ± this
	grain     time.Duration // proposals are multiples of this, so that they collide; 0 for any
	block     int64         // tokens that a client asks for
	callers   int           // of each client
	pace      time.Duration // factor on the limits of quorum.Local, compared with production

	queues       int           // how many of 100 clients queue; the others poll
	giveUp       int           // how many of 1000 failed attempts end the wait
	unsubscribed int           // of 1000: a channel has no subscriber, or only seems to have one
	orderly      bool          // no faults, and all clients queue
	once         bool          // every caller asks once
	instant      time.Duration // when all callers ask; 0 if each asks when it likes

	fifo    bool // links keep the order of their messages
	loss    int  // how many of 1000 messages are lost
	slow    int  // how many of 1000 messages are late, by up to 3 TTL
	repeat  int  // how many of 1000 messages come twice
	latency time.Duration
	service time.Duration // of a node for one request; 0: the node is never busy

	everyPause    time.Duration // mean time between two faults of a kind; 0 for none
	everyCrash    time.Duration
	everyQuit     time.Duration
	everyJump     time.Duration // of a client's wall clock
	everyDown     time.Duration
	everyFlush    time.Duration
	everyCheck    time.Duration // clients greet nodes again, over open connections
	everyStall    time.Duration
	everyFreeze   time.Duration
	everyTrim     time.Duration
	everyCut      time.Duration
	everyDistance time.Duration
	everyStep     time.Duration
	everyCommon   time.Duration
	everyBlip     time.Duration
	everyFailover time.Duration
	everyBlind    time.Duration

	groups     nodeSet       // the nodes that are failover groups
	window     time.Duration // how long renewals count after a majority named the master: part of maxTTL
	votesMatch bool          // an extend, a raise and a heal compare the marker as well

	guard     bool // the restart guard is on
	alone     int  // how many of eight acquisitions are alone in their batch, and go the lean way
	known     bool // the restart guard has seen the nodes before
	amnesia   bool // nodes may lose data: at a restart, and by a flush
	stepAware bool // clients look for steps of the nodes' clocks
}

// minGrace and maxGrace bound how long a lock is reserved: a few round trips.
const (
	minGrace = 20 * time.Millisecond
	maxGrace = 200 * time.Millisecond
)

// modelRate is the largest error of a clock's rate inside the fault model, in
// millionths. Two such clocks differ by less than 1 %.
const modelRate = 4900

// Violation is a promise that was broken.
type Violation struct {
	Oracle string // overlap, readers, token, reported, leftover, alarm, liveness, order, marker, sight, revocation, handles, permits
	At     time.Duration
	Text   string
}

// Error returns the text of the violation.
func (v *Violation) Error() string { return fmt.Sprintf("%s at %v: %s", v.Oracle, v.At, v.Text) }
