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

	// Ports come from below the ephemeral range of the usual systems, so no
	// outgoing connection can take the port of a server or proxy that is down for
	// a while. The upper bound also leaves room for the cluster bus, port + 10000.
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

// A Proxy passes TCP connections on to one server until a fault is set. Its
// methods may be called concurrently. Swallow, SwallowReplies and Refuse replace
// one another and last until Heal; Delay and DropReply are independent of them.
type Proxy struct {
	tb     testing.TB
	target string
	addr   string
	delay  atomic.Int64 // a time.Duration
	wg     sync.WaitGroup

	// control is held by the methods that change the mode, so that the steps of
	// two of them do not mix. It is taken before any other lock.
	control sync.Mutex

	// mu guards the rest, and the fields of links and flows that say so. It is
	// never held over network input or output.
	mu     sync.Mutex
	closed bool
	mode   mode
	ln     net.Listener // nil while refusing
	links  map[*link]struct{}
	armed  []func(cmd []string) bool // one entry for each DropReply to come
}

// NewProxy listens on a free port of 127.0.0.1 and passes connections on to
// target, a host and port. A connection is reset when target refuses it. The
// proxy is closed when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	ln, err := listenLoopback()
	if err != nil {
		tb.Fatalf("redistest: proxy: %v", err)
	}
	p := &Proxy{tb: tb, target: target, addr: ln.Addr().String(), mode: passing, ln: ln, links: map[*link]struct{}{}}
	p.wg.Go(func() { p.accept(ln) })
	tb.Cleanup(p.close)
	return p
}

// Addr returns the host and port of the proxy. It never changes.
func (p *Proxy) Addr() string { return p.addr }

// Swallow is a partition: bytes, and ends of connections, are read and thrown
// away in both directions. Connections stay open, and new ones are accepted and
// swallowed too. Not one byte passes after Swallow has returned, not even one
// that is being delayed.
func (p *Proxy) Swallow() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.setMode(swallowing) {
		l.interrupt(&l.requests)
		l.interrupt(&l.replies)
	}
}

// SwallowReplies is Swallow in one direction: requests reach the server, and
// everything that comes back is thrown away.
func (p *Proxy) SwallowReplies() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.setMode(swallowingReplies) {
		l.interrupt(&l.replies)
	}
}

