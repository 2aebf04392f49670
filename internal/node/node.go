package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
)

const (
	// batchMax is how many requests go out as one pipeline at the most: what
	// comes behind it waits for all its answers.
	batchMax = 512
	// queueMax is how many requests may wait; requests that Insist may use
	// twice as much, because a queue full of hopeless acquires must not keep
	// releases out.
	queueMax = 4096
	// retryAfter is how long a node that answered BUSY, LOADING and the like is
	// left alone by requests that Insist.
	retryAfter = 50 * time.Millisecond
	// purgeEvery is how often a full queue is searched for expired requests.
	purgeEvery = 10 * time.Millisecond
	// checkEvery is how often a node is greeted again over a connection that
	// stands: its role, its eviction policy, its data and its clock may have
	// changed while nobody asked for anything.
	checkEvery = 10 * time.Second
	// mendEvery is how often a node that somebody has to mend is greeted again.
	mendEvery = time.Second
	// judgeEvery is how often, after a step of the node's clock, it is asked
	// whether the node is to blame, and judgeFor for how long.
	judgeEvery = 25 * time.Millisecond
	judgeFor   = 2 * time.Second
)

// Config says how a Node behaves.
type Config struct {
	Index  int                  // the node's place in the list
	Option rueidis.ClientOption // as the user gave it; Refuse must have found nothing
	Prefix string               // of all keys, for the guard's marker
	Now    func() time.Duration // the client's clock
	Guard  time.Duration        // longest lease for the restart guard; 0 for no guard
	Trust  bool                 // an empty database needs no quarantine
	// Doubt is how long the node's votes do not count after its clock was
	// stepped forward: the longest lease that somebody may hold on it.
	Doubt time.Duration
	// Admit judges what the node said of itself, at every greeting. An error
	// keeps the node from voting until a later greeting finds it mended; a
	// warning does not. Called in the worker's goroutine.
	Admit func(index int, id Identity) (warning, err error)
	// Changed is told how the first greeting went, and of every change of the
	// node's health after it. Called in the worker's goroutine; it must not
	// block.
	Changed func(index int, h Health)
	// Alone reports whether a step that was found then is the node's own, because
	// most other clocks went on, and whether that is sure by now. Only then is it
	// told to other clients, by the guard's marker: if our own clock stands still
	// all nodes seem to be stepped, and nobody else must suffer for that. Nil
	// never blames the node. Called in the worker's goroutine; it must not block.
	Alone func(index int, at time.Duration) (alone, sure bool)
	// Stepped is told of a step of the node's clock: by how much, at the most,
	// and when it was found. The reply that shows it is handed out afterwards.
	// Called in the worker's goroutine; it must not block.
	Stepped func(index int, by, at time.Duration)
	// Manager names the channel on which the node tells whose turn it is; 16 hex
	// digits. "" never listens.
	Manager string
	// Turn is told that the node keeps a lock for a ticket, or that it keeps it for
	// somebody else now and the ticket is the next. Called in the ear's goroutine; it
	// must not block.
	Turn func(index int, kept bool, ticket, lock string)
	// Heard is told that the node is listened to from now on, for the first time or
	// again. Called in a goroutine of the connection, perhaps while Turn runs.
	Heard func(index int)
}

// Node is one Redis master. All methods are safe for concurrent use.
type Node struct {
	cfg    Config
	addr   string
	client rueidis.Client // the worker's

	ctx    context.Context // ends the call in flight when the node is cut off
	cancel context.CancelFunc
	signal chan struct{} // capacity 1: there is something to do; never closed
	done   chan struct{} // closed by the worker when it ends

	mu      sync.Mutex
	queue   []entry
	purgeAt time.Duration
	leaving bool                      // Close has begun: no more votes, and an end when all else has gone out
	settled bool                      // everything was answered, and only echoes are waited for
	closed  bool                      // nothing is taken any more
	conns   map[*watchedConn]struct{} // that stand; by our own pointer, since the user's type may not be comparable

	// Connections are counted by the dialer. lost is the newest one that has
	// broken; both are read by the worker and written by whoever dials or
	// reads, inside rueidis.
	dialed, lost atomic.Uint64

	listen  chan struct{} // closed by Listen
	once    sync.Once     // for it
	listens atomic.Bool   // the ear is subscribed: whoever is told something here hears it
	deaf    atomic.Pointer[ConfigError]

	health   atomic.Pointer[Health]
	clock    atomic.Pointer[offset]
	measured atomic.Int64 // when the node's clock was read last, by ours
	hurry    atomic.Bool  // greet again before the next batch

	// The worker's own.
	greeted    uint64 // the connection that has passed the greeting
	refusal    error  // why the node was not greeted, when somebody has to mend it
	withheld   error  // why the greeted node may not vote; everything else goes on
	digests    [kinds]string
	identity   Identity
	warning    error         // a doubt that does not keep the node from voting
	quarantine time.Time     // votes do not count before, by the monotonic clock alone: cfg.Now may jump ahead
	why        error         // of the quarantine
	channels   string        // how those begin on which waiters are told
	markerKey  string        // of the restart guard
	marker     string        // what the restart guard's marker says, "" before the first greeting
	floor      string        // no counter below this, µs of the node's clock
	strange    bool          // the marker was another one: greet again
	distrust   bool          // a greeting is to start a quarantine for everybody
	distrusted time.Duration // since then
	evicted    bool          // under the guard, the node may have dropped locks
	checkAt    time.Duration
	redial     backoff.BackOff
	redialAt   time.Duration
	batch      []entry
	parked     []entry       // requests that Insist: while there is no connection, or until retryAt
	retryAt    time.Duration // when a node that refused a parked request is asked again
	adrift     adrift
	echoes     []echo    // releases to be sent once more
	echoAt     time.Time // the earliest of their times
	commands   rueidis.Commands
	results    []rueidis.RedisResult
	reply      Reply
	many       []int64
}

