//go:build unix

package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestMain(m *testing.M) { testkit.RunWaiting(m) }

const prefix = "quorumlock:"

// options returns options with these addresses, after change.
func options(addrs []string, change func(*rueidis.ClientOption)) []rueidis.ClientOption {
	var all []rueidis.ClientOption
	for _, addr := range addrs {
		o := rueidis.ClientOption{InitAddress: []string{addr}}
		if change != nil {
			change(&o)
		}
		all = append(all, o)
	}
	return all
}

// examine asks nodes and judges them.
func examine(tb testing.TB, all []rueidis.ClientOption, s Settings) ([]Node, Report) {
	tb.Helper()
	nodes := make([]Node, len(all))
	var wg sync.WaitGroup
	for i, o := range all {
		wg.Go(func() { nodes[i] = Probe(context.Background(), o, prefix) })
	}
	wg.Wait()
	return nodes, Judge(nodes, s)
}

// found returns "level code node" of all findings that are not notes.
func found(r Report) (all []string) {
	for _, f := range r.Findings {
		if f.Level != Note {
			all = append(all, string(f.Level)+" "+f.Code+" "+strconv.Itoa(f.Node))
		}
	}
	return all
}

var guarded = Settings{Guard: 30 * time.Second}

func addrs(servers ...[]*redistest.Server) (all []string) {
	for _, s := range servers {
		all = append(all, redistest.Addrs(s)...)
	}
	return all
}

func TestThreeSoundNodesNeedNothing(t *testing.T) {
	t.Parallel()
	for claim, c := range map[string]struct {
		args     []string
		settings Settings
	}{
		"guard": {nil, guarded},
		"disk":  {[]string{"--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no"}, Settings{}},
	} {
		servers := redistest.Start(t, 3, c.args...)
		nodes, r := examine(t, options(addrs(servers), nil), c.settings)
		assert.Empty(t, found(r), claim)
		waiting := 0
		if c.settings.Guard > 0 {
			waiting = 3 // from the first client on
		}
		assert.Equal(t, []int{3 - waiting, waiting}, []int{r.Voting, r.Waiting}, claim)
		for i, n := range nodes {
			assert.Positive(t, n.RoundTrip)
			assert.Less(t, n.Clock.Abs(), n.RoundTrip+time.Millisecond, "the clock is this machine's")
			assert.Equal(t, int64(0), servers[i].MustDo("DBSIZE"), "nothing was written")
		}
	}
}

func TestEveryBrokenSetUpIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(servers[0].Addr())
	require.NoError(t, err)
	replica := redistest.Start(t, 1, "--replicaof", host+" "+port)
	stranger := redistest.Start(t, 1, "--replicaof", host+" "+port)
	synced(t, servers[0], 2)
	sound := addrs(servers)
	for _, c := range []struct {
		claim    string
		nodes    []string
		settings Settings
		want     []string
	}{
		{"the same server twice", []string{sound[0], "localhost:" + port, sound[1]}, guarded, []string{"fail same_server 1"}},
		{"a replica of another node", []string{sound[0], replica[0].Addr(), sound[1]}, guarded, []string{"fail replica 1", "fail replica_of_listed_node 1"}},
		{"two replicas of one master", []string{replica[0].Addr(), stranger[0].Addr(), sound[1]}, guarded, []string{
			"fail no_quorum -1", "fail replica 0", "fail replica 1", "fail replica_of_listed_node 1"}},
		{"replicas without the guard", []string{sound[0]}, Settings{}, []string{"warn no_persistence 0", "warn replicas_without_guard 0"}},
		{"cluster mode", append(addrs(redistest.Start(t, 1, "--cluster-enabled", "yes")), sound[1:]...), guarded, []string{"fail cluster_mode 0"}},
		{"evictions", append(addrs(redistest.Start(t, 1, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")), sound[1:]...),
			Settings{}, []string{"warn eviction 0", "warn no_persistence 0", "warn no_persistence 1", "warn no_persistence 2"}},
		{"evictions with the guard", append(addrs(redistest.Start(t, 1, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")), sound[1:]...),
			guarded, []string{"fail eviction 0"}},
		{"a log that may lose its tail", append(addrs(redistest.Start(t, 1, "--appendonly", "yes")), addrs(redistest.Start(t, 2,
			"--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no"))...), Settings{}, []string{"warn weak_persistence 0"}},
		{"an even number", sound[:2], guarded, []string{"warn even_number -1"}},
		{"a node that is down", append([]string{"127.0.0.1:1"}, sound[1:]...), guarded, []string{"fail unreachable 0"}},
		{"no such host", append([]string{"redis.invalid:6379"}, sound[1:]...), guarded, []string{"fail unreachable 0"}},
		{"too few replicas", append(addrs(redistest.Start(t, 1, "--min-replicas-to-write", "1")), sound[1:]...), guarded, []string{"fail min_replicas 0"}},
		{"a password that nobody gave", append(addrs(redistest.Start(t, 1, "--user", "default", "on", ">word", "~*", "&*", "+@all")), sound[1:]...),
			guarded, []string{"fail wrong_password 0"}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			_, r := examine(t, options(c.nodes, nil), c.settings)
			assert.ElementsMatch(t, c.want, found(r), "%+v", r.Findings)
			for _, f := range r.Findings {
				assert.NotEmpty(t, f.Problem)
				assert.NotEmpty(t, f.Fix)
			}
		})
	}
}

// synced waits until a server has n replicas.
func synced(tb testing.TB, s *redistest.Server, n int) {
	tb.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if text, _ := s.MustDo("INFO", "replication").(string); strings.Count(text, "state=online") == n {
			return
		}
		require.True(tb, time.Now().Before(until), "no replica")
	}
}

func TestNodesThatWereMasterAndReplicaAreWarnedAbout(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, 1, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master[0].Addr())
	require.NoError(t, err)
	replica := redistest.Start(t, 1, "--replicaof", host+" "+port)
	synced(t, master[0], 1)
	replica[0].MustDo("REPLICAOF", "NO", "ONE")
	_, r := examine(t, options(addrs(master, replica, redistest.Start(t, 1)), nil), guarded)
	assert.Equal(t, []string{"warn former_replica 1"}, found(r))
}

func TestCredentialsAndTLSThatDoNotFitAreNamed(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	servers := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca}, Args: []string{"--user", "u", "on", ">word", "~*", "&*", "+@all"}})
	strict := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca, Clients: ca}})
	silent := redistest.Start(t, 1)
	silent[0].Stop()
	named := ca.ClientConfig()
	named.ServerName = "other.test"
	for _, c := range []struct {
		claim, addr string
		change      func(*rueidis.ClientOption)
		code        string
	}{
		{"all fits", servers[0].TLSAddr(), func(o *rueidis.ClientOption) { o.TLSConfig, o.Username, o.Password = ca.ClientConfig(), "u", "word" }, ""},
		{"wrong password", servers[0].Addr(), func(o *rueidis.ClientOption) { o.Username, o.Password = "u", "other" }, CodePassword},
		{"no such user", servers[0].Addr(), func(o *rueidis.ClientOption) { o.Username, o.Password = "v", "word" }, CodePassword},
		{"no TLS here", servers[0].TLSAddr(), nil, CodeTLSMissing},
		{"no TLS there", servers[0].Addr(), func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() }, CodeTLSUnexpected},
		{"another authority", servers[0].TLSAddr(), func(o *rueidis.ClientOption) { o.TLSConfig = redistest.NewCA(t).ClientConfig() }, CodeTLSUntrusted},
		{"another name", servers[0].TLSAddr(), func(o *rueidis.ClientOption) { o.TLSConfig = named }, CodeTLSUntrusted},
		{"no client certificate", strict[0].TLSAddr(), func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() }, CodeTLSClient},
		{"no client certificate, TLS 1.2", strict[0].TLSAddr(), func(o *rueidis.ClientOption) {
			o.TLSConfig = ca.ClientConfig()
			o.TLSConfig.MaxVersion = tls.VersionTLS12
		}, CodeTLSClient},
		{"a server that hangs", silent[0].Addr(), nil, CodeUnreachable},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			n := Probe(context.Background(), options([]string{c.addr}, c.change)[0], prefix)
			if c.code == "" {
				require.Nil(t, n.Fault)
				return
			}
			require.NotNil(t, n.Fault)
			assert.Equal(t, c.code, n.Fault.Code, "%+v", n.Fault)
			assert.NotEmpty(t, n.Fault.Fix)
		})
	}
}

// documented returns the minimal rules of the user, from the shell command in docs/reference.md.
func documented(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/reference.md")
	require.NoError(t, err)
	command := regexp.MustCompile("(?s)redis-cli ACL SETUSER quorumlock (.*?)\n```").FindStringSubmatch(string(text))
	require.NotNil(t, command)
	return strings.Fields(strings.NewReplacer("\\\n", " ", "'", "").Replace(command[1]))
}

func TestEveryMissingRightIsNamedAndNoOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	rules := documented(t)
	for i, rule := range rules {
		if rule == "on" || rule == "reset" || rule == "resetchannels" || strings.HasPrefix(rule, ">") {
			continue
		}
		server.MustDo(append([]string{"ACL", "SETUSER", "u" + strconv.Itoa(i)}, slices.Delete(slices.Clone(rules), i, i+1)...)...)
		n := Probe(context.Background(), options([]string{server.Addr()}, func(o *rueidis.ClientOption) {
			o.Username, o.Password = "u"+strconv.Itoa(i), "CHANGE-ME"
		})[0], prefix)
		require.Nil(t, n.Fault, rule)
		assert.Equal(t, []string{rule}, n.Missing)
		r := Judge([]Node{n}, guarded)
		at := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Node == 0 && strings.Contains(f.Fix, rule) })
		assert.GreaterOrEqual(t, at, 0, "%s: %+v", rule, r.Findings)
	}
	server.MustDo(append([]string{"ACL", "SETUSER", "all"}, rules...)...)
	server.MustDo("ACL", "LOG", "RESET")
	n := Probe(context.Background(), options([]string{server.Addr()}, func(o *rueidis.ClientOption) { o.Username, o.Password = "all", "CHANGE-ME" })[0], prefix)
	assert.Empty(t, n.Missing)
	assert.Empty(t, found(Judge([]Node{n}, guarded)))
}

func TestTheAdviceForAPrefixWithGlobCharactersAndASpaceWorks(t *testing.T) {
	t.Parallel()
	const hostile, escaped = `we[i]rd *?\a:`, `we\[i\]rd?\*\?\\a:*`
	server := redistest.Start(t, 1)[0]
	rules := slices.DeleteFunc(documented(t), func(rule string) bool { return strings.ContainsAny(rule, "~&") })
	probe := func() []string {
		return Probe(context.Background(), options([]string{server.Addr()}, func(o *rueidis.ClientOption) { o.Username, o.Password = "user", "CHANGE-ME" })[0], hostile).Missing
	}
	server.MustDo(append([]string{"ACL", "SETUSER", "user"}, rules...)...)
	missing := probe()
	assert.ElementsMatch(t, []string{"~" + escaped, "&" + escaped}, missing)
	server.MustDo(append([]string{"ACL", "SETUSER", "user"}, missing...)...)
	assert.Empty(t, probe())
}

func TestAClockThatIsOffIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.StartWith(t, 3, redistest.Options{Clock: true})
	servers[1].StepClock(-10 * time.Second)
	_, r := examine(t, options(addrs(servers), nil), guarded)
	require.Equal(t, []string{"warn clock_off 1"}, found(r))
	assert.Regexp(t, `-(10(\.0\d*)?|9\.9\d*)s off`, r.Findings[0].Problem)
	for _, s := range servers {
		s.StepClock(time.Hour)
	}
	_, r = examine(t, options(addrs(servers), nil), guarded)
	assert.Equal(t, []string{"warn clock_off 1"}, found(r))
	assert.True(t, slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == CodeLocalClock && f.Level == Note }))
}

func TestARestartGuardThatDiffersIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	servers[2].MustDo("SET", prefix+"\xffg", "run 0 60000 NONCE")
	_, r := examine(t, options(addrs(servers), nil), guarded)
	assert.Equal(t, []string{"note in_quarantine"}, notes(r, 2), "no client uses it any more")
	inUse(servers[2], 40*time.Second)
	_, r = examine(t, options(addrs(servers), nil), guarded)
	assert.Equal(t, []string{"fail restart_guard_differs 2"}, found(r))
	assert.Contains(t, r.Findings[slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Level == Fail })].Fix, "give --restart-guard 1m0s;")
	_, r = examine(t, options(addrs(servers), nil), Settings{Guard: time.Minute})
	assert.Empty(t, found(r))
}

// inUse registers the list of a client with the guard.
func inUse(s *redistest.Server, left time.Duration) {
	s.MustDo("ZADD", prefix+"\xffl", strconv.FormatInt(time.Now().Add(left).UnixMicro(), 10), "1 1 self", "9007199254740991", "node self")
}

// notes returns the notes about a node.
func notes(r Report, node int) (all []string) {
	for _, f := range r.Findings {
		if f.Node == node && f.Level == Note {
			all = append(all, "note "+f.Code)
		}
	}
	return all
}

