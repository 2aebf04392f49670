package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// conns are the connections of a node: to its server, and to the servers that choose it.
type conns struct {
	life context.Context // of the node
	wake func()          // the worker

	mu   sync.Mutex
	open map[*watchedConn]struct{} // by our own pointer, because the user's type may not be comparable

	// The dialler counts the worker's connections. lost is the newest one that has broken. The
	// worker reads both; the goroutines inside rueidis that dial or read write them.
	dialed, lost atomic.Uint64
	severed      atomic.Bool // reset has closed the connection below rueidis
}

// begin is called before all others. wake wakes the worker.
func (c *conns) begin(life context.Context, wake func()) {
	c.life, c.wake, c.open = life, wake, map[*watchedConn]struct{}{}
}

// cut closes all connections when the node is cut off. It does not reset them: the kernel may still send written data,
// such as the releases of Close, and no later connection could overtake that data.
func (c *conns) cut() {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	for _, conn := range all {
		_ = raw(conn.Conn).Close()
	}
}

// raw returns the connection below TLS. Closing it does not wait for a close message.
func raw(conn net.Conn) net.Conn {
	if over, ok := conn.(*tls.Conn); ok {
		return over.NetConn()
	}
	return conn
}

// abandon resets a connection, so that data which was written and has not arrived never will. After an ordinary close
// the kernel would send that data again for minutes: an acquisition could arrive after the release that went over the
// next connection, and make a lock without a lease. Nothing is lost by the reset: a request without an answer does not
// count as done, and important requests are sent again.
func abandon(conn net.Conn) error {
	conn = raw(conn)
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	return conn.Close()
}

// watch numbers a new connection and reports when it breaks.
func (c *conns) watch(conn net.Conn) net.Conn { return c.register(conn, c.dialed.Add(1), false) }

// watchSubscriber registers a connection of the subscriber, so that cut closes it. The
// worker is not notified of its end.
func (c *conns) watchSubscriber(conn net.Conn) net.Conn { return c.register(conn, 0, false) }

// watchAside registers a connection that only asks for the master. The worker is not notified of its end, and hangUp
// leaves it alone.
func (c *conns) watchAside(conn net.Conn) net.Conn { return c.register(conn, 0, true) }

func (c *conns) register(conn net.Conn, number uint64, aside bool) net.Conn {
	watched := &watchedConn{Conn: conn, conns: c, number: number, aside: aside}
	c.mu.Lock()
	c.open[watched] = struct{}{}
	c.mu.Unlock()
	if c.life.Err() != nil { // cut may have run before this connection was registered
		_ = raw(conn).Close()
	}
	return watched
}

// up reports whether the worker's connection with this number is the newest one and has not
// broken.
func (c *conns) up(number uint64) bool { return number == c.dialed.Load() && c.lost.Load() < number }

// hangUp resets the connections of the worker and of the subscriber, so that the next
// ones go to the present master. Redis keeps the connections of a demoted master,
// and a promoted one keeps those from before its demotion.
func (c *conns) hangUp() { c.reset(func(conn *watchedConn) bool { return !conn.aside }) }

// expire resets the worker's connection, so that the next one gets new credentials.
func (c *conns) expire() { c.reset(func(conn *watchedConn) bool { return conn.number > 0 }) }

func (c *conns) reset(which func(*watchedConn) bool) {
	c.mu.Lock()
	all := make([]*watchedConn, 0, len(c.open))
	for conn := range c.open {
		if which(conn) {
			all = append(all, conn)
		}
	}
	c.mu.Unlock()
	c.severed.Store(true)
	for _, conn := range all {
		_ = conn.Close()
	}
}

// peek reports whether the socket of the worker's connection has an answer that this process has not had the CPU to
// read, and whether the connection has ended.
func (c *conns) peek() (unread, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if socket, ok := raw(conn.Conn).(syscall.Conn); ok && conn.number > 0 {
			if inside, err := socket.SyscallConn(); err == nil {
				some, over := peek(inside)
				unread, ended = unread || some, ended || over
			}
		}
	}
	return unread, ended
}

// watchedConn wakes the worker when its connection ends. So the worker redials before the
// next request needs the connection: without traffic, a restarted node still starts its
// quarantine, and a lost node is found.
type watchedConn struct {
	net.Conn
	conns  *conns
	number uint64 // 0 for all but the worker's
	aside  bool   // it goes to a server that chooses the master, not to the master
	heard  bool   // something has arrived; used only by the goroutine that reads
}

// Read explains a TLS alert, and the end of a connection over which nothing has ever arrived: a server that speaks TLS
// at its port silently ends a connection that begins without TLS.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Now().Add(lastLook)) == nil {
		n, err = c.Conn.Read(p) // this process may be late itself: read what has arrived
	}
	_, secure := c.Conn.(*tls.Conn)
	c.heard = c.heard || n > 0 || secure
	if err != nil && secure { // not at each read: errors.As allocates
		err = refusedTLS(err)
	}
	if err != nil && !c.heard && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		err = fmt.Errorf("the server ended the connection before any answer (%w); if it speaks TLS at this port, set TLSConfig or name its other port; if it is a proxy, name the server itself", err)
	}
	return n, err
}

// Write explains a TLS alert as Read does. A write may find the connection ended before a read has found the alert,
// which the kernel still has.
func (c *watchedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	ended := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if _, secure := c.Conn.(*tls.Conn); ended && secure && c.SetReadDeadline(time.Now().Add(alertTimeout)) == nil {
		var refused *wire.ConfigError
		if _, alert := c.Conn.Read(make([]byte, 1)); errors.As(refusedTLS(alert), &refused) {
			err = refused
		}
	}
	return n, err
}

// lastLook is how long past its deadline a connection is read for data that has already arrived.
const lastLook = time.Millisecond

// alertTimeout is how long a connection over which a write has failed is read for an alert. If it has ended, the read
// ends at once. The bound is for a process that is late between write and read: a read after its deadline returns
// nothing.
const alertTimeout = time.Second

// Close ends the connection. rueidis calls it whatever the cause: no answer in time, an
// error, or credentials that could not be renewed.
func (c *watchedConn) Close() error {
	for {
		lost := c.conns.lost.Load()
		if lost >= c.number || c.conns.lost.CompareAndSwap(lost, c.number) {
			break
		}
	}
	c.conns.wake()
	c.conns.mu.Lock()
	delete(c.conns.open, c)
	c.conns.mu.Unlock()
	return abandon(c.Conn)
}
