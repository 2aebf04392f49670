package ensemble

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// errOverloaded means that more acquisitions wait for the node than it answers in time.
var errOverloaded = errors.New("overloaded: too many acquisitions wait for this node")

// Silence is the error of a node that has not answered within this time.
type Silence time.Duration

// Error says how long the call has waited for the node.
func (s Silence) Error() string { return "no answer within " + errs.Readable(time.Duration(s)) }

// Events are what an Ensemble reports upward. The workers of the nodes call them.
type Events interface {
	// NodeChanged reports that a node votes, stops voting, or has a warning.
	NodeChanged(i int, h node.Health)
	// ClockStepped reports that the clock of a node was stepped forward. It runs with the mutex of Steps held; apply
	// runs without it.
	ClockStepped(step *Step) (apply func())
	// Answered reports that node i has answered a request, or that it will not.
	Answered(i int, req *wire.Request, reply *wire.Reply)
	// HandedOn reports that a node has reserved a released lock for a waiter of another process.
	HandedOn(lock string)
	// Woken reports that a node has sent a message about a ticket. Any client may send such messages.
	Woken(i int, kind wire.WakeKind, ticket, lock string)
	// Subscribed reports that the messages of a node arrive from now on.
	Subscribed(i int)
}

// Config is what an Ensemble is made from.
type Config struct {
	Nodes   []rueidis.ClientOption
	First   int         // index of the first one among all nodes of the Manager, for people
	Node    node.Config // of each node, without what the Ensemble sets
	Timeout time.Duration
	Clock   *clock.Clock
	Report  *report.Reporter
	Closing func() bool // whether Close has begun
	Events  Events
}

// Ensemble is the nodes of a Manager as one. It never changes after New, except for what its
// parts guard themselves, and what mu guards.
type Ensemble struct {
	clocks
	pools

	first   int
	timeout time.Duration // of a request, for calls that wait for all nodes
	report  *report.Reporter
	closing func() bool
	events  Events
	lists   *lists

	mu   sync.Mutex
	ids  []node.Identity // of the server behind each node, as far as it is known
	runs []string        // the run_id that each node had last
}

// New returns the nodes. Nothing is sent before their goroutines run.
func New(c *Config) *Ensemble {
	nodes := make([]*node.Node, len(c.Nodes))
	e := &Ensemble{
		clocks: clocks{Clock: c.Clock, nodes: nodes}, first: c.First, timeout: c.Timeout, report: c.Report, closing: c.Closing, events: c.Events,
		lists: newLists(c.Clock, nodes, c.Node.Guard > 0), ids: make([]node.Identity, len(nodes)), runs: make([]string, len(nodes)),
	}
	for i := range c.Nodes {
		one := c.Node
		one.Index, one.First, one.Option, one.Only, one.Clock, one.Lists = i, c.First, c.Nodes[i], len(c.Nodes) == 1, c.Clock.Both, e.lists
		one.Admit, one.OnHealth, one.OwnStep, one.OnClockStep = e.admit, e.onHealth, e.ownClockStepped, e.onClockStep
		one.OnWake, one.OnSubscribed = c.Events.Woken, c.Events.Subscribed
		nodes[i] = node.New(one)
	}
	return e
}

// onHealth handles a change of a node.
func (e *Ensemble) onHealth(i int, h node.Health) {
	if h.Err != nil && !h.Withheld { // otherwise it is connected and its answers count, so its identity stays on record
		e.forget(i)
	}
	e.events.NodeChanged(i, h)
}

// onClockStep handles a step of a node's clock. After a step forward, the node's keys
// expire that much earlier than the leases assume.
func (e *Ensemble) onClockStep(i int, by time.Duration) {
	e.report.Warn("a node's clock was stepped, which can end leases early: set its time service to slew the clock", "node", e.first+i, "addr", e.nodes[i].Addr(), "by", by.Round(time.Millisecond))
	if by <= 0 {
		return
	}
	_, at := e.Clock.Both()
	step := &Step{Node: i, By: by, At: at}
	e.Steps.Lock()
	e.Steps.Add(step)
	apply := e.events.ClockStepped(step)
	e.Steps.Unlock()
	apply()
	for j, n := range e.nodes {
		if reading, _ := n.Reading(); j != i && reading.At < at {
			n.Check() // for ownClockStepped
		}
	}
}

// Nodes returns the nodes, in the order of New's list.
func (e *Ensemble) Nodes() []*node.Node { return e.nodes }