// While a guarded lease may be alive, the node does not vote for clients without the guard.
func TestAGuardThatIsNotGivenFailsWhileItIsInUse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no")[0]
	judged := func() Report {
		_, r := examine(t, options(addrs([]*redistest.Server{server}), nil), Settings{})
		return r
	}
	server.MustDo("SET", prefix+"\xffg", "run 0 60000 NONCE")
	assert.Equal(t, []string{"note restart_guard_not_given"}, notes(judged(), 0)[:1])
	assert.Equal(t, 1, judged().Voting)
	inUse(server, 61*time.Second)
	r := judged()
	assert.Zero(t, r.Voting)
	assert.Equal(t, []string{"fail no_quorum -1", "fail restart_guard_not_given 0"}, found(r)[:2])
	assert.Regexp(t, `(?i)the last of them connected about (29|30|31)s ago; if none connects again, the guard ends in 1m[01]s`, r.Findings[1].Problem)
	server.MustDo("SET", prefix+"\xffg", "run 0 60000 NONCEopen")
	assert.Equal(t, 1, judged().Voting, "the guard is rolled out")
	server.MustDo("DEL", prefix+"\xffl")
	server.MustDo("SET", prefix+"\xffg", "run "+strconv.FormatInt(time.Now().Add(time.Minute).UnixMicro(), 10)+" 60000 NONCE")
	assert.Zero(t, judged().Voting, "in quarantine")
}

// A node that does not vote yet, or will not once a client connects, is named.
func TestAQuarantineIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	quarantines := func() (all []string) {
		_, r := examine(t, options(addrs(servers), nil), Settings{Guard: time.Minute})
		for _, f := range r.Findings {
			if f.Code == CodeQuarantine {
				all = append(all, string(f.Level)+" "+strconv.Itoa(f.Node))
			}
		}
		return all
	}
	voting := func() [2]int {
		_, r := examine(t, options(addrs(servers), nil), Settings{Guard: time.Minute})
		return [2]int{r.Voting, r.Waiting}
	}
	assert.Equal(t, []string{"note 0", "note 1", "note 2"}, quarantines())
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs(servers)...), quorumlock.WithPrefix(prefix), quorumlock.WithRestartGuard(time.Minute))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(quarantines()) == 3 && quarantines()[0] == "warn 0" }, time.Minute, 50*time.Millisecond)
	require.NoError(t, m.Close(t.Context()))
	servers[1].Kill()
	servers[1].Restart()
	assert.Equal(t, []string{"warn 0", "warn 2", "note 1"}, quarantines())
	text := servers[0].MustDo("GET", prefix+"\xffg").(string)
	fields := strings.Fields(text)
	servers[0].MustDo("SET", prefix+"\xffg", strings.Join([]string{fields[0], "1", fields[2], fields[3]}, " "))
	assert.Equal(t, []string{"warn 2", "note 1"}, quarantines())
	assert.Equal(t, [2]int{1, 2}, voting())
	_, r := examine(t, options(addrs(servers), nil), Settings{Guard: time.Minute})
	assert.Equal(t, []string{"warn in_quarantine 2"}, found(r), "one grants locks, and one waits for its first client")
	servers[0].MustDo("SET", prefix+"\xffg", text)
	_, r = examine(t, options(addrs(servers), nil), Settings{Guard: time.Minute})
	assert.Equal(t, []string{"fail no_quorum -1", "warn in_quarantine 0", "warn in_quarantine 2"}, found(r))
}

func TestAConnectionWithoutTLSToAnotherHostIsNamed(t *testing.T) {
	t.Parallel()
	for addr, plain := range map[string]bool{"127.0.0.1:6379": false, "[::1]:6379": false, "localhost:6379": false, "/run/redis.sock": false, "10.0.0.1:6379": true, "redis-a:6379": true} {
		assert.Equal(t, plain, elsewhere(addr), addr)
	}
	r := Judge([]Node{{RunID: "a", Role: "master", Plain: true}}, guarded)
	assert.Contains(t, notes(r, 0), "note not_encrypted")
}

