package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	loopback  = "127.0.0.1"
	chunkSize = 16 << 10

	// Ports lie below the ephemeral range of the usual systems. So no outgoing
	// connection can take the port of a server or proxy that is down for a while. The
	// upper bound also leaves room for the cluster bus, port + 10000.
	lowestPort  = 10_000
	highestPort = 32_767
)

// A mode is what a proxy does with bytes and connections.
type mode int

const (
	passing mode = iota + 1
	swallowing
	swallowingReplies
	refusing
)

// A Proxy forwards TCP connections to one server until a fault is set. Its methods may
// be called concurrently. Swallow, SwallowReplies and Refuse replace one another and last
// until Heal. The other faults are independent of them.
type Proxy struct {
	tb    testing.TB
	addr  string
	delay atomic.Int64 // a time.Duration
	wg    sync.WaitGroup

	// The methods that change the mode hold control, so that their steps do not mix. It
	// is taken before any other lock.
	control sync.Mutex

	// mu guards the other fields, and the fields of links and flows that say so. It is
	// never held during network input or output.
	mu     sync.Mutex
	closed bool
	mode   mode
	cut    map[string]bool // IP addresses whose connections are swallowed in any mode
	target string          // of new connections
	ln     net.Listener    // nil while refusing
	links  map[*link]struct{}
	armed  []trap                  // faults of single future commands
	slow   func(cmd []string) bool // the match of DelayCommand; nil for none
	slowBy time.Duration
}

// A trap is a fault that waits for its command.
type trap struct {
	match func(cmd []string) bool
	fault fault
}

// A fault is what a trap does.
type fault int

const (
	dropReply fault = iota + 1
	swallowReply
	swallowRequest
)

// NewProxy listens on a free port of 127.0.0.1 and forwards connections to target, a
// host and port. If target refuses a connection, the proxy resets it. The proxy is closed
// when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := listenLoopback()
	if err != nil {
		tb.Fatalf("redistest: proxy: %v", err)
	}
	p := &Proxy{
		tb: tb, target: target, addr: ln.Addr().String(), mode: passing, ln: ln,
		cut: map[string]bool{}, links: map[*link]struct{}{},
	}
	p.wg.Go(func() { p.accept(ln) })
	tb.Cleanup(p.close)
	return p
}

// Addr returns the host and port of the proxy. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Swallow is a partition. The proxy reads and discards bytes and ends of connections in
// both directions. Connections stay open. New ones are accepted, and their bytes are
// discarded too. No byte passes after Swallow has returned, not even a delayed one.
func (p *Proxy) Swallow() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.setMode(swallowing) {
		l.interrupt(&l.requests)
		l.interrupt(&l.replies)
	}
}

// SwallowReplies is Swallow in one direction: requests reach the server, and the proxy
// discards everything that comes back.
func (p *Proxy) SwallowReplies() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.setMode(swallowingReplies) {
		l.interrupt(&l.replies)
	}
}

// Heal ends Swallow, SwallowReplies and Refuse. It closes connections that lost bytes to
// any fault, connections opened under Swallow, and half-open ones, because their streams
// would continue in the wrong place. Other connections, and new ones, pass.
func (p *Proxy) Heal() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	p.closePoisoned(p.setMode(passing))
}

// swallowFrom is Swallow for the connections from one IP address. It lasts until
// healFrom, whatever the mode.
func (p *Proxy) swallowFrom(ip string) {
	p.control.Lock()
	defer p.control.Unlock()
	p.mu.Lock()
	p.cut[ip] = true
	p.mu.Unlock()
	for _, l := range p.snapshot() {
		if l.from == ip {
			l.interrupt(&l.requests)
			l.interrupt(&l.replies)
		}
	}
}

// healFrom ends swallowFrom.
func (p *Proxy) healFrom(ip string) {
	p.control.Lock()
	defer p.control.Unlock()
	p.mu.Lock()
	delete(p.cut, ip)
	p.mu.Unlock()
	p.closePoisoned(p.snapshot())
}

// closePoisoned closes the links that lost bytes, unless they are still cut: in a
// partition nobody learns that a connection has ended.
func (p *Proxy) closePoisoned(links []*link) {
	for _, l := range links {
		p.mu.Lock()
		poisoned := p.mode == passing && !p.cut[l.from] && (l.requests.lost || l.replies.lost)
		p.mu.Unlock()
		if poisoned {
			l.close(false)
		}
	}
}

