package integration

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Nodes that are failover groups, where no lock is at stake. The failovers under a lease are in tests/battery.

// quick are settings of servers whose replicas follow soon.
var quick = []string{"--repl-diskless-sync-delay", "0"}

// window is WithFailover's.
const window = 5 * time.Second

func TestAGroupThatCannotBeSafeIsRefusedWithTheFix(t *testing.T) {
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	sentinels := g.SentinelAddrs()
	group := quorumlock.Sentinel(g.Name(), sentinels...)
	plain := redistest.Start(t, 3)
	guard, failover := quorumlock.WithRestartGuard(15*time.Second), quorumlock.WithFailover(window)
	_, port, err := net.SplitHostPort(sentinels[0])
	require.NoError(t, err)
	alias := net.JoinHostPort("localhost", port)
	stranger := redistest.StartSentinel(t, redistest.Options{}) // of another group, whose name is the same
	host, port, err := net.SplitHostPort(plain[0].Addr())
	require.NoError(t, err)
	stranger.MustDo("SENTINEL", "MONITOR", g.Name(), host, port, "1")
	const both = "; give both on every client: WithFailover 5s, and WithRestartGuard 15s (TTL + lock delay + window)"
	for claim, c := range map[string]struct {
		node rueidis.ClientOption
		opts []quorumlock.Option
		text string
	}{
		"without the guard":                  {group, nil, "WithRestartGuard: is needed for node 0 (sentinel:" + g.Name() + ")"},
		"without guard and window":           {group, nil, both},
		"a window for a group, and no guard": {group, []quorumlock.Option{failover}, both},
		"a Sentinel under two names, alone": {quorumlock.Sentinel(g.Name(), sentinels[0], alias), []quorumlock.Option{guard, failover},
			sentinels[0] + " and " + alias + " lead to the same one of the Sentinels"},
		"a Sentinel under two names, and another": {quorumlock.Sentinel(g.Name(), sentinels[0], alias, sentinels[1]), []quorumlock.Option{guard, failover},
			"list each of them once, under one address"},
		"Sentinels of two groups": {quorumlock.Sentinel(g.Name(), sentinels[0], stranger.Addr()), []quorumlock.Option{guard, failover},
			sentinels[0] + " and " + stranger.Addr() + " are of two groups"},
		"with trust in empty nodes": {group, []quorumlock.Option{guard, failover, quorumlock.WithTrustEmptyNodes()},
			"WithTrustEmptyNodes: cannot be used with node 0"},
		"without a window":         {group, []quorumlock.Option{guard}, "WithFailover: is needed for node 0"},
		"a window without a guard": {quorumlock.Addrs(plain[0].Addr())[0], []quorumlock.Option{failover}, "WithFailover: needs WithRestartGuard"},
		"a negative window":        {group, []quorumlock.Option{guard, quorumlock.WithFailover(-1)}, "WithFailover -1ns: must be within 2s … 24h"},
		"a bare number":            {group, []quorumlock.Option{guard, quorumlock.WithFailover(14)}, "write 14*time.Second if seconds were meant"},
		"clocks that are too wild": {group, []quorumlock.Option{guard, failover, quorumlock.WithDriftFactor(0.03)}, "WithDriftFactor 0.03: must be at most 0.02"},
		"an empty master set":      {quorumlock.Sentinel("", plain[0].Addr()), nil, "an empty master set: cannot be used here; name the master set"},
		"a guard that is too short": {group, []quorumlock.Option{quorumlock.WithRestartGuard(14 * time.Second), failover},
			"plus the lock delay 0s must be at most WithRestartGuard's 14s less WithFailover's 5s; shorten the lease, or set the guard to 15s on every client"},
		"a wrong master set": {quorumlock.Sentinel("other", sentinels...), []quorumlock.Option{guard, failover},
			`knows no master set "other"; name the master set as`},
		"servers that are no Sentinels": {quorumlock.Sentinel(g.Name(), redistest.Addrs(plain)...), []quorumlock.Option{guard, failover}, "is not a Sentinel; name the Sentinels"},
		"a Sentinel in Addrs":           {quorumlock.Addrs(sentinels[0])[0], nil, "sentinel mode; name the Sentinels with quorumlock.Sentinel"},
		"a Sentinel named twice":        {quorumlock.Sentinel(g.Name(), sentinels[0], sentinels[0]), []quorumlock.Option{guard, failover}, "is named twice"},
		"no Sentinel":                   {quorumlock.Sentinel(g.Name()), []quorumlock.Option{guard, failover}, "InitAddress is empty"},
		"an address without a port":     {quorumlock.Sentinel(g.Name(), "localhost"), []quorumlock.Option{guard, failover}, "must be host:port"},
	} {
		t.Run(claim, func(t *testing.T) {
			m, err := quorumlock.New(background, []rueidis.ClientOption{c.node}, c.opts...)
			require.Nil(t, m)
			require.ErrorIs(t, err, quorumlock.ErrInvalid)
			assert.Contains(t, err.Error(), c.text)
		})
	}
	t.Run("no Sentinel that answers", func(t *testing.T) {
		_, err := quorumlock.New(background, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), "127.0.0.1:1", "127.0.0.1:2", sentinels[0])}, guard, failover)
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Contains(t, err.Error(), "no majority of the 3 Sentinels names a master")
		assert.Contains(t, err.Error(), "if this lasts, check them")
	})
	assert.Empty(t, testkit.Keys(t, append(plain, g.Servers()[0])), "nothing was created")

	m := open(t, append(quorumlock.Addrs(redistest.Addrs(plain[:2])...), group), guard, failover)
	testkit.Eventually(t, "the group is connected", func() bool { return m.Nodes()[2].Master != "" })
	require.NoError(t, m.Nodes()[2].Warning)
	assert.Equal(t, "sentinel:"+g.Name(), m.Nodes()[2].Addr)
	assert.Equal(t, g.Addrs()[0], m.Nodes()[2].Master)
	short := quorumlock.Sentinel(g.Name(), sentinels[:2]...)
	m = open(t, append(quorumlock.Addrs(redistest.Addrs(plain[:2])...), short), guard, failover)
	testkit.Eventually(t, "the group is connected", func() bool { return m.Nodes()[2].Warning != nil })
	assert.ErrorContains(t, m.Nodes()[2].Warning, "the group has 3 Sentinels and 2 are listed")
}

