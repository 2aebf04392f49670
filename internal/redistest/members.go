//go:build unix

package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// groupTimeout bounds what must happen in a group or a cluster. It is long, because failovers are tried again after
	// a lost vote, and because a Sentinel that could not run for two seconds does nothing for thirty.
	groupTimeout = 2 * time.Minute

	// viewTimeout is how long a running server may take to tell its view. Each question to a frozen one takes this
	// long.
	viewTimeout = 2 * time.Second
)

// members are the data servers of a group or a cluster. A proxy stands before each, and
// the server announces the proxy's address as its own. So replicas, Sentinels, the other
// members and the clients that follow them all come through the proxy.
//
// A proxy cannot see which member a connection comes from, except by its IP address. So
// each member dials from a loopback address of its own.
type members struct {
	tb      testing.TB
	servers []*Server
	proxies []*Proxy // before the port of each server
	buses   []*Proxy // before its port of the cluster bus; none in a group

	control sync.Mutex // held by Isolate and Rejoin, so that their steps do not mix
}

// newMembers prepares n servers and their proxies for start. The arguments of o come last,
// so they override what the members need.
func newMembers(tb testing.TB, n int, o Options) *members {
	tb.Helper()
	m := &members{tb: tb}
	for i := range n {
		s := newServer(tb, Options{Clock: o.Clock, TLS: o.TLS})
		s.explain()
		p := NewProxy(tb, "") // without a target until the server has an address
		host, port, _ := net.SplitHostPort(p.Addr())
		s.args = append(s.args,
			"--replica-announce-ip", host, "--replica-announce-port", port,
			"--repl-diskless-sync-delay", "0", // the others are not worth waiting for
		)
		if canIsolate {
			s.args = append(s.args, "--bind-source-addr", source(i))
		}
		s.args = append(s.args, o.Args...)
		m.servers, m.proxies = append(m.servers, s), append(m.proxies, p)
	}
	return m
}

// start starts the servers in their order. Each can be reached by those after it.
func (m *members) start() {
	m.tb.Helper()
	for i, s := range m.servers {
		startAll(m.tb, []*Server{s})
		m.proxies[i].Retarget(s.Addr())
		if s.bus {
			m.buses[i].Retarget(s.busAddr())
		}
	}
}

// Servers returns the data servers. Addr, and so Do, is the true address of each.
func (m *members) Servers() []*Server { return m.servers }

// Addrs returns the addresses that the servers announce, in their order. Clients that ask
// for a master get one of these.
func (m *members) Addrs() []string {
	addrs := make([]string, len(m.proxies))
	for i, p := range m.proxies {
		addrs[i] = p.Addr()
	}
	return addrs
}

// Direct returns the true address behind an announced one. Isolate does not cut off
// clients that dial it. Any other address stays as it is, so that all of a client's
// addresses can go through Direct.
func (m *members) Direct(announced string) string {
	if i := m.index(announced); i >= 0 {
		return m.servers[i].Addr()
	}
	return announced
}

// index returns the index of the server with this announced address, -1 without one.
func (m *members) index(announced string) int {
	for i, p := range m.proxies {
		if p.Addr() == announced {
			return i
		}
	}
	return -1
}

// canIsolate is true on Linux. Other systems have one loopback address, not a network.
const canIsolate = runtime.GOOS == "linux"

// source returns the IP address from which server i dials.
func source(i int) string { return fmt.Sprintf("127.0.0.%d", i+2) }

// Isolate cuts server i off, as Proxy.Swallow does, from the other servers, from the
// Sentinels, and from the clients that dial its announced address. Clients that dial
// Direct still reach it. Several servers can be isolated, each on its own. On systems other
// than Linux, Isolate skips the test.
func (m *members) Isolate(i int) {
	m.tb.Helper()
	if !canIsolate {
		m.tb.Skipf("redistest: isolate: only Linux has a loopback address for each server, and this is %s", runtime.GOOS)
	}
	m.control.Lock()
	defer m.control.Unlock()
	for _, row := range [][]*Proxy{m.proxies, m.buses} {
		for j, p := range row {
			if j == i {
				p.Swallow()
			} else {
				p.swallowFrom(source(i))
			}
		}
	}
}

