package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// retryMax is how many releases wait for a node that is down or recovering. There may
	// be twice as many before the oldest are dropped.
	retryMax = 4096
	// retryAfter is how long requests that insist wait after a node answered BUSY,
	// LOADING and the like.
	retryAfter = 50 * time.Millisecond
	// checkEvery is how often a node is greeted again over the same connection: its role,
	// eviction policy, data and clock may have changed without traffic.
	checkEvery = 10 * time.Second
	// mendEvery is how often a node that needs an operator is greeted again.
	mendEvery = time.Second
	// judgeEvery is how often, after a step of the node's clock, the Manager is asked
	// whether the step is the node's own, and judgeFor for how long.
	judgeEvery = 25 * time.Millisecond
	judgeFor   = 2 * time.Second
)

// Config configures a Node.
type Config struct {
	Index  int                  // the node's index in the list
	Option rueidis.ClientOption // as the user gave it; Refuse must have found nothing
	Prefix string               // of all keys
	// Clock returns an instant of the client's validity clock and of its steady one, both
	// of the same moment. Requests expire by the steady one.
	Clock func() (validity, steady time.Duration)
	Drift float64 // bound on the difference of clock rates
	// Cap is how far a grant may move a fencing register ahead of the node's clock; 0
	// mints no tokens.
	Cap   time.Duration
	Only  bool          // there is no other node
	Guard time.Duration // longest lease for the restart guard; 0 for no guard
	// Window is how long renewals count after a majority last named the master of a group.
	// The guard covers it.
	Window time.Duration
	Trust  bool // an empty database needs no quarantine
	// Rollout lets clients without the guard vote, until a client with the guard has no
	// Rollout.
	Rollout bool
	// Lists compares the nodes of this client with those of the others; nil for no
	// comparison.
	Lists Lists
	// StepQuarantine is how long the node's votes do not count after its clock was
	// stepped forward: the longest lease that any client may hold on it.
	StepQuarantine time.Duration
	// Admit checks the node's Identity at every greeting. An error keeps the node from
	// voting until a later greeting succeeds; a warning does not. Called in the worker's
	// goroutine.
	Admit func(index int, id Identity) (warning, err error)
	// OnHealth is called after the first greeting, and on every change of the node's
	// health after it. Called in the worker's goroutine; it must not block.
	OnHealth func(index int, h Health)
	// OwnStep reports whether the node's clock made the step that was found at since
	// (steady clock), and whether that answer is final. Otherwise it was the clock of this
	// process, and all nodes seem to be stepped. The guard's marker reports only a step of
	// the node's clock to other clients. Nil means that no step is the node's own. Called
	// in the worker's goroutine; it must not block.
	OwnStep func(index int, since time.Duration) (own, sure bool)
	// OnClockStep is called when a step of the node's clock is found; by is the most that
	// it can be. The reply that shows the step is delivered afterwards. Called in the
	// worker's goroutine; it must not block.
	OnClockStep func(index int, by time.Duration)
	// Manager names the channel on which the node wakes waiters; 16 hex digits. With ""
	// the node never subscribes.
	Manager string
	// OnWake receives what the node publishes to the Manager. Called in the subscriber's
	// goroutine; it must not block.
	OnWake func(index int, kind wire.WakeKind, ticket, lock string)
	// OnSubscribed is called when the node begins to wake waiters, for the first time or
	// again. Called in a goroutine of the connection, perhaps while OnWake runs.
	OnSubscribed func(index int)
}

// Node is one Redis master, or a failover group with one master at a time. All methods are
// safe for concurrent use.
type Node struct {
	cfg    Config
	addr   string         // or the name of the group
	group  *master.Group  // nil if the node is one server
	client rueidis.Client // used by the worker and the transmitter

	ctx    context.Context // ends the call in flight when the node is cut off
	cancel context.CancelFunc
	done   chan struct{} // closed by the worker when it ends
	// toSend and replied have capacity 0. toSend carries a transfer to the transmitter,
	// and replied reports that its replies have arrived. Run closes toSend; replied is
	// never closed.
	toSend  chan *transfer
	replied chan struct{}

	lanes      lanes
	conns      conns
	debt       debt
	progress   atomic.Uint64 // batches that were answered
	subscriber subscriber

	health   atomic.Pointer[Health]
	checkNow atomic.Bool // an urgent check: greet again after the queued requests
	listNow  atomic.Bool // the list of nodes may have to be registered again

	// Arguments of every call of the script.
	registersKey, baseKey, hintKey, markerKey, listsKey string

	channels, flags, capText string

	// Used only by the worker.
	now          time.Duration // the steady clock when it was last read
	greeted      uint64        // the connection that has passed the greeting
	refusal      error         // why the node was not greeted, when it needs an operator
	withheld     error         // why the greeted node may not vote; everything else goes on
	digest       string        // of the script
	identity     Identity
	warning      error // a problem that does not keep the node from voting
	quarantine   quarantine
	meter        meter
	marker       string // what the restart guard's marker says, "" before the first greeting
	named        bool   // the node has an identity for lists of nodes
	unlistedWas  string // why the last report said that the lists keep it from voting
	clockSuspect bool   // a greeting may have to start a quarantine for all clients
	suspectSince time.Duration
	evicted      bool // under the guard, the node may have dropped locks
	checkAt      time.Duration
	forgetting   bool // a request to drop old registers is queued
	redial       backoff.BackOff
	redialAt     time.Duration
	pingAt       time.Duration // when a connection that stays idle is tested
	fullUntil    time.Duration // until then the server counts as out of memory
	batch        []entry       // taken from the lanes, and not on the wire yet
	transfers    [2]transfer   // one on the wire, and one whose answers are being delivered
	resend       []entry       // requests to send once more
	retryQueue   []entry       // requests that insist and wait for a connection, or for retryAt
	retryAt      time.Duration
	unguarded    bool // the last greeting ran no guard, because nobody confirmed the term
	retries      retries
	reader       wire.Reader
	reply        wire.Reply
}

