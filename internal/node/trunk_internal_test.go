package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// sharers are clients of nodes that share the connection to one server.
type sharers struct {
	t       *testing.T
	server  *redistest.Server
	cluster *Cluster
}

// sharer is one of them, and what its node knows of connections.
type sharer struct {
	*trunkClient
	conns conns
	woken chan struct{}
	cut   func()
}

func newSharers(t *testing.T) *sharers {
	s := &sharers{t: t, server: redistest.Start(t, 1)[0]}
	s.cluster = NewCluster(&rueidis.ClientOption{InitAddress: []string{"slot:{x}", s.server.Addr()}, ClientName: "shared"}, 1)
	t.Cleanup(s.cluster.Close)
	return s
}

func (s *sharers) add() *sharer {
	one := &sharer{woken: make(chan struct{}, 100)}
	life, cancel := context.WithCancel(context.Background())
	one.conns.begin(life, func() { one.woken <- struct{}{} })
	one.cut = func() {
		cancel()
		one.conns.cut()
	}
	s.t.Cleanup(one.cut)
	one.trunkClient = &trunkClient{
		Client: s.cluster.builder, life: life, watch: one.conns.watch,
		dial: func(ctx context.Context, _ string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
			return s.cluster.requests.dial(ctx, s.server.Addr(), d, config)
		},
	}
	return one
}

// connections returns how many connections the server has.
func (s *sharers) connections() int {
	list, _ := s.server.MustDo("CLIENT", "LIST").(string)
	return strings.Count(list, " name=shared ")
}

func (s *sharers) await(what string, done func() bool) {
	s.t.Helper()
	require.Eventually(s.t, done, 10*time.Second, time.Millisecond, what)
}

func (c *sharer) ping() error { return c.Do(context.Background(), c.B().Ping().Build()).Error() }

func TestNodesShareTheConnectionToAServerAndTheLastOneClosesIt(t *testing.T) {
	s := newSharers(t)
	nodes := []*sharer{s.add(), s.add(), s.add()}
	var pending sync.WaitGroup
	for _, n := range nodes {
		pending.Go(func() { assert.NoError(t, n.ping()) })
	}
	pending.Wait()
	assert.Equal(t, 1, s.connections())
	stats, _ := s.server.MustDo("INFO", "commandstats").(string)
	assert.Contains(t, stats, "cmdstat_script|load:calls=2,", "each script, for all nodes")
	for _, n := range nodes {
		assert.True(t, n.conns.up(1))
	}

	nodes[0].conns.hangUp()
	assert.False(t, nodes[0].conns.up(1))
	assert.Len(t, nodes[0].woken, 1, "its worker learns it")
	assert.Empty(t, nodes[1].woken, "another one does not")
	require.NoError(t, nodes[1].ping())
	require.NoError(t, nodes[0].ping(), "it joins again")
	assert.True(t, nodes[0].conns.up(2), "as if it had dialled")
	assert.Equal(t, 1, s.connections())

	for _, n := range nodes {
		assert.Equal(t, 1, s.connections())
		n.cut()
	}
	s.await("the last one has left", func() bool { return s.connections() == 0 })
	require.ErrorIs(t, nodes[0].ping(), context.Canceled)
}

