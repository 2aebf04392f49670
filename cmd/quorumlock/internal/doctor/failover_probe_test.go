//go:build unix

package doctor

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

const (
	// stable is how long nothing may change after a failover in these tests.
	stable = 2 * time.Second
	// atMost bounds a probe, on a machine that stands still for seconds.
	atMost = 2 * time.Minute
)

// group is a master and its replicas behind one endpoint.
type group struct {
	master   *redistest.Server
	replicas []*redistest.Server
	link     *redistest.Proxy // from the first replica to the master
	endpoint *redistest.Proxy
}

func newGroup(tb testing.TB, replicas int, args ...string) *group {
	tb.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
	g := &group{master: redistest.Start(tb, 1, args...)[0]}
	g.link, g.endpoint = redistest.NewProxy(tb, g.master.Addr()), redistest.NewProxy(tb, g.master.Addr())
	g.replicas = redistest.Start(tb, replicas, args...)
	for i, r := range g.replicas {
		addr := g.master.Addr()
		if i == 0 {
			addr = g.link.Addr()
		}
		follow(r, addr)
	}
	synced(tb, g.master, replicas)
	return g
}

func follow(s *redistest.Server, addr string) {
	host, port, _ := net.SplitHostPort(addr)
	s.MustDo("REPLICAOF", host, port)
}

// promote makes the first replica the master behind the endpoint.
func (g *group) promote() {
	g.replicas[0].MustDo("REPLICAOF", "NO", "ONE")
	g.endpoint.Retarget(g.replicas[0].Addr())
}

// probe probes the endpoint. Once the probe runs, it forces a failover, nil for none.
func (g *group) probe(tb testing.TB, s FailoverSettings, force func()) (Failover, FailoverReport) {
	tb.Helper()
	var forcing sync.WaitGroup
	s.Settle = stable
	s.Ready = func() {
		if force != nil {
			forcing.Go(force)
		}
	}
	f := ProbeFailover(tb.Context(), rueidis.ClientOption{InitAddress: []string{g.endpoint.Addr()}}, prefix, s)
	forcing.Wait()
	require.Empty(tb, f.NotWritable)
	require.Less(tb, f.Lasted, atMost, "the probe ends by itself")
	r := JudgeFailover(f)
	tb.Logf("%+v", r)
	return f, r
}

// until waits for a condition. It may be called from any goroutine.
func until(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Errorf("not within a minute: %s", what)
			return
		}
	}
}

// newest returns the last number that a probe wrote to a server.
func newest(s *redistest.Server) int {
	keys, _ := s.MustDo("KEYS", prefix+"*").([]any)
	if len(keys) != 1 {
		return 0
	}
	text, _ := s.MustDo("GET", keys[0].(string)).(string)
	return number(text)
}

// written waits until a probe has written n numbers more to a server.
func written(tb testing.TB, s *redistest.Server, n int) {
	tb.Helper()
	before := newest(s)
	until(tb, "writes", func() bool { return newest(s) >= before+n })
}

// kill ends the master, and waits until its first replica has read all that it sent.
func (g *group) kill(tb testing.TB) {
	tb.Helper()
	g.master.Kill()
	until(tb, "the replica finds its master gone", func() bool {
		text, _ := g.replicas[0].MustDo("INFO", "replication").(string)
		return strings.Contains(text, "master_link_status:down")
	})
}

// clean checks that the probe has left nothing behind.
func clean(tb testing.TB, s *redistest.Server) {
	tb.Helper()
	assert.Equal(tb, int64(0), s.MustDo("DBSIZE"), "the key is deleted")
}

// steady are settings for a probe whose connections outlive a machine that stands still.
var steady = FailoverSettings{For: atMost, patience: 20 * time.Second}

func TestACrashIsSeenAndNoWriteIsLost(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	_, r := g.probe(t, steady, func() {
		written(t, g.replicas[0], 5)
		g.kill(t)
		time.Sleep(300 * time.Millisecond)
		g.promote()
	})
	assert.True(t, r.Seen)
	assert.True(t, r.RunIDChanged)
	assert.True(t, r.ReplIDChanged)
	assert.Equal(t, OldEnded, r.Old)
	assert.GreaterOrEqual(t, r.Refused, 250*time.Millisecond)
	assert.Positive(t, r.Failures["connection ended"])
	assert.Zero(t, r.Window)
	assert.False(t, r.TwoMasters)
	assert.Zero(t, r.Lost)
	assert.Equal(t, RowCrash, r.Row)
	assert.Equal(t, 10*time.Second, r.Advised)
	assert.Equal(t, []string{"warn never_fenced 0"}, found(Report{Findings: r.Findings}))
	clean(t, g.replicas[0])
}

