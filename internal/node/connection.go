package node

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
)

// cut ends whatever the worker and rueidis are waiting for. Left alone, rueidis waits
// for a node that hangs for a second. The kernel may go on sending what was written:
// the releases of Close are among it, and no connection follows that could overtake
// them.
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

// raw returns the connection below TLS: closing that does not wait to say goodbye.
func raw(conn net.Conn) net.Conn {
	if over, ok := conn.(*tls.Conn); ok {
		return over.NetConn()
	}
	return conn
}

// abandon closes a connection, and what was written to it and has not arrived never
// will. After an ordinary close the kernel goes on sending it again for minutes: an
// acquisition could arrive behind the release that went over the next connection, and
// lock for nobody. So the connection is reset. Nothing is lost by it: what has no
// answer is not taken for done, and what matters is sent again.
func abandon(conn net.Conn) error {
	conn = raw(conn)
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	return conn.Close()
}

// watch counts a new connection and reports when it breaks.
func (n *Node) watch(conn net.Conn) net.Conn { return n.register(conn, n.dialed.Add(1)) }

// watchSubscriber counts a connection of the subscriber among those that cut closes,
// and not among those whose end the worker hears of.
func (n *Node) watchSubscriber(conn net.Conn) net.Conn { return n.register(conn, 0) }

func (n *Node) register(conn net.Conn, number uint64) net.Conn {
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

// ping tries a connection that has been idle: nobody reads it meanwhile, so that its end
// would show with the next request alone. Any answer will do.
func (n *Node) ping() {
	_ = n.client.Do(context.Background(), n.client.B().Ping().Build())
	n.look()
	n.pingAt = n.now + keepAlive
}

// watchedConn wakes the worker when its connection ends, so that it dials before the
// next request needs it: a restarted node starts its quarantine, and a lost node is
// found, without waiting for traffic.
type watchedConn struct {
	net.Conn
	node   *Node
	number uint64 // 0: the subscriber's
}

// Close ends the connection. rueidis calls it whatever it was that ended it: no answer in
// time, an error, or credentials that could not be renewed.
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
