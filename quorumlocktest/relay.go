package quorumlocktest

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network is the network between one node and its clients. It decides which bytes are
// lost, and when the others arrive.
//
// It has no goroutines and no pipes: a sender puts its bytes into a lane under the lock,
// and the receiver takes them out when they are due. So the fault that applies to a Write
// is exact. A sender never waits for a receiver; miniredis relies on that, because it
// writes to its connections with locks held.
type network struct {
	addr string

	mu         sync.Mutex // guards all fields below, and all links, lanes and ends; never held while waiting
	closed     bool
	cut        bool
	cutReplies bool
	delay      time.Duration
	parted     map[string]bool          // clients that are cut off
	distances  map[string]time.Duration // of clients, on top of delay
	links      map[*link]struct{}       // links with an open end
	changed    chan struct{}            // closed and replaced when a dial may have become possible
}

// link is one connection of a client.
type link struct {
	net      *network
	client   string
	near     end // the client's
	far      end // the node's
	poisoned bool
	severed  bool // both ends are dead
}

// lane is one direction of a link: the bytes that were sent and not yet received.
type lane struct {
	lost  func() bool // reports whether bytes are lost
	queue []parcel
	wake  chan struct{} // capacity 1: the receiver must look again
}

// parcel has the bytes of one Write. The end of the stream travels in the lane like any
// other parcel: it arrives after all bytes before it, and is lost when they would be. So
// the commands of a client that gives up on a hung node still arrive.
type parcel struct {
	due  time.Time
	data []byte
	end  bool
}

func newNetwork(addr string) *network {
	return &network{
		addr:      addr,
		parted:    map[string]bool{},
		distances: map[string]time.Duration{},
		links:     map[*link]struct{}{},
		changed:   make(chan struct{}),
	}
}

// reach waits until a handshake with the node would have succeeded. As in TCP, a
// handshake needs both directions, and a lost packet is sent again.
func (w *network) reach(ctx context.Context, client string) error {
	start := time.Now()
	for {
		w.mu.Lock()
		closed, changed := w.closed, w.changed
		blocked := w.cut || w.cutReplies || w.parted[client]
		wait := 2*(w.delay+w.distances[client]) - time.Since(start)
		w.mu.Unlock()
		switch {
		case closed:
			return w.refused()
		case blocked:
			wait = 0
		case wait <= 0:
			return nil
		}
		if err := pause(ctx, wait, changed); err != nil {
			return w.failed("dial", err)
		}
	}
}

// pause waits for d (forever if d is zero), for wake, or for the end of the context.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
	case <-wake:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// connect makes a connection and returns its two ends. It fails when the network
// is closed.
func (w *network) connect(client string) (near, far net.Conn, err error) {
	l := &link{net: w, client: client}
	requests := &lane{wake: make(chan struct{}, 1)}
	replies := &lane{wake: make(chan struct{}, 1)}
	requests.lost = func() bool { return w.cut || w.parted[client] }
	replies.lost = func() bool { return requests.lost() || w.cutReplies }
	l.near = end{link: l, in: replies, out: requests, peer: &l.far, local: address(client), remote: address(w.addr)}
	l.far = end{link: l, in: requests, out: replies, peer: &l.near, local: address(w.addr), remote: address(client)}

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, nil, w.refused()
	}
	w.links[l] = struct{}{}
	return &l.near, &l.far, nil
}

// set changes the network. Bytes in flight in a direction that is now cut are lost. Links
// that lost bytes are severed once they are no longer cut.
func (w *network) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
	now := time.Now()
	for l := range w.links {
		cut := false
		for _, ln := range []*lane{l.near.out, l.far.out} {
			if ln.lost() {
				cut = true
				l.poisoned = ln.drop(now) || l.poisoned
			}
		}
		if w.closed || l.poisoned && !cut {
			l.severed = true
			l.near.in.signal()
			l.far.in.signal()
			delete(w.links, l)
		}
	}
}

// close severs all links.
func (w *network) close() {
	w.set(func() { w.closed = true })
}

func (w *network) refused() error {
	return w.failed("dial", os.NewSyscallError("connect", syscall.ECONNREFUSED))
}

func (w *network) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "pipe", Addr: address(w.addr), Err: err}
}

