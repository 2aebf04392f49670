package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// One hash slot of a cluster as a node.

const tag = "{locks}"

func TestASlotThatCannotBeSafeIsRefusedWithTheFix(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	plain := redistest.Start(t, 1)
	seeds := c.Addrs()[:3]
	guard, failover, prefix := quorumlock.WithRestartGuard(15*time.Second), quorumlock.WithFailover(window), quorumlock.WithPrefix(tag+":")
	_, port, err := net.SplitHostPort(seeds[0])
	require.NoError(t, err)
	alias := net.JoinHostPort("localhost", port)
	single := redistest.StartOwners(t, 1, redistest.Options{})[0] // a cluster of its own
	other := quorumlock.ClusterSlot(tag, seeds...)
	other.SelectDB = 1
	for claim, k := range map[string]struct {
		node rueidis.ClientOption
		opts []quorumlock.Option
		text string
	}{
		"without the guard":    {quorumlock.ClusterSlot(tag, seeds...), []quorumlock.Option{prefix}, "WithRestartGuard: is needed for node 0 (slot:{locks})"},
		"another prefix":       {quorumlock.ClusterSlot(tag, seeds...), []quorumlock.Option{guard, failover}, `WithPrefix "quorumlock:": must begin with the hash tag of node 0 (slot:{locks}), which is a failover group; write "{locks}:"`},
		"a tag without braces": {quorumlock.ClusterSlot("locks", seeds...), []quorumlock.Option{guard, failover, prefix}, `ClusterSlot tag "locks"`},
		"an empty tag":         {quorumlock.ClusterSlot("{}", seeds...), []quorumlock.Option{guard, failover, prefix}, "write a hash tag with its braces, such as {locks}"},
		"no seeds":             {quorumlock.ClusterSlot(tag), []quorumlock.Option{guard, failover, prefix}, "InitAddress is empty"},
		"another database":     {other, []quorumlock.Option{guard, failover, prefix}, "SelectDB"},
		"a seed under two names": {quorumlock.ClusterSlot(tag, seeds[0], alias, seeds[1]), []quorumlock.Option{guard, failover, prefix},
			seeds[0] + " and " + alias + " lead to the same one of the cluster nodes"},
		"seeds of two clusters": {quorumlock.ClusterSlot(tag, seeds[0], single.Addr()), []quorumlock.Option{guard, failover, prefix},
			seeds[0] + " and " + single.Addr() + " are of two groups"},
		"a seed that is no cluster": {quorumlock.ClusterSlot(tag, plain[0].Addr()), []quorumlock.Option{guard, failover, prefix},
			"is not part of a cluster; name nodes of the cluster"},
		"a cluster in Addrs": {quorumlock.Addrs(seeds[0])[0], nil, "one slot of the cluster with quorumlock.ClusterSlot"},
	} {
		t.Run(claim, func(t *testing.T) {
			m, err := quorumlock.New(background, []rueidis.ClientOption{k.node}, k.opts...)
			require.Nil(t, m)
			require.ErrorIs(t, err, quorumlock.ErrInvalid)
			assert.Contains(t, err.Error(), k.text)
		})
	}
	for _, s := range append(plain, c.Servers()...) {
		assert.Equal(t, int64(0), s.MustDo("DBSIZE"), "nothing was created")
	}
	for listed, warned := range map[int]bool{1: true, 2: true, 3: false, 4: false} {
		m := open(t, []rueidis.ClientOption{quorumlock.ClusterSlot(tag, c.Addrs()[:listed]...)}, guard, failover, prefix)
		if warning := m.Nodes()[0].Warning; warned {
			require.ErrorContains(t, warning, fmt.Sprintf("the cluster has %d nodes and %d of them are listed: list three or more", len(c.Servers()), listed))
		} else {
			require.NoError(t, warning)
		}
	}
}

