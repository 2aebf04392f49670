package quorumlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

func TestBadInputIsRefusedByNameBoundAndFix(t *testing.T) {
	addr := "127.0.0.1:1"
	one := quorumlock.Addrs(addr)
	with := func(change func(*rueidis.ClientOption)) []rueidis.ClientOption {
		o := rueidis.ClientOption{InitAddress: []string{addr}}
		change(&o)
		return []rueidis.ClientOption{o}
	}
	for claim, c := range map[string]struct {
		nodes []rueidis.ClientOption
		opts  []quorumlock.Option
		names string
	}{
		"no nodes":                {nil, nil, "nodes 0"},
		"no address":              {quorumlock.Addrs(""), nil, "InitAddress"},
		"too many nodes":          {quorumlock.Addrs(strings.Split(strings.Repeat("a:1,", 15)+"a:1", ",")...), nil, "nodes 16"},
		"an address twice":        {quorumlock.Addrs("h:1", "i:1", "H.:1"), nil, "H.:1"},
		"several addresses":       {with(func(o *rueidis.ClientOption) { o.InitAddress = []string{"a:1", "b:1"} }), nil, "InitAddress"},
		"a group without a guard": {with(func(o *rueidis.ClientOption) { o.Sentinel.MasterSet = "m" }), nil, "WithRestartGuard"},
		"replicas":                {with(func(o *rueidis.ClientOption) { o.Standalone.ReplicaAddress = []string{"r:1"} }), nil, "ReplicaAddress"},
		"redirects":               {with(func(o *rueidis.ClientOption) { o.Standalone.EnableRedirect = true }), nil, "EnableRedirect"},
		"replica only":            {with(func(o *rueidis.ClientOption) { o.ReplicaOnly = true }), nil, "ReplicaOnly"},
		"reads from replicas":     {with(func(o *rueidis.ClientOption) { o.SendToReplicas = func(rueidis.Completed) bool { return true } }), nil, "SendToReplicas"},
		"cluster options":         {with(func(o *rueidis.ClientOption) { o.ClusterOption.ShardsRefreshInterval = 1 }), nil, "ClusterOption"},
		"connections that end":    {with(func(o *rueidis.ClientOption) { o.ConnLifetime = 1 }), nil, "ConnLifetime"},
		"a pool":                  {with(func(o *rueidis.ClientOption) { o.DisableAutoPipelining = true }), nil, "DisableAutoPipelining"},
		"several connections":     {with(func(o *rueidis.ClientOption) { o.PipelineMultiplex = 2 }), nil, "PipelineMultiplex"},
		"TTL too short":           {one, []quorumlock.Option{quorumlock.WithTTL(99 * time.Millisecond)}, "WithTTL 99ms"},
		"TTL zero":                {one, []quorumlock.Option{quorumlock.WithTTL(0)}, "WithTTL 0s"},
		"TTL negative":            {one, []quorumlock.Option{quorumlock.WithTTL(-time.Second)}, "WithTTL -1s"},
		"TTL too long":            {one, []quorumlock.Option{quorumlock.WithTTL(25 * time.Hour)}, "WithTTL 25h"},
		"TTL finer than Redis":    {one, []quorumlock.Option{quorumlock.WithTTL(time.Second + time.Microsecond)}, "WithTTL 1.000001s"},
		"hold too short":          {one, []quorumlock.Option{quorumlock.WithMaxHold(time.Millisecond)}, "WithMaxHold 1ms"},
		"delay negative":          {one, []quorumlock.Option{quorumlock.WithLockDelay(-1)}, "WithLockDelay -1ns"},
		"delay too long":          {one, []quorumlock.Option{quorumlock.WithLockDelay(24 * time.Hour)}, "WithLockDelay 24h"},
		"label too long":          {one, []quorumlock.Option{quorumlock.WithHolder(strings.Repeat("x", 257))}, "WithHolder (257 bytes)"},
		"label not UTF-8":         {one, []quorumlock.Option{quorumlock.WithHolder("\xff")}, "WithHolder"},
		"prefix not UTF-8":        {one, []quorumlock.Option{quorumlock.WithPrefix("\xff")}, `WithPrefix "\xff"`},
		"prefix too long for all": {one, []quorumlock.Option{quorumlock.WithPrefix(strings.Repeat("\xff", 9999))}, "9999 bytes"},
		"prefix with a brace":     {one, []quorumlock.Option{quorumlock.WithPrefix("a{b")}, "WithPrefix"},
		"no drift":                {one, []quorumlock.Option{quorumlock.WithDriftFactor(0)}, "WithDriftFactor 0"},
		"drift of a broken clock": {one, []quorumlock.Option{quorumlock.WithDriftFactor(0.2)}, "WithDriftFactor 0.2"},
		"node timeout zero":       {one, []quorumlock.Option{quorumlock.WithNodeTimeout(0)}, "WithNodeTimeout 0s"},
		"node timeout that leaves no time to renew": {one,
			[]quorumlock.Option{quorumlock.WithTTL(time.Second), quorumlock.WithNodeTimeout(600 * time.Millisecond)}, "WithNodeTimeout 600ms"},
		"no backoff":              {one, []quorumlock.Option{quorumlock.WithRetryBackoff(nil)}, "WithRetryBackoff"},
		"guard too short":         {one, []quorumlock.Option{quorumlock.WithRestartGuard(0)}, "WithRestartGuard 0s"},
		"guard of half a ms":      {one, []quorumlock.Option{quorumlock.WithRestartGuard(20*time.Second + 500*time.Microsecond)}, "WithRestartGuard 20.0005s: must be whole milliseconds from 100ms to 48h0m0s"},
		"lease longer than guard": {one, []quorumlock.Option{quorumlock.WithRestartGuard(5 * time.Second)}, "WithRestartGuard"},
		"startup wait negative":   {one, []quorumlock.Option{quorumlock.WithStartupWait(-time.Second)}, "WithStartupWait -1s"},
		"trust without a guard":   {one, []quorumlock.Option{quorumlock.WithTrustEmptyNodes()}, "WithTrustEmptyNodes"},
	} {
		t.Run(claim, func(t *testing.T) {
			m, err := quorumlock.New(background, c.nodes, c.opts...)
			assert.Nil(t, m)
			require.ErrorIs(t, err, quorumlock.ErrInvalid)
			var invalid *quorumlock.InvalidError
			require.ErrorAs(t, err, &invalid)
			assert.Contains(t, err.Error(), c.names)
			assert.NotEmpty(t, invalid.Bound)
			assert.NotEmpty(t, invalid.Fix)
		})
	}
}

