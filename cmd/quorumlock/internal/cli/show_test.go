//go:build unix

package cli

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// plain checks the properties of all piped output for people: it is whole, and has no escapes.
func plain(tb testing.TB, text string) {
	tb.Helper()
	silent(tb, "output", text)
	assert.NotContains(tb, text, "…")
	for _, line := range strings.Split(text, "\n") {
		assert.Equal(tb, strings.TrimRight(line, " "), line, "no spaces at the end")
	}
}

// long is a holder that is too wide for any terminal, and that tries to draw on it.
var long = "host \x1b[31mred " + strings.Repeat("x", 200)

func TestInspectSaysWhoHoldsALock(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	o := invoke(t, addrs, "inspect", "job")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Contains(t, o.stdout, "state    free\n")
	assert.Contains(t, o.stdout, "held on  0 of 3 nodes\n", "a free lock needs no node")
	plain(t, o.stdout)

	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder(long))
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	o = invoke(t, addrs, "inspect", "job")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Contains(t, o.stdout, "state    held\n")
	assert.Contains(t, o.stdout, "held on  3 of 3 nodes, 2 needed\n")
	assert.Contains(t, o.stdout, l.Owner())
	plain(t, o.stdout)

	s := decoded[statusJSON](t, invoke(t, addrs, "inspect", "--json", "job").stdout)
	assert.True(t, s.Held)
	assert.Equal(t, "job", s.Name)
	assert.Equal(t, long, s.Holder.Label)
	assert.Equal(t, l.Owner(), s.Holder.Owner)
	assert.Equal(t, l.Token(), s.Fence)
	assert.Equal(t, 2, s.Quorum)
	assert.Positive(t, *s.TTLms)
	assert.Len(t, s.NodeTable, 3)

	servers[2].Kill()
	o = invoke(t, addrs, "inspect", "job")
	assert.Equal(t, 0, o.code)
	assert.Contains(t, o.stdout, "node 2 gave no answer that counts")
	plain(t, o.stdout)
	servers[1].Kill()
	o = invoke(t, addrs, "inspect", "job")
	assert.Equal(t, exitNoQuorum, o.code)
	assert.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
	assert.Contains(t, o.stderr, "quorumlock doctor says more")
}

func TestInspectShowsAnotherProgramsKeyWithAnEmptyValue(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	servers[1].MustDo("SET", key, "")
	servers[2].MustDo("SET", key, "", "PX", "600000")
	o := invoke(t, addrs, "inspect", "job")
	assert.Regexp(t, `(?m)^0 +`+addrs[0]+` +- +-`, o.stdout)
	assert.Regexp(t, `(?m)^1 +`+addrs[1]+` +\(empty value\) +never`, o.stdout)
	assert.Regexp(t, `(?m)^2 +`+addrs[2]+` +\(empty value\) +[1-9]`, o.stdout)
	nodes := decoded[statusJSON](t, invoke(t, addrs, "inspect", "--json", "job").stdout).NodeTable
	assert.Nil(t, nodes[0].TTLms)
	require.NotNil(t, nodes[2].TTLms)
	assert.Positive(t, *nodes[2].TTLms)
}

// A name that no client can get at the moment is not shown as just free.
func TestInspectSaysWhenNoMajorityWouldGrant(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	assert.Contains(t, invoke(t, addrs, "inspect", "job").stdout, "state    free\n")
	o := invoke(t, addrs, "inspect", "job", "--restart-guard", "1m")
	assert.Equal(t, 0, o.code, o.stderr)
	assert.Contains(t, o.stdout, "state    free, but only 0 of 3 nodes grant locks now\n", "in quarantine")
	for i, owner := range []string{"a", "b"} { // two attempts that have met
		servers[i].MustDo("SET", config.DefaultPrefix+"met", strings.Repeat(owner, 32)+" 1 1700000000000000 - x", "PX", "600000")
	}
	o = invoke(t, addrs, "inspect", "met")
	assert.Contains(t, o.stdout, "state    no majority agrees on a holder\n")
	assert.NotContains(t, o.stdout, "expires ")
}