// All keys have one prefix, and so one tag.
func TestSlotsWithDifferentTagsAreRefusedWithTheFix(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	nodes := []rueidis.ClientOption{quorumlock.ClusterSlot("{a}", "127.0.0.1:1"), quorumlock.Addrs("127.0.0.1:2")[0], quorumlock.ClusterSlot("{b}", "127.0.0.1:3")}
	_, err := quorumlock.New(background, nodes, quorumlock.WithPrefix("{a}:"), quorumlock.WithRestartGuard(15*time.Second), quorumlock.WithFailover(window))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.ErrorContains(t, err, "node 2 (slot:{b}): has another hash tag than node 0 ({a}), and all keys have one prefix; use one tag")
}

// The slot's keys move to another master while a lease is held. The lease continues or is reported as lost, and the new
// owner starts a quarantine.
func TestALeaseAndItsQueueOutliveTheMoveOfTheirSlot(t *testing.T) {
	testkit.OnlyNightly(t, "slots move for 30 s")
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	slot := redistest.Slot(tag)
	const ttl = 8 * time.Second
	m := open(t, []rueidis.ClientOption{quorumlock.ClusterSlot(tag, c.Addrs()[:3]...)}, quorumlock.WithPrefix(tag+":"),
		quorumlock.WithTTL(ttl), quorumlock.WithRestartGuard(ttl+window), quorumlock.WithFailover(window))
	ctx, cancel := context.WithTimeout(background, 3*time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	waiting := make(chan *quorumlock.Lease, 1)
	go func() {
		next, err := m.Acquire(ctx, "job")
		assert.NoError(t, err)
		waiting <- next
	}()
	owner, _ := c.Owner(slot)
	to := (owner + 1) % 3
	c.Migrate(slot, to)
	testkit.Eventually(t, "the client follows", func() bool { return m.Nodes()[0].Master == c.Addrs()[to] })
	testkit.Renewed(t, l)
	require.NoError(t, l.Err(), "the lease is longer than the move")
	assert.Positive(t, m.Nodes()[0].QuarantinedFor, "the new owner starts a quarantine")
	testkit.Released(t, l)
	next := <-waiting
	require.NotNil(t, next)
	assert.Greater(t, next.Token(), l.Token())
	testkit.Released(t, next)
}

// While the keys of a slot are in two places, a server refuses a script if only some of its keys are here. Keys that
// exist nowhere count as absent, too. The state is transient.
func TestAHalfMovedSlotIsATransientState(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	opts := []quorumlock.Option{quorumlock.WithPrefix(tag + ":"), quorumlock.WithTTL(10 * time.Second), quorumlock.WithNodeTimeout(time.Second),
		quorumlock.WithRestartGuard(10*time.Second + window), quorumlock.WithFailover(window)}
	nodes := []rueidis.ClientOption{quorumlock.ClusterSlot(tag, c.Addrs()[:3]...)}
	m, other := open(t, nodes, opts...), open(t, nodes, opts...)
	ctx, cancel := context.WithTimeout(background, 3*time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() {
		next, err := other.Acquire(ctx, "job")
		if err == nil {
			err = next.Release(background)
		}
		waiting <- err
	}()
	testkit.Eventually(t, "a queue", func() bool {
		status, err := m.Inspect(ctx, "job")
		return err == nil && status.Waiters == 1
	})
	slot := redistest.Slot(tag)
	owner, _ := c.Owner(slot)
	from, to := c.Servers()[owner], c.Servers()[(owner+1)%3]
	number := strconv.Itoa(slot)
	id := func(s *redistest.Server) string { return s.MustDo("CLUSTER", "MYID").(string) }
	to.MustDo("CLUSTER", "SETSLOT", number, "IMPORTING", id(from))
	from.MustDo("CLUSTER", "SETSLOT", number, "MIGRATING", id(to))
	const text = "the cluster is moving the keys of the slot to another server: requests work again when the move ends: TRYAGAIN"
	testkit.Eventually(t, "the state is named", func() bool {
		err := l.Verify(ctx)
		var node *quorumlock.NodeError
		if !errors.As(err, &node) || !strings.HasPrefix(node.Err.Error(), text) {
			return false
		}
		assert.False(t, node.Misconfigured)
		return true
	})
	select {
	case err := <-waiting:
		require.Fail(t, "the wait has ended", "%v", err)
	default:
	}
	for _, s := range []*redistest.Server{to, from} {
		s.MustDo("CLUSTER", "SETSLOT", number, "STABLE")
	}
	testkit.Renewed(t, l)
	testkit.Released(t, l)
	require.NoError(t, <-waiting)
}

// If a script's key was there when the script began, the script notices that it has left only when it uses the key.
// Servers report this in their own words, and an answer that is not understood would not end the votes.
func TestTheWordsOfAScriptInAHalfMovedSlotAreKnown(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a cluster of its own")
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	slot := redistest.Slot(tag)
	owner, _ := c.Owner(slot)
	server, stays, goes := c.Servers()[owner], tag+":stays", tag+":goes"
	for _, key := range []string{stays, goes} {
		server.MustDo("SET", key, "x")
	}
	c.HalfMove(slot, goes)
	_, err := server.Do("EVAL", "redis.call('DEL', KEYS[1]) return redis.call('GET', KEYS[1])", "1", stays)
	require.ErrorContains(t, err, "ttempted to access")
	var answer *redistest.ReplyError
	require.ErrorAs(t, err, &answer)
	_, err = wire.Classify(wire.OperationError(strings.TrimPrefix(answer.Text, "ERR ")))
	assert.ErrorIs(t, err, wire.ErrMoving)
}

// A cluster keeps the connections of a master that is demoted and promoted again. Such a connection does not vote
// unless its client has learnt of both changes.
func TestAConnectionThatOutlivesTwoFailoversGivesNoVote(t *testing.T) {
	testkit.OnlyNightly(t, "two failovers take 19 s")
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	slot := redistest.Slot(tag)
	proxies := make([]*redistest.Proxy, 3)
	seeds := make([]string, 3)
	for i := range proxies {
		proxies[i] = redistest.NewProxy(t, c.Servers()[i].Addr())
		seeds[i] = proxies[i].Addr()
	}
	opts := []quorumlock.Option{quorumlock.WithPrefix(tag + ":"), quorumlock.WithTTL(time.Second),
		quorumlock.WithRestartGuard(time.Second + window), quorumlock.WithFailover(window)}
	option := quorumlock.ClusterSlot(tag, seeds...)
	option.ClientName = "idle"
	idle := open(t, []rueidis.ClientOption{option}, opts...)
	ctx, cancel := context.WithTimeout(background, 3*time.Minute)
	defer cancel()
	l, err := idle.Acquire(ctx, "before")
	require.NoError(t, err)
	testkit.Released(t, l)
	owner, _ := c.Owner(slot)
	connections := func() (ids []string) {
		list, _ := c.Servers()[owner].MustDo("CLIENT", "LIST", "TYPE", "normal").(string)
		for line := range strings.Lines(list) {
			if id, _, _ := strings.Cut(line, " "); strings.Contains(line, " name=idle ") {
				ids = append(ids, id)
			}
		}
		return ids
	}
	before := connections()
	require.NotEmpty(t, before)

	for _, p := range proxies {
		p.Swallow() // it misses the failovers
	}
	c.Failover(slot)
	c.Failover(slot)
	again, _ := c.Owner(slot)
	require.Equal(t, owner, again, "the old master is the master again")
	time.Sleep(1600 * time.Millisecond)       // longer than a term counts as confirmed
	for unconfirmed := false; !unconfirmed; { // a busy machine may answer too late
		_, err = idle.TryAcquire(ctx, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		unconfirmed = strings.Contains(err.Error(), "no majority of the Sentinels or cluster nodes confirms that this server is still the master")
	}
	assert.Subset(t, before, connections(), "over the connection from before")
	assert.NotEmpty(t, connections())
	for _, p := range proxies {
		p.Heal()
	}
	l, err = idle.Acquire(ctx, "job")
	require.NoError(t, err, "it has dialled anew, and the quarantine of the term is over")
	testkit.Released(t, l)
}

// A slot move that is taken back leaves the server, its process and its epoch as they were, without some of its keys.
// Another client waits until the lease that lost its key ends.
func TestASlotMoveThatIsTakenBackCausesNoSecondLease(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	const ttl, lost = 6 * time.Second, 2 * time.Second
	for claim, k := range map[string]struct {
		asks, late bool          // the other client asks while the slot is half moved, or starts afterwards
		open       time.Duration // how long
	}{
		"an answer says so to the other client": {asks: true},
		"it stays open longer than the poll":    {open: 1200 * time.Millisecond},
		"the other client starts afterwards":    {open: 1200 * time.Millisecond, late: true},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
			opts := []quorumlock.Option{quorumlock.WithPrefix(tag + ":"), quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(time.Second),
				quorumlock.WithRestartGuard(ttl + lost), quorumlock.WithFailover(lost)}
			nodes := []rueidis.ClientOption{quorumlock.ClusterSlot(tag, c.Addrs()[:3]...)}
			m := open(t, nodes, opts...)
			ctx, cancel := context.WithTimeout(background, 3*time.Minute)
			defer cancel()
			l, err := m.Acquire(ctx, "job")
			require.NoError(t, err)
			var other *quorumlock.Manager
			if !k.late {
				other = open(t, nodes, opts...)
				testkit.Eventually(t, "the other client may vote", func() bool {
					_, err := other.TryAcquire(ctx, "job")
					return errors.Is(err, quorumlock.ErrHeld)
				})
			}
			testkit.Renewed(t, l)
			undo := c.HalfMove(redistest.Slot(tag), tag+":job")
			if k.asks {
				_, err := other.TryAcquire(ctx, "job")
				require.ErrorContains(t, err, "the cluster is moving the keys of the slot")
			}
			time.Sleep(k.open)
			undo()
			require.True(t, l.Valid(), "the machine is too slow for the test")
			if k.late {
				other = open(t, nodes, opts...)
			}
			next, err := other.Acquire(ctx, "job")
			assert.False(t, l.Valid(), "two leases are valid for %v", l.Remaining())
			require.NoError(t, err)
			testkit.Released(t, next)
		})
	}
}

// A master that does not report whether keys leave it does not vote. The leases there stay.
func TestAMasterThatHidesItsSlotsGivesNoVoteAndEndsNoLease(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Args: []string{"--repl-diskless-sync-delay", "0"}})
	owner, _ := c.Owner(redistest.Slot(tag))
	const lost, ttl = 2 * time.Second, 3 * time.Second
	seeds := []string{c.Addrs()[(owner+1)%3], c.Addrs()[(owner+2)%3]} // which may be asked all the time
	m := open(t, []rueidis.ClientOption{quorumlock.ClusterSlot(tag, seeds...)}, quorumlock.WithPrefix(tag+":"), quorumlock.WithTTL(ttl),
		quorumlock.WithRestartGuard(ttl+lost), quorumlock.WithFailover(lost))
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	c.Servers()[owner].MustDo("ACL", "SETUSER", "default", "-cluster|nodes")
	require.Eventually(t, func() bool {
		err := m.Nodes()[0].Err
		return err != nil && strings.Contains(err.Error(), "CLUSTER NODES: NOPERM")
	}, 20*time.Second, 5*time.Millisecond, "no vote")
	_, err = m.TryAcquire(ctx, "other")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	time.Sleep(ttl + lost)
	require.NoError(t, l.Err(), "renewals continue")
	testkit.Renewed(t, l)
	c.Servers()[owner].MustDo("ACL", "SETUSER", "default", "+cluster|nodes")
	next, err := m.Acquire(ctx, "other")
	require.NoError(t, err)
	testkit.Released(t, next)
	testkit.Released(t, l)
}
