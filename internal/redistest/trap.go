package redistest

import (
	"slices"
	"time"
)

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

func (p *Proxy) arm(match func(cmd []string) bool, f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = append(p.armed, trap{match, f})
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
