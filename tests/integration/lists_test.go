package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Inspect works without the guard, and a refused attempt reports what is missing.
func TestAClientWithoutTheGuardReadsAndLearnsWhatItLacks(t *testing.T) {
	testkit.OnlyAddrs(t, "every group has the guard")
	servers := redistest.Start(t, 3)
	addrs := pick(servers, 0, 1, 2)
	guarded := testkit.Connect(t, addrs, listing(2*time.Second)...)
	l := testkit.Acquired(t, guarded, "job")
	plain := testkit.Connect(t, addrs, quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
	status, err := plain.Inspect(background, "job")
	require.NoError(t, err)
	assert.Equal(t, l.Owner(), status.Holder.Owner)
	testkit.Eventually(t, "every node was greeted", func() bool {
		return !slices.ContainsFunc(plain.Nodes(), func(n quorumlock.NodeStatus) bool {
			return n.Err == nil || !strings.Contains(n.Err.Error(), "the other clients of this node use the restart guard")
		})
	})
	_, err = plain.Acquire(background, "other")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	var missed *quorumlock.QuorumError
	require.ErrorAs(t, err, &missed)
	assert.True(t, slices.ContainsFunc(missed.Nodes, func(n *quorumlock.NodeError) bool { return n.Misconfigured }), "%v", err)
	assert.ErrorContains(t, err, "set WithRestartGuard to 2s on this client as well")
}

// The identity of a node outlives its data as long as one client has known it. A node that comes back empty causes no
// refusal, even if a new client meets it first.
func TestAnEmptyNodeGetsItsIdentityBack(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := pick(servers, 0, 1, 2)
	opts := listing(time.Second)
	testkit.Acquired(t, testkit.Connect(t, addrs, opts...), "job")
	identity := func() string {
		for _, member := range servers[0].MustDo("ZRANGE", "quorumlock:\xffl", "0", "-1").([]any) {
			if id, found := strings.CutPrefix(member.(string), "node "); found {
				return id
			}
		}
		return ""
	}
	before := identity()
	require.NotEmpty(t, before)
	servers[0].Restart()
	late := testkit.Connect(t, addrs, quorumlock.WithTTL(time.Second), quorumlock.WithRestartGuard(time.Second))
	testkit.Eventually(t, "the identity is restored", func() bool { return identity() == before })
	testkit.Eventually(t, "all nodes vote", func() bool {
		for _, n := range late.Nodes() {
			if n.Err != nil || n.QuarantinedFor > 0 {
				return false
			}
		}
		return true
	})
	testkit.Acquired(t, late, "other")
}

// A node that was started with the data of another one has its identity. Together they would be fewer nodes than they
// seem.
func TestANodeWithTheIdentityOfAnotherDoesNotVote(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	servers := redistest.Start(t, 3)
	for _, s := range servers[:2] {
		s.MustDo("ZADD", "quorumlock:\xffl", "9007199254740991", "node COPIED")
	}
	m, err := start(t, quorumlock.Addrs(pick(servers, 0, 1, 2)...), listing(time.Second)...)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(background)) }()
	copies := func() (n int) {
		for _, node := range m.Nodes() {
			if node.Err != nil && strings.Contains(node.Err.Error(), "have one identity: one of them was started with the other's data") {
				n++
			}
		}
		return n
	}
	testkit.Eventually(t, "one of the two does not vote", func() bool { return copies() == 1 })
	_, err = quorumlock.New(background, quorumlock.Addrs(pick(servers, 0, 1)...), listing(time.Second)...)
	require.ErrorIs(t, err, quorumlock.ErrInvalid, "no majority is left")
	assert.ErrorContains(t, err, "have one identity: one of them was started with the other's data")
}