// Refuse closes the listener and all connections. New ones fail with
// ECONNREFUSED until Heal reopens the same port.
func (p *Proxy) Refuse() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.setMode(refusing) {
		l.close(false)
	}
}

// Reset ends all current connections on both sides with a TCP RST. New connections are
// treated as before.
func (p *Proxy) Reset() {
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.snapshot() {
		l.close(true)
	}
}

// HalfOpen ends all current connections on the server's side only, as when the server's
// host dies silently. For the clients they stay open. The clients' bytes are discarded,
// and nothing comes back, not even an end. That lasts until a client closes its
// connection, or Heal or Reset does. New connections are treated as before.
func (p *Proxy) HalfOpen() {
	p.halfOpen(func(l *link) *net.TCPConn { return l.server })
}

// HalfOpenServer is HalfOpen in the other direction, as when a client's host dies: the
// clients see the ends of their connections, and for the server they stay open.
func (p *Proxy) HalfOpenServer() {
	p.halfOpen(func(l *link) *net.TCPConn { return l.client })
}

func (p *Proxy) halfOpen(gone func(*link) *net.TCPConn) {
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.snapshot() {
		p.mu.Lock()
		l.requests.lost, l.replies.lost = true, true
		l.gone = gone // for a link that is still dialling
		conn := gone(l)
		p.mu.Unlock()
		l.interrupt(&l.requests)
		l.interrupt(&l.replies)
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// Retarget makes target, a host and port, the server of new connections. Current
// connections keep their server. Reset ends them.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Delay holds back each chunk, in each direction, by d from its arrival. 0 ends the delay
// for new chunks. The order stays. Any number of chunks can be under way, so throughput
// is not limited.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// DropReply arms a fault for one command: the next one for which match is true. The
// command reaches the server, and the proxy reads and discards its reply. In place of the
// reply, after all earlier replies, the client gets the end of its connection (EOF).
// Later requests of the client still reach the server, unanswered, until the client
// closes its own side. Each call arms one more such fault. A command uses up the oldest
// fault that matches, one per connection.
//
// match gets every command, name first, and runs with the proxy locked, so it must not
// call the proxy. The proxy counts replies, without the pushes of RESP3. So this fault
// does not work on a connection that breaks the rule of one reply per command (MONITOR,
// CLIENT REPLY, SUBSCRIBE) or that is not RESP.
func (p *Proxy) DropReply(match func(cmd []string) bool) { p.arm(match, dropReply) }

// SwallowReply is DropReply, but the connection stays open. The proxy discards the reply
// and everything after it. Requests of the client still reach the server.
func (p *Proxy) SwallowReply(match func(cmd []string) bool) { p.arm(match, swallowReply) }

// SwallowRequest arms a fault for one command, as DropReply does. The proxy discards the
// next command for which match is true, and all later requests of that client, before
// they reach the server. The connection stays open, and the replies to earlier commands
// still pass.
func (p *Proxy) SwallowRequest(match func(cmd []string) bool) { p.arm(match, swallowRequest) }

func (p *Proxy) arm(match func(cmd []string) bool, f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, trap{match, f})
}

// DelayCommand holds back each command for which match is true, on its way to the server,
// by d from its arrival (or by Delay's d if that is longer). Later bytes on the same
// connection wait behind the command, because TCP keeps the order. Bytes on another
// connection overtake it. So if a client gives up and dials again, its later command can
// arrive first.
//
// Another call replaces this one for commands that are not held yet. A match of nil ends
// the fault. The rules of DropReply apply to match.
func (p *Proxy) DelayCommand(match func(cmd []string) bool, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow, p.slowBy = match, d
}

// setMode changes the mode, opens or closes the listener accordingly, and returns the
// current links. The caller holds control.
func (p *Proxy) setMode(m mode) []*link {
	p.tb.Helper()
	p.mu.Lock()
	ln, closed := p.ln, p.closed
	if !closed {
		p.mode = m
		if m == refusing {
			p.ln = nil
		}
	}
	p.mu.Unlock()
	switch {
	case closed: // a call that outlives the test changes nothing
	case m == refusing && ln != nil:
		if err := closeListener(ln); err != nil {
			p.tb.Fatalf("redistest: refuse: %v", err)
		}
	case m != refusing && ln == nil:
		p.reopen()
	}
	return p.snapshot()
}

// reopen listens on the proxy's port again. The caller holds control.
func (p *Proxy) reopen() {
	p.tb.Helper()
	ln, err := net.Listen("tcp4", p.addr)
	for deadline := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		ln, err = net.Listen("tcp4", p.addr)
	}
	if err != nil {
		p.tb.Fatalf("redistest: reopen proxy: %v", err)
	}
	p.mu.Lock()
	p.ln = ln
	p.mu.Unlock()
	p.wg.Go(func() { p.accept(ln) })
}

