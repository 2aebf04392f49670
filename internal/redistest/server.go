//go:build unix

// Package redistest runs real redis-server processes for tests and puts fault proxies before them.
//
// A [Server] can be killed, frozen, filled up, and restarted on its port and directory.
// A restart can lose the end of its append-only file. [Options] give a server TLS, a Unix
// socket, and a wall clock that can be stepped. A [Proxy] between a client and a server
// cuts, delays, resets or half-opens connections, or loses one chosen command or its
// reply. A [Group] is a master with replicas under Sentinels, and a [Cluster] is a Redis
// cluster. Both replace a master that fails, and one that is cut off while some clients
// still reach it. Servers and proxies listen on 127.0.0.1 only, and end with the test that
// created them.
//
// Methods that return no error fail the test instead. They may be called from any
// goroutine. A failure then ends that goroutine, as [testing.T.FailNow] does.
package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Server is one redis-server process. Its methods may be called concurrently.
type Server struct {
	tb   testing.TB
	bin  string
	dir  string
	args []string // the caller's; they come last, so they override the defaults
	port int      // chosen by Start, fixed once Start returns

	config  string // path of a configuration file that the server may rewrite; "" for none
	owner   bool   // the server is a cluster of its own
	bus     bool   // the server has a port for the cluster bus
	busPort int    // as port; 0 without bus

	tls     *TLS       // nil without Options.TLS
	tlsPort int        // as port; 0 without Options.TLS
	socket  string     // path of the Unix socket; "" without Options.Socket
	clock   *wallClock // nil without Options.Clock

	mu   sync.Mutex // guards proc
	proc *process   // nil while the server is down
}

// Start runs n servers in parallel, and returns when each answers PING. Every server has
// its own port on 127.0.0.1 and its own temporary directory. args are extra redis-server
// arguments for all servers. Without arguments such as "--appendonly", "yes" a server
// stores nothing on disk. The servers are killed when the test ends, and on Linux also
// when the test binary dies.
//
// REDIS_SERVER in the environment replaces the redis-server in PATH by another binary. It
// must be the server itself, or a script that execs it.
func Start(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	return StartWith(tb, n, Options{Args: args})
}

// Options changes the defaults of the servers that StartWith starts.
type Options struct {
	Args []string // as for Start

	// Clock gives each server its own wall clock, for StepClock. That needs Linux and
	// gcc. Elsewhere the test is skipped.
	Clock bool
	// Socket makes the servers also listen at a Unix socket, at SocketAddr.
	Socket bool
	// TLS makes the servers also listen for TLS, at TLSAddr; nil for no TLS.
	TLS *TLS
}

// StartWith is Start with options.
func StartWith(tb testing.TB, n int, options Options) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = newServer(tb, options)
	}
	startAll(tb, servers)
	return servers
}

// newServer prepares a server for startAll.
func newServer(tb testing.TB, options Options) *Server {
	tb.Helper()
	name := os.Getenv("REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	bin, err := exec.LookPath(name)
	if err == nil {
		bin, err = filepath.Abs(bin) // the server runs in a directory of its own
	}
	if err != nil {
		tb.Fatalf("redistest: no redis-server: %v: run `make test`, which installs it, or name the binary in REDIS_SERVER", err)
	}
	s := &Server{tb: tb, bin: bin, dir: tb.TempDir(), args: slices.Clone(options.Args)}
	tb.Cleanup(s.Kill)
	if options.Clock {
		s.clock = newWallClock(tb, s.dir)
		tb.Cleanup(s.dropClock)
	}
	if options.Socket {
		// Not in dir: a socket's path must be short.
		dir, err := os.MkdirTemp("", "redis")
		if err != nil {
			tb.Fatalf("redistest: socket: %v", err)
		}
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		s.socket = filepath.Join(dir, "s")
		s.args = append([]string{"--unixsocket", s.socket}, s.args...)
	}
	if s.tls = options.TLS; s.tls != nil {
		args, err := s.tls.arguments(s.dir)
		if err != nil {
			tb.Fatalf("redistest: TLS: %v", err)
		}
		s.args = append(args, s.args...)
	}
	return s
}

// startAll starts servers in parallel, and returns when each answers PING.
func startAll(tb testing.TB, servers []*Server) {
	tb.Helper()
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.startOnFreePort(freePort) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		tb.Fatalf("redistest: start: %v", err)
	}
}

// Addrs returns the addresses of servers, in their order.
func Addrs(servers []*Server) []string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// Addr returns the host and port of the server. It stays the same over restarts.
func (s *Server) Addr() string { return net.JoinHostPort(loopback, strconv.Itoa(s.port)) }

// SocketAddr returns the path of the Unix socket of a server started with
// Options.Socket. It stays the same over restarts.
func (s *Server) SocketAddr() string {
	s.tb.Helper()
	if s.socket == "" {
		s.tb.Fatalf("redistest: %s has no socket: it was not started with Options.Socket", s.Addr())
	}
	return s.socket
}