// A majority works without the other Sentinels. They still need a repair: the group may not survive two more outages.
func TestASentinelThatIsOfNoUseIsAWarning(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a group of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	const rights = "+sentinel|master +sentinel|get-master-addr-by-name +sentinel|myid +sentinel|sentinels"
	for i, s := range g.Sentinels() {
		allowed := rights
		if i == 1 {
			allowed = "+sentinel|master"
		}
		s.MustDo(append([]string{"ACL", "SETUSER", "reader", "on", ">" + documentedPassword, "resetchannels", "-@all"}, strings.Fields(allowed)...)...)
	}
	ignorant, locked := redistest.StartSentinel(t, redistest.Options{}), redistest.StartSentinel(t, redistest.Options{})
	ignorant.MustDo("ACL", "SETUSER", "reader", "on", ">"+documentedPassword, "+@all")
	for claim, c := range map[string]struct {
		third string
		text  string
	}{
		"it knows no such set":            {third: ignorant.Addr(), text: "the Sentinel at " + ignorant.Addr() + ` knows no master set "` + g.Name() + `": name the master set`},
		"it does not know the user":       {third: locked.Addr(), text: "the Sentinel at " + locked.Addr() + " says WRONGPASS"},
		"it does not say which one it is": {third: g.SentinelAddrs()[1], text: "give the Sentinels' user +sentinel|master, +sentinel|get-master-addr-by-name, +sentinel|myid and +sentinel|sentinels"},
	} {
		t.Run(claim, func(t *testing.T) {
			var log transcript
			node := quorumlock.Sentinel(g.Name(), g.SentinelAddrs()[0], g.SentinelAddrs()[2], c.third)
			node.Sentinel.Username, node.Sentinel.Password = "reader", documentedPassword
			m := open(t, []rueidis.ClientOption{node}, patient(quorumlock.WithRestartGuard(time.Minute), quorumlock.WithFailover(window), quorumlock.WithLogger(log.logger()))...)
			testkit.Eventually(t, "the warning", func() bool { return m.Nodes()[0].Warning != nil })
			warning := m.Nodes()[0].Warning.Error()
			assert.Contains(t, warning, c.text)
			assert.NotContains(t, warning, "\n")
			require.ErrorContains(t, m.Nodes()[0].Err, "in quarantine", "a majority names the master")
			testkit.Eventually(t, "its line in the log", func() bool { return strings.Contains(log.String(), "quorumlock: node has a warning") })
		})
	}
}