func (p *Proxy) snapshot() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

// close ends the proxy and joins its goroutines.
func (p *Proxy) close() {
	p.control.Lock()
	defer p.control.Unlock()
	p.mu.Lock()
	ln := p.ln
	p.closed, p.mode, p.ln = true, refusing, nil
	p.mu.Unlock()
	if ln != nil {
		_ = ln.Close()
	}
	for _, l := range p.snapshot() {
		l.close(false)
	}
	p.wg.Wait()
}

// accept creates links until ln is closed.
func (p *Proxy) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no file descriptor is free
			continue
		}
		ctx, stop := context.WithCancel(context.Background())
		l := &link{p: p, client: conn.(*net.TCPConn), done: ctx.Done(), stop: stop}
		l.from = conn.RemoteAddr().(*net.TCPAddr).IP.String()
		l.requests.scanner.commands = true
		p.mu.Lock()
		swallowed := p.mode == swallowing || p.cut[l.from]
		l.requests.lost = swallowed
		if p.mode != refusing {
			p.links[l] = struct{}{}
			p.wg.Go(func() { l.run(ctx, swallowed) })
			conn = nil
		}
		p.mu.Unlock()
		if conn != nil {
			stop()
			_ = conn.Close()
		}
	}
}

// A link is one client connection and the server connection to which it is forwarded.
type link struct {
	p      *Proxy
	from   string // the client's IP address
	client *net.TCPConn
	server *net.TCPConn    // set under Proxy.mu; nil before and without a dial
	done   <-chan struct{} // closed with the link
	stop   func()

	requests, replies flow
	gone              func(*link) *net.TCPConn // the connection that HalfOpen closed; nil for none; guarded by Proxy.mu

	sent      uint64   // commands forwarded; owned by the writer of requests
	held      []string // a delayed command; its rest is first on the line; owned by the writer of requests
	heldRest  int      // bytes of that rest
	doomed    uint64   // number of the reply to discard, 0 for none; guarded by Proxy.mu
	keepsOpen bool     // the connection stays open after the doomed reply; guarded by Proxy.mu
	received  uint64   // replies that ended; owned by the writer of replies
	dropping  bool     // the doomed reply has begun; owned by the writer of replies
}

// A flow is one direction of a link. Its reader puts chunks on a line, and its writer
// removes each chunk when it is due.
type flow struct {
	src, dst *net.TCPConn // set with link.server

	// inspect checks a chunk just before it is written.
	inspect  func(c chunk) verdict
	scanner  scanner // owned by the writer
	opaque   bool    // the stream is not RESP and passes uninspected; owned by the writer
	noWrites bool    // dst has failed or got its end, so nothing is written; owned by the writer
	lost     bool    // some bytes were swallowed, so all later ones are too; guarded by Proxy.mu

	// writing is held from the decision to pass a chunk until it is written.
	// Proxy.mu may be taken within.
	writing sync.Mutex

	// The line has no bound. With a delay d, a bound would limit throughput to bound/d.
	// Clients under test have little data under way, so the line stays short.
	lineMu sync.Mutex
	line   []chunk       // first the chunk that is being delivered
	wake   chan struct{} // capacity 1: the line has grown
}

// A chunk is the data of one read, or the rest of it.
type chunk struct {
	data    []byte
	end     bool // the source ended behind data
	arrived time.Time
	due     time.Time
}

// A verdict is what the writer does with a chunk.
type verdict struct {
	pass []byte    // written now
	rest []byte    // waits until due; nil for none
	due  time.Time // of rest
	end  bool      // the connection ends after pass
	lost bool      // everything after pass is swallowed
}