// Dir returns the working directory of the server, with its log and, if it keeps
// any, its data. It stays the same over restarts.
func (s *Server) Dir() string { return s.dir }

// Kill ends the server with SIGKILL, frozen or not, and waits until its process has
// ended. Without a running server it does nothing.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killLocked()
}

// Restart kills the server if it runs and starts it again on the same port, in the same directory, with the same
// arguments. It returns when the server answers PING, and serves its slots if StartOwners started it.
func (s *Server) Restart() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killLocked()
	deadline := time.Now().Add(startTimeout)
	err := s.startLocked(deadline)
	for errors.Is(err, errPortTaken) && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond) // the address must not change, so wait for the port
		err = s.startLocked(deadline)
	}
	if err != nil {
		s.tb.Fatalf("redistest: restart: %v", err)
	}
	if s.owner {
		s.awaitCluster()
	}
}

// Stop freezes the server with SIGSTOP. The kernel still accepts connections and bytes
// for it, but the server does not answer. On Linux the server has stopped when Stop
// returns. If the server is down, the test fails.
func (s *Server) Stop() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		s.tb.Fatalf("redistest: stop %s: the server is down", s.Addr())
	}
	err := s.proc.signal(syscall.SIGSTOP)
	if err == nil {
		err = awaitStopped(s.proc.pid())
	}
	if err != nil {
		s.tb.Fatalf("redistest: stop %s: %v", s.Addr(), err)
	}
}

// Continue resumes a frozen server with SIGCONT. Without a frozen server it does nothing.
func (s *Server) Continue() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return
	}
	if err := s.proc.signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.tb.Fatalf("redistest: continue %s: %v", s.Addr(), err)
	}
}

func (s *Server) killLocked() {
	if s.proc != nil {
		s.proc.kill()
		s.proc = nil
	}
}

// downLocked reports whether the server has no running process, because of Kill or
// because the process ended by itself.
func (s *Server) downLocked() bool {
	if s.proc == nil {
		return true
	}
	select {
	case <-s.proc.exited:
		return true
	default:
		return false
	}
}

const (
	// startTimeout is long, because it only bounds a start that cannot succeed.
	startTimeout = 30 * time.Second
	logName      = "redis.log"
)

// errPortTaken means that another process bound the port after it was chosen and before
// the server started.
var errPortTaken = errors.New("port is taken")

// startOnFreePort starts the server on a port from pick. If another process binds that
// port first, it tries another port.
func (s *Server) startOnFreePort(pick func() (int, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	deadline := time.Now().Add(startTimeout)
	for {
		port, err := pick()
		if err != nil {
			return err
		}
		s.port = port
		if s.tls != nil {
			if s.tlsPort, err = pick(); err != nil {
				return err
			}
		}
		if s.bus {
			if s.busPort, err = pick(); err != nil {
				return err
			}
		}
		if err = s.startLocked(deadline); !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
	}
}

// startLocked starts the process once and waits until it answers. After an error no
// process runs.
func (s *Server) startLocked(deadline time.Time) error {
	log, err := os.OpenFile(filepath.Join(s.dir, logName), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	old, err := log.Stat()
	if err != nil {
		return err
	}
	cmd := exec.Command(s.bin, s.arguments()...)
	cmd.Dir = s.dir
	if s.clock != nil {
		cmd.Env = append(os.Environ(), s.clock.environment()...)
	}
	cmd.Stdout, cmd.Stderr = log, log // files, not pipes: no goroutine needs to copy
	cmd.SysProcAttr = dieWithParent()
	proc, err := launch(cmd)
	if err != nil {
		return err
	}

	for {
		if ready(s.Addr(), proc.pid()) {
			s.proc = proc
			return nil
		}
		late := time.Now().After(deadline)
		select {
		case <-proc.exited:
		case <-time.After(5 * time.Millisecond):
			if !late {
				continue
			}
			proc.kill()
		}
		text, _ := os.ReadFile(log.Name())
		text = text[min(int(old.Size()), len(text)):]
		switch {
		case bytes.Contains(text, []byte("Address already in use")):
			return fmt.Errorf("%s: %w", s.Addr(), errPortTaken)
		case late:
			return fmt.Errorf("%s gives no answer after %v; its log:\n%s", s.Addr(), startTimeout, text)
		default:
			return fmt.Errorf("%s ended with %v; its log:\n%s", s.Addr(), cmd.ProcessState, text)
		}
	}
}

// arguments returns the arguments of the process.
func (s *Server) arguments() (args []string) {
	if s.config != "" {
		args = append(args, s.config) // a file must come first
	}
	args = append(args,
		"--bind", loopback, "--port", strconv.Itoa(s.port), "--dir", s.dir,
		"--daemonize", "no", "--save", "", "--appendonly", "no",
	)
	if s.bus {
		args = append(args, "--cluster-port", strconv.Itoa(s.busPort))
	}
	if s.tls != nil { // a server that was built without TLS rejects this argument
		args = append(args, "--tls-port", strconv.Itoa(s.tlsPort))
	}
	return append(args, s.args...)
}