// Two servers restart, each at the address of the other. Neither is a copy.
func TestServersThatExchangeTheirAddressesVoteAgain(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	t.Parallel()
	servers := redistest.Start(t, 3)
	proxies := [2]*redistest.Proxy{redistest.NewProxy(t, servers[0].Addr()), redistest.NewProxy(t, servers[1].Addr())}
	m := testkit.Connect(t, []string{proxies[0].Addr(), proxies[1].Addr(), servers[2].Addr()}, listing(time.Second)...)
	release := func(l *quorumlock.Lease) { require.NoError(t, l.Release(background)) }
	release(testkit.Acquired(t, m, "job"))
	for i, p := range proxies {
		p.Refuse()
		p.Retarget(servers[1-i].Addr())
	}
	testkit.Eventually(t, "both are missed", func() bool { return m.Nodes()[0].Err != nil && m.Nodes()[1].Err != nil })
	for _, p := range proxies {
		p.Heal()
	}
	testkit.Eventually(t, "all nodes vote", func() bool {
		return !slices.ContainsFunc(m.Nodes(), func(n quorumlock.NodeStatus) bool { return n.Err != nil || n.QuarantinedFor > 0 })
	})
	release(testkit.Acquired(t, m, "job"))
}

// pick returns the addresses of some servers.
func pick(servers []*redistest.Server, indices ...int) (addrs []string) {
	for _, i := range indices {
		addrs = append(addrs, servers[i].Addr())
	}
	return addrs
}

// listing returns the options of a guarded client on an empty database.
func listing(guard time.Duration) []quorumlock.Option {
	return []quorumlock.Option{
		quorumlock.WithTTL(guard), quorumlock.WithRestartGuard(guard), quorumlock.WithTrustEmptyNodes(),
		quorumlock.WithLogger(slog.New(slog.DiscardHandler)),
	}
}

// Two clients, each with a node that the other lacks, start at one moment on nodes that know nothing. The nodes of both
// lists grant the lease to one of them, and at least one of the clients gets no vote of the node that the other lacks.
func TestDifferentListsOfNodesNeverHoldOneLeaseBesideEachOther(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	t.Parallel()
	rounds := testkit.Count(40, 20)
	servers := redistest.Start(t, 4)
	lists := [][]string{pick(servers, 0, 1, 2), pick(servers, 0, 1, 3)}
	var both, one, lacking int
	for round := range rounds {
		for _, s := range servers {
			s.MustDo("FLUSHALL")
		}
		var valid, lacked atomic.Int32
		var all, held sync.WaitGroup
		held.Add(len(lists))
		for _, addrs := range lists {
			all.Go(func() {
				m, err := quorumlock.New(background, quorumlock.Addrs(addrs...), listing(5*time.Second)...)
				if err == nil { // otherwise it has met more of its nodes than the other client, and too few of both lists
					defer func() { assert.NoError(t, m.Close(background)) }()
					l, refused := m.TryAcquire(background, "job")
					if refused == nil {
						defer func() { assert.NoError(t, l.Release(background)) }()
						valid.Add(1)
					}
					if err = refused; err == nil || errors.Is(err, quorumlock.ErrHeld) {
						err = m.Nodes()[2].Err
					}
				}
				if err != nil {
					lacked.Add(1)
					assert.ErrorContains(t, err, "other clients of this node use a list of 3 nodes, and this one uses another list of 3: two clients could be granted the same lock", "round %d", round)
					assert.ErrorContains(t, err, "change one at a time")
				}
				held.Done()
				held.Wait() // both leases live until both have tried
			})
		}
		all.Wait()
		switch lacking += int(lacked.Load()); valid.Load() {
		case 2:
			both++
		case 1:
			one++
		}
	}
	t.Logf("of %d rounds: both valid %d, one valid %d, a node without a vote %d", rounds, both, one, lacking)
	assert.Zero(t, both)
	assert.GreaterOrEqual(t, one, rounds/2)
	assert.GreaterOrEqual(t, lacking, rounds, "of two, at least one")
}