// run forwards the link's bytes until both directions have ended.
func (l *link) run(ctx context.Context, swallowed bool) {
	defer func() {
		l.close(false)
		l.p.mu.Lock()
		delete(l.p.links, l)
		l.p.mu.Unlock()
	}()
	if swallowed { // during a partition the server cannot be dialled
		for buf := make([]byte, chunkSize); ; {
			if _, err := l.client.Read(buf); err != nil {
				return
			}
		}
	}
	var dialer net.Dialer
	l.p.mu.Lock()
	target := l.p.target
	l.p.mu.Unlock()
	server, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		l.close(true) // the closest equivalent of a refused connection
		return
	}
	l.p.mu.Lock()
	l.server = server.(*net.TCPConn)
	l.requests.src, l.requests.dst, l.requests.inspect = l.client, l.server, l.inspectRequests
	l.replies.src, l.replies.dst, l.replies.inspect = l.server, l.client, l.inspectReplies
	gone := l.gone
	l.p.mu.Unlock()
	if ctx.Err() != nil { // the link was closed during the dial, when it had no server to close
		_ = server.Close()
		return
	}
	if gone != nil { // HalfOpen was called during the dial
		_ = gone(l).Close()
	}
	var wg sync.WaitGroup
	for _, f := range []*flow{&l.requests, &l.replies} {
		f.wake = make(chan struct{}, 1)
		wg.Go(func() { l.read(f) })
		wg.Go(func() { l.write(f) })
	}
	wg.Wait()
}

// close ends the link from outside, with a RST if reset.
func (l *link) close(reset bool) {
	l.stop() // first, because run checks it after it has set the server
	l.p.mu.Lock()
	server := l.server
	l.p.mu.Unlock()
	for _, conn := range []*net.TCPConn{l.client, server} {
		if conn == nil {
			continue
		}
		if reset {
			_ = conn.SetLinger(0)
		}
		_ = conn.Close()
	}
}

// interrupt returns when no write from before the last change of mode is under way any
// more. A write that blocks because its reader is frozen is cut off.
func (l *link) interrupt(f *flow) {
	l.p.mu.Lock()
	dst := f.dst
	l.p.mu.Unlock()
	if dst == nil {
		return
	}
	_ = dst.SetWriteDeadline(time.Unix(1, 0))
	f.writing.Lock()
	defer f.writing.Unlock()
	_ = dst.SetWriteDeadline(time.Time{})
}

// read puts the bytes of the source on the line. It never stops reading, even if the
// bytes are discarded later. So the proxy's faults cause no backpressure.
func (l *link) read(f *flow) {
	buf := make([]byte, chunkSize)
	for {
		n, err := f.src.Read(buf)
		now := time.Now()
		c := chunk{
			data: bytes.Clone(buf[:n]), end: err != nil,
			arrived: now, due: now.Add(time.Duration(l.p.delay.Load())),
		}
		f.lineMu.Lock()
		f.line = append(f.line, c)
		f.lineMu.Unlock()
		select {
		case f.wake <- struct{}{}:
		default: // a wake-up is pending
		}
		if err != nil {
			return
		}
	}
}

// write delivers each chunk of the line when it is due, until the last chunk or the end
// of the link.
func (l *link) write(f *flow) {
	for {
		c, ok := f.first()
		if !ok {
			select {
			case <-f.wake:
				continue
			case <-l.done:
				return
			}
		}
		if wait := time.Until(c.due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-l.done:
				return
			}
		}
		if rest := l.deliver(f, c); rest.data != nil {
			f.replaceFirst(rest)
			continue
		}
		f.removeFirst()
		if c.end {
			return
		}
	}
}

// first returns the chunk at the head of the line, if there is one.
func (f *flow) first() (c chunk, ok bool) {
	f.lineMu.Lock()
	defer f.lineMu.Unlock()
	if len(f.line) == 0 {
		return chunk{}, false
	}
	return f.line[0], true
}

func (f *flow) replaceFirst(c chunk) {
	f.lineMu.Lock()
	defer f.lineMu.Unlock()
	f.line[0] = c
}

func (f *flow) removeFirst() {
	f.lineMu.Lock()
	defer f.lineMu.Unlock()
	f.line[0] = chunk{} // the array of the line stays in memory
	f.line = f.line[1:]
}

