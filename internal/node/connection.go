package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"syscall"

	"github.com/redis/rueidis"
)

// cut ends all waits of the worker and of rueidis, which would wait for a hanging node
// for a second. It does not reset the connections: the kernel may go on sending what was
// written, such as the releases of Close, and no later connection could overtake them.
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

// raw returns the connection below TLS. Closing that one does not wait for a close
// message.
func raw(conn net.Conn) net.Conn {
	if over, ok := conn.(*tls.Conn); ok {
		return over.NetConn()
	}
	return conn
}

// abandon resets a connection, so that data which was written and has not arrived never
// will. After an ordinary close the kernel would send that data again for minutes: an
// acquisition could arrive after the release that went over the next connection, and lock
// for no lease. Nothing is lost by the reset: a request without an answer does not count
// as done, and important requests are sent again.
func abandon(conn net.Conn) error {
	conn = raw(conn)
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	return conn.Close()
}

// watch numbers a new connection and reports when it breaks.
func (n *Node) watch(conn net.Conn) net.Conn { return n.register(conn, n.dialed.Add(1), false) }

// watchSubscriber registers a connection of the subscriber, so that cut closes it. The
// worker is not notified of its end.
func (n *Node) watchSubscriber(conn net.Conn) net.Conn { return n.register(conn, 0, false) }

func (n *Node) register(conn net.Conn, number uint64, aside bool) net.Conn {
	watched := &watchedConn{Conn: conn, node: n, number: number, aside: aside}
	n.mu.Lock()
	n.conns[watched] = struct{}{}
	n.mu.Unlock()
	if n.ctx.Err() != nil { // cut may have run before this connection was registered
		_ = raw(conn).Close()
	}
	return watched
}

// connected reports whether the greeted connection is up.
func (n *Node) connected() bool {
	return n.greeted != 0 && n.greeted == n.dialed.Load() && n.lost.Load() < n.greeted
}

// ping tests an idle connection. Nothing reads from it meanwhile, so its end would
// otherwise show only with the next request. Any answer will do.
func (n *Node) ping() {
	n.asked(n.now)
	if n.client.Do(context.Background(), n.client.B().Ping().Build()).NonRedisError() == nil {
		n.owes.Store(0)
	}
	n.look()
	n.pingAt = n.now + keepAlive
}

// watchedConn wakes the worker when its connection ends. So the worker redials before the
// next request needs the connection: without traffic, a restarted node still starts its
// quarantine, and a lost node is found.
type watchedConn struct {
	net.Conn
	node   *Node
	number uint64 // 0 for all but the worker's
	aside  bool   // it goes to those who choose the master, not to the master
	heard  bool   // something has arrived; used only by the goroutine that reads
}

// Read explains the end of a connection over which nothing has ever arrived: a server that
// speaks TLS at its port ends one that begins otherwise, and says nothing.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if _, secure := c.Conn.(*tls.Conn); n > 0 || secure {
		c.heard = true
	}
	if err != nil && !c.heard && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		err = fmt.Errorf("the server ended the connection before any answer (%w); if it speaks TLS at this port, set TLSConfig, or name its other port", err)
	}
	return n, err
}

// Close ends the connection. rueidis calls it whatever the cause: no answer in time, an
// error, or credentials that could not be renewed.
func (c *watchedConn) Close() error {
	for {
		lost := c.node.lost.Load()
		if lost >= c.number || c.node.lost.CompareAndSwap(lost, c.number) {
			break
		}
	}
	c.node.wake()
	c.node.mu.Lock()
	delete(c.node.conns, c)
	c.node.mu.Unlock()
	return abandon(c.Conn)
}

// hangUp resets the connections of the worker and of the subscriber, so that the next
// ones go to the present master. Redis keeps the connections of a demoted master,
// and a promoted one keeps those from before its demotion.
func (n *Node) hangUp() {
	n.mu.Lock()
	conns := make([]*watchedConn, 0, len(n.conns))
	for conn := range n.conns {
		if !conn.aside {
			conns = append(conns, conn)
		}
	}
	n.mu.Unlock()
	n.severed.Store(true)
	for _, conn := range conns {
		_ = conn.Close()
	}
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
	return requiredOptions(n.ctx, o, func(conn net.Conn) net.Conn { return n.register(conn, 0, true) })
}
