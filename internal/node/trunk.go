package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
)

// trunks are the connections that the Nodes of a Cluster share: one to each server.
type trunks struct {
	life   context.Context
	option func(life context.Context, addr string, watched func(net.Conn) net.Conn) rueidis.ClientOption
	// prepare uses a new trunk before a node does; it may be nil.
	prepare func(*trunk) error

	mu   sync.Mutex
	open map[string]*trunk // by server address: the trunks that a node may join
	runs sync.WaitGroup    // of all trunks; Go while a node dials
}

// trunk is one connection (two for wake-ups with RESP2), and the client of rueidis that uses it. The trunk ends with
// its connection and never dials again, so all requests over it go to one process, in one order.
type trunk struct {
	of     *trunks
	addr   string
	life   context.Context // until the last node has left, or the connection has ended
	cancel context.CancelFunc
	conns  conns

	dialled chan struct{}  // closed when the dial has ended, well or not
	client  rueidis.Client // once dialled is closed
	err     error          // why no node can use the client
	scripts []rueidis.RedisResult
	facts   facts

	socket atomic.Pointer[net.Conn]
	silent atomic.Bool // ended because an answer did not come in time
	ended  sync.Once

	shares map[*share]struct{} // guarded by the mutex of the trunks
}

var errTrunkEnded = errors.New("the connection of several nodes has ended")

// begin is called before all others.
func (ts *trunks) begin(life context.Context, option func(context.Context, string, func(net.Conn) net.Conn) rueidis.ClientOption) {
	ts.life, ts.option, ts.open = life, option, map[string]*trunk{}
}

// dial is the dial function of a node. It returns a share of the trunk to the server: a connection that the node may
// close and whose end it learns, but which it never reads or writes.
func (ts *trunks) dial(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
	ts.mu.Lock()
	t := ts.open[addr]
	if t == nil {
		t = &trunk{of: ts, addr: addr, dialled: make(chan struct{}), shares: map[*share]struct{}{}}
		t.life, t.cancel = context.WithCancel(ts.life)
		t.conns.begin(t.life, t.end)
		for _, turn := range []*chan struct{}{&t.facts.looking, &t.facts.informing, &t.facts.probing} {
			*turn = make(chan struct{}, 1)
		}
		ts.open[addr] = t
		ts.runs.Go(t.run)
	}
	s := &share{trunk: t, began: time.Now()}
	s.life, s.cancel = context.WithCancel(context.Background())
	t.shares[s] = struct{}{}
	ts.mu.Unlock()
	select {
	case <-t.dialled:
		if t.err == nil {
			return s, nil
		}
		_ = s.Close()
		return nil, t.err
	case <-ctx.Done():
		_ = s.Close()
		return nil, dialFailed(ctx.Err(), 2*maxDial)
	}
}

// run dials, and closes the client when the trunk has ended.
func (t *trunk) run() {
	o := t.of.option(t.life, t.addr, func(conn net.Conn) net.Conn {
		t.socket.Store(&conn)
		return t.conns.watch(conn)
	})
	dial := o.DialCtxFn
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		if t.life.Err() != nil { // rueidis dials again for the next command
			return nil, errTrunkEnded
		}
		return dial(ctx, addr, d, config)
	}
	t.client, t.err = rueidis.NewClient(o)
	if t.err == nil && t.of.prepare != nil {
		t.err = t.of.prepare(t)
	}
	if t.err != nil {
		t.end()
	}
	close(t.dialled)
	<-t.life.Done()
	t.end()
	t.conns.cut() // first, because Close of rueidis would send another command
	if t.client != nil {
		t.client.Close()
	}
}

// end tells all nodes that share the trunk that it has ended, and returns when they know. No other node can join it.
// After that, rueidis answers the requests under way with the error that has ended the connection.
func (t *trunk) end() {
	t.ended.Do(func() {
		t.of.mu.Lock()
		shares := t.shares
		t.shares = nil
		t.forget()
		t.of.mu.Unlock()
		for s := range shares {
			s.gone.Store(true)
			if lost := s.lost.Load(); lost != nil {
				(*lost)()
			}
		}
		t.cancel()
	})
}

// forget keeps nodes from joining the trunk. The mutex of the trunks is held.
func (t *trunk) forget() {
	if t.of.open[t.addr] == t {
		delete(t.of.open, t.addr)
	}
}

// share is what a node has in place of a connection of its own. It is the connection that conns knows: hangUp and cut close it,
// and it ends with the trunk.
type share struct {
	net.Conn // nil: the client of the trunk reads and writes
	trunk    *trunk
	life     context.Context // of its requests: until the node leaves
	cancel   context.CancelFunc
	gone     atomic.Bool            // the node has left, or the trunk has ended
	reset    atomic.Bool            // what was sent and has not arrived must not arrive
	lost     atomic.Pointer[func()] // called when the trunk ends
	limit    *time.Timer            // ends a trunk that does not answer
	due      atomic.Int64           // when the answer is overdue, ns since began; 0 while no request is under way
	began    time.Time
}