func TestBadLeasesAreRefusedAndNothingIsWritten(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a guard of its own")
	m, servers := testkit.Manager(t, 1, quorumlock.WithRestartGuard(10*time.Second), quorumlock.WithTrustEmptyNodes())
	before := testkit.Keys(t, servers)
	for claim, try := range map[string]func() (*quorumlock.Lease, error){
		"empty name":         func() (*quorumlock.Lease, error) { return m.Acquire(background, "") },
		"long name":          func() (*quorumlock.Lease, error) { return m.TryAcquire(background, strings.Repeat("n", 513)) },
		"name not UTF-8":     func() (*quorumlock.Lease, error) { return m.Acquire(background, "a\xffb") },
		"TTL":                func() (*quorumlock.Lease, error) { return m.Acquire(background, "n", quorumlock.WithTTL(1)) },
		"TTL over the guard": func() (*quorumlock.Lease, error) { return m.Acquire(background, "n", quorumlock.WithTTL(time.Minute)) },
		"delay over the guard": func() (*quorumlock.Lease, error) {
			return m.Acquire(background, "n", quorumlock.WithLockDelay(time.Second))
		},
		"minimum over the guard": func() (*quorumlock.Lease, error) {
			return m.Acquire(background, "n", quorumlock.WithMinHold(time.Minute))
		},
	} {
		l, err := try()
		assert.Nil(t, l, claim)
		assert.ErrorIs(t, err, quorumlock.ErrInvalid, claim)
	}
	_, err := m.Inspect(background, "")
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Equal(t, before, testkit.Keys(t, servers))
}