// The certificates of redistest are valid for a day.
func TestACertificateThatEndsSoonIsNamed(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	servers := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca}})
	n := Probe(t.Context(), options([]string{servers[0].TLSAddr()}, func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() })[0], prefix)
	require.Nil(t, n.Fault)
	assert.InDelta(t, 24*time.Hour, n.Certificate, float64(time.Hour))
	for left, warned := range map[time.Duration]bool{0: false, 24 * time.Hour: true, 30*24*time.Hour - 1: true, 30 * 24 * time.Hour: false} {
		n.Certificate = left
		assert.Equal(t, warned, slices.Contains(found(Judge([]Node{n}, Settings{})), "warn tls_certificate_ends 0"), left)
	}
	n.Certificate = 47 * time.Hour
	assert.Contains(t, fmt.Sprint(Judge([]Node{n}, Settings{}).Findings), "ends in 1 day: ")
	assert.Zero(t, Probe(t.Context(), options(addrs(servers), nil)[0], prefix).Certificate)
}

func TestASentinelIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	n := Probe(context.Background(), options(addrs(servers), nil)[0], prefix)
	n.Mode = "sentinel" // a Sentinel needs its own file to start: only the words are tested
	assert.Equal(t, []string{"fail no_quorum -1", "fail sentinel 0"}, found(Judge([]Node{n}, guarded)))
}

func TestOldVersionsAreNamed(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"5.0.14": true, "6.0.16": true, "6.2.14": true, "7.0.15": false, "8.0.1": false, "10.0.0": false, "valkey 8.1.0": false, "": false,
	} {
		r := Judge([]Node{{Addr: "a:1", Version: version}}, guarded)
		assert.Equal(t, want, slices.Contains(found(r), "fail old_version 0"), version)
	}
}

func TestSomethingThatIsNoRedisIsNamed(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	})
	n := Probe(context.Background(), options([]string{listener.Addr().String()}, nil)[0], prefix)
	require.NoError(t, listener.Close())
	wg.Wait()
	require.NotNil(t, n.Fault)
	assert.Contains(t, []string{CodeNotRedis, CodeUnreachable}, n.Fault.Code)
}

// repair returns the script in docs/runbook.md for a base that is far ahead.
func repair(t *testing.T) string { return inRunbook(t, `(?s)redis-cli EVAL "([^"]*?most.*?)" 1 `) }

// inRunbook returns the text of docs/runbook.md that matches the group of a pattern.
func inRunbook(t *testing.T, pattern string) string {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/runbook.md")
	require.NoError(t, err)
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	require.NotNil(t, found)
	return string(found[1])
}

// The script for another maxTTL changes only the time in the marker, so the node continues to vote.
func TestTheScriptForAnotherMaxTTLKeepsTheNodeVoting(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	other := Settings{Guard: time.Minute}
	nodes, _ := examine(t, options([]string{server.Addr()}, nil), other)
	server.MustDo("SET", prefix+"\xffg", nodes[0].RunID+" 1 30000 NONCE")
	inUse(server, time.Minute)
	_, r := examine(t, options([]string{server.Addr()}, nil), other)
	assert.Contains(t, found(r), "fail restart_guard_differs 0")
	script := inRunbook(t, `(?s)redis-cli EVAL "([^"]*?ARGV.*?)" 1 `)
	server.MustDo("EVAL", script, "1", prefix+"\xffg", "60000")
	_, r = examine(t, options([]string{server.Addr()}, nil), other)
	assert.Empty(t, found(r))
}

// A clock was a year ahead when the restart guard wrote its marker, or when the register was moved. Both stay after the
// clock is right again.
func TestABaseAndARegisterThatAreFarAheadAreFound(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	ahead := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMicro(), 10) }
	for _, s := range servers { // the longest guard may write this, and a grant then moves a register behind it
		s.MustDo("SET", prefix+"\xffb", ahead(48*time.Hour))
		s.MustDo("ZADD", prefix+"\xffr", ahead(47*time.Hour), prefix+"job")
	}
	_, r := examine(t, options(addrs(servers), nil), guarded)
	assert.Empty(t, found(r))
	servers[0].MustDo("SET", prefix+"\xffb", ahead(365*24*time.Hour+time.Hour))
	servers[1].MustDo("ZADD", prefix+"\xffr", ahead(100*24*time.Hour+time.Hour), prefix+"job")
	servers[2].MustDo("ZADD", prefix+"\xffr", "inf", prefix+"job")
	_, r = examine(t, options(addrs(servers), nil), guarded)
	assert.Equal(t, []string{"warn base_ahead 0", "warn register_ahead 1", "warn register_ahead 2"}, found(r))
	assert.Contains(t, r.Findings[0].Problem, "365 days ahead")
	assert.Contains(t, r.Findings[1].Problem, "100 days ahead")

	assert.Equal(t, "lowered", servers[0].MustDo("EVAL", repair(t), "1", prefix+"\xffb"))
	_, r = examine(t, options(addrs(servers[:1]), nil), guarded)
	assert.Empty(t, found(r))
	assert.Equal(t, int64(1), servers[0].MustDo("ZCARD", prefix+"\xffr"), "the registers stay")
	before := servers[0].MustDo("GET", prefix+"\xffb")
	assert.Equal(t, "kept", servers[0].MustDo("EVAL", repair(t), "1", prefix+"\xffb"), "it is not ahead any more")
	assert.Equal(t, before, servers[0].MustDo("GET", prefix+"\xffb"))
}

func TestAListThatExcludesThisOneIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 5)
	all := addrs(servers)
	_, r := examine(t, options(all[:3], nil), guarded)
	assert.Empty(t, found(r))
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(all[2:]...), quorumlock.WithTTL(2*time.Second))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(context.Background())) }()
	l, err := m.Acquire(context.Background(), "job")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, r = examine(t, options(all[:3], nil), guarded)
		return slices.Equal([]string{"warn other_list 2"}, found(r))
	}, 40*time.Second, 500*time.Millisecond, "%+v", r.Findings)
	at := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Code == CodeOtherList })
	for _, addr := range []string{all[0], all[4]} {
		assert.Contains(t, r.Findings[at].Problem, addr)
	}
	_, r = examine(t, options(append(all[2:4:4], all[4], all[0]), nil), guarded)
	assert.Equal(t, []string{"warn even_number -1"}, found(r), "one node more")
	require.NoError(t, l.Release(context.Background()))
}

// A restarted node has a new run_id. Until the clients have announced it, they still name the earlier one.
func TestAListFromBeforeARestartIsNotAnother(t *testing.T) {
	t.Parallel()
	nodes := []Node{{Addr: "a", RunID: "A", Uptime: time.Hour}, {Addr: "b", RunID: "B", Uptime: time.Hour}, {Addr: "c", RunID: "C2", Uptime: 10 * time.Second}}
	for claim, c := range map[string]struct {
		text  string
		ago   time.Duration
		other bool
	}{
		"before the restart":                 {"guarded 3 A,B,C a, b, c", 15 * time.Second, false},
		"a second after it":                  {"guarded 3 A,B,C a, b, c", 9 * time.Second, false},
		"an address leads to another server": {"guarded 3 A,B,C a, b, c", 5 * time.Second, true},
		"two nodes are others":               {"plain 3 A,D,E a, d, e", 15 * time.Second, true},
		"all nodes are others":               {"plain 3 D,E,F d, e, f", 15 * time.Second, true},
		"the same nodes":                     {"guarded 3 A,B,C2 a, b, c", 0, false},
	} {
		nodes[0].InUse = map[string]time.Duration{c.text: c.ago}
		j := &judge{nodes: nodes}
		j.lists(0, nodes[0])
		assert.Equal(t, c.other, len(j.findings) == 1, claim)
	}
}

func TestANodeThatCameBackMakesNoOtherList(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs(servers)...), quorumlock.WithTTL(2*time.Second))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(context.Background())) }()
	_, err = m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	settings := Settings{}
	require.Eventually(t, func() bool { // each check of a node announces the list
		nodes, _ := examine(t, options(addrs(servers), nil), settings)
		return len(nodes[0].InUse) == 1 && len(nodes[1].InUse) == 1
	}, 40*time.Second, 500*time.Millisecond)
	servers[2].Restart()
	earlier := false
	for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(500 * time.Millisecond) {
		nodes, r := examine(t, options(addrs(servers), nil), settings)
		for text := range nodes[0].InUse {
			earlier = earlier || !strings.Contains(text, nodes[2].RunID)
		}
		assert.NotContains(t, strings.Join(found(r), ", "), CodeOtherList)
	}
	assert.True(t, earlier, "the list from before the restart was there")
}

func TestAnAddressOfSeveralServersIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 2)
	proxy := redistest.NewProxy(t, servers[0].Addr())
	_, r := examine(t, options([]string{proxy.Addr()}, nil), guarded)
	assert.Empty(t, found(r))
	proxy.Balance(false, redistest.Addrs(servers)...)
	nodes, r := examine(t, options([]string{proxy.Addr()}, nil), guarded)
	assert.Equal(t, []string{"fail no_quorum -1", "fail several_servers 0"}, found(r))
	for _, id := range []string{nodes[0].RunID, nodes[0].Others[0]} {
		assert.True(t, slices.ContainsFunc(r.Findings, func(f Finding) bool { return strings.Contains(f.Problem, id) }))
	}
}