// The warning appears while the operators work on the Sentinel, and not ten seconds later.
func TestASentinelThatForgetsTheSetIsSoonAWarning(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a group of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	m := open(t, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)}, patient(quorumlock.WithRestartGuard(time.Minute), quorumlock.WithFailover(window))...)
	require.NoError(t, m.Nodes()[0].Warning)
	all := listen(m)
	forgetful := g.Sentinels()[1]
	begun := time.Now()
	forgetful.MustDo("SENTINEL", "REMOVE", g.Name())
	testkit.Eventually(t, "the warning", func() bool { return m.Nodes()[0].Warning != nil })
	assert.Less(t, time.Since(begun), 8*time.Second, "a greeting every 10 s would show it as well")
	assert.ErrorContains(t, m.Nodes()[0].Warning, "the Sentinel at "+forgetful.Addr()+" knows no master set")
	testkit.Eventually(t, "the event", func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		warning := all.last[0].Warning
		return warning != nil && strings.Contains(warning.Error(), "knows no master set")
	})
	host, port, err := net.SplitHostPort(g.Addrs()[0])
	require.NoError(t, err)
	forgetful.MustDo("SENTINEL", "MONITOR", g.Name(), host, port, "2")
	testkit.Eventually(t, "no warning", func() bool { return m.Nodes()[0].Warning == nil })
}

// Nodes, the events and the log show the outage, and as one outage: an unanswered question is not an event.
func TestAGroupThatNobodyConfirmsIsReportedOnce(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a group of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick, DownAfter: time.Minute})
	var log transcript
	m := open(t, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)},
		patient(quorumlock.WithRestartGuard(time.Minute), quorumlock.WithFailover(window), quorumlock.WithLogger(log.logger()))...)
	const text = "no majority of the Sentinels or cluster nodes confirms that this server is still the master"
	for name, fault := range map[string]struct{ begin, end func(*redistest.Server) }{
		"stopped": {(*redistest.Server).Stop, (*redistest.Server).Continue},
		"killed":  {(*redistest.Server).Kill, (*redistest.Server).Restart},
	} {
		events, before := m.Subscribe(1000), strings.Count(log.String(), text)
		for _, s := range g.Sentinels() {
			fault.begin(s)
		}
		testkit.Eventually(t, "Nodes shows it", func() bool {
			err := m.Nodes()[0].Err
			return err != nil && strings.Contains(err.Error(), text)
		})
		time.Sleep(4 * time.Second) // eight questions, and four connections
		err := m.Nodes()[0].Err
		require.ErrorContains(t, err, text)
		assert.False(t, m.Nodes()[0].Voting)
		assert.NotContains(t, err.Error(), "context deadline exceeded", "which says neither what was asked nor for how long")
		events.Close()
		reported := 0
		for e := range events.C() {
			if changed, ok := e.(quorumlock.NodeChanged); ok && changed.Err != nil && strings.Contains(changed.Err.Error(), text) {
				reported++
			}
		}
		assert.Equal(t, 1, reported, "events, all %s", name)
		assert.Equal(t, 1, strings.Count(log.String(), text)-before, "lines, all %s:\n%s", name, log.String())
		for _, s := range g.Sentinels() {
			fault.end(s)
		}
		testkit.Eventually(t, "it is confirmed again", func() bool { return !strings.Contains(m.Nodes()[0].Err.Error(), text) })
	}
}