type entry struct {
	req     *Request
	to      Receiver
	resends int
}

// Health is what is known of a node's fitness to vote.
type Health struct {
	Err         error     // why it cannot; nil when it may, or will after the quarantine
	Withheld    bool      // Err keeps it from voting and from nothing else: it is connected
	Quarantined time.Time // when its votes count again; zero for now
	Why         error     // of the quarantine; nil without one
	Warning     error     // a doubt that does not keep it from voting; nil for none
	Identity    Identity
}

// QuarantineLeft returns how long the node's votes do not count yet.
func (h Health) QuarantineLeft() time.Duration {
	return max(time.Until(h.Quarantined), 0)
}

// up reports whether the node is connected, as far as is known.
func (h Health) up() bool { return h.Err == nil || h.Withheld }

// New returns a node. Nothing is sent before Run.
func New(cfg Config) *Node {
	n := &Node{
		cfg: cfg, addr: cfg.Option.InitAddress[0],
		signal: make(chan struct{}, 1), done: make(chan struct{}), listen: make(chan struct{}),
		channels: WakeChannel(cfg.Prefix, ""), markerKey: GuardKey(cfg.Prefix), floor: "0", conns: map[*watchedConn]struct{}{},
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.health.Store(&Health{Err: ErrConnecting})
	n.redial = backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
	return n
}

// Addr returns the address of the node.
func (n *Node) Addr() string { return n.addr }

// Health returns what is known of the node now.
func (n *Node) Health() Health { return *n.health.Load() }

// Offset returns the node's clock minus the client's, and whether it is known.
func (n *Node) Offset() (time.Duration, bool) {
	if o := n.clock.Load(); o != nil {
		return o.low + o.width/2, true
	}
	return 0, false
}

// RoundTrip returns about how long the node takes to answer: the sharpest reading
// of its clock says that. It reports false before there is one.
func (n *Node) RoundTrip() (time.Duration, bool) {
	if o := n.clock.Load(); o != nil {
		return o.width, true
	}
	return 0, false
}

// Measured returns when the node's clock was read last, by the client's.
func (n *Node) Measured() time.Duration { return time.Duration(n.measured.Load()) }

// Check has the node greeted again at once, and its clock read with it.
func (n *Node) Check() {
	n.hurry.Store(true)
	n.wake()
}

// Post queues req; its answer goes to the receiver, once. It reports false,
// and nothing happens, when the queue is full or the node is closed.
func (n *Node) Post(req *Request, to Receiver) bool {
	n.mu.Lock()
	limit := queueMax
	if req.Insist {
		limit *= 2
	}
	var dropped []entry
	if len(n.queue) >= limit {
		dropped = n.purge()
	}
	ok := !n.closed && len(n.queue) < limit
	if ok {
		n.queue, n.settled = append(n.queue, entry{req: req, to: to}), false
	}
	n.mu.Unlock()
	fail(n.cfg.Index, dropped, Unsent, ErrExpired)
	if ok {
		n.wake()
	}
	return ok
}

// purge takes expired requests out of the queue. n.mu is held.
func (n *Node) purge() (dropped []entry) {
	now := n.cfg.Now()
	if now < n.purgeAt {
		return nil
	}
	n.purgeAt = now + purgeEvery
	kept := n.queue[:0]
	for _, e := range n.queue {
		if e.req.Expires <= now {
			dropped = append(dropped, e)
		} else {
			kept = append(kept, e)
		}
	}
	clear(n.queue[len(kept):])
	n.queue = kept
	return dropped
}

func (n *Node) wake() {
	select {
	case n.signal <- struct{}{}:
	default:
	}
}

// Close queues the last requests, however many, lets everything that is queued
// go out, until ctx ends at the latest, and then ends the worker and the
// connection. Acquisitions are not sent any more, and a node that cannot be
// reached is not waited for. What is left is answered Unsent, and the one batch
// on its way Unknown. Close returns when Run has; false says that ctx ended before
// everything was answered.
func (n *Node) Close(ctx context.Context, last []*Request, to Receiver) bool {
	n.mu.Lock()
	n.leaving = true
	for _, req := range last {
		n.queue = append(n.queue, entry{req: req, to: to})
	}
	n.mu.Unlock()
	n.wake()
	inTime := true
	if n.Health().up() { // otherwise it may be dialling
		select {
		case <-n.done:
			return true
		case <-ctx.Done():
			n.mu.Lock()
			inTime = n.settled
			n.mu.Unlock()
		}
	}
	n.cut()
	<-n.done
	return inTime
}

// cut ends whatever the worker and rueidis are waiting for. Left alone, rueidis
// waits for a node that hangs for a second. The kernel may go on sending what was
// written: the releases of Close are among it, and no connection follows that
// could overtake them.
func (n *Node) cut() {
	n.cancel()
	n.mu.Lock()
	n.closed = true
	conns := slices.Collect(maps.Keys(n.conns))
	n.mu.Unlock()
	for _, conn := range conns {
		_ = raw(conn.Conn).Close()
	}
}

// overhear counts a connection of the ear among those that cut closes, and not
// among those that the worker is told of.
func (n *Node) overhear(conn net.Conn) net.Conn { return n.keep(conn, 0) }

// raw returns the connection below TLS: closing that does not wait to say goodbye.
func raw(conn net.Conn) net.Conn {
	if over, ok := conn.(*tls.Conn); ok {
		return over.NetConn()
	}
	return conn
}

// abandon closes a connection, and what was written to it and has not arrived
// never will. After an ordinary close the kernel goes on sending it again for
// minutes: an acquire could arrive behind the release that went over the next
// connection, and lock for nobody. So the connection is reset. Nothing is lost by
// it: what has no answer is not taken for done, and what matters is sent again.
func abandon(conn net.Conn) error {
	conn = raw(conn)
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	return conn.Close()
}

// left reports whether the worker has done what Close waits for.
func (n *Node) left() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving && len(n.queue) == 0 && (len(n.parked) == 0 || !n.Health().up()) {
		n.settled = true
		n.closed = n.closed || len(n.echoes) == 0 || !n.Health().up()
	}
	return n.closed
}