// New returns a node. Nothing is sent before Run.
func New(cfg Config) *Node {
	_, name := master.Name(&cfg.Option)
	n := &Node{
		cfg: cfg, addr: name,
		done: make(chan struct{}), toSend: make(chan *transfer), replied: make(chan struct{}),
		registersKey: wire.RegistersKey(cfg.Prefix), baseKey: wire.BaseKey(cfg.Prefix), hintKey: wire.HintKey(cfg.Prefix),
		markerKey: wire.GuardKey(cfg.Prefix), listsKey: wire.ListsKey(cfg.Prefix), channels: wire.WakeChannel(cfg.Prefix, ""),
		meter:  newMeter(cfg.Drift),
		reader: wire.Reader{Unguarded: cfg.Guard == 0},
	}
	if cfg.Cap > 0 {
		n.capText = wire.Micros(cfg.Cap)
	}
	if cfg.Only {
		n.flags = "1"
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.lanes.index, n.lanes.signal, n.lanes.pace.most = cfg.Index, make(chan struct{}, 1), paceFirst
	n.lanes.steady = func() time.Duration { _, steady := n.cfg.Clock(); return steady }
	n.conns.life, n.conns.wake, n.conns.open = n.ctx, n.lanes.wake, map[*watchedConn]struct{}{}
	n.subscriber.cfg, n.subscriber.life, n.subscriber.channel = &n.cfg, n.ctx, n.channels+cfg.Manager
	n.subscriber.check, n.subscriber.start = n.Check, make(chan struct{})
	n.subscriber.option = func() rueidis.ClientOption { return requiredOptions(n.ctx, n.option(false), n.conns.watchSubscriber) }
	n.group = master.New(n.ctx, &n.cfg.Option, func() time.Duration { validity, _ := n.cfg.Clock(); return validity }, n.asideOption)
	n.health.Store(&Health{Err: wire.ErrConnecting})
	n.redial = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
	return n
}

// Post queues req; to receives its answer, once. Post returns false, and does nothing,
// when too many acquisitions wait or the node is closed, and for a request of NewPassOn that
// is one too many.
func (n *Node) Post(req *wire.Request, to Receiver) bool { return n.lanes.post(req, to) }

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

// Voters returns how many Sentinels the node's group has, or nodes its cluster, and how many
// of them are listed; 0 and 0 for a node that is one server.
func (n *Node) Voters() (known, listed int) { return n.group.Voters() }

// VoterFaults returns what has to be fixed at the Sentinels or seeds of the node's group, though
// a majority of them names the master; nil for a node that is one server.
func (n *Node) VoterFaults() []error { return n.group.Faults() }

// RunGroup asks, until the node is closed, whether the term goes on, and drops the connections
// of a term that is over. The worker then reports that the node votes, or does not, and its
// warnings. It returns at once if the node is one server. It must be called once.
func (n *Node) RunGroup() { n.group.Run(n.Check, n.conns.hangUp) }

// Check makes the worker greet the node again soon, and so read its clock.
func (n *Node) Check() {
	n.checkNow.Store(true)
	n.lanes.wake()
}

// Run is the worker. Only the worker and its transmitter use the connection, one at a time.
// Run dials at once, and returns after Close. It must be called once.
func (n *Node) Run() {
	defer close(n.done)
	defer n.drain()
	n.look()
	n.debt.asked(n.now)
	// With ForceSingleClient, NewClient returns a client even when the dial failed.
	client, err := rueidis.NewClient(forWorker(requiredOptions(n.ctx, n.option(true), n.conns.watch)))
	if client == nil {
		n.report(fmt.Errorf("no client: %w", err))
		<-n.ctx.Done()
		return
	}
	n.client = client
	defer client.Close()
	defer n.cut() // first, because Close of rueidis would send another command
	var transmitter sync.WaitGroup
	transmitter.Go(n.transmitter)
	defer transmitter.Wait()
	defer close(n.toSend)
	n.connect()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	n.look()
	for !n.left() {
		timer.Reset(n.idle())
		select {
		case <-n.ctx.Done():
			return
		case <-n.lanes.signal:
		case <-timer.C:
		}
		n.look()
		n.serve()
	}
}

// look reads the steady clock.
func (n *Node) look() { _, n.now = n.cfg.Clock() }

// idle returns how long the worker may sleep without a signal.
func (n *Node) idle() time.Duration {
	if !n.connected() {
		return max(n.redialAt-n.now, 0)
	}
	wait := min(n.checkAt, n.pingAt) - n.now
	if len(n.retryQueue) > 0 {
		wait = min(wait, n.retryAt-n.now)
	}
	if n.retries.count() > 0 {
		wait = min(wait, time.Until(n.retries.due))
	}
	if n.quarantine.reason != nil {
		wait = min(wait, time.Until(n.quarantine.until))
	}
	return max(wait, 0)
}

// regreet makes the worker greet once more before the next batch.
func (n *Node) regreet() { n.greeted, n.redialAt = 0, n.now }

// serve sends everything that is queued, batch after batch. An urgent check runs after
// the requests already queued: a heal may be among them, and must not wait.
func (n *Node) serve() {
	for n.ctx.Err() == nil {
		checkNow := n.checkNow.Swap(false)
		if !n.connected() {
			n.look() // regreet may have set redialAt meanwhile
		}
		if n.connected() && n.now >= n.checkAt || !n.connected() && n.now >= n.redialAt {
			n.connect()
			n.look()
		}
		if n.listNow.Swap(false) {
			n.relist()
		}
		if n.connected() && len(n.retryQueue) > 0 && n.now >= n.retryAt {
			n.lanes.requeue(n.retryQueue)
			n.retryQueue = nil
		}
		n.lanes.requeue(n.retries.take())
		n.take()
		switch {
		case len(n.batch) == 0 && !checkNow && n.connected() && n.now >= n.pingAt:
			n.ping()
		case len(n.batch) == 0 && !checkNow:
			return
		case len(n.batch) == 0:
		case n.connected():
			n.send()
		default:
			n.postpone()
		}
		if checkNow {
			n.checkAt = 0
		}
	}
}

// take moves requests from the lanes into the batch.
func (n *Node) take() {
	n.batch = n.lanes.take(n.batch[:0], n.now, n.paused(), n.withheld)
}

// cut ends all waits of the worker and of rueidis, which would wait for a hanging node for a
// second.
func (n *Node) cut() {
	n.cancel()
	n.lanes.close()
	n.conns.cut()
}

// connected reports whether the greeted connection is up.
func (n *Node) connected() bool { return n.greeted != 0 && n.conns.up(n.greeted) }

// ping tests an idle connection. Nothing reads from it meanwhile, so its end would
// otherwise show only with the next request. Any answer will do.
func (n *Node) ping() {
	n.debt.asked(n.now)
	if n.client.Do(context.Background(), n.client.B().Ping().Build()).NonRedisError() == nil {
		n.debt.answered()
	}
	n.look()
	n.pingAt = n.now + keepAlive
}

// option returns the node's option; if the node is a group, a dial goes to its master.
func (n *Node) option(worker bool) rueidis.ClientOption {
	o := n.cfg.Option
	if n.group == nil {
		return o
	}
	dial := dialer(o)
	o.Sentinel, o.DialFn = rueidis.SentinelOption{}, nil
	o.InitAddress = []string{n.addr}
	o.DialCtxFn = n.group.Dial(dial, worker)
	return o
}

// asideOption returns the option of a connection that only asks who the master is. The
// worker does not notice its end, and hangUp leaves it alone.
func (n *Node) asideOption(o rueidis.ClientOption) rueidis.ClientOption {
	o.AlwaysRESP2 = n.cfg.Option.AlwaysRESP2
	o.DialFn, o.DialCtxFn = n.cfg.Option.DialFn, n.cfg.Option.DialCtxFn
	return requiredOptions(n.ctx, o, n.conns.watchAside)
}

// voidAt returns when a request that was sent at sent is void: from then on it creates no
// lock, even if it arrives later. By then the node's clock has passed the request's "not
// after", if the rates of the clocks differ by no more than the drift factor allows.
func (n *Node) voidAt(req *wire.Request, sent time.Duration, at time.Time) time.Time {
	stale := voidAfter
	if n.meter.offset.Known() {
		stale += time.Duration(float64(req.Expires-n.meter.offset.At()) * n.cfg.Drift)
	}
	return at.Add(req.Expires - sent + stale)
}
