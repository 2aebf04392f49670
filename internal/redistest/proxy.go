package redistest

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
	turns  []string        // in place of target: the first one is for the next connection
	random bool            // any of turns, not the first one
	ln     net.Listener    // nil while refusing
	links  map[*link]struct{}
	armed  []trap                  // faults of single future commands
	slow   func(cmd []string) bool // the match of DelayCommand; nil for none
	slowBy time.Duration
}

// A mode is what a proxy does with bytes and connections.
type mode int

const (
	passing mode = iota + 1
	swallowing
	swallowingReplies
	refusing
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

// Retarget makes target, a host and port, the server of new connections. Current
// connections keep their server. Reset ends them.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target, p.turns = target, nil
}

// Balance makes each new connection go to any of these servers, at random or in turn.
func (p *Proxy) Balance(random bool, targets ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turns, p.random = slices.Clone(targets), random
}

// Delay holds back each chunk, in each direction, by d from its arrival. 0 ends the delay
// for new chunks. The order stays. Any number of chunks can be under way, so throughput
// is not limited.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

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

// closePoisoned closes the links that lost bytes, unless they are still cut: in a partition no side learns that a
// connection has ended.
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