func TestANameMayBeAnyTextAndNeverMeetsACompanionKey(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a prefix of its own")
	m, servers := testkit.Manager(t, 1, quorumlock.WithPrefix(""))
	names := []string{" ", "{", "}", "{}", "a{b}c", "}a{", "\x00", "f{x}", "日本", strings.Repeat("n", 512), "a", "af", "{a}f", "f{a}"}
	for _, name := range names {
		l, err := m.TryAcquire(background, name)
		require.NoError(t, err, "%q", name)
		assert.Equal(t, name, l.Name())
		assert.Equal(t, int64(1), servers[0].MustDo("EXISTS", name), "the key is prefix and name, %q", name)
	}
	assert.ElementsMatch(t, append(names, "\xffr"), testkit.Keys(t, servers), "the registers are one key")
}

func TestOneServerIsNeverTwoVotes(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	_, port, _ := strings.Cut(server.Addr(), ":")
	_, err := quorumlock.New(background, quorumlock.Addrs(server.Addr(), "localhost:"+port))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Contains(t, err.Error(), "same server")
}

func TestReplicasAndClustersAreRefused(t *testing.T) {
	servers := redistest.Start(t, 2)
	host, port, _ := strings.Cut(servers[0].Addr(), ":")
	servers[1].MustDo("REPLICAOF", host, port)
	_, err := quorumlock.New(background, quorumlock.Addrs(servers[1].Addr()))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Contains(t, err.Error(), "replica")

	cluster := redistest.Start(t, 1, "--cluster-enabled", "yes")
	_, err = quorumlock.New(background, quorumlock.Addrs(cluster[0].Addr()))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Contains(t, err.Error(), "cluster")
}

func TestErrorsNameThePasswordFieldAndNeverItsValue(t *testing.T) {
	server := redistest.Start(t, 1, "--requirepass", "open-sesame")[0]
	old := server // which ends the connection at the scripts
	if os.Getenv("QUORUMLOCK_RESP") != "2" {
		old = redistest.Start(t, 1, "--requirepass", "open-sesame", "--rename-command", "HELLO", "")[0]
	}
	for _, password := range []string{"", "closed-barley", "old"} {
		nodes := quorumlock.Addrs(server.Addr())
		if nodes[0].Password = password; password == "old" {
			nodes = quorumlock.Addrs(old.Addr())
		}
		_, err := quorumlock.New(background, nodes)
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		var node *quorumlock.NodeError
		require.ErrorAs(t, err, &node)
		assert.True(t, node.Misconfigured)
		assert.Contains(t, err.Error(), "Password")
		assert.NotContains(t, err.Error(), "barley")
	}
}

func TestANodeThatIsDownAtStartJoinsWhenItComes(t *testing.T) {
	testkit.OnlyAddrs(t, "a master that comes later is in quarantine")
	servers := testkit.Start(t, 3)
	servers[2].Kill()
	m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(3*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	servers[2].Restart()
	testkit.Eventually(t, "healed on the node that came", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	assert.True(t, l.Valid())
}

func TestAHungMinorityDoesNotHoldUpTheStart(t *testing.T) {
	servers := testkit.Start(t, 3)
	servers[0].Stop()
	m := testkit.Connect(t, redistest.Addrs(servers))
	_, err := m.TryAcquire(background, "job")
	require.NoError(t, err)
}

func TestWithoutAQuorumThereIsNoManager(t *testing.T) {
	servers := testkit.Start(t, 3)
	servers[0].Kill()
	servers[1].Kill()
	_, err := testkit.New(t, redistest.Addrs(servers))
	var short *quorumlock.QuorumError
	require.ErrorAs(t, err, &short)
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	assert.Equal(t, 2, short.Need)
	assert.Equal(t, 1, short.Got)
	assert.Len(t, short.Nodes, 2)
	assert.Contains(t, err.Error(), servers[0].Addr())
}

func TestNewEndsWithItsContext(t *testing.T) {
	servers := redistest.Start(t, 1)
	servers[0].Stop()
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(background, 20*time.Millisecond, cause)
	defer cancel()
	_, err := quorumlock.New(ctx, quorumlock.Addrs(servers[0].Addr()))
	require.ErrorIs(t, err, cause)
}

func TestAnEvenNumberOfNodesIsAWarning(t *testing.T) {
	var log testkit.Buffer
	testkit.Manager(t, 2, quorumlock.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "even number") }, 10*time.Second, time.Millisecond)
}