// Rejoin ends Isolate of server i. The server learns what it has missed some time later.
func (m *members) Rejoin(i int) {
	m.tb.Helper()
	m.control.Lock()
	defer m.control.Unlock()
	for _, row := range [][]*Proxy{m.proxies, m.buses} {
		for j, p := range row {
			if j == i {
				p.Heal()
			} else {
				p.healFrom(source(i))
			}
		}
	}
}

// A term is the time in which one server is the master, until the next election.
type term struct {
	index int // -1 for none
	epoch int64
}

func (t term) String() string { return fmt.Sprintf("server %d in epoch %d", t.index, t.epoch) }

// majority returns the term that more than half of views name, if there is one.
func majority(views []term) (term, bool) {
	votes := map[term]int{}
	for _, t := range views {
		if votes[t]++; votes[t] > len(views)/2 {
			return t, true
		}
	}
	return term{}, false
}

// ask asks servers for their view at the same time. It returns the views of those that
// have one.
func ask(servers []*Server, view func(*Server) (term, bool)) []term {
	var mu sync.Mutex
	var views []term
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() {
			t, ok := view(s)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				views = append(views, t)
			}
		})
	}
	wg.Wait()
	return views
}

// awaitTerm asks until a majority names the same term, and that term is a wanted one.
func awaitTerm(tb testing.TB, d time.Duration, what string, views func() []term, wanted func(term) bool) (index int, epoch int64) {
	tb.Helper()
	await(tb, d, what, func() error {
		seen := views()
		t, ok := majority(seen)
		if !ok || t.index < 0 || !wanted(t) {
			return fmt.Errorf("the views are %v", seen)
		}
		index, epoch = t.index, t.epoch
		return nil
	})
	return index, epoch
}

// await tries until f returns no error. It fails the test with the last error after d.
func await(tb testing.TB, d time.Duration, what string, f func() error) {
	tb.Helper()
	deadline := time.Now().Add(d)
	for err := f(); err != nil; err = f() {
		if time.Now().After(deadline) {
			tb.Fatalf("redistest: %s: not after %v: %v", what, d, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// inStep returns an error unless n replicas are connected to s and have all its data up
// to a moment ago.
func (s *Server) inStep(n int) error {
	reply, err := s.Do("INFO", "replication")
	if err != nil {
		return err
	}
	text, _ := reply.(string)
	if online := strings.Count(text, "state=online"); online != n {
		return fmt.Errorf("%s has %d of %d replicas online", s.Addr(), online, n)
	}
	return nil
}

// explain logs the end of the server's log if the test fails. Elections depend on what each
// server has seen of the others.
func (s *Server) explain() {
	s.tb.Cleanup(func() {
		if !s.tb.Failed() {
			return
		}
		const most = 1000
		text, _ := os.ReadFile(filepath.Join(s.dir, logName))
		s.mu.Lock()
		down := s.downLocked()
		s.mu.Unlock()
		s.tb.Logf("redistest: %s is down: %v; the end of its log:\n%s", s.Addr(), down, text[max(0, len(text)-most):])
	})
}

// configure gives the server a configuration file that it may rewrite. It does so when a
// Sentinel changes its master, and continues from there after a restart.
func (s *Server) configure(text string) {
	s.tb.Helper()
	s.config = filepath.Join(s.dir, "redis.conf")
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		s.tb.Fatalf("redistest: configuration: %v", err)
	}
}

// busAddr returns the host and port of the server's end of the cluster bus.
func (s *Server) busAddr() string { return net.JoinHostPort(loopback, strconv.Itoa(s.busPort)) }