func TestDoctorExitsWithItsVerdict(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	for _, c := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{"--restart-guard", "30s"}, exitOK, "ok: 0 of 3 nodes can grant locks, 2 needed; 3 more after the quarantine"},
		{nil, exitWarnings, "warnings: 3 of 3 nodes can grant locks, 2 needed"},
		{[]string{"--nodes", addrs[0] + "," + addrs[0] + "," + addrs[0]}, exitBroken, "broken: 1 of 3 nodes can grant locks, 2 needed"},
		{[]string{"--tls"}, exitBroken, "tls_unexpected"},
	} {
		o := invoke(t, addrs, append([]string{"doctor"}, c.args...)...)
		assert.Equal(t, c.code, o.code, "%v: %s", c.args, o.stdout)
		assert.Contains(t, o.stdout, c.word)
		assert.Empty(t, o.stderr)
		plain(t, o.stdout)
		j := decoded[doctorJSON](t, invoke(t, addrs, append([]string{"doctor", "--json"}, c.args...)...).stdout)
		assert.Equal(t, []string{"ok", "warnings", "broken"}[c.code], j.Verdict)
		assert.Len(t, j.Nodes, 3)
	}
}

func TestListFollowsEveryChange(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("first"))
	other := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("second"))
	_, err := m.TryAcquire(t.Context(), "elsewhere")
	require.NoError(t, err)
	c := commandLine(t, addrs, "list", "--follow", "--json", "--interval", "100ms", "reports/[a]*")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewReader(stdout)
	// next skips events that depend on when the watcher looks.
	next := func(event string) (s change) {
		for s.Event != event {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			s = change{}
			require.NoError(t, json.Unmarshal([]byte(line), &s))
			require.Equal(t, "reports/[a]*1", s.Name)
		}
		return s
	}
	l, err := m.TryAcquire(t.Context(), "reports/[a]*1")
	require.NoError(t, err)
	assert.Equal(t, "first", next("held").Holder.Label)
	came := make(chan *quorumlock.Lease, 1)
	go func() {
		l, _ := other.Acquire(t.Context(), "reports/[a]*1")
		came <- l
	}()
	assert.Equal(t, 1, next("waiters").Waiters)
	require.NoError(t, l.Release(t.Context()))
	assert.Equal(t, "second", next("passed_on").Holder.Label)
	require.NoError(t, (<-came).Release(t.Context()))
	free := next("free")
	assert.Equal(t, []bool{true, false}, []bool{free.Known, free.Held})
	require.NoError(t, c.Process.Signal(syscall.SIGINT))
	require.NoError(t, c.Wait(), "the end of a list is no failure")
}

func TestListIsATable(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder(long))
	_, err := m.TryAcquire(t.Context(), "a/job")
	require.NoError(t, err)
	servers[0].MustDo("SET", "quorumlock:a/minority", "stranger")
	servers[1].Kill()
	o := invoke(t, addrs, "list", "a/")
	require.Equal(t, 0, o.code, o.stderr)
	plain(t, o.stdout)
	assert.Contains(t, o.stdout, "2 locks, prefix quorumlock:a/")
	assert.Contains(t, o.stdout, "no majority")
	assert.Contains(t, o.stdout, "2/3")
	o = invoke(t, addrs, "list", "--json", "a/j")
	s := decoded[statusJSON](t, o.stdout)
	assert.Equal(t, []any{"a/job", true, 2}, []any{s.Name, s.Held, s.Votes})
	servers[2].Kill()
	o = invoke(t, addrs, "list", "a/")
	assert.Equal(t, exitNoQuorum, o.code)
}

func TestWatchFollowsTheHoldersOfALock(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("first"))
	other := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder(long))
	c := commandLine(t, addrs, "watch", "--json", "--every", "50ms", "job")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewReader(stdout)
	next := func(event string) (h holdingJSON) {
		for h.Event != event {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			h = decoded[holdingJSON](t, line)
			require.Equal(t, "job", h.Name)
		}
		return h
	}
	next("nobody")
	for _, holder := range []*quorumlock.Manager{m, other} {
		l, err := holder.Acquire(t.Context(), "job")
		require.NoError(t, err)
		h := next("held")
		assert.Equal(t, l.Owner(), h.Holder.Owner)
		assert.GreaterOrEqual(t, h.Token, l.Token())
		assert.NotEmpty(t, h.Until)
		require.NoError(t, l.Release(t.Context()))
		next("nobody")
	}
	for _, s := range servers[1:] {
		s.Stop()
	}
	assert.Contains(t, next("unknown").Error, "agreed by 1 node, need 2 of 3")
	for _, s := range servers[1:] {
		s.Continue()
	}
	next("nobody")
	require.NoError(t, c.Process.Signal(syscall.SIGINT))
	require.NoError(t, c.Wait(), "the end of a watch is no failure")

	o := invoke(t, addrs, "watch", "--every", "1ms", "job")
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "must be within 50ms … 1m0s")
}

func TestWatchPrintsALineForPeople(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("host \x1b[31mred"))
	l, err := m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	c := commandLine(t, addrs, "watch", "job")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, line, " held    job by host ")
	assert.Contains(t, line, ", token at most ")
	assert.NotContains(t, line, "\x1b")
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.NoError(t, c.Wait())
}