// Clients of another protocol version use the same nodes. This client gets no lease alongside them, and an error that
// names both versions.
func TestClientsThatSpeakAnotherVersionOfTheProtocolAreRefused(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	servers := redistest.Start(t, 3)
	addrs := pick(servers, 0, 1, 2)
	guard := 5 * time.Second
	first, err := quorumlock.New(background, quorumlock.Addrs(addrs...), listing(guard)...)
	require.NoError(t, err)
	testkit.Acquired(t, first, "job")
	require.NoError(t, first.Close(background))
	const lists = "quorumlock:\xffl"
	for _, s := range servers {
		for _, member := range s.MustDo("ZRANGE", lists, "0", "-1").([]any) {
			if list, found := strings.CutPrefix(member.(string), "1 "); found {
				score := s.MustDo("ZSCORE", lists, member.(string)).(string)
				s.MustDo("ZREM", lists, member.(string))
				s.MustDo("ZADD", lists, score, "2 "+list)
			}
		}
	}
	m, err := quorumlock.New(background, quorumlock.Addrs(addrs...), listing(guard)...)
	if err == nil {
		defer func() { assert.NoError(t, m.Close(background)) }()
		_, err = m.TryAcquire(background, "job")
	}
	require.ErrorContains(t, err, `other clients of this node speak version "2" of the protocol, and this one speaks version 1`)
	require.NotErrorIs(t, err, quorumlock.ErrHeld)
}

// Only short-lived clients use the nodes, like commands run by cron. One node comes back empty, and a new client gives
// it another identity. The nodes that both lists have grant locks until the list of before has ended.
func TestAFleetOfShortCommandsGoesOnAfterANodeWasLost(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := pick(servers, 0, 1, 2)
	const guard = time.Second
	commands, lacked, voted := 0, false, false // the last two: why the last command had no vote of the node, or that it had
	command := func() error {
		m, err := quorumlock.New(background, quorumlock.Addrs(addrs...), quorumlock.WithTTL(guard), quorumlock.WithRestartGuard(guard),
			quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		defer func() { assert.NoError(t, m.Close(background)) }()
		l, err := m.TryAcquire(background, "job")
		if err != nil {
			return err
		}
		n := m.Nodes()[2]
		commands, voted = commands+1, n.Err == nil && n.QuarantinedFor == 0
		lacked = n.Err != nil && strings.Contains(n.Err.Error(), "use a list of 3 nodes, and this one uses another list of 3")
		return l.Release(background)
	}
	testkit.Eventually(t, "the first quarantine is over, and two nodes know all three", func() bool {
		return command() == nil && !slices.ContainsFunc(servers[:2], func(s *redistest.Server) bool {
			return strings.Count(fmt.Sprint(s.MustDo("ZRANGE", "quorumlock:\xffl", "0", "-1")), ",") != 2 // one list of three
		})
	})
	servers[2].Kill()
	servers[2].Restart() // it keeps nothing
	commands = 0
	for since := time.Now(); time.Since(since) < 5*guard; {
		require.NoError(t, command())
	}
	t.Log("commands:", commands)
	assert.True(t, lacked, "the node has another identity")
	t.Run("and the list of before ends although commands ask in between", func(t *testing.T) {
		testkit.OnlyNightly(t, "a list ends after 32 s")
		require.Eventually(t, func() bool { return assert.NoError(t, command()) && voted }, 2*time.Minute, 500*time.Millisecond)
	})
}

// fleet replaces its clients one after the other, and always has one that works.
type fleet struct {
	*testing.T
	servers []*redistest.Server
	opts    []quorumlock.Option
	holders atomic.Int32
	grants  atomic.Int64
	last    atomic.Int64 // when the last lease was granted, µs
	longest atomic.Int64 // between two grants, µs
}

// fleetOn starts three clients with the first three servers as nodes. It returns when they have worked.
func fleetOn(t *testing.T, servers []*redistest.Server) (f *fleet, clients []func()) {
	t.Helper()
	f = &fleet{T: t, servers: servers, opts: listing(5 * time.Second)}
	for range 3 {
		clients = append(clients, f.start(pick(servers, 0, 1, 2)))
	}
	testkit.Eventually(t, "the fleet works", func() bool { return f.grants.Load() > 10 })
	f.longest.Store(0)
	return f, clients
}

// client works with a list of nodes until its context ends.
func (f *fleet) client(ctx context.Context, addrs []string) error {
	m, err := quorumlock.New(background, quorumlock.Addrs(addrs...), f.opts...)
	if err != nil {
		return err
	}
	defer func() { assert.NoError(f, m.Close(background)) }()
	for ctx.Err() == nil {
		l, err := m.Acquire(ctx, "job")
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			return nil
		}
		assert.EqualValues(f, 1, f.holders.Add(1), "a second holder")
		f.grants.Add(1)
		if now := time.Now().UnixMicro(); true {
			f.longest.Store(max(f.longest.Load(), now-f.last.Swap(now)))
		}
		assert.True(f, l.Valid())
		f.holders.Add(-1)
		assert.NoError(f, l.Release(background))
	}
	return nil
}