// handler is a log handler that waits until it may continue.
type handler struct {
	slog.Handler
	goOn chan struct{}
}

func (h handler) Handle(context.Context, slog.Record) error {
	<-h.goOn
	return nil
}

func TestALogHandlerThatHangsDoesNotHoldUpNew(t *testing.T) {
	h := handler{slog.NewTextHandler(io.Discard, nil), make(chan struct{})}
	addrs := redistest.Addrs(redistest.Start(t, 2)) // an even number, about which New warns
	made := make(chan *quorumlock.Manager, 1)
	go func() {
		m, err := quorumlock.New(background, quorumlock.Addrs(addrs...), quorumlock.WithLogger(slog.New(h)))
		assert.NoError(t, err)
		made <- m
	}()
	select {
	case m := <-made:
		close(h.goOn)
		require.NoError(t, m.Close(background))
	case <-time.After(20 * time.Second):
		close(h.goOn)
		require.Fail(t, "New waits for the handler")
	}
}

func TestALeaseExcludesOthersAndNamesItsHolder(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		m, servers := testkit.Manager(t, n)
		other := testkit.Connect(t, redistest.Addrs(servers))
		l, err := m.Acquire(background, "job", quorumlock.WithHolder("me, here"))
		require.NoError(t, err)
		assert.True(t, l.Valid())
		assert.NoError(t, l.Err())
		assert.Len(t, l.Owner(), 32)

		_, err = other.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		assert.NotErrorIs(t, err, quorumlock.ErrNoQuorum)
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, "me, here", held.Holder.Label)
		assert.Equal(t, l.Owner(), held.Holder.Owner)
		assert.WithinDuration(t, time.Now(), held.Holder.Since, time.Minute)
		assert.InDelta(t, config.DefaultTTL, held.RetryAfter, float64(5*time.Second))

		require.NoError(t, l.Release(background))
		assert.False(t, l.Valid())
		testkit.Eventually(t, "deleted everywhere", func() bool { return testkit.Locks(t, servers, "job") == 0 })
		next, err := other.TryAcquire(background, "job")
		require.NoError(t, err)
		assert.Greater(t, next.Token(), l.Token())
	}
}

func TestReleasingTwiceOrAfterALossReturnsAtOnceWithTheReason(t *testing.T) {
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(300*time.Millisecond))
	l, err := m.Acquire(background, "a", quorumlock.WithTTL(time.Minute)) // a slow machine keeps it, too
	require.NoError(t, err)
	require.NoError(t, l.Release(background))
	require.ErrorIs(t, l.Release(background), quorumlock.ErrReleased)
	require.ErrorIs(t, l.Renew(background), quorumlock.ErrReleased)
	require.ErrorIs(t, l.Verify(background), quorumlock.ErrReleased)

	l, err = m.Acquire(background, "b")
	require.NoError(t, err)
	for _, s := range servers {
		s.Stop()
	}
	<-l.Done()
	var lost *quorumlock.LostError
	require.ErrorAs(t, l.Release(background), &lost)
	assert.Equal(t, "b", lost.Name)
	for _, s := range servers {
		s.Continue()
	}
}

func TestConcurrentReleasesReleaseOnce(t *testing.T) {
	m, _ := testkit.Manager(t, 3)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	var released sync.Map
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := l.Release(background); err == nil {
				released.Store(i, true)
			} else {
				assert.ErrorIs(t, err, quorumlock.ErrReleased)
			}
		})
	}
	all.Wait()
	n := 0
	released.Range(func(any, any) bool { n++; return true })
	assert.Equal(t, 1, n)
}