// A client that meets the marker of a later term does not vote, and does not overwrite it.
func TestAMarkerOfALaterTermStaysAndNobodyVotes(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a group of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	connect := func() (*quorumlock.Manager, error) {
		return quorumlock.New(background, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)},
			quorumlock.WithRestartGuard(15*time.Second), quorumlock.WithFailover(window), quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
	}
	m, err := connect()
	require.NoError(t, err)
	require.NoError(t, m.Close(background))
	const key = config.DefaultPrefix + "\xffg"
	master := g.Servers()[0]
	word, rest, _ := strings.Cut(master.MustDo("GET", key).(string), " ")
	later := word[:strings.LastIndexByte(word, '.')] + ".999 " + rest
	master.MustDo("SET", key, later)
	_, err = connect()
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	assert.ErrorContains(t, err, "another client has already used a later master of the group")
	assert.ErrorContains(t, err, "delete the marker key")
	assert.Equal(t, later, master.MustDo("GET", key))
}

// A planned failover takes a moment. Waiters continue to wait through it, the lease is kept, and the log has exactly
// one line for each change.
func TestAPlannedFailoverEndsNoWaitAndIsLoggedOnce(t *testing.T) {
	testkit.OnlyNightly(t, "planned failovers take 45 s")
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	var log transcript
	const ttl = 15 * time.Second // longer than a failover on a busy machine
	m := open(t, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)}, quorumlock.WithTTL(ttl),
		quorumlock.WithRestartGuard(ttl+window), quorumlock.WithFailover(window), quorumlock.WithLogger(log.logger()))
	assert.Positive(t, m.Nodes()[0].QuarantinedFor)
	ctx, cancel := context.WithTimeout(background, 3*time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() {
		next, err := m.Acquire(ctx, "job")
		if err == nil {
			err = next.Release(background)
		}
		waiting <- err
	}()
	before := strings.Count(log.String(), "quorumlock: node")
	events := m.Subscribe(1000)
	master, _ := g.Failover()
	testkit.Eventually(t, "the node is connected to the new master", func() bool { return m.Nodes()[0].Master == g.Addrs()[master] })
	testkit.Renewed(t, l)
	assert.Positive(t, m.Nodes()[0].QuarantinedFor, "the new term starts a quarantine")
	require.NoError(t, l.Err(), "the lease is longer than the failover")
	_, err = m.TryAcquire(ctx, "other")
	var quorum *quorumlock.QuorumError
	require.ErrorAs(t, err, &quorum)
	assert.Contains(t, err.Error(), "in quarantine: the node is new, or may have lost locks")
	assert.Regexp(t, `; a majority of the nodes can grant locks in \d+(\.\d+)?s$`, err.Error())
	assert.InDelta(t, m.Nodes()[0].QuarantinedFor, quorum.RetryAfter, float64(5*time.Second))
	for e := range events.C() {
		if changed, ok := e.(quorumlock.NodeChanged); ok && changed.Master == g.Addrs()[master] {
			assert.Positive(t, changed.QuarantinedFor)
			break
		}
	}
	lines := strings.Count(log.String(), "quorumlock: node") - before
	assert.LessOrEqual(t, lines, 3, "away, connected in quarantine, and at most one between:\n%s", log.String())
	select {
	case err := <-waiting:
		t.Fatalf("the wait has ended: %v", err)
	default:
	}
	testkit.Released(t, l)
	require.NoError(t, <-waiting, "granted when the quarantine is over")
}

