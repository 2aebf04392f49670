package quorumlocktest

import (
	"context"
	"errors"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// Node is one Redis of a [Cluster]: a process with its data and its clock, and
// the network to it. All methods are safe for concurrent use, and none waits for
// a client.
//
// Faults of the process end with Kill and Restart, except for the clock, the
// overrides of INFO and Fail, which belong to the machine and its configuration.
// Faults of the network end with Heal, whatever the process does.
type Node struct {
	addr string
	net  *network

	life sync.Mutex // serialises Kill, Restart and close

	// exec is the one thread of a Redis process: it is held while a command is
	// executed and guards everything below. A command of a script finds it held.
	exec     sync.Mutex
	proc     *process      // nil while killed
	closed   bool          // no Restart any more
	hung     bool          // commands wait for resumed
	resumed  chan struct{} // closed and replaced by Resume and Kill
	step     time.Duration // how far the clock has been stepped
	fail     func(args []string) bool
	failWith string
	info     map[string]string // overrides of INFO
}

func newNode(addr string) *Node {
	n := &Node{
		addr:    addr,
		net:     newNetwork(addr),
		resumed: make(chan struct{}),
		info:    map[string]string{},
	}
	n.Restart()
	return n
}

// Addr returns the node's name in InitAddress, such as "node-0:6379".
func (n *Node) Addr() string { return n.addr }

// Kill ends the process, as SIGKILL does to a Redis without persistence: all data
// is gone, every connection is closed, and dials fail with [syscall.ECONNREFUSED]
// until Restart. Killing a dead node does nothing.
func (n *Node) Kill() {
	n.life.Lock()
	defer n.life.Unlock()
	n.kill()
}

// Restart starts a new process, with no data and a new run id. A node that is
// running is killed first. After [Cluster.Close] it does nothing.
func (n *Node) Restart() {
	n.life.Lock()
	defer n.life.Unlock()
	n.kill()
	n.exec.Lock()
	defer n.exec.Unlock()
	if !n.closed {
		n.proc = newProcess(n)
	}
}

// kill needs life.
func (n *Node) kill() {
	n.exec.Lock()
	p := n.proc
	n.proc = nil
	n.resumeLocked()
	n.exec.Unlock()
	if p != nil {
		p.stop()
	}
}

func (n *Node) close() {
	n.life.Lock()
	defer n.life.Unlock()
	n.exec.Lock()
	n.closed = true
	n.exec.Unlock()
	n.kill()
	n.net.close()
}

// Hang stops the process, as SIGSTOP does: connections stay, dials succeed, and
// what clients send is kept, also when they give up and close, but nothing is
// executed or answered until Resume. Its keys go on expiring. Hanging a dead node
// does nothing.
func (n *Node) Hang() {
	n.exec.Lock()
	defer n.exec.Unlock()
	n.hung = n.proc != nil
}

// Resume lets a hung node go on. It executes what was kept, each connection's
// commands in the order they were sent.
func (n *Node) Resume() {
	n.exec.Lock()
	defer n.exec.Unlock()
	n.resumeLocked()
}

func (n *Node) resumeLocked() {
	n.hung = false
	close(n.resumed)
	n.resumed = make(chan struct{})
}

// Cut partitions the node from everybody: bytes in both directions vanish, also
// those under way because of Delay, and dials hang until their context ends or
// the node is healed.
func (n *Node) Cut() {
	n.net.set(func() { n.net.cut = true })
}

// CutReplies loses what the node sends: requests of connected clients are
// executed, the replies vanish. Dials hang, since a handshake needs a reply.
func (n *Node) CutReplies() {
	n.net.set(func() { n.net.cutReplies = true })
}

// Heal ends Cut, CutReplies and Delay. Connections that lost bytes are closed,
// for their next reply would answer the wrong request; the others go on. It does
// not end [Cluster.Partition].
func (n *Node) Heal() {
	n.net.set(func() {
		n.net.cut, n.net.cutReplies, n.net.delay = false, false, 0
	})
}

// Delay makes each direction take d longer, and a dial two times d. The order of
// the bytes is kept, also when a later Delay is shorter. A d of zero or less ends
// the delay for what is sent from now on.
func (n *Node) Delay(d time.Duration) {
	n.net.set(func() { n.net.delay = max(d, 0) })
}

func (n *Node) part(client string, cut bool) {
	n.net.set(func() {
		if cut {
			n.net.parted[client] = true
		} else {
			delete(n.net.parted, client)
		}
	})
}

// FlushAll removes all data and keeps the process, its run id and its scripts.
func (n *Node) FlushAll() {
	n.exec.Lock()
	defer n.exec.Unlock()
	if n.proc != nil {
		n.proc.redis.FlushAll()
	}
}

// StepClock makes the node's wall clock jump by d. Keys have a date to expire at,
// as in Redis: a step forward expires them, a step backward prolongs them. Steps
// add up and outlive a restart.
func (n *Node) StepClock(d time.Duration) {
	n.exec.Lock()
	defer n.exec.Unlock()
	if n.proc != nil {
		n.proc.step(d)
	}
	n.step += d
}

// now is the node's clock. It needs exec.
func (n *Node) now() time.Time { return time.Now().Add(n.step) }

// Do executes one command, whatever fault is set, and returns its reply: a
// string, an int64, nil or a []any of these. A reply that is a Redis error is
// returned as an error with its text. Each call is a connection of its own, so
// SELECT or MULTI do not reach the next one, and SUBSCRIBE is refused. A dead node
// returns an error that is [syscall.ECONNREFUSED].
func (n *Node) Do(args ...string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("quorumlocktest: Do without a command")
	}
	n.exec.Lock()
	p := n.proc
	n.exec.Unlock()
	if p == nil {
		return nil, n.net.refused()
	}
	s := p.admit(nil)
	defer p.dismiss(s)
	reply := p.serve(s, strings.ToUpper(args[0]), args[1:])
	if reply == nil {
		return nil, n.net.refused()
	}
	return parse(reply)
}

