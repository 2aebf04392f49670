package redistest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

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
	end     bool // the source ended after data
	arrived time.Time
	due     time.Time
}

// chunkSize bounds what one read takes.
const chunkSize = 16 << 10

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
	if n := len(l.p.turns); n > 0 && l.p.random {
		target = l.p.turns[rand.IntN(n)]
	} else if n > 0 {
		target = l.p.turns[0]
		l.p.turns = append(l.p.turns[1:], target)
	}
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