func TestManyContendersTakeTurnsUnderRisingTokens(t *testing.T) {
	for _, n := range []int{3, 5} {
		_, servers := testkit.Manager(t, n)
		var (
			mu       sync.Mutex // guards the history; the lease alone guards the counter
			tokens   []int64
			inside   int
			overlaps int
			all      sync.WaitGroup
		)
		quick := quorumlock.WithRetryBackoff(func() backoff.BackOff {
			return backoff.NewExponentialBackOff(backoff.WithInitialInterval(time.Millisecond), backoff.WithMaxInterval(20*time.Millisecond))
		})
		for range 4 {
			m := testkit.Connect(t, redistest.Addrs(servers), quick)
			for range 3 {
				all.Go(func() {
					for range 5 {
						err := m.Do(background, "job", func(_ context.Context, l *quorumlock.Lease) error {
							mu.Lock()
							if inside++; inside > 1 {
								overlaps++
							}
							tokens = append(tokens, l.Token())
							mu.Unlock()
							time.Sleep(time.Millisecond)
							mu.Lock()
							inside--
							mu.Unlock()
							return nil
						})
						assert.NoError(t, err)
					}
				})
			}
		}
		all.Wait()
		assert.Zero(t, overlaps)
		assert.Len(t, tokens, 60)
		assert.IsIncreasing(t, tokens)
	}
}

func TestWaitingEndsWithTheContextAndReportsTheObstacle(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	_, err := m.Acquire(background, "job", quorumlock.WithHolder("first"))
	require.NoError(t, err)
	cause := errors.New("lunch")
	ctx, cancel := context.WithTimeoutCause(background, 200*time.Millisecond, cause)
	defer cancel()
	_, err = m.Acquire(ctx, "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.ErrorIs(t, err, cause)
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, "first", held.Holder.Label)

	servers[0].Kill()
	servers[1].Kill()
	ctx, cancel = context.WithTimeout(background, 200*time.Millisecond)
	defer cancel()
	_, err = m.Acquire(ctx, "other")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, quorumlock.ErrHeld)

	gone, leave := context.WithCancelCause(background)
	leave(cause)
	_, err = m.Acquire(gone, "third")
	require.ErrorIs(t, err, cause)
	assert.Empty(t, servers[2].MustDo("KEYS", "*third*"))
}

func TestABackoffThatStopsEndsTheWait(t *testing.T) {
	m, servers := testkit.Manager(t, 1)
	_, err := m.Acquire(background, "job")
	require.NoError(t, err)
	other := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithRetryBackoff(func() backoff.BackOff { return &backoff.StopBackOff{} }))
	_, err = other.Acquire(background, "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
}

func TestAWaiterGetsTheLeaseWhenTheHolderDies(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	dead := testkit.Connect(t, redistest.Addrs(servers))
	l, err := dead.Acquire(background, "job", quorumlock.WithTTL(500*time.Millisecond), quorumlock.WithoutRenewal())
	require.NoError(t, err)
	next, err := m.Acquire(background, "job")
	require.NoError(t, err)
	var lost *quorumlock.LostError
	require.ErrorAs(t, l.Err(), &lost, "the loss is reported before the next grant")
	assert.Equal(t, quorumlock.LostExpired, lost.Reason)
	assert.Greater(t, next.Token(), l.Token())
}

func TestOtherRedlockClientsExcludeUsAndWeThem(t *testing.T) {
	testkit.OnlyAddrs(t, "it has a prefix of its own")
	m, servers := testkit.Manager(t, 3, quorumlock.WithPrefix(""), quorumlock.WithoutFencing())
	for _, s := range servers[:2] {
		require.Equal(t, "OK", s.MustDo("SET", "job", "their-random-value", "NX", "PX", "60000"))
	}
	_, err := m.TryAcquire(background, "job")
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, "their-random-value", held.Holder.Owner)
	for _, s := range servers[:2] {
		s.MustDo("DEL", "job")
	}
	l, err := m.TryAcquire(background, "job")
	require.NoError(t, err)
	assert.Zero(t, l.Token())
	for _, s := range servers {
		testkit.Eventually(t, "the node has granted", func() bool { return s.MustDo("EXISTS", "job") == int64(1) })
		assert.Nil(t, s.MustDo("SET", "job", "theirs", "NX", "PX", "60000"))
		s.MustDo("DEL", wire.InUseKey("")) // an announcement, which comes with a check
		assert.Equal(t, int64(1), s.MustDo("DBSIZE"))
	}
}