// Heal ends Swallow, SwallowReplies and Refuse. Connections that lost bytes, and
// those opened under Swallow, are closed, as what they would carry next is out of
// step; the others, and new ones, pass.
func (p *Proxy) Heal() {
	p.tb.Helper()
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.setMode(passing) {
		p.mu.Lock()
		poisoned := l.requests.lost || l.replies.lost
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

// Reset ends all current connections, on both sides, with a TCP RST. New ones
// are treated as before.
func (p *Proxy) Reset() {
	p.control.Lock()
	defer p.control.Unlock()
	for _, l := range p.snapshot() {
		l.close(true)
	}
}

// Delay holds each chunk, in each direction, back by d from the moment it
// arrives; 0 ends that for the chunks to come. Order is kept, and as any number
// of chunks can be under way, throughput is not limited.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// DropReply arms a fault for one command: the next one for which match is true
// reaches the server, its reply is read and thrown away, and the client gets the
// end of its connection (EOF) in its place, after all earlier replies. Requests
// that the client sends behind that command, until it closes its own side, still
// reach the server, unanswered. Each call arms one more such fault; a command
// uses up the oldest that matches, one per connection.
//
// match gets every command, name first, and runs with the proxy locked: it must
// not call the proxy. Replies are counted, pushes of RESP3 left out, so a
// connection that breaks the rule of one reply per command (MONITOR, CLIENT
// REPLY, SUBSCRIBE) or that is no RESP is not suited.
func (p *Proxy) DropReply(match func(cmd []string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, match)
}

// setMode switches the mode, opens or closes the listener accordingly, and
// returns the links there are. The caller holds control.
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

// accept makes links until ln is closed.
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
		l.requests.scanner.commands = true
		p.mu.Lock()
		swallowed := p.mode == swallowing
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

// A link is one client connection and the server connection it is passed on to.
type link struct {
	p      *Proxy
	client *net.TCPConn
	server *net.TCPConn    // set under Proxy.mu; nil before and without a dial
	done   <-chan struct{} // closed with the link
	stop   func()

	requests, replies flow

	sent     uint64 // commands passed on; owned by the writer of requests
	doomed   uint64 // number of the reply to throw away, 0 for none; guarded by Proxy.mu
	received uint64 // replies that ended; owned by the writer of replies
	dropping bool   // the doomed reply has begun; owned by the writer of replies
}

// A flow is one direction of a link: a reader that puts chunks on a line, and a
// writer that takes each off when it is due.
type flow struct {
	src, dst *net.TCPConn // set with link.server

	// inspect looks at bytes just before they are written. It returns those to
	// write and whether the connection ends behind them.
	inspect func(b []byte) (pass []byte, end bool)
	scanner scanner // owned by the writer
	opaque  bool    // the stream is no RESP and passes uninspected; owned by the writer
	deaf    bool    // dst is gone or got its end, so nothing is written; owned by the writer
	lost    bool    // bytes were swallowed, and from then on all are; guarded by Proxy.mu

	// writing is held from the decision to pass a chunk until it is written.
	// Proxy.mu may be taken within.
	writing sync.Mutex

	// The line has no bound: with a delay d, a bound would limit throughput to
	// bound/d, and clients under test do not have that much under way.
	lineMu sync.Mutex
	line   []chunk       // up to and with the one being delivered
	wake   chan struct{} // holds 1: the line has grown
}

// A chunk is what one read returned.
type chunk struct {
	data []byte
	end  bool // the source ended behind data
	due  time.Time
}

// run passes the link's bytes on until both directions have ended.
func (l *link) run(ctx context.Context, swallowed bool) {
	defer func() {
		l.close(false)
		l.p.mu.Lock()
		delete(l.p.links, l)
		l.p.mu.Unlock()
	}()
	if swallowed { // behind a partition there is nobody to dial
		for buf := make([]byte, chunkSize); ; {
			if _, err := l.client.Read(buf); err != nil {
				return
			}
		}
	}
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", l.p.target)
	if err != nil {
		l.close(true) // the nearest there is to passing on a refused connection
		return
	}
	l.p.mu.Lock()
	l.server = server.(*net.TCPConn)
	l.requests.src, l.requests.dst, l.requests.inspect = l.client, l.server, l.inspectRequests
	l.replies.src, l.replies.dst, l.replies.inspect = l.server, l.client, l.inspectReplies
	l.p.mu.Unlock()
	if ctx.Err() != nil { // closed while dialling, when there was no server to close
		_ = server.Close()
		return
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
	l.stop() // first: run looks at it once it has set the server
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

// interrupt returns when no write decided before the last change of mode is
// under way any more. A write that blocks, because its reader is frozen, is cut.
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

// read puts what the source sends on the line. It always reads on, whatever
// happens to the bytes later, so no peer ever feels the proxy's faults as
// backpressure.
func (l *link) read(f *flow) {
	buf := make([]byte, chunkSize)
	for {
		n, err := f.src.Read(buf)
		c := chunk{data: bytes.Clone(buf[:n]), end: err != nil, due: time.Now().Add(time.Duration(l.p.delay.Load()))}
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

// write delivers the chunks of the line, each when it is due, up to the last one
// or the end of the link.
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
		l.deliver(f, c)
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

func (f *flow) removeFirst() {
	f.lineMu.Lock()
	defer f.lineMu.Unlock()
	f.line[0] = chunk{} // the array behind the line lives on
	f.line = f.line[1:]
}

// deliver writes one chunk, or what the mode and the inspection leave of it.
func (l *link) deliver(f *flow, c chunk) {
	f.writing.Lock()
	defer f.writing.Unlock()
	if l.p.swallows(l, f) || f.deaf {
		return
	}
	pass, end := f.inspect(c.data)
	if len(pass) > 0 {
		_, err := f.dst.Write(pass)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // interrupted
			l.p.mu.Lock()
			f.lost = true
			l.p.mu.Unlock()
			return
		case err != nil: // dst's own reader tells the other side
			f.deaf = true
		}
	}
	if end || c.end {
		// Only the writing half: a full close with unread input would send a RST
		// and could take bytes on their way to dst with it.
		_ = f.dst.CloseWrite()
		f.deaf = true
	}
}

// swallows decides about the next chunk of f, and remembers a loss.
func (p *Proxy) swallows(l *link, f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mode == swallowing || p.mode == swallowingReplies && f == &l.replies {
		f.lost = true
	}
	return f.lost
}

// inspectRequests counts commands and dooms the reply of one that matches. It
// runs before the command is written, so the reply cannot be faster.
func (l *link) inspectRequests(b []byte) (pass []byte, end bool) {
	f := &l.requests
	for rest := b; len(rest) > 0 && !f.opaque; {
		n, done, err := f.scanner.scan(rest)
		rest = rest[n:]
		f.opaque = err != nil
		if done && len(f.scanner.args) > 0 { // Redis passes over an empty request
			l.sent++
			l.doom(f.scanner.args)
		}
	}
	return b, false
}

// doom marks the reply of the command just counted if a DropReply matches it.
func (l *link) doom(cmd []string) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.doomed != 0 {
		return // this client has heard its last reply; keep the fault for another
	}
	for i, match := range l.p.armed {
		if match(cmd) {
			l.doomed = l.sent
			l.p.armed = slices.Delete(l.p.armed, i, i+1)
			return
		}
	}
}

// inspectReplies counts replies, and ends the connection before the doomed one
// as soon as that has arrived in full.
func (l *link) inspectReplies(b []byte) (pass []byte, end bool) {
	f := &l.replies
	l.p.mu.Lock()
	doomed := l.doomed
	l.p.mu.Unlock()
	pass = b
	if l.dropping {
		pass = nil
	}
	for n := 0; n < len(b) && !f.opaque; {
		if f.scanner.between() && l.received+1 == doomed && b[n] != '>' {
			l.dropping = true
			pass = b[:n]
		}
		read, done, err := f.scanner.scan(b[n:])
		n += read
		f.opaque = err != nil
		if done && f.scanner.kind != '>' {
			l.received++
			if l.dropping {
				return pass, true
			}
		}
	}
	return pass, false
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

// closeListener closes ln so that its port refuses connections and can be bound
// at once. A child that is between fork and exec holds a copy of every open
// file, and would keep the port listening for that moment: ForkLock waits for it.
func closeListener(ln net.Listener) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return ln.Close()
}
