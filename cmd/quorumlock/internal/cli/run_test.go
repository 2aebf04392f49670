//go:build unix

package cli

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestTheExitCodeSaysHowTheRunEnded(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("somebody"))
	_, err := m.TryAcquire(t.Context(), "taken")
	require.NoError(t, err)
	notExecutable := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(notExecutable, []byte("no program"), 0o600))
	script := filepath.Join(t.TempDir(), "binary")
	require.NoError(t, os.WriteFile(script, []byte("no\x00program"), 0o700)) //nolint:gosec // it must be executable
	for _, c := range []struct {
		claim string
		args  []string
		code  int
		says  string // on stderr, one line; empty for silence
	}{
		{"the command's own", []string{"job", "--", "sh", "-c", "exit 7"}, 7, ""},
		{"success", []string{"job", "--", "true"}, 0, ""},
		{"killed by a signal", []string{"job", "--", "sh", "-c", "kill -9 $$"}, 137, ""},
		{"ended by a signal", []string{"job", "--", "sh", "-c", "kill -15 $$"}, 143, ""},
		{"not found", []string{"job", "--", "no-such-command"}, 127, `"no-such-command" is not found`},
		{"no such path", []string{"job", "--", "/no/such/command"}, 127, "is not found"},
		{"not executable", []string{"job", "--", notExecutable}, 126, "cannot be executed"},
		{"no program", []string{"job", "--", script}, 126, "cannot be executed"},
		{"held", []string{"taken", "--wait", "0", "--", "true"}, 75, `"taken" is held by "somebody"`},
		{"held, its own code", []string{"taken", "-E", "3", "--wait", "0s", "--", "true"}, 3, `"taken" is held by "somebody"`},
		{"several names", []string{"b", "a c", "--", "sh", "-c", `test "$QUORUMLOCK_NAME_1 $QUORUMLOCK_NAME_2" = "b a c" && test $QUORUMLOCK_TOKEN_1 -gt 0 && test -z "$QUORUMLOCK_NAME" && exit 9`}, 9, ""},
		{"one of several held", []string{"a", "taken", "z", "--wait", "0", "--", "true"}, 75, `"taken" is held by "somebody"`},
		{"no quorum", []string{"job", "--wait", "0", "--nodes", addrs[0] + ",127.0.0.1:1,127.0.0.1:2", "--", "true"}, 69, "reached 1 node, need 2 of 3"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			o := invoke(t, addrs, append([]string{"run"}, c.args...)...)
			assert.Equal(t, c.code, o.code, o.stderr)
			assert.Contains(t, o.stderr, c.says)
			assert.LessOrEqual(t, strings.Count(o.stderr, "\n"), 1)
			assert.Equal(t, c.says == "", o.stderr == "", o.stderr)
		})
	}
}