func TestInspectReportsTheHolderWithoutTakingTheLock(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	keys := testkit.Keys(t, servers)
	before, err := m.Inspect(background, "job")
	require.NoError(t, err)
	assert.False(t, before.Held)
	assert.Equal(t, keys, testkit.Keys(t, servers))
	l, err := m.Acquire(background, "job", quorumlock.WithHolder("me"))
	require.NoError(t, err)
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	servers[1].Stop()
	s, err := m.Inspect(background, "job")
	servers[1].Continue()
	require.NoError(t, err)
	assert.True(t, s.Held)
	assert.Equal(t, 2, s.Votes)
	assert.Equal(t, "me", s.Holder.Label)
	assert.Equal(t, l.Token(), s.Fence)
	assert.Positive(t, s.TTL)
	require.Len(t, s.Nodes, 3)
	assert.Error(t, s.Nodes[1].Err)
}

func TestInspectReportsAHolderWithoutAnEnd(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	for i, command := range [][]string{{"SET", testkit.Prefix + "job", "x"}, {"SET", testkit.Prefix + "job", "x"}, {"SET", testkit.Prefix + "job", "x", "PX", "60000"}} {
		servers[i].MustDo(command...)
	}
	s, err := m.Inspect(background, "job")
	require.NoError(t, err)
	assert.True(t, s.Held)
	assert.Equal(t, -time.Millisecond, s.TTL)
	servers[0].MustDo("PEXPIRE", testkit.Prefix+"job", "30000")
	s, err = m.Inspect(background, "job")
	require.NoError(t, err)
	assert.InDelta(t, time.Minute, s.TTL, float64(20*time.Second), "a quorum is the key without an end and the longer of the other two")
}

// A key may live for 292 million years; adding anything to that would overflow.
func TestAWaiterOfAKeyThatLivesForAgesKeepsItsBackoff(t *testing.T) {
	for claim, c := range map[string]struct {
		value string
		most  int // calls in half a second: attempts, and releases of their tickets
	}{
		"a lease": {strings.Repeat("a", 32) + " 1 1700000000000000 - label", 20},
		// No wake-up arrives when a client without queues releases. The head of the queue
		// asks after 1 ms at first, and then less and less often, by a sixteenth of its
		// wait.
		"a stranger": {"x", 160},
	} {
		t.Run(claim, func(t *testing.T) {
			m, servers := testkit.Manager(t, 1, quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(50 * time.Millisecond) }))
			servers[0].MustDo("SET", testkit.Prefix+"job", c.value, "PX", "9223370000000000000")
			servers[0].MustDo("CONFIG", "RESETSTAT")
			ctx, cancel := context.WithTimeout(background, 500*time.Millisecond)
			defer cancel()
			_, err := m.Acquire(ctx, "job")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.LessOrEqual(t, testkit.ScriptCalls(t, servers[0]), c.most)
		})
	}
}

func TestVerifyAsksTheNodes(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	require.NoError(t, l.Verify(background))
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	for _, s := range servers[:2] {
		s.MustDo("DEL", testkit.Prefix+"job")
	}
	require.ErrorIs(t, l.Verify(background), quorumlock.ErrLost, "found by the request")
	assert.False(t, l.Valid())
	var lost *quorumlock.LostError
	require.ErrorAs(t, l.Err(), &lost)
	assert.Equal(t, quorumlock.LostMissing, lost.Reason)
	assert.Len(t, lost.Nodes, 2, "the error has the nodes' answers")

	l, err = m.Acquire(background, "again")
	require.NoError(t, err)
	servers[0].Stop()
	servers[1].Stop()
	require.ErrorIs(t, l.Verify(background), quorumlock.ErrNoQuorum)
	assert.True(t, l.Valid(), "an unknown state is no loss")
	servers[0].Continue()
	servers[1].Continue()
}