// An upgrade restarts the replicas first, moves the role and restarts the old master. It costs one planned failover;
// the restarts of replicas cost nothing.
func TestARollingUpgradeCostsOnePlannedFailover(t *testing.T) {
	testkit.OnlyNightly(t, "servers restart for 30 s")
	testkit.OnlyAddrs(t, "it has a group of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick})
	const ttl = 20 * time.Second
	m := open(t, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)}, quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(time.Second),
		quorumlock.WithRestartGuard(ttl+window), quorumlock.WithFailover(window), quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
	l := testkit.Acquired(t, m, "job")
	begun := m.Nodes()[0]
	assert.Zero(t, begun.QuarantinedFor)
	for _, replica := range g.Servers()[1:] {
		replica.Restart()
	}
	testkit.Released(t, testkit.Acquired(t, m, "beside it"))
	assert.Equal(t, begun.Master, m.Nodes()[0].Master)
	assert.Zero(t, m.Nodes()[0].QuarantinedFor, "no master has changed")

	master, _ := g.Failover()
	testkit.Eventually(t, "the node is connected to the new master", func() bool { return m.Nodes()[0].Master == g.Addrs()[master] })
	testkit.Renewed(t, l)
	left := m.Nodes()[0].QuarantinedFor
	assert.Positive(t, left)
	over := time.Now().Add(left)
	g.Servers()[0].Restart()
	testkit.Renewed(t, l)
	assert.LessOrEqual(t, m.Nodes()[0].QuarantinedFor, time.Until(over)+time.Second, "its restart starts no other quarantine")
	testkit.Released(t, l)
}

// The Sentinel that leads a failover shows the old master in SENTINEL MASTER until the replicas follow the new one. With
// another Sentinel down, it is needed for the majority.
func TestAFailoverCountsBeforeTheReplicasFollow(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a group of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: quick, DownAfter: 5 * time.Minute, FailoverTimeout: 5 * time.Minute})
	m := open(t, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)}, patient(quorumlock.WithRestartGuard(time.Minute), quorumlock.WithFailover(window))...)
	require.Equal(t, g.Addrs()[0], m.Nodes()[0].Master)
	leader := g.Sentinels()[0]
	shown := func() string {
		fields := map[string]string{}
		reply := leader.MustDo("SENTINEL", "MASTER", g.Name()).([]any)
		for i := 0; i+1 < len(reply); i += 2 {
			fields[reply[i].(string)], _ = reply[i+1].(string)
		}
		return net.JoinHostPort(fields["ip"], fields["port"])
	}
	leader.MustDo("SENTINEL", "DEBUG", "ping-period", "200", "slave-reconf-timeout", "300000")
	g.Servers()[2].Stop()       // it cannot follow
	time.Sleep(2 * time.Second) // the leader promotes no replica that has missed five pings
	g.Sentinels()[2].Stop()
	leader.MustDo("SENTINEL", "FAILOVER", g.Name())
	testkit.Eventually(t, "the node is connected to the new master", func() bool { return m.Nodes()[0].Master == g.Addrs()[1] })
	assert.Equal(t, g.Addrs()[0], shown(), "the replicas do not follow yet")
	assert.NoError(t, m.Nodes()[0].Warning)
}