func TestBadInputIsOneLineThatNamesTheValueAndTheFix(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "job", "--ttl", "5", "--", "true"}, `"5" is not a duration of 0 or more: write a number and a unit`},
		{[]string{"run", "job", "--ttl", "500ms", "--", "true"}, "--ttl 500ms: must be 1s to 24h0m0s"},
		{[]string{"run", "job", "--grace", "6s", "--", "true"}, "--grace 6s: must be at most half of --ttl 10s"},
		{[]string{"run", "job", "-E", "256", "--", "true"}, "--conflict-exit-code 256: must be 0 to 255"},
		{[]string{"run", "job", "--min-hold", "25h", "--", "true"}, "--min-hold 25h0m0s: must be at most 24h0m0s"},
		{[]string{"run", "job", "--ttl", "20s", "--restart-guard", "12s", "--", "true"}, "--ttl 20s: plus the lock delay 0s must be at most --restart-guard's 12s"},
		{[]string{"run", "job", "--node-timeout", "1h", "--", "true"}, "--node-timeout 1h0m0s: renewal interval"},
		{[]string{"run", "job", "--prefix", "a{", "--", "true"}, `--prefix "a{": has a brace that does not form a hash tag`},
		{[]string{"run", "job", "--holder", strings.Repeat("x", 257), "--", "true"}, "--holder (257 bytes)"},
		{[]string{"run", "job", "--nodes", "sentinel:locks@127.0.0.1:1", "--restart-guard", "30s", "--", "true"}, "--failover-window: is needed for node 0"},
		{[]string{"run", "job", "true"}, "no -- on the command line: write"},
		{[]string{"run", "job", "ls", "-la"}, "no -- on the command line: write"},
		{[]string{"run", "--bogus", "job", "--", "true"}, "unknown flag: --bogus: see quorumlock run --help"},
		{[]string{"run", "--", "true"}, "0 names before the --: give 1 to 16"},
		{[]string{"run", "job", "--"}, "no command after the --"},
		{[]string{"run", strings.Repeat("x", 513), "--nodes", "127.0.0.1:1", "--", "true"}, "name of 513 bytes: must have 1 to 512"},
		{[]string{"inspect"}, "0 arguments given: quorumlock inspect takes NAME"},
		{[]string{"doctor", "now"}, `"now" is too much`},
		{[]string{"rum"}, `"rum" is not a command: did you mean run?`},
		{[]string{"grab"}, `"grab" is not a command: use one of acquire, `},
		{[]string{"doctor", "--bogus"}, "unknown flag: --bogus: see quorumlock doctor --help"},
		{[]string{"doctor", "--nodes", "redis"}, `node 0 is not HOST:PORT with a port of 1 to 65535: write`},
		{[]string{"doctor", "--nodes", "redis:99999"}, `node 0 is not HOST:PORT`},
		{[]string{"doctor", "--nodes", strings.Repeat("a:1,", 15) + "a:1"}, "lists 16 nodes: at most 15"},
		{[]string{"doctor", "--password", "a", "--password-file", "b"}, "give one of them"},
		{[]string{"doctor", "--password-file", "/no/such"}, "/no/such"},
		{[]string{"doctor", "--tls-cert", "a"}, "give both or none"},
		{[]string{"doctor", "--tls-ca", file}, "holds no certificate"},
		{[]string{"doctor", "--tls-ca", "/no/such"}, "/no/such"},
		{[]string{"list", "--interval", "1ms"}, "--interval 1ms: must be at least 100ms"},
		{[]string{"list", "--limit", "0"}, "--limit 0: must be 1 to 100000"},
		{[]string{"bench", "--duration", "1h"}, "--duration 1h0m0s: must be 100ms to 10m0s"},
		{[]string{"bench", "--callers", "0"}, "--callers 0: must be 1 to 4096"},
		{[]string{"bench", "--names", "-1"}, "--names -1: must be 1 to 100000"},
		{[]string{"bench", "--nodes", "192.0.2.1:6379"}, "192.0.2.1:6379 is on another machine, and bench loads it: give --yes"},
	} {
		o := within(t, c.args...)
		assert.Equal(t, exitUsage, o.code, "%q", c.args)
		assert.Contains(t, o.stderr, c.says, "%q", c.args)
		assert.Equal(t, 1, strings.Count(o.stderr, "\n"), "one line: %s", o.stderr)
		assert.Empty(t, o.stdout)
	}
}

func TestABadVariableIsNamed(t *testing.T) {
	t.Parallel()
	c := commandLine(t, nil, "doctor")
	c.Env = append(c.Env, "QUORUMLOCK_NODE_TIMEOUT=soon")
	o := finish(t, c)
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, `QUORUMLOCK_NODE_TIMEOUT in the environment`)
	assert.Contains(t, o.stderr, `"soon" is not a duration`)
}

func TestANameThatIsTooLongIsBadInput(t *testing.T) {
	t.Parallel()
	o := invoke(t, three(t), "run", strings.Repeat("x", 513), "--", "true")
	assert.Equal(t, exitUsage, o.code, o.stderr)
}

func TestTheCommandGetsItsLockInTheEnvironmentAndItsStdin(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	c := commandLine(t, addrs, "run", "job", "--", "sh", "-c", `echo "$QUORUMLOCK_NAME $QUORUMLOCK_TOKEN $QUORUMLOCK_OWNER $1"; cat`, "sh", "a  b;c")
	c.Stdin = strings.NewReader("from stdin\n")
	first := finish(t, c)
	require.Equal(t, 0, first.code, first.stderr)
	fields := regexp.MustCompile(`^job (\d+) ([0-9a-f]{32}) a  b;c\nfrom stdin\n$`).FindStringSubmatch(first.stdout)
	require.NotNil(t, fields, first.stdout)
	second := invoke(t, addrs, "run", "job", "--", "sh", "-c", `echo "$QUORUMLOCK_TOKEN"`)
	before, _ := strconv.ParseInt(fields[1], 10, 64)
	after, err := strconv.ParseInt(strings.TrimSpace(second.stdout), 10, 64)
	require.NoError(t, err)
	assert.Greater(t, after, before)
}