// send puts a parcel into the lane. gone says that the receiver has closed.
func (l *link) send(ln *lane, p parcel, gone bool) {
	switch {
	case ln.lost():
		l.poisoned = true
	case !gone:
		p.due = time.Now().Add(l.net.delay + l.net.distances[l.client])
		if k := len(ln.queue); k > 0 && ln.queue[k-1].due.After(p.due) {
			p.due = ln.queue[k-1].due // a shorter delay must not change the order
		}
		ln.queue = append(ln.queue, p)
		ln.signal()
	}
}

// drop removes the parcels that have not arrived yet, and reports whether there were any.
// A parcel that is due has arrived: it only waits for the receiver to take it.
func (ln *lane) drop(now time.Time) bool {
	for i, p := range ln.queue {
		if p.due.After(now) {
			ln.queue = ln.queue[:i]
			return true
		}
	}
	return false
}

func (ln *lane) signal() {
	select {
	case ln.wake <- struct{}{}:
	default:
	}
}

// end is one end of a link. A Write never blocks.
type end struct {
	link          *link
	in, out       *lane
	peer          *end
	local, remote net.Addr

	closed         bool
	readBy, sendBy time.Time // deadlines, or zero
}

func (e *end) Read(b []byte) (int, error) {
	for {
		n, wait, err := e.take(b)
		if n > 0 || err != nil || len(b) == 0 {
			e.in.signal() // there may be more bytes, or the same error, for another reader
			return n, err
		}
		_ = pause(context.Background(), wait, e.in.wake)
	}
}

// take reads the bytes that have arrived. If there are none, it returns the least time
// until some arrive, or zero if that is unknown.
func (e *end) take(b []byte) (n int, wait time.Duration, err error) {
	w := e.link.net
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case e.closed:
		return 0, 0, io.ErrClosedPipe
	case e.link.severed:
		return 0, 0, w.failed("read", os.NewSyscallError("read", syscall.ECONNRESET))
	case expired(e.readBy, now):
		return 0, 0, os.ErrDeadlineExceeded
	}
	if !e.readBy.IsZero() {
		wait = e.readBy.Sub(now)
	}
	if len(e.in.queue) == 0 {
		return 0, wait, nil
	}
	first := &e.in.queue[0]
	if left := first.due.Sub(now); left > 0 {
		if wait == 0 || left < wait {
			wait = left
		}
		return 0, wait, nil
	}
	if first.end {
		return 0, 0, io.EOF
	}
	n = copy(b, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		e.in.queue = e.in.queue[1:]
	}
	return n, 0, nil
}

func (e *end) Write(b []byte) (int, error) {
	w := e.link.net
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch {
	case e.closed || e.hasEnded(now):
		return 0, io.ErrClosedPipe
	case e.link.severed:
		return 0, w.failed("write", os.NewSyscallError("write", syscall.EPIPE))
	case expired(e.sendBy, now):
		return 0, os.ErrDeadlineExceeded
	case len(b) == 0:
		return 0, nil
	}
	e.link.send(e.out, parcel{data: bytes.Clone(b)}, e.peer.closed)
	return len(b), nil
}

// hasEnded reports whether the end of the other side's stream has arrived.
func (e *end) hasEnded(now time.Time) bool {
	return len(e.in.queue) > 0 && e.in.queue[0].end && !e.in.queue[0].due.After(now)
}

// Close closes this end. The other end reads the bytes that were sent before, then
// io.EOF.
func (e *end) Close() error {
	e.link.net.mu.Lock()
	defer e.link.net.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.link.send(e.out, parcel{end: true}, e.peer.closed)
	e.in.queue = nil
	e.in.signal()
	if e.peer.closed {
		delete(e.link.net.links, e.link)
	}
	return nil
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }

func (e *end) SetDeadline(t time.Time) error {
	return e.setDeadlines(&t, &t)
}

func (e *end) SetReadDeadline(t time.Time) error {
	return e.setDeadlines(&t, nil)
}

func (e *end) SetWriteDeadline(t time.Time) error {
	return e.setDeadlines(nil, &t)
}

func (e *end) setDeadlines(read, write *time.Time) error {
	e.link.net.mu.Lock()
	defer e.link.net.mu.Unlock()
	if e.closed {
		return io.ErrClosedPipe
	}
	if read != nil {
		e.readBy = *read
		e.in.signal()
	}
	if write != nil {
		e.sendBy = *write
	}
	return nil
}

func expired(deadline, now time.Time) bool {
	return !deadline.IsZero() && !now.Before(deadline)
}

type address string

func (address) Network() string  { return "pipe" }
func (a address) String() string { return string(a) }