// A Sentinel that is cut off with the old master names that master forever, and the old master continues to answer.
func TestAStaleMinorityOfTheSentinelsNamesNoMaster(t *testing.T) {
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: append([]string{"--repl-timeout", "2"}, quick...)})
	g.Isolate(0)
	t.Cleanup(func() { g.Rejoin(0) })
	master, _ := g.AwaitMaster(0, 30*time.Second)
	stale, old := g.StaleSentinel(0), g.Servers()[0]
	host, port, err := net.SplitHostPort(old.Addr())
	require.NoError(t, err)
	require.Equal(t, []any{host, port}, stale.MustDo("SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name()))
	opts := patient(quorumlock.WithRestartGuard(time.Minute), quorumlock.WithFailover(window))

	m := open(t, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), stale.Addr(), g.SentinelAddrs()[0], g.SentinelAddrs()[1])}, opts...)
	assert.Equal(t, g.Addrs()[master], m.Nodes()[0].Master)

	_, err = quorumlock.New(background, []rueidis.ClientOption{quorumlock.Sentinel(g.Name(), stale.Addr(), "127.0.0.1:1", "127.0.0.1:2")}, opts...)
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	assert.ErrorContains(t, err, "no majority of the 3 Sentinels names a master")
	assert.Equal(t, int64(0), old.MustDo("DBSIZE"), "nobody has written to the old master")
	require.Equal(t, []any{host, port}, stale.MustDo("SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name()), "it is stale still")
}

// A client on the side of the old master asks the Sentinel there, which reports no change, and the old master confirms
// every renewal. The client's leases must end all the same: another master may vote after the guard, which covers the
// window.
func TestAClientThatHearsAMinorityOfTheSentinelsLosesItsLeases(t *testing.T) {
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: append([]string{"--repl-timeout", "2"}, quick...)})
	var stale atomic.Pointer[string]
	ways := []*redistest.Proxy{redistest.NewProxy(t, g.SentinelAddrs()[0]), redistest.NewProxy(t, g.SentinelAddrs()[1])}
	node := quorumlock.Sentinel(g.Name(), "stale:1", ways[0].Addr(), ways[1].Addr())
	node.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		switch its := stale.Load(); {
		case addr == "stale:1" && its == nil:
			return nil, net.ErrClosed
		case addr == "stale:1":
			addr = *its
		default:
			addr = g.Direct(addr)
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	const ttl = 2 * time.Second
	m := open(t, []rueidis.ClientOption{node}, quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(time.Second),
		quorumlock.WithRestartGuard(ttl+window), quorumlock.WithFailover(window), quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
	ctx, cancel := context.WithTimeout(background, 30*time.Second)
	defer cancel()
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	for _, way := range ways {
		way.Swallow()
	}
	g.Isolate(0)
	t.Cleanup(func() { g.Rejoin(0) })
	isolated := time.Now()
	addr := g.StaleSentinel(0).Addr()
	stale.Store(&addr)
	var lost quorumlock.Lost
	select {
	case lost = <-l.Lost():
	case <-ctx.Done():
		require.FailNow(t, "the lease goes on")
	}
	assert.Less(t, lost.At.Sub(isolated), window+ttl)
	require.Len(t, lost.Nodes, 1)
	assert.ErrorContains(t, lost.Nodes[0], "no majority of the Sentinels or cluster nodes confirms that this server is still the master")
	_, err = m.TryAcquire(ctx, "job")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	assert.ErrorContains(t, err, "no majority of the 3 Sentinels names a master")
	assert.NotZero(t, g.Servers()[0].MustDo("DBSIZE"), "the old master writes as before")
}

// Without the guard a promoted or restarted server votes at once. The Manager warns where it can detect this.
func TestWithoutTheGuardReplicasAndRestartsAreWarnings(t *testing.T) {
	testkit.OnlyAddrs(t, "it has groups of its own")
	t.Parallel()
	servers := redistest.Start(t, 4, "--repl-diskless-sync-delay", "0")
	replicate(t, servers[3], servers[0])
	m := open(t, quorumlock.Addrs(redistest.Addrs(servers[:3])...), patient()...)
	assert.ErrorContains(t, m.Nodes()[0].Warning, "node has replicas (connected_slaves 1)")
	require.NoError(t, m.Nodes()[1].Warning)
	servers[1].Restart()
	testkit.Eventually(t, "the restart is a warning", func() bool { return m.Nodes()[1].Warning != nil })
	assert.ErrorContains(t, m.Nodes()[1].Warning, "without WithRestartGuard another client can be granted a lock that is held")

	guarded := open(t, quorumlock.Addrs(redistest.Addrs(servers[:3])...), patient(quorumlock.WithRestartGuard(time.Minute))...)
	for _, n := range guarded.Nodes() {
		assert.NoError(t, n.Warning)
	}
}