// onEnd makes the trunk call lost when it ends: at once, if it has ended.
func (s *share) onEnd(lost func()) {
	s.lost.Store(&lost)
	if s.gone.Load() {
		lost()
	}
}

// SetLinger is what abandon calls before Close.
func (s *share) SetLinger(int) error {
	s.reset.Store(true)
	return nil
}

// Close leaves the trunk. Requests under way end without an answer, and may still be applied. The trunk ends with its last share,
// as a connection of one node does: hangUp resets it, and cut does not.
func (s *share) Close() error {
	t, reset := s.trunk, s.reset.Load()
	t.of.mu.Lock()
	_, member := t.shares[s]
	delete(t.shares, s)
	last := member && len(t.shares) == 0
	if last {
		t.forget()
	}
	t.of.mu.Unlock()
	if !member { // it has ended: rueidis answers what is under way
		return nil
	}
	s.gone.Store(true)
	s.cancel()
	if last && reset {
		t.conns.hangUp()
	}
	if last {
		t.cancel()
		t.conns.cut()
	}
	return nil
}

// SyscallConn returns the raw connection of the trunk's socket, for peek.
func (s *share) SyscallConn() (syscall.RawConn, error) {
	if conn := s.trunk.socket.Load(); conn != nil {
		if socket, ok := raw(*conn).(syscall.Conn); ok {
			return socket.SyscallConn()
		}
	}
	return nil, errors.ErrUnsupported
}

// expect begins the wait for the answer to a request.
func (s *share) expect() {
	s.due.Store(int64(time.Since(s.began) + answerTimeout))
	s.limit.Reset(answerTimeout)
}

// answered ends the wait.
func (s *share) answered() {
	s.due.Store(0)
	s.limit.Stop()
}

// overdue ends a trunk whose server has not answered in time. A process that is late itself first reads what has come.
func (s *share) overdue() {
	due := s.due.Load()
	if due == 0 { // it has just been answered
		return
	}
	if left := time.Duration(due) - time.Since(s.began); left > 0 { // another request is under way
		s.limit.Reset(left)
		return
	}
	if unread, _ := s.trunk.conns.peek(); unread {
		s.limit.Reset(lateRead)
		return
	}
	s.trunk.silent.Store(true)
	s.trunk.conns.hangUp()
}

// lateRead is how much longer a trunk waits for an answer that has come and is not read.
const lateRead = 10 * time.Millisecond

// facts are answers that the nodes of a trunk share: one node asks the server for all of them. Each chan admits one
// that asks. A goroutine that waits for a mutex would stop the virtual time of tests, so that no answer could become
// overdue.
type facts struct {
	looking chan struct{}
	nodes   string // the server's reply to CLUSTER NODES, "" for none
	asked   clock.Validity

	informing chan struct{}
	infos     []rueidis.RedisResult // the answers to INFO
	informed  clock.Steady

	probing chan struct{}
	probe   Identity // that another connection has reached
	probed  time.Time
}

// look returns a reply to CLUSTER NODES asked less than LookEvery ago, and when. now reads the validity clock.
func (f *facts) look(now func() clock.Validity, ask func() (string, error)) (nodes string, asked clock.Validity, err error) {
	f.looking <- struct{}{}
	defer func() { <-f.looking }()
	if at := now(); f.nodes == "" || at.Sub(f.asked) >= master.LookEvery {
		f.asked = at
		if f.nodes, err = ask(); err != nil {
			f.nodes = ""
		}
	}
	return f.nodes, f.asked, err
}

// info returns answers to INFO that were asked within this time. It does not keep answers with an error.
func (f *facts) info(now clock.Steady, within time.Duration, ask func() []rueidis.RedisResult) []rueidis.RedisResult {
	f.informing <- struct{}{}
	defer func() { <-f.informing }()
	if f.infos == nil || now.Sub(f.informed) >= within {
		answers := ask()
		for _, a := range answers {
			if a.Error() != nil {
				f.infos = nil
				return answers
			}
		}
		f.infos, f.informed = answers, now
	}
	return f.infos
}

// reached returns the server that another connection has reached within this time.
func (f *facts) reached(within time.Duration, probe func() Identity) Identity {
	f.probing <- struct{}{}
	defer func() { <-f.probing }()
	if f.probed.IsZero() || time.Since(f.probed) >= within {
		f.probe, f.probed = probe(), time.Now()
	}
	return f.probe
}