func TestADemotionLeavesTheConnectionAndAnswersReadOnly(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	f, r := g.probe(t, steady, func() {
		written(t, g.replicas[0], 5)
		g.replicas[0].MustDo("REPLICAOF", "NO", "ONE")
		follow(g.master, g.replicas[0].Addr())
		time.Sleep(2 * time.Second) // a busy machine dials a few times a second
		g.endpoint.Retarget(g.replicas[0].Addr())
	})
	assert.True(t, r.Seen)
	assert.True(t, r.RunIDChanged)
	assert.True(t, r.ReplIDChanged)
	assert.Equal(t, OldReadOnly, r.Old)
	assert.Positive(t, r.Failures["READONLY"])
	assert.GreaterOrEqual(t, r.Refused, 200*time.Millisecond)
	assert.Zero(t, r.Window)
	assert.False(t, r.TwoMasters)
	refused, held := map[int]bool{}, false
	for _, s := range f.Samples {
		if s.Refusal == "READONLY" {
			refused[s.Conn] = true
		}
		held = held || s.Held && s.Conn == 1
	}
	assert.True(t, refused[1] && len(refused) > 1, "a refusal is dialled anew: %v", refused)
	assert.True(t, held, "the old connection is kept")
	clean(t, g.replicas[0])
}

func TestAMasterThatIsNotDemotedIsASecondMasterForAsLong(t *testing.T) {
	t.Parallel()
	const overlap = time.Second
	g := newGroup(t, 1)
	_, r := g.probe(t, steady, func() {
		written(t, g.replicas[0], 5)
		g.promote()
		written(t, g.replicas[0], 1) // over a new connection
		time.Sleep(overlap)
		written(t, g.master, 2) // of which the second was sent after the overlap
		follow(g.master, g.replicas[0].Addr())
	})
	assert.True(t, r.RunIDChanged)
	assert.True(t, r.TwoMasters)
	assert.Equal(t, OldReadOnly, r.Old)
	assert.GreaterOrEqual(t, r.Window, overlap)
	assert.Positive(t, r.Lost)
	assert.Equal(t, RowSplit, r.Row)
	assert.Zero(t, r.Refused)
	assert.Equal(t, []string{"fail two_masters 0", "fail writes_lost 0", "warn never_fenced 0"}, found(Report{Findings: r.Findings}))
	clean(t, g.replicas[0])
}

func TestAcknowledgedWritesThatTheReplicaNeverGotAreLost(t *testing.T) {
	t.Parallel()
	const lost = 10
	g := newGroup(t, 1)
	_, r := g.probe(t, steady, func() {
		written(t, g.replicas[0], 5)
		g.link.Swallow()
		known := newest(g.replicas[0])
		until(t, "writes", func() bool { return newest(g.master) > known+lost })
		g.master.Kill()
		g.promote()
	})
	assert.True(t, r.Seen)
	assert.Equal(t, OldEnded, r.Old)
	assert.Equal(t, RowLossy, r.Row)
	assert.GreaterOrEqual(t, r.Lost, lost)
	assert.LessOrEqual(t, r.Lost, r.Acknowledged-5)
	assert.Equal(t, []string{"fail writes_lost 0", "warn never_fenced 0"}, found(Report{Findings: r.Findings}))
	clean(t, g.replicas[0])
}

func TestWithoutAFailoverNoneIsSeen(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	s := steady
	s.For = 3 * time.Second
	f, r := g.probe(t, s, nil)
	assert.False(t, r.Seen)
	assert.Equal(t, RowNotSeen, r.Row)
	assert.Greater(t, r.Acknowledged, 1)
	assert.Zero(t, r.Lost)
	assert.Zero(t, r.Refused)
	assert.Equal(t, []string{"warn never_fenced 0", "warn no_failover 0"}, found(Report{Findings: r.Findings}))
	assert.True(t, slices.ContainsFunc(f.Samples, func(s Sample) bool { return s.Write == WriteNone && s.Server == f.Samples[0].Server }), "new connections are tried")
	clean(t, g.master)
}