// Run is the worker: the only user of the connection. It dials at once, and
// returns after Close; it must be called once.
func (n *Node) Run() {
	defer close(n.done)
	defer n.drain()
	// With ForceSingleClient a client comes back even when the dial failed.
	client, err := rueidis.NewClient(force(n.ctx, n.cfg.Option, n.watch))
	if client == nil {
		n.report(fmt.Errorf("no client: %w", err))
		<-n.ctx.Done()
		return
	}
	n.client = client
	defer client.Close()
	defer n.cut() // first: rueidis would ask the server once more
	n.connect()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	now := n.cfg.Now()
	for !n.left() {
		timer.Reset(n.idle(now))
		select {
		case <-n.ctx.Done():
			return
		case <-n.signal:
		case <-timer.C:
		}
		now = n.serve()
	}
}

// idle returns how long the worker may sleep without a signal.
func (n *Node) idle(now time.Duration) time.Duration {
	if !n.connected() {
		return max(n.redialAt-now, 0)
	}
	wait := n.checkAt - now
	if len(n.parked) > 0 {
		wait = min(wait, n.retryAt-now)
	}
	if len(n.echoes) > 0 {
		wait = min(wait, time.Until(n.echoAt))
	}
	if n.why != nil {
		wait = min(wait, time.Until(n.quarantine))
	}
	return max(wait, 0)
}

// again has the connection greeted once more before the next batch.
func (n *Node) again() {
	n.greeted, n.redialAt = 0, n.cfg.Now()
}

// quarantineFor keeps the node from voting for so long at least.
func (n *Node) quarantineFor(d time.Duration, why error) {
	// One per cent more: the node's clock may run faster than ours.
	if end := time.Now().Add(d + d/drift); end.After(n.quarantine) {
		n.quarantine, n.why = end, why
	}
}

