package cli

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// What stands between run and the processes that it must end.

// nest returns run of the lock "outer" over run of the lock "inner" over a command.
func nest(t *testing.T, addrs, outer, inner, command []string) *exec.Cmd {
	t.Helper()
	c := commandLine(t, addrs)
	c.Args = append(append(append(append(c.Args, "run"), outer...), "--", c.Path, "run"), inner...)
	c.Args = append(append(c.Args, "--"), command...)
	c.Env = append(c.Env, "QUORUMLOCK_CLI_MAIN=nested")
	return c
}

// The inner command is in a group of its own, and the inner run that could end it is killed.
func TestTheCommandOfANestedRunEndsWithTheOuterLock(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	pid := filepath.Join(t.TempDir(), "pid")
	c := nest(t, addrs, []string{"outer", "--ttl", lostTTL.String()}, []string{"inner", "--ttl", "1m"}, []string{"sh", "-c", stubborn, "sh", pid})
	require.NoError(t, c.Start())
	group, err := strconv.Atoi(written(t, pid))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	eventually(t, "the command and its children run", func() bool { return len(members(group)) >= 4 })
	require.Zero(t, invoke(t, addrs, "revoke", "outer", "--reason", "test").code)
	_ = c.Wait()
	assert.Empty(t, members(group))
	assert.Equal(t, exitLost, c.ProcessState.ExitCode())
}

// Most programs read the first of two variables of one name.
func TestTheVariablesOfANestedRunReplaceThoseOfTheOuter(t *testing.T) {
	t.Parallel()
	out, err := nest(t, three(t), []string{"outer", "--permits", "1"}, []string{"inner"}, []string{"env"}).Output()
	require.NoError(t, err)
	got := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		got[name] = append(got[name], value)
	}
	assert.Equal(t, []string{"inner"}, got["QUORUMLOCK_NAME"])
	assert.Len(t, got["QUORUMLOCK_TOKEN"], 1)
	assert.Len(t, got["QUORUMLOCK_OWNER"], 1)
	assert.Equal(t, []string{"0"}, got["QUORUMLOCK_SLOT"], "the outer run alone has one")
}

// fill writes to a pipe without a reader until it takes no more.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer func() { _ = again.Close() }()
	require.NoError(t, again.SetWriteDeadline(time.Now().Add(time.Second)))
	_, err = again.Write(make([]byte, 1<<20))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// A note that cannot be written must not keep run from ending the command, nor end run.
func TestTheCommandIsEndedAlthoughStderrIsClosedOrStandsStill(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{true, false} {
		t.Run(fmt.Sprintf("closed %v", closed), func(t *testing.T) {
			t.Parallel()
			addrs := three(t)
			pid := filepath.Join(t.TempDir(), "pid")
			c := commandLine(t, addrs, "run", "job", "--ttl", lostTTL.String(), "--", "sh", "-c", "exec 2>/dev/null >/dev/null; "+stubborn, "sh", pid)
			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer func() { _ = r.Close() }()
			c.Stderr = w
			require.NoError(t, c.Start())
			group, err := strconv.Atoi(written(t, pid))
			require.NoError(t, err)
			t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
			eventually(t, "the command and its children run", func() bool { return len(members(group)) >= 4 })
			if closed {
				require.NoError(t, r.Close())
			} else {
				fill(t, w)
			}
			require.NoError(t, w.Close())
			require.Zero(t, invoke(t, addrs, "ask-release", "job", "--reason", "test").code) // the first note
			require.Zero(t, invoke(t, addrs, "revoke", "job", "--reason", "test").code)
			if !closed {
				eventually(t, "the group is dead", func() bool { return len(members(group)) == 0 })
				go func() { _, _ = io.Copy(io.Discard, r) }() // its last note waits for that
			}
			_ = c.Wait()
			assert.Empty(t, members(group))
			assert.Equal(t, exitLost, c.ProcessState.ExitCode())
		})
	}
}

// A process whose first thread has ended, while another one works for a minute.
func init() { //nolint:gochecknoinits // only here is the goroutine on the first thread
	if os.Getenv("QUORUMLOCK_CLI_HEADLESS") == "" {
		return
	}
	runtime.LockOSThread()
	go func() {
		time.Sleep(time.Minute)
		os.Exit(0)
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

func TestAProcessWhoseFirstThreadHasEndedDoesNotOutliveTheLock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1)[0]
	pid := filepath.Join(t.TempDir(), "pid")
	c := commandLine(t, []string{s.Addr()}, "run", "job", "--", "sh", "-c",
		`echo $$ >"$0"; QUORUMLOCK_CLI_HEADLESS=1 "$1" >/dev/null 2>&1 & while ! grep -qs " Z " "/proc/$!/stat"; do sleep 0.05; done`, pid)
	c.Args = append(c.Args, c.Path)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	group, err := strconv.Atoi(written(t, pid))
	require.NoError(t, err)
	assert.Empty(t, members(group))
}

// A signal may arrive just as the lock is granted. Then the command does not begin, or it gets the signal.
func TestASignalAtTheInstantOfTheGrantIsNotSwallowed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1)[0]
	p := &program{stderr: os.Stderr, connection: connection{options: []rueidis.ClientOption{{InitAddress: []string{s.Addr()}}}, prefix: "p:"}}
	granted, ended := 0, 0
	about := 4 * time.Millisecond // how long an acquisition takes here
	for i := 0; granted < 20 || ended < 20; i++ {
		signals := make(chan os.Signal, 1)
		timer := time.AfterFunc(rand.N(2*about), func() { signals <- syscall.SIGTERM })
		all, m, err := p.acquire(t.Context(), []string{"job"}, runOptions{ttl: 10 * time.Second, holder: "me"}, signals)
		if err == nil {
			granted, about = granted+1, about*9/10
			select {
			case <-signals:
			case <-time.After(patience):
				require.Fail(t, "a signal was swallowed", "round %d", i)
			}
			require.NoError(t, all.Release(t.Context()))
		} else {
			ended, about = ended+1, about*10/9+time.Microsecond
			require.Equal(t, exitSignalBase+int(syscall.SIGTERM), exitCode(err), "%v", err)
		}
		timer.Stop()
		if m != nil {
			closeManager(m)
		}
	}
}

// The library demands valid UTF-8, and a file may have any name.
func TestTheDefaultLabelIsValidForAnyCommand(t *testing.T) {
	for _, command := range []string{"b\xfccher.sh", strings.Repeat("\u00fc", 200), "\u00fc" + strings.Repeat("\u20ac", 100)} {
		o := runOptions{ttl: 10 * time.Second}
		require.NoError(t, o.complete("/bin/"+command))
		assert.True(t, utf8.ValidString(o.holder), "%q", o.holder)
		assert.LessOrEqual(t, len(o.holder), config.MaxLabelLen)
	}
}