func TestListMissesItsRightByName(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, "--user", "u", "on", ">word", "~*", "&*", "+@all", "-scan")[0]
	o := invoke(t, []string{server.Addr()}, "list", "--username", "u", "--password", "word")
	assert.Equal(t, exitNoQuorum, o.code)
	assert.Contains(t, o.stderr, "give the user +scan")
}

func TestBenchCountsPairs(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	o := invoke(t, addrs, "bench", "--duration", "300ms", "--callers", "4", "--names", "2")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Contains(t, o.stdout, "4 on 2 names")
	plain(t, o.stdout)
	r := decoded[benchResult](t, invoke(t, addrs, "bench", "--json", "--duration", "300ms").stdout)
	assert.Positive(t, r.Pairs)
	assert.Positive(t, r.PerSec)
	assert.LessOrEqual(t, r.P50ms, r.P99ms)
	assert.Len(t, r.CPUus, 3)
}

func TestHelpVersionAndManPagesFit(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--help"}, {"version"}, {"run", "--help"}, {"inspect", "--help"}, {"doctor", "--help"},
		{"list", "--help"}, {"watch", "--help"}, {"bench", "--help"}, {"ask-release", "--help"}, {"revoke", "--help"}, {"acquire", "--help"},
		{"renew", "--help"}, {"release", "--help"}, {"install-docs", "--help"}, {"man", "--help"}} {
		o := within(t, args...)
		assert.Equal(t, 0, o.code, args)
		for _, line := range strings.Split(o.stdout, "\n") {
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, "%v: %s", args, line)
		}
	}
	dir := t.TempDir()
	o := within(t, "install-docs", dir)
	require.Equal(t, 0, o.code)
	assert.Len(t, strings.Fields(o.stdout), 4)
	for _, path := range strings.Fields(o.stdout) {
		assert.FileExists(t, path)
	}
	page, err := os.ReadFile(filepath.Join(dir, "share/man/man1/quorumlock-run.1"))
	require.NoError(t, err)
	assert.Contains(t, string(page), "process group")
	assert.Equal(t, string(page), within(t, "man", "run").stdout)
	assert.Contains(t, within(t, "docs").stdout, "quorumlock-run(1)")
	assert.Contains(t, within(t, "man", "runs").stderr, "did you mean run?")
	assert.Contains(t, within(t, "completion", "bash").stdout, "quorumlock")
	assert.Contains(t, within(t, "__complete", "run", "--sh").stdout, "--shared\t")
}

func TestInstallDocsSaysWhatItCouldNotWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := filepath.Join(dir, "share/man/man1/quorumlock.1")
	require.NoError(t, os.MkdirAll(page, 0o700))
	o := within(t, "install-docs", dir)
	assert.Equal(t, exitInternal, o.code)
	assert.Equal(t, "quorumlock: open "+page+": is a directory\n", o.stderr)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	o = within(t, "install-docs", file)
	assert.Equal(t, exitUsage, o.code)
	assert.Equal(t, "quorumlock: mkdir "+file+": not a directory: name a directory that this user may write\n", o.stderr)
}

func TestTheHelpOfACommandHasOneLineForTheConnection(t *testing.T) {
	t.Parallel()
	root := (&program{}).root()
	root.AddCommand(&cobra.Command{Use: "other", Annotations: map[string]string{"other": "annotation"}, RunE: unknownCommand})
	assert.Contains(t, root.UsageString(), "--tls-ca")
	connecting := 0
	for _, c := range root.Commands() {
		usage := c.UsageString()
		assert.NotContains(t, usage, "--tls-ca", c.Name())
		assert.Equal(t, c.Annotations["nodes"] != "", strings.Contains(usage, "Flags for the connection, such as --nodes"), c.Name())
		if c.Annotations["nodes"] != "" {
			connecting++
		}
	}
	assert.Equal(t, 12, connecting)
}

func TestThePasswordComesFromAFileOrTheEnvironment(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, "--user", "u", "on", ">word", "~*", "&*", "+@all", "--user", "default", "off")[0]
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("word\n"), 0o600))
	assert.Equal(t, 0, invoke(t, []string{server.Addr()}, "inspect", "job", "--username", "u", "--password-file", file).code)
	c := commandLine(t, []string{server.Addr()}, "inspect", "job")
	c.Env = append(c.Env, "QUORUMLOCK_USERNAME=u", "QUORUMLOCK_PASSWORD=word")
	assert.Equal(t, 0, finish(t, c).code)
	assert.Equal(t, exitNoQuorum, invoke(t, []string{server.Addr()}, "inspect", "job").code)
}