// replace replaces every client by one with another list.
func (f *fleet) replace(clients []func(), addrs []string) []func() {
	f.Helper()
	for i, stop := range clients {
		stop()
		clients[i] = f.start(addrs)
		time.Sleep(200 * time.Millisecond)
	}
	return clients
}

func (f *fleet) start(addrs []string) (stop func()) {
	ctx, cancel := context.WithCancel(background)
	done := make(chan error, 1)
	go func() { done <- f.client(ctx, addrs) }()
	return func() { cancel(); assert.NoError(f, <-done) }
}

// Nodes are added and taken away one at a time, under load.
func TestNodesAreAddedAndTakenAwayOneByOneUnderLoad(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	t.Parallel()
	servers := redistest.Start(t, 5)
	f, clients := fleetOn(t, servers)
	for _, step := range [][]int{{0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 3, 4}, {3, 4, 1}} {
		before := f.grants.Load()
		clients = f.replace(clients, pick(servers, step...))
		t.Logf("%v: %d grants, longest without one %v", step, f.grants.Load()-before, time.Duration(f.longest.Load())*time.Microsecond)
		_, err := quorumlock.New(background, quorumlock.Addrs(pick(servers, step[0])...), f.opts...)
		require.ErrorContains(t, err, "and this one uses another list of 1", "beside %v", step)
		forgetOtherLists(t, servers, len(step))
	}
	for _, stop := range clients {
		stop()
	}
	assert.Less(t, time.Duration(f.longest.Load())*time.Microsecond, 5*time.Second, "no outage")
}

// forgetOtherLists makes nodes forget the lists of other sizes, as half a minute would.
func forgetOtherLists(t *testing.T, servers []*redistest.Server, size int) {
	t.Helper()
	for _, s := range servers {
		for _, member := range s.MustDo("ZRANGE", "quorumlock:\xffl", "0", "-1").([]any) {
			if text := member.(string); !strings.HasPrefix(text, "node ") && !strings.HasPrefix(text, fmt.Sprintf("1 %d ", size)) {
				s.MustDo("ZREM", "quorumlock:\xffl", text)
			}
		}
	}
}

// Until the old list has ended, clients with the new one use only the two nodes that both have.
func TestADeadNodeIsReplacedAtAnotherAddressUnderLoad(t *testing.T) {
	testkit.OnlyAddrs(t, "it starts with empty databases")
	t.Parallel()
	servers := redistest.Start(t, 4)
	f, clients := fleetOn(t, servers)
	servers[2].Kill()
	clients = f.replace(clients, pick(servers, 0, 1, 3))
	fresh := testkit.Connect(t, pick(servers, 0, 1, 3), f.opts...)
	require.ErrorContains(t, fresh.Nodes()[2].Err, "use a list of 3 nodes, and this one uses another list of 3")
	before := f.grants.Load()
	testkit.Eventually(t, "the fleet works with the new list", func() bool { return f.grants.Load() > before+10 })
	t.Run("and the new node votes when the old list has ended", func(t *testing.T) {
		testkit.OnlyNightly(t, "a list ends after 36 s")
		require.Eventually(t, func() bool { return fresh.Nodes()[2].Voting }, 2*time.Minute, 100*time.Millisecond)
	})
	for _, stop := range clients {
		stop()
	}
	assert.Less(t, time.Duration(f.longest.Load())*time.Microsecond, 5*time.Second, "no outage")
}