// Fail makes the node answer every command for which match is true with this
// Redis error, such as "OOM command not allowed when used memory > 'maxmemory'.",
// instead of executing it. It replaces the former Fail; Fail(nil, "") ends it.
//
// match gets the command's name in upper case, then its arguments. It sees the
// commands of clients and those made by scripts, where the error behaves as any
// other: redis.call raises it. It is not asked about Do. It is called while the
// node executes, so it must not call methods of the Node.
func (n *Node) Fail(match func(args []string) bool, reply string) {
	n.exec.Lock()
	defer n.exec.Unlock()
	n.fail, n.failWith = match, strings.TrimPrefix(reply, "-")
}

// failing reports whether Fail wants this command. It needs exec.
func (n *Node) failing(s *session, cmd string, args []string) bool {
	return n.fail != nil && s.peer != nil && n.fail(append([]string{cmd}, args...))
}

// SetRole is SetInfo of role: "master" or "slave".
func (n *Node) SetRole(role string) {
	n.SetInfo("role", role)
}

// SetInfo overrides one field of INFO, such as redis_mode, run_id, master_replid
// or maxmemory_policy, and what HELLO says of it. It changes what the node says,
// not what it does. A field that INFO does not have appears in the section
// Server.
func (n *Node) SetInfo(key, value string) {
	n.exec.Lock()
	defer n.exec.Unlock()
	info := maps.Clone(n.info)
	info[key] = value
	n.info = info
}

// dial connects a client. Like any connection it does not need the process to be
// awake, only to be there.
func (n *Node) dial(ctx context.Context, client string) (net.Conn, error) {
	if err := n.net.reach(ctx, client); err != nil {
		return nil, err
	}
	n.exec.Lock()
	defer n.exec.Unlock()
	if n.proc == nil {
		return nil, n.net.refused()
	}
	near, far, err := n.net.connect(client)
	if err != nil {
		return nil, err
	}
	n.proc.srv.ServeConn(far)
	return near, nil
}

// parse turns a RESP2 reply into what Do returns.
func parse(reply []byte) (any, error) {
	v, err := server.ParseReply(reader(reply))
	if err != nil {
		return nil, err
	}
	return plain(v), nil
}

func plain(v any) any {
	switch v := v.(type) {
	case server.Simple:
		return string(v)
	case int:
		return int64(v)
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(v[i])
		}
		return list
	default:
		return v
	}
}