// quarantined reports whether votes do not count now, and tells of the end.
func (n *Node) quarantined() bool {
	if n.why == nil {
		return false
	}
	if time.Until(n.quarantine) > 0 {
		return true
	}
	n.quarantine, n.why = time.Time{}, nil
	n.report(n.health.Load().Err)
	return false
}

// serve sends everything that is queued, batch after batch. A check that somebody
// is in a hurry for comes behind what is queued by then: a heal is among it, and
// has no time to lose. It returns the client's clock, which is three, one of them
// by a system call, and so is read no more often than necessary.
func (n *Node) serve() (now time.Duration) {
	now = n.cfg.Now()
	for n.ctx.Err() == nil {
		hurry := n.hurry.Swap(false)
		if !n.connected() {
			now = n.cfg.Now() // again may have set redialAt meanwhile
		}
		if n.connected() && now >= n.checkAt || !n.connected() && now >= n.redialAt {
			n.connect()
			now = n.cfg.Now()
		}
		if n.connected() && len(n.parked) > 0 && now >= n.retryAt {
			n.requeue(n.parked)
			n.parked = nil
		}
		n.resound()
		n.take(now)
		switch {
		case len(n.batch) == 0 && !hurry:
			return now
		case len(n.batch) == 0:
		case n.connected():
			now = n.send()
		default:
			n.postpone()
		}
		if hurry {
			n.checkAt = 0
		}
	}
	return now
}

// take moves the front of the queue into the batch. Expired requests, and votes
// of a node that is quarantined, closing, or to be mended, are answered at once.
func (n *Node) take(now time.Duration) {
	quarantined := n.quarantined()
	var expired, withheld, kept, late []entry
	n.mu.Lock()
	n.batch = n.batch[:0]
	i := 0
	for ; i < len(n.queue) && len(n.batch) < batchMax; i++ {
		switch e := n.queue[i]; {
		case e.req.Expires <= now:
			expired = append(expired, e)
		case e.req.Kind == Acquire && n.leaving:
			late = append(late, e)
		case e.req.Kind == Acquire && n.withheld != nil:
			withheld = append(withheld, e)
		case e.req.Kind == Acquire && quarantined:
			kept = append(kept, e)
		default:
			n.batch = append(n.batch, e)
		}
	}
	rest := copy(n.queue, n.queue[i:])
	clear(n.queue[rest:])
	n.queue = n.queue[:rest]
	n.mu.Unlock()
	fail(n.cfg.Index, expired, Unsent, ErrExpired)
	fail(n.cfg.Index, withheld, Misconfigured, n.withheld)
	fail(n.cfg.Index, kept, Unsent, n.why)
	fail(n.cfg.Index, late, Unsent, ErrClosed)
}

// postpone answers the batch without a connection: requests that Insist wait
// for the next one, the others fail.
func (n *Node) postpone() {
	status, err := Unsent, n.health.Load().Err
	switch {
	case n.refusal != nil:
		status = Misconfigured
	case err == nil || n.withheld != nil:
		err = ErrConnecting // it broke a moment ago
	}
	lose := n.batch[:0]
	for _, e := range n.batch {
		if e.req.Insist {
			n.parked = append(n.parked, e)
		} else {
			lose = append(lose, e)
		}
	}
	if over := len(n.parked) - queueMax; over > 0 {
		fail(n.cfg.Index, n.parked[:over], Unsent, ErrExpired)
		n.parked = append(n.parked[:0:0], n.parked[over:]...)
	}
	fail(n.cfg.Index, lose, status, err)
	clear(n.batch) // the next one may be shorter, and each entry leads to its caller's context
}

// requeue puts entries back to the front, in their order.
func (n *Node) requeue(entries []entry) {
	if len(entries) == 0 {
		return
	}
	n.mu.Lock()
	n.queue = append(entries, n.queue...)
	n.mu.Unlock()
}