func TestCloseReleasesEverythingAndRefusesTheRest(t *testing.T) {
	servers := testkit.Start(t, 3)
	m, err := testkit.New(t, redistest.Addrs(servers))
	require.NoError(t, err)
	events := m.Subscribe(1000)
	var leases []*quorumlock.Lease
	for _, name := range []string{"a", "b", "c"} {
		l, err := m.Acquire(background, name)
		require.NoError(t, err)
		leases = append(leases, l)
	}
	waiting := make(chan error)
	go func() {
		_, err := m.Acquire(background, "a")
		waiting <- err
	}()
	time.Sleep(20 * time.Millisecond) // time to start waiting; the test also passes if it does not

	require.NoError(t, m.Close(background))
	require.ErrorIs(t, <-waiting, quorumlock.ErrClosed)
	_, err = m.Acquire(background, "d")
	require.ErrorIs(t, err, quorumlock.ErrClosed)
	require.NoError(t, m.Close(background), "idempotent")
	for _, l := range leases {
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
	}
	for _, name := range []string{"a", "b", "c"} {
		assert.Zero(t, testkit.Locks(t, servers, name))
	}
	ends := 0
	for e := range events.C() {
		if _, ok := e.(quorumlock.Released); ok {
			ends++
		}
	}
	assert.Equal(t, 3, ends, "one terminal event for each lease, then the channel ends")
	_, open := <-m.Subscribe(1).C()
	assert.False(t, open)
}

func TestCloseDoesNotWaitForAHungNode(t *testing.T) {
	servers := testkit.Start(t, 3)
	m, err := testkit.New(t, redistest.Addrs(servers))
	require.NoError(t, err)
	_, err = m.Acquire(background, "job")
	require.NoError(t, err)
	servers[1].Stop()
	began := time.Now()
	require.NoError(t, m.Close(background))
	assert.Less(t, time.Since(began), 5*time.Second)
	assert.Zero(t, testkit.Locks(t, []*redistest.Server{servers[0], servers[2]}, "job"))
	servers[1].Continue()
}

func TestDoJoinsALossWithTheErrorOfTheWork(t *testing.T) {
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(500*time.Millisecond))
	mine := errors.New("mine")
	err := m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
		for _, s := range servers {
			s.MustDo("FLUSHALL")
		}
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), quorumlock.ErrLost)
		return mine
	})
	require.ErrorIs(t, err, mine)
	require.ErrorIs(t, err, quorumlock.ErrLost)
}

func TestDoReleasesWhateverTheWorkDoes(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	mine := errors.New("mine")
	require.ErrorIs(t, m.Do(background, "job", func(context.Context, *quorumlock.Lease) error { return mine }), mine)
	assert.Panics(t, func() {
		_ = m.Do(background, "job", func(context.Context, *quorumlock.Lease) error { panic("mine") })
	})
	ctx, cancel := context.WithCancelCause(background)
	err := m.Do(ctx, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
		cancel(mine)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	require.ErrorIs(t, err, mine)
	testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "job") == 0 })
}

func TestLeadCampaignsAgainAfterALoss(t *testing.T) {
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(500*time.Millisecond))
	var tokens []int64
	done := errors.New("done")
	err := m.Lead(background, "leader", func(ctx context.Context, l *quorumlock.Lease) error {
		if tokens = append(tokens, l.Token()); len(tokens) == 3 {
			return done
		}
		for _, s := range servers {
			s.MustDo("DEL", testkit.Prefix+"leader")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, done)
	assert.IsIncreasing(t, tokens)
	testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "leader") == 0 })
}

func TestLeadEndsWithItsContext(t *testing.T) {
	m, servers := testkit.Manager(t, 3)
	cause := errors.New("shutdown")
	ctx, cancel := context.WithCancelCause(background)
	err := m.Lead(ctx, "leader", func(ctx context.Context, _ *quorumlock.Lease) error {
		cancel(cause)
		<-ctx.Done()
		return nil
	})
	require.ErrorIs(t, err, cause)
	testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "leader") == 0 })
}