// Whatever ends the connection, each node knows it before it has the error of its request: it sends nothing over the
// next connection before the greeting.
func TestTheEndOfASharedConnectionIsTheEndForEachNode(t *testing.T) {
	s := newSharers(t)
	busy, idle := s.add(), s.add()
	for round := range uint64(20) {
		require.NoError(t, busy.ping())
		require.NoError(t, idle.ping())
		number := busy.conns.dialed.Load()
		require.True(t, busy.conns.up(number) && idle.conns.up(round+1))
		known := make(chan bool, 1)
		go func() {
			for busy.ping() == nil && busy.conns.dialed.Load() == number {
			}
			known <- busy.conns.lost.Load() == number
		}()
		s.server.MustDo("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		require.True(t, <-known)
		s.await("the idle node has been woken", func() bool { return len(idle.woken) > 0 && !idle.conns.up(round+1) })
		<-idle.woken
	}
	idle.conns.mu.Lock()
	defer idle.conns.mu.Unlock()
	assert.Empty(t, idle.conns.open, "what has ended is forgotten")
}

// A request that is under way when its node leaves may still be applied: the node does not wait for its result.
func TestANodeThatLeavesDoesNotWaitForItsRequest(t *testing.T) {
	for what, leave := range map[string]func(*sharer){
		"hangs up":   func(n *sharer) { n.conns.hangUp() },
		"is cut off": func(n *sharer) { n.cut() },
	} {
		t.Run(what, func(t *testing.T) {
			s := newSharers(t)
			leaves, stays := s.add(), s.add()
			require.NoError(t, leaves.ping())
			require.NoError(t, stays.ping())
			s.server.Stop()
			answer, other := make(chan error, 1), make(chan error, 1)
			go func() {
				answer <- leaves.Do(context.Background(), leaves.B().Set().Key("late").Value("1").Build()).Error()
			}()
			time.Sleep(100 * time.Millisecond)
			go func() { other <- stays.ping() }()
			began := time.Now()
			leave(leaves)
			err := <-answer
			assert.Less(t, time.Since(began), 300*time.Millisecond)
			status, _ := classify(err)
			assert.Equal(t, wire.Unknown, status)
			assert.Equal(t, what == "hangs up", errors.Is(err, vote.ErrReconnected))
			s.server.Continue()
			require.NoError(t, <-other, "its connection goes on")
			assert.Equal(t, "1", s.server.MustDo("GET", "late"))
		})
	}
}

// A server that does not answer costs its nodes a second, as over a connection of their own.
func TestAServerThatDoesNotAnswerLosesItsSharedConnection(t *testing.T) {
	s := newSharers(t)
	one, other := s.add(), s.add()
	require.NoError(t, one.ping())
	require.NoError(t, other.ping())
	s.server.Stop()
	began := time.Now()
	err := one.ping()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.InDelta(t, answerTimeout, time.Since(began), float64(300*time.Millisecond))
	assert.EqualError(t, timed(err, time.Since(began)), wire.Silence(time.Second).Error())
	assert.False(t, one.conns.up(1))
	assert.False(t, other.conns.up(1), "known before the error")
	require.Error(t, other.ping(), "a dial of its own, which is not answered")
	s.server.Continue()
	s.await("both are back", func() bool { return one.ping() == nil && other.ping() == nil })
	s.await("one connection", func() bool { return s.connections() == 1 })
}

// If a trunk could not load the scripts, the greeting loads them, and reports what is wrong.
func TestADialThatFailsConcernsEachNodeThatWaitsForIt(t *testing.T) {
	s := newSharers(t)
	s.server.Kill()
	one, other := s.add(), s.add()
	var pending sync.WaitGroup
	for _, n := range []*sharer{one, other} {
		pending.Go(func() {
			err := n.ping()
			status, _ := classify(err)
			assert.Equal(t, wire.NotApplied, status, "%v", err)
			assert.Zero(t, n.conns.dialed.Load())
		})
	}
	pending.Wait()
	assert.Empty(t, s.cluster.requests.open)
}

// A limit may fire while its answer arrives: that must not end a trunk that others use.
func TestALimitThatFiresWithTheAnswerEndsNoSharedConnection(t *testing.T) {
	s := &share{trunk: &trunk{}, began: time.Now(), limit: time.NewTimer(time.Hour)}
	defer s.limit.Stop()
	s.overdue()
	assert.False(t, s.trunk.silent.Load(), "answered")
	s.expect()
	s.overdue()
	assert.False(t, s.trunk.silent.Load(), "the next request has its time")
	s.due.Store(1)
	s.overdue()
	assert.True(t, s.trunk.silent.Load())
}

// The nodes of a trunk share its server's answers to INFO. A server behind the next trunk is asked anew.
func TestWhatASharedConnectionHasToldCountsForNoOther(t *testing.T) {
	s := newSharers(t)
	one := s.add()
	readings, end := 0, 0
	cfg := Config{Clock: func() (clock.Validity, clock.Steady) {
		if readings++; readings == end {
			s.server.MustDo("CLIENT", "KILL", "TYPE", "normal")
			s.await("the trunk has ended", func() bool { return one.share.gone.Load() })
		}
		return clock.Validity(time.Hour), clock.Steady(time.Hour)
	}}
	n := New(cfg)
	t.Cleanup(n.cancel)
	one.watch, n.client = n.conns.watch, one.trunkClient
	_, err := n.greeter.greet(false)
	require.NotErrorIs(t, err, vote.ErrReconnected)
	readings, end = 0, 2 // after INFO, before the rest
	_, err = n.greeter.greet(false)
	assert.ErrorIs(t, err, vote.ErrReconnected)
}