// begin starts a command line and waits until its command has written its process id.
func begin(t *testing.T, addrs []string, args ...string) (c *exec.Cmd, group int, stderr string) {
	t.Helper()
	pid, notes := filepath.Join(t.TempDir(), "pid"), filepath.Join(t.TempDir(), "stderr")
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "PID", pid)
	}
	c = commandLine(t, addrs, append([]string{"run"}, args...)...)
	file, err := os.Create(notes)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	c.Stderr = file
	require.NoError(t, c.Start())
	group, err = strconv.Atoi(written(t, pid))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	return c, group, notes
}

func TestSignalsReachTheWholeGroupAndTheLockIsReleased(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(s) {
			continue // the test was started by nohup, so the command ignores it as well
		}
		c, group, _ := begin(t, addrs, "job", "--ttl", "60s", "--", "sh", "-c", "sleep 600 & echo $$ >PID; sleep 600")
		ended := make(chan struct{})
		go func() { _ = c.Wait(); close(ended) }()
		for again := true; again; {
			_ = c.Process.Signal(s) // dash forgets an INT that comes right before it forks
			select {
			case <-ended:
				again = false
			case <-time.After(time.Second):
			}
		}
		assert.Equal(t, exitSignalBase+int(s), c.ProcessState.ExitCode())
		assert.Empty(t, members(group), "the whole group is dead")
		assert.Equal(t, 0, invoke(t, addrs, "run", "job", "--wait", "0", "--", "true").code, "the lock is free")
	}
}

func TestWhatACommandLeavesBehindIsDeadBeforeTheLockIsFree(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	pid := filepath.Join(t.TempDir(), "pid")
	o := invoke(t, addrs, "run", "job", "--ttl", "5s", "--grace", "200ms", "--",
		"sh", "-c", "(trap '' TERM; while :; do sleep 0.1; done) & echo $$ >"+pid+"; exit 5")
	assert.Equal(t, 5, o.code, o.stderr)
	group, err := strconv.Atoi(written(t, pid))
	require.NoError(t, err)
	assert.Empty(t, members(group))
}

func TestAWaitEndsWithItsBoundWithASignalOrWithTheLock(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("somebody"))
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)

	begun := time.Now()
	o := invoke(t, addrs, "run", "job", "--wait", "300ms", "--", "true")
	assert.Equal(t, exitConflict, o.code, o.stderr)
	assert.Contains(t, o.stderr, "--wait 300ms has passed")
	assert.Greater(t, time.Since(begun), 300*time.Millisecond)

	waits := func() *exec.Cmd {
		c := commandLine(t, addrs, "run", "job", "--", "true")
		stderr, err := c.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		line := make([]byte, 200)
		n, err := stderr.Read(line)
		require.NoError(t, err)
		assert.Contains(t, string(line[:n]), `is held by "somebody"`)
		assert.Contains(t, string(line[:n]), "waiting")
		return c
	}
	c := waits()
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	_ = c.Wait()
	assert.Equal(t, exitSignalBase+15, c.ProcessState.ExitCode())

	c = waits()
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, c.Wait())
}

func TestAWaitPrintsThatItContinuesAndWhichNodesChange(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second))
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)

	notes := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(notes)
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	c := commandLine(t, addrs, "run", "job", "--", "sh", "-c", "echo works >&2; sleep 1")
	c.Env, c.Stderr = append(c.Env, "QUORUMLOCK_CLI_STILL_WAITING=100ms"), file
	require.NoError(t, c.Start())
	printed := func() string { text, _ := os.ReadFile(notes); return string(text) }
	says := func(text string) {
		t.Helper()
		eventually(t, text, func() bool { return strings.Contains(printed(), text) })
	}
	says(`quorumlock: still waiting for "job" after `)
	servers[2].Kill()
	says(`level=WARN msg="quorumlock: node grants no locks; the others do, as they are a majority" node=2 addr=` + addrs[2])
	servers[2].Restart()
	says(`level=INFO msg="quorumlock: node grants locks again" node=2`)
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, c.Wait())
	_, after, works := strings.Cut(printed(), "works\n")
	assert.True(t, works)
	assert.NotRegexp(t, "still waiting|level=", after, "the wait has ended")
}

