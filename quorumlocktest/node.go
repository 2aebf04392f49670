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

// Node is one Redis of a [Cluster]: a process with its data and its clock, and its
// network. All methods are safe for concurrent use, and none waits for a client.
//
// Faults of the process end with Kill and Restart, except for the clock, the overrides of
// INFO, and Fail: these belong to the machine and its configuration. Faults of the
// network end with Heal, whatever the process does.
type Node struct {
	addr  string
	net   *network
	slots *slots // of its Redis Cluster; nil for an independent node
	index int    // in it

	life sync.Mutex // serialises Kill, Restart and close

	// exec is the single thread of a Redis process. It is held while a command runs, and
	// guards all fields below. It is already held when a script runs a command.
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

func newNode(addr string, of *slots, index int) *Node {
	n := &Node{
		addr:    addr,
		slots:   of,
		index:   index,
		net:     newNetwork(addr),
		resumed: make(chan struct{}),
		info:    map[string]string{},
	}
	n.Restart()
	return n
}

// Addr returns the node's name in InitAddress, such as "node-0:6379".
func (n *Node) Addr() string { return n.addr }

// Kill ends the process, like SIGKILL for a Redis without persistence: all data is gone,
// every connection is closed, and dials fail with [syscall.ECONNREFUSED] until Restart.
// Killing a dead node does nothing.
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

// kill ends the process. The caller holds life.
func (n *Node) kill() {
	n.slots.lock()
	n.exec.Lock()
	n.replicate()
	p := n.proc
	n.proc = nil
	n.resumeLocked()
	n.exec.Unlock()
	n.slots.unlock()
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

// Hang stops the process, as SIGSTOP does. Connections stay, dials succeed, and commands
// that clients send are kept, even if the clients give up and close. But the node
// executes and answers nothing until Resume. Its keys still expire. Hanging a dead node
// does nothing.
func (n *Node) Hang() {
	n.exec.Lock()
	defer n.exec.Unlock()
	n.hung = n.proc != nil
}

// Resume lets a hung node continue. It executes the kept commands, each connection's in
// the order of sending.
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

// Cut partitions the node from all clients. Bytes in both directions are lost, including
// those that Delay still holds. Dials hang until their context ends or the node is
// healed.
func (n *Node) Cut() {
	n.net.set(func() { n.net.cut = true })
}

// CutReplies loses the bytes that the node sends: it executes the requests of connected
// clients, but the replies are lost. Dials hang, since a handshake needs a reply.
func (n *Node) CutReplies() {
	n.net.set(func() { n.net.cutReplies = true })
}

// Heal ends Cut, CutReplies and Delay. Connections that lost bytes are closed, because
// their next reply would answer the wrong request; the others continue. Heal does not end
// [Cluster.Partition].
func (n *Node) Heal() {
	n.net.set(func() {
		n.net.cut, n.net.cutReplies, n.net.delay = false, false, 0
	})
}

// Delay makes each direction take d longer, and a dial two times d. The order of the
// bytes is kept, even if a later Delay is shorter. A d of zero or less ends the delay for
// the bytes sent from then on.
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

// StepClock makes the node's wall clock jump by d. Keys have an instant of expiry, as in
// Redis: a step forward expires them, a step back prolongs them. Steps add up, and
// survive a restart.
func (n *Node) StepClock(d time.Duration) {
	n.exec.Lock()
	defer n.exec.Unlock()
	if n.proc != nil {
		n.proc.step(d)
	}
	n.step += d
}

// now returns the time of the node's clock. The caller holds exec.
func (n *Node) now() time.Time { return time.Now().Add(n.step) }

// Do executes one command, whatever fault is set, and returns its reply: a string, an
// int64, nil or a []any of these. Do returns a Redis error as an error with its text.
// Each call has its own connection, so SELECT or MULTI do not affect the next call, and
// SUBSCRIBE is refused. A dead node returns an error that is [syscall.ECONNREFUSED].
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

// Fail makes the node answer a Redis error, such as "OOM command not allowed when used
// memory > 'maxmemory'.", to every command for which match is true. The node does not
// execute these commands. A call replaces the one before; Fail(nil, "") ends it.
//
// match gets the command's name in upper case, then its arguments. It sees the commands of
// clients and of scripts, where redis.call raises the error like any other. It
// does not see the commands of Do. The node calls it while it executes a command, so
// match must not call methods of the Node.
func (n *Node) Fail(match func(args []string) bool, reply string) {
	n.exec.Lock()
	defer n.exec.Unlock()
	n.fail, n.failWith = match, strings.TrimPrefix(reply, "-")
}

// failing reports whether Fail matches this command. The caller holds exec.
func (n *Node) failing(s *session, cmd string, args []string) bool {
	return n.fail != nil && s.peer != nil && n.fail(append([]string{cmd}, args...))
}

// SetRole is SetInfo of role: "master" or "slave".
func (n *Node) SetRole(role string) {
	n.SetInfo("role", role)
}

// SetInfo overrides one field of INFO, such as redis_mode, run_id, master_replid or
// maxmemory_policy, and the same field in HELLO. It changes the node's reports, not its
// behaviour. A field that INFO does not have appears in the section Server.
func (n *Node) SetInfo(key, value string) {
	n.exec.Lock()
	defer n.exec.Unlock()
	info := maps.Clone(n.info)
	info[key] = value
	n.info = info
}

// standing returns what INFO says about the node's place in a Redis Cluster, if it has one.
func (n *Node) standing() (mode, role, enabled string) {
	switch {
	case n.slots == nil:
		return "standalone", "master", "0"
	case n.slots.isMaster(n.index):
		return "cluster", "master", "1"
	default:
		return "cluster", "slave", "1"
	}
}

// dial connects a client. As with any connection, the process must exist, but may be
// hung.
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

// parse turns a RESP2 reply into a result of Do.
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