// First returns the index of the first node among all nodes of the Manager.
func (e *Ensemble) First() int { return e.first }

// Size returns the number of nodes.
func (e *Ensemble) Size() int { return len(e.nodes) }

// Used records that the Manager asks for leases.
func (e *Ensemble) Used() { e.lists.use() }

// Settled reports whether each connected node knows the others of the list: until then their votes do not count.
func (e *Ensemble) Settled() bool { return e.lists.settled() }

// Post queues a request for node i. If the node refuses it, to receives the error at
// once.
func (e *Ensemble) Post(i int, req *wire.Request, to node.Receiver) {
	if !e.nodes[i].Post(req, to) {
		e.refuse(i, req, to)
	}
}

// refuse answers a request that node i does not take.
func (e *Ensemble) refuse(i int, req *wire.Request, to node.Receiver) {
	err := errOverloaded
	if e.closing() {
		err = wire.ErrClosed
	}
	to.Receive(i, req, &wire.Reply{Status: wire.NotApplied, Err: err})
}

// PostTo queues a request for each of these nodes.
func (e *Ensemble) PostTo(nodes quorum.Set, req *wire.Request, to node.Receiver) {
	for i := range nodes.All() {
		e.Post(i, req, to)
	}
}

// LeaveQueues removes a ticket from the queues of these nodes.
func (e *Ensemble) LeaveQueues(lock, ticket string, nodes quorum.Set) {
	if nodes == 0 {
		return
	}
	_, now := e.Clock.Both()
	e.PostTo(nodes, wire.NewPass(lock, ticket, now.Add(time.Minute)), Nobody{})
}

// Nobody is a receiver that discards the answers.
type Nobody struct{}

// Receive discards the answer.
func (Nobody) Receive(int, *wire.Request, *wire.Reply) {}

// Ask queues a request for every node, for a caller that waits for the answers. Silent
// nodes are not asked: to receives their answers at once. now is of the steady clock.
func (e *Ensemble) Ask(req *wire.Request, to node.Receiver, now clock.Steady) {
	e.AskTogether([]Posting{{Req: req, To: to}}, now)
}

// Posting is a request and the receiver of its answers.
type Posting = node.Posting

// AskTogether is Ask for several requests, which a node's worker finds at the same time.
func (e *Ensemble) AskTogether(posts []node.Posting, now clock.Steady) {
	silent := e.silent(now)
	for i, n := range e.nodes {
		if silent.Has(i) {
			for _, p := range posts {
				p.To.Receive(i, p.Req, &wire.Reply{Status: wire.NotApplied, Err: n.SilenceError(now)})
			}
			continue
		}
		for _, p := range posts[n.PostTogether(posts):] {
			e.refuse(i, p.Req, p.To)
		}
	}
}

// Order returns the nodes in an order that all clients of these nodes have: by their identities, as far as
// these are known.
func (e *Ensemble) Order() []int { return e.lists.order() }

// Quorum returns the size of a majority.
func (e *Ensemble) Quorum() int { return quorum.Size(len(e.nodes)) }

// silent returns the nodes that have owed an answer for a node timeout. A call that waited
// for them too would take as long again. now is of the steady clock.
func (e *Ensemble) silent(now clock.Steady) (silent quorum.Set) {
	for i, n := range e.nodes {
		if n.Silence(now) >= e.timeout {
			silent = silent.With(i)
		}
	}
	return quorum.Dispensable(len(e.nodes), silent)
}

// Quarantined returns how long it takes until a majority of the nodes votes, 0 if that does
// not depend on quarantines alone.
func (e *Ensemble) Quarantined() time.Duration { return Quarantined(e.nodes) }

// Quarantined returns how long it takes until a majority of these nodes votes, 0 if that does
// not depend on quarantines alone.
func Quarantined(nodes []*node.Node) time.Duration {
	left := make(quorum.Window[time.Duration], len(nodes))
	for i, n := range nodes {
		switch h := n.Health(); {
		case h.Err != nil: // it may have been in quarantine before
			left[i] = quorum.Endless
		case h.QuarantineLeft() > 0:
			left[i] = h.QuarantineLeft()
		}
	}
	if d := left.Free(); d != quorum.Endless {
		return d
	}
	return 0
}

// Answered reports an answer upward. Each receiver calls it first.
func (e *Ensemble) Answered(i int, req *wire.Request, reply *wire.Reply) {
	e.events.Answered(i, req, reply)
	if req.Kind == wire.Release && reply.N == wire.HandedOn {
		e.events.HandedOn(req.Lock(0))
	}
}
