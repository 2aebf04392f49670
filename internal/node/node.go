package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Node is one Redis master, or a failover group with one master at a time. All methods are
// safe for concurrent use.
type Node struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{} // closed by the worker when it ends

	lanes lanes
	link
	greeter    greeter
	courier    courier
	subscriber subscriber
	health     atomic.Pointer[Health] // the worker's last report

	checkNow atomic.Bool // an urgent check: greet again after the queued requests
	listNow  atomic.Bool // the list of nodes may need to be registered again

	// Only the worker uses the rest.
	along       bool   // a check goes out behind the batch
	unlistedWas string // why the lists kept it from voting at the last report
}

// New returns a node. Nothing is sent before Run.
func New(cfg Config) *Node {
	n := &Node{cfg: cfg, done: make(chan struct{})}
	n.link = link{cfg: &n.cfg, meter: newMeter(cfg.Drift), vote: vote.New(cfg.Guard, cfg.Drift), start: time.Now()}
	n.life, n.cancel = context.WithCancel(context.Background())
	_, n.addr = master.Name(&cfg.Option)
	aside := func(o rueidis.ClientOption) rueidis.ClientOption {
		return asideOption(n.life, &n.cfg.Option, o, &n.conns)
	}
	n.group = master.New(n.life, &n.cfg.Option, n.cfg.Clock, aside, n.cfg.Cluster.of())
	n.redial = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
	n.conns.begin(n.life, n.lanes.wake)
	n.lanes.index, n.lanes.signal, n.lanes.pace.most = cfg.Index, make(chan struct{}, 1), paceFirst
	n.lanes.steady = func() clock.Steady { _, steady := n.cfg.Clock(); return steady }
	n.health.Store(&Health{Err: wire.ErrConnecting})
	n.greeter = greeter{link: &n.link, script: newScript(&cfg), subscribed: n.subscriber.confirmed.Load, collect: n.courier.forgetMore}
	n.greeter.oneServer.check = n.Check
	n.courier = courier{
		link: &n.link, greeter: &n.greeter, lanes: &n.lanes,
		toSend: make(chan *transfer), replied: make(chan struct{}), reader: wire.Reader{Unguarded: cfg.Guard == 0},
	}
	n.subscriber.cfg, n.subscriber.life, n.subscriber.channel = &n.cfg, n.life, n.greeter.script.channels+cfg.Manager
	n.subscriber.check, n.subscriber.start = n.Check, make(chan struct{})
	if n.group == nil { // the subscriber of a group may already be connected to the next master
		n.subscriber.compare = n.greeter.oneServer.compare
	}
	n.subscriber.open = func() (rueidis.Client, error) {
		if c := n.cfg.Cluster; c != nil {
			return c.client(n.life, &c.wakeUps, n.group, false, n.conns.watchSubscriber), nil
		}
		return rueidis.NewClient(n.required(n.option(false), n.conns.watchSubscriber))
	}
	return n
}

// Post queues req; to receives its answer, once. Post returns false, and does nothing, when too many acquisitions wait,
// when the node is closed, or when a request of NewPassOn is one too many.
func (n *Node) Post(req *wire.Request, to Receiver) bool {
	return n.lanes.post([]Posting{{req, to}}) == 1
}

// PostTogether is Post for requests that the worker must find at the same time. It returns how many the node takes,
// from the first one on.
func (n *Node) PostTogether(all []Posting) (taken int) { return n.lanes.post(all) }

// Reading returns the last measurement of the node's clock, and false before the first
// answer.
func (n *Node) Reading() (Reading, bool) { return n.meter.last() }

// Subscribe makes the node wake the waiters of this Manager, over a connection of its
// own: in RESP2, a push between the replies could not be distinguished from them. It
// returns at once, and is safe to call again.
//
// A wake-up is a hint. While the node wakes no waiters, they do not queue on it, and
// poll.
func (n *Node) Subscribe() { n.subscriber.subscribe() }

// RunSubscriber waits for Subscribe, and then subscribes until the node is closed, over
// one connection after the other. It must be called once, and returns after the node is
// closed.
func (n *Node) RunSubscriber() { n.subscriber.run() }

// Addr returns the address of the node, or the name of its group.
func (n *Node) Addr() string { return n.addr }

// Master returns the address of the group's master that the node was last connected to,
// "" for a node that is one server, and before the first connection.
func (n *Node) Master() string { return n.group.Used().Addr }

// Voters returns what chooses the master of the node's group ("sentinel" or "slot"), the number of Sentinels of the
// group or of nodes of the cluster, and how many of these are listed; "", 0 and 0 for a node that is one server.
func (n *Node) Voters() (kind string, known, listed int) { return n.group.Voters() }

// VoterFaults returns what an operator must fix at the Sentinels or seeds of the node's group, though a majority of
// them names the master; nil for a node that is one server.
func (n *Node) VoterFaults() []error { return n.group.Faults() }

// RunGroup asks, until the node is closed, whether the term continues, and drops the connections of a term that has
// ended. The worker then reports whether the node votes, and its warnings. It returns at once if the node is one
// server. It must be called once.
func (n *Node) RunGroup() { n.group.Run(n.Check, n.conns.hangUp) }

// Check makes the worker greet the node again soon, and so read its clock.
func (n *Node) Check() {
	n.checkNow.Store(true)
	n.lanes.wake()
}

// Health returns the last known health of the node.
func (n *Node) Health() Health { return *n.health.Load() }

// Silence returns how long the node has owed an answer: to a batch, a PING or a greeting. A failed connection isn't an
// answer. It is 0 if nothing was asked since the last answer. now is a reading of the steady clock.
func (n *Node) Silence(now clock.Steady) time.Duration { return n.debt.age(now) }

// SilenceError returns the error of a request that is not sent because the node is silent.
func (n *Node) SilenceError(now clock.Steady) error {
	owed := max(n.Silence(now), 0).Round(time.Millisecond)
	if h := n.Health(); !h.up() && !errors.Is(h.Err, wire.ErrConnecting) {
		return fmt.Errorf("no answer for %v: %w", owed, h.Err)
	}
	return fmt.Errorf("no answer for %v", owed)
}

// Unread reports whether an answer of the node has come and is not read yet.
func (n *Node) Unread() bool {
	unread, _ := n.conns.peek()
	return unread
}

// Relist makes the worker look at the Manager's list again: another node has answered.
func (n *Node) Relist() {
	n.listNow.Store(true)
	n.lanes.wake()
}

// cut ends all waits of the worker and of rueidis, which would wait for a hanging node for a
// second.
func (n *Node) cut() {
	n.cancel()
	n.lanes.close()
	n.conns.cut()
}