// send puts the batch on the wire and hands out the replies. It returns when the
// last of them was there.
func (n *Node) send() (received time.Duration) {
	n.commands = n.commands[:0]
	for _, e := range n.batch {
		n.commands = append(n.commands, n.command(e.req))
	}
	// Behind take: no request of the batch may seem to be sent before it was made.
	sent, sentAt := n.cfg.Now(), time.Now()
	results := n.results[:0]
	if len(n.commands) == 1 {
		// The common case without concurrency; DoMulti would allocate.
		results = append(results, n.client.Do(n.ctx, n.commands[0]))
		n.results = results
	} else {
		results = n.client.DoMulti(n.ctx, n.commands...)
	}
	received = n.cfg.Now()
	// A redial on the way means that some replies came over a connection that
	// was never greeted: perhaps from another server.
	changed := n.dialed.Load() != n.greeted
	var again []entry
	for i := range results {
		e := n.batch[i]
		r := &n.reply
		*r = Reply{Sent: sent}
		n.read(e.req, results[i], r, received)
		if r.Status == Unknown {
			n.adrift.add(e.req, n.void(e.req, sent, sentAt))
		}
		switch {
		case n.strange || r.Status == Unsent && noScript(results[i].Error()):
			// FLUSHALL or SCRIPT FLUSH: greet again, then send again.
			n.again()
			n.strange = false
			r.Status = Unsent
			if e.resends == 0 && !n.released(i) {
				e.resends++
				again = append(again, e)
				continue
			}
		case changed && e.req.Kind == Acquire && r.Status == Granted:
			r.Status, r.Err = Unknown, ErrReconnected
		case n.why != nil && e.req.Kind == Acquire && r.Status == Granted:
			// The clock was stepped, as this very reply shows or one before it.
			r.Status, r.Err = Unknown, n.why
		case e.req.Insist && (r.Status == Unknown || r.Status == Unsent) && n.ctx.Err() == nil:
			again = append(again, e)
			continue
		case e.req.Insist && r.Status == Failed && len(n.parked) < queueMax:
			n.parked = append(n.parked, e)
			n.retryAt = received + retryAfter
			continue
		case e.req.Kind == Release && r.Status == Done:
			n.echo(e.req, sentAt)
		}
		e.to.Receive(n.cfg.Index, e.req, r)
	}
	if slices.ContainsFunc(results, func(r rueidis.RedisResult) bool { return r.NonRedisError() != nil }) {
		n.commands = nil // the call has ended early: rueidis may be reading them still
		n.adrift.forget(sentAt)
	}
	clear(results)
	clear(n.batch)
	n.requeue(again)
	return received
}

// released reports whether a release of what request i would lock went out behind
// it in the same batch, and has run perhaps: sent again, the request would lock
// for nobody.
func (n *Node) released(i int) bool {
	req := n.batch[i].req
	if req.Kind != Acquire && req.Kind != Heal {
		return false
	}
	return slices.ContainsFunc(n.batch[i+1:], func(e entry) bool {
		return e.req.Kind == Release && slices.Contains(req.Keys, e.req.Keys[0])
	})
}

// drain answers what waits when the worker has ended.
func (n *Node) drain() {
	n.mu.Lock()
	n.closed = true
	rest := n.queue
	n.queue = nil
	n.mu.Unlock()
	fail(n.cfg.Index, n.parked, Unsent, ErrClosed)
	fail(n.cfg.Index, rest, Unsent, ErrClosed)
}

func fail(index int, entries []entry, status Status, err error) {
	for _, e := range entries {
		e.to.Receive(index, e.req, &Reply{Status: status, Err: err})
	}
}

// watch counts a new connection and reports when it breaks.
func (n *Node) watch(conn net.Conn) net.Conn { return n.keep(conn, n.dialed.Add(1)) }

func (n *Node) keep(conn net.Conn, number uint64) net.Conn {
	watched := &watchedConn{Conn: conn, node: n, number: number}
	n.mu.Lock()
	n.conns[watched] = struct{}{}
	n.mu.Unlock()
	if n.ctx.Err() != nil { // cut may have come too early to see it
		_ = raw(conn).Close()
	}
	return watched
}

// connected reports whether the greeted connection stands.
func (n *Node) connected() bool {
	return n.greeted != 0 && n.greeted == n.dialed.Load() && n.lost.Load() < n.greeted
}

// watchedConn wakes the worker when its connection breaks, so that it dials
// before the next request needs it: a restarted node starts its quarantine,
// and a lost node is found, without waiting for traffic.
type watchedConn struct {
	net.Conn
	node   *Node
	number uint64 // 0: the ear's
}

// Read reports the end of the connection, whoever ended it.
func (c *watchedConn) Read(b []byte) (int, error) {
	read, err := c.Conn.Read(b)
	if err != nil {
		for {
			lost := c.node.lost.Load()
			if lost >= c.number || c.node.lost.CompareAndSwap(lost, c.number) {
				break
			}
		}
		c.node.wake()
	}
	return read, err
}

// Close ends the connection.
func (c *watchedConn) Close() error {
	c.node.mu.Lock()
	delete(c.node.conns, c)
	c.node.mu.Unlock()
	return abandon(c.Conn)
}