func TestARunWaitsForServersThatStartLater(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	for _, s := range servers {
		s.Kill()
	}
	begun := time.Now()
	o := invoke(t, addrs, "run", "job", "--wait", "2s", "--", "true")
	assert.Equal(t, exitNoQuorum, o.code, o.stderr)
	assert.Contains(t, o.stderr, "reached 0 nodes, need 2 of 3")
	assert.Contains(t, o.stderr, "--wait 2s has passed")
	assert.GreaterOrEqual(t, time.Since(begun), 2*time.Second)

	for _, wait := range [][]string{{"--wait", "10m"}, nil} {
		notes := filepath.Join(t.TempDir(), "stderr")
		file, err := os.Create(notes)
		require.NoError(t, err)
		c := commandLine(t, addrs, slices.Concat([]string{"run", "job"}, wait, []string{"--", "true"})...)
		c.Stderr = file
		require.NoError(t, c.Start())
		eventually(t, "it waits", func() bool { text, _ := os.ReadFile(notes); return strings.Contains(string(text), "; waiting\n") })
		servers[0].Restart()
		servers[1].Restart()
		text, _ := os.ReadFile(notes)
		require.NoError(t, c.Wait(), "%s", text)
		_ = file.Close()
		servers[0].Kill()
		servers[1].Kill()
	}

	begun = time.Now()
	o = invoke(t, nil, "run", "job", "--nodes", "127.0.0.1:1,127.0.0.1:1", "--", "true")
	assert.Equal(t, exitUsage, o.code, "what can never work does not wait: %s", o.stderr)
	assert.Less(t, time.Since(begun), patience)
}

func TestTheCommandDoesNotGetThePasswordsUnlessAsked(t *testing.T) {
	t.Parallel()
	server := redistest.StartWith(t, 1, redistest.Options{Args: []string{"--requirepass", "secret-4711"}})[0]
	for keep, args := range map[bool][]string{false: nil, true: {"--keep-password"}} {
		c := commandLine(t, []string{server.Addr()}, slices.Concat([]string{"run", "job"}, args, []string{"--", "env"})...)
		c.Env = append(c.Env, "QUORUMLOCK_PASSWORD=secret-4711", "QUORUMLOCK_SENTINEL_PASSWORD=secret-4711", "QUORUMLOCK_TTL_OF_MINE=7s", "PASSWORD=mine")
		o := finish(t, c)
		require.Equal(t, 0, o.code, o.stderr)
		assert.Equal(t, keep, strings.Contains(o.stdout, "QUORUMLOCK_PASSWORD=secret-4711"), o.stdout)
		assert.Equal(t, keep, strings.Contains(o.stdout, "QUORUMLOCK_SENTINEL_PASSWORD=secret-4711"), o.stdout)
		assert.Equal(t, keep, strings.Contains(o.stdout, "secret-4711"), "nowhere else")
		for _, other := range []string{"QUORUMLOCK_NODES=" + server.Addr(), "QUORUMLOCK_TTL_OF_MINE=7s", "\nPASSWORD=mine", "QUORUMLOCK_NAME=job"} {
			assert.Contains(t, o.stdout, other)
		}
	}
}

func TestMinHoldKeepsTheLockWhenTheCommandIsQuick(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	begun := time.Now()
	o := invoke(t, addrs, "run", "job", "--min-hold", "1s", "--", "true")
	assert.Equal(t, 0, o.code, o.stderr)
	m := open(t, addrs)
	_, err := m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(begun), time.Second)
}

func TestACommandDoesNotOutliveItsCommandLine(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux tells a process that its parent died")
	}
	c, pid, _ := begin(t, three(t), "job", "--", "sh", "-c", "echo $$ >PID; exec sleep 600")
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
	eventually(t, "the command is dead", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
}

// zombie reports whether a process has ended, and its parent has not waited for it.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestARiskIsNotedAndTheCommandRunsOn(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	c, group, stderr := begin(t, redistest.Addrs(servers), "job", "--ttl", "3s", "--", "sh", "-c", "echo $$ >PID; exec sleep 600")
	servers[0].Stop()
	said := func(text string) func() bool {
		return func() bool { notes, _ := os.ReadFile(stderr); return strings.Contains(string(notes), text) }
	}
	eventually(t, "at risk", said(`"job" is at risk`))
	servers[0].Continue()
	eventually(t, "safe again", said(`"job" is safe again`))
	require.NoError(t, syscall.Kill(group, 0), "it runs")
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	_ = c.Wait()
}