func TestAGroupWithMinReplicasNeedsNothingButTheWindow(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "20")
	_, r := g.probe(t, steady, func() {
		written(t, g.replicas[0], 5)
		g.kill(t)
		g.promote()
		follow(g.replicas[1], g.replicas[0].Addr())
	})
	assert.True(t, r.RunIDChanged)
	assert.Equal(t, RowFenced, r.Row)
	assert.Equal(t, 24*time.Second, r.Advised)
	assert.Empty(t, found(Report{Findings: r.Findings}))
	clean(t, g.replicas[0])
}

func TestAMasterThatStandsStillIsGivenUp(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	_, r := g.probe(t, FailoverSettings{For: atMost}, func() {
		written(t, g.replicas[0], 5)
		g.master.Stop()
		time.Sleep(2 * patience)
		g.promote()
	})
	assert.True(t, r.RunIDChanged)
	assert.Equal(t, OldSilent, r.Old)
	assert.Positive(t, r.Failures["no answer"])
	assert.Zero(t, r.Window)
	clean(t, g.replicas[0])
}

func TestTheUserOfLocksMayProbe(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	for _, s := range append(g.replicas, g.master) {
		s.MustDo(append([]string{"ACL", "SETUSER", "locks"}, documented(t)...)...)
		s.MustDo("ACL", "LOG", "RESET")
	}
	f := ProbeFailover(t.Context(), rueidis.ClientOption{InitAddress: []string{g.endpoint.Addr()}, Username: "locks", Password: "CHANGE-ME"}, prefix,
		FailoverSettings{For: time.Second, Settle: stable})
	require.Empty(t, f.NotWritable)
	assert.Equal(t, RowNotSeen, JudgeFailover(f).Row)
	clean(t, g.master)
}

func TestAProbeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	f := ProbeFailover(ctx, rueidis.ClientOption{InitAddress: []string{g.endpoint.Addr()}}, prefix, FailoverSettings{For: time.Hour, Settle: stable, Ready: cancel})
	assert.Empty(t, f.NotWritable)
	assert.Equal(t, RowNotSeen, JudgeFailover(f).Row)
	clean(t, g.master)
}

func TestAnEndpointThatTakesNoWritesIsNotTried(t *testing.T) {
	t.Parallel()
	for claim, c := range map[string]struct {
		args []string
		want string
	}{
		"a replica":                  {[]string{"--replicaof", "127.0.0.1 1"}, "fail replica 0"},
		"no replica follows":         {[]string{"--min-replicas-to-write", "1"}, "fail not_writable 0"},
		"a user without rights":      {[]string{"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-set"}, "fail missing_rights 0"},
		"a password that nobody has": {[]string{"--user", "default", "on", ">word", "~*", "&*", "+@all"}, "fail wrong_password 0"},
	} {
		server := redistest.Start(t, 1, c.args...)[0]
		f := ProbeFailover(t.Context(), rueidis.ClientOption{InitAddress: []string{server.Addr()}}, prefix,
			FailoverSettings{For: atMost, Settle: stable, Ready: func() { t.Error("nobody should force a failover here") }})
		r := JudgeFailover(f)
		assert.Equal(t, RowNotTried, r.Row, claim)
		assert.Contains(t, found(Report{Findings: r.Findings}), c.want, claim)
	}
}

func TestTheWordOfARefusalIsFoundInTheTextsOfAllVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"READONLY You can't write against a read only replica.":                                                      "READONLY",
		"Error running script (call to f_1): @user_script:2: -READONLY You can't write against a read only replica.": "READONLY",
		"NOREPLICAS Not enough good replicas to write. script: 1, on @user_script:2.":                                "NOREPLICAS",
		"MOVED 866 127.0.0.1:7001": "MOVED", "NOSCRIPT No matching script.": "NOSCRIPT",
	} {
		assert.Equal(t, want, refusal(text))
	}
}

func TestACutNumberAtTheEndOfAHistoryIsLeftOut(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for n := 1_000_200; text.Len() < 800; n-- {
		text.WriteString(strconv.Itoa(n) + " ")
	}
	numbers := numbersOf(text.String()[:800])
	require.Len(t, numbers, historyLen)
	assert.Equal(t, 1_000_200, numbers[0])
	assert.Equal(t, 1_000_101, numbers[99])
	assert.Equal(t, []int{}, numbersOf(""))
}