// deliver writes one chunk, or the part that the mode and the inspection let pass. It
// returns the rest, to be delivered later, without data if there is none.
func (l *link) deliver(f *flow, c chunk) (rest chunk) {
	f.writing.Lock()
	defer f.writing.Unlock()
	if l.p.swallows(l, f) || f.noWrites {
		return chunk{}
	}
	v := f.inspect(c)
	if len(v.pass) > 0 {
		_, err := f.dst.Write(v.pass)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // interrupted
			v.lost = true
		case err != nil: // the reader of dst ends the other direction
			f.noWrites = true
		}
	}
	switch {
	case v.lost:
		l.p.mu.Lock()
		f.lost = true
		l.p.mu.Unlock()
	case v.rest != nil:
		return chunk{data: v.rest, end: c.end, arrived: c.arrived, due: v.due}
	case v.end || c.end:
		// Close only the writing half. A full close with unread input would send a RST,
		// which could discard bytes on their way to dst.
		_ = f.dst.CloseWrite()
		f.noWrites = true
	}
	return chunk{}
}

// swallows reports whether to swallow the next chunk of f, and records the loss.
func (p *Proxy) swallows(l *link, f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == swallowing || p.cut[l.from] || p.mode == swallowingReplies && f == &l.replies {
		f.lost = true
	}
	return f.lost
}

// inspectRequests counts commands, finds those to delay, and springs traps. It runs
// before the command is written, so the reply cannot come first.
func (l *link) inspectRequests(c chunk) verdict {
	f := &l.requests
	n := 0
	if l.held != nil { // the held command is due
		cmd := l.held
		l.held, n = nil, l.heldRest
		if l.spring(cmd) {
			return verdict{lost: true}
		}
	}
	for n < len(c.data) && !f.opaque {
		begin := n
		read, done, err := f.scanner.scan(c.data[n:])
		n += read
		f.opaque = err != nil
		if !done || len(f.scanner.args) == 0 { // Redis ignores an empty request
			continue
		}
		if due := c.arrived.Add(l.p.delayOf(f.scanner.args)); time.Until(due) > 0 {
			l.held, l.heldRest = f.scanner.args, n-begin
			return verdict{pass: c.data[:begin], rest: c.data[begin:], due: due}
		}
		if l.spring(f.scanner.args) {
			return verdict{pass: c.data[:begin], lost: true}
		}
	}
	return verdict{pass: c.data}
}

// delayOf returns how long to hold back a command.
func (p *Proxy) delayOf(cmd []string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slow == nil || !p.slow(cmd) {
		return 0
	}
	return p.slowBy
}

// spring counts a command, and sets off the oldest trap that matches. It reports whether
// to swallow the command.
func (l *link) spring(cmd []string) bool {
	l.sent++
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.doomed != 0 {
		return false // this client gets no more replies, so keep the fault for another one
	}
	for i, t := range l.p.armed {
		if t.match(cmd) {
			l.p.armed = slices.Delete(l.p.armed, i, i+1)
			if t.fault == swallowRequest {
				return true
			}
			l.doomed, l.keepsOpen = l.sent, t.fault == swallowReply
			return false
		}
	}
	return false
}

// inspectReplies counts replies and discards the doomed one. Once that reply has arrived
// in full, the connection ends in its place. With keepsOpen, the connection passes no more
// replies instead.
func (l *link) inspectReplies(c chunk) verdict {
	f := &l.replies
	l.p.mu.Lock()
	doomed, keepsOpen := l.doomed, l.keepsOpen
	l.p.mu.Unlock()
	b, pass := c.data, c.data
	if l.dropping {
		pass = nil
	}
	for n := 0; n < len(b) && !f.opaque; {
		if f.scanner.between() && l.received+1 == doomed && b[n] != '>' {
			l.dropping = true
			pass = b[:n]
			if keepsOpen {
				return verdict{pass: pass, lost: true}
			}
		}
		read, done, err := f.scanner.scan(b[n:])
		n += read
		f.opaque = err != nil
		if done && f.scanner.kind != '>' {
			l.received++
			if l.dropping {
				return verdict{pass: pass, end: true}
			}
		}
	}
	return verdict{pass: pass}
}

// listenLoopback listens on a free port of 127.0.0.1.
func listenLoopback() (net.Listener, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		var ln net.Listener
		if ln, err = net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return ln, nil
		}
	}
	return nil, fmt.Errorf("no free port: %w", err)
}

// closeListener closes ln so that its port refuses connections and can be bound at once.
// A child between fork and exec has a copy of every open file, and would keep the port
// listening for that moment. The lock of ForkLock waits for it.
func closeListener(ln net.Listener) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return ln.Close()
}
