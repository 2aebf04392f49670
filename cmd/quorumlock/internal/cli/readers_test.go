//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/exec"
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

// reads starts a command under a shared lease of "job", and returns when it runs.
func reads(t *testing.T, addrs []string, args ...string) (c *exec.Cmd, stderr string) {
	t.Helper()
	c, _, stderr = begin(t, addrs, append(append([]string{"--shared", "job"}, args...), "--", "sh", "-c", "echo $$ >PID; exec sleep 600")...)
	return c, stderr
}

// stop ends a command line that is at work.
func stop(t *testing.T, c *exec.Cmd) {
	t.Helper()
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	_ = c.Wait()
	assert.Equal(t, exitSignalBase+15, c.ProcessState.ExitCode())
}

func TestCommandsThatReadRunTogetherAndAWriterWaits(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	first, _ := reads(t, addrs, "--ttl", "60s", "--holder", "first")
	o := invoke(t, addrs, "run", "job", "--wait", "0", "-E", "3", "--", "true")
	assert.Equal(t, 3, o.code)
	assert.Regexp(t, `^quorumlock: "job" is held by "first", to read, for \S+ more unless renewed\n$`, o.stderr)
	second, _ := reads(t, addrs, "--ttl", "60s", "--holder", "first")
	o = invoke(t, addrs, "run", "job", "--wait", "0", "--", "true")
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, `"job" is held by "first" and 1 other, to read, for `)

	third := invoke(t, addrs, "run", "--shared", "job", "--wait", "0", "--", "sh", "-c", `echo "$QUORUMLOCK_NAME $QUORUMLOCK_TOKEN $QUORUMLOCK_OWNER"`)
	require.Equal(t, 0, third.code, third.stderr)
	assert.Empty(t, third.stderr)
	require.Regexp(t, `^job \d+ [0-9a-f]{32}\n$`, third.stdout)
	token, err := strconv.ParseInt(strings.Fields(third.stdout)[1], 10, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1, token%2, "the token of a reader is odd")

	writer := commandLine(t, addrs, "run", "job", "--", "sh", "-c", `test $QUORUMLOCK_TOKEN -gt `+strconv.FormatInt(token, 10)+` && exit 7`)
	require.NoError(t, writer.Start())
	m := open(t, addrs)
	eventually(t, "the writer waits", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 1 })
	o = invoke(t, addrs, "run", "--shared", "job", "--wait", "0", "--", "true")
	assert.Equal(t, exitConflict, o.code, "a writer that waits bars the readers that come later")
	stop(t, first)
	stop(t, second)
	_ = writer.Wait()
	assert.Equal(t, 7, writer.ProcessState.ExitCode())
}

func TestACommandThatReadsWaitsForAWriter(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("writer"))
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	o := invoke(t, addrs, "run", "--shared", "job", "--wait", "300ms", "--", "true")
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, `"job" is held by "writer", for `)
	assert.Contains(t, o.stderr, "--wait 300ms is over")
	readers := make([]*exec.Cmd, 2)
	for i := range readers {
		readers[i] = commandLine(t, addrs, "run", "--shared", "job", "--", "true")
		require.NoError(t, readers[i].Start())
	}
	eventually(t, "both wait", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 2 })
	require.NoError(t, l.Release(t.Context()))
	for _, c := range readers {
		require.NoError(t, c.Wait())
	}
}

func TestSharedTakesOneName(t *testing.T) {
	t.Parallel()
	o := within(t, "run", "--shared", "a", "b", "--", "true")
	assert.Equal(t, outcome{code: exitUsage, stderr: "quorumlock: --shared with 2 names: it takes one; leave --shared out, " +
		"or let each command run the next, in one order everywhere: quorumlock run --shared A -- quorumlock run --shared B -- COMMAND\n"}, o)
}

// A reader that loses its lease is stopped in time, as a writer is.
func TestACommandThatReadsIsStoppedWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	c, stderr := reads(t, redistest.Addrs(servers), "--ttl", "3s")
	for _, s := range servers[1:] {
		s.Stop()
	}
	_ = c.Wait()
	assert.Equal(t, exitLost, c.ProcessState.ExitCode())
	said, err := os.ReadFile(stderr)
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^quorumlock: the shared lease of "job" is not renewed, \S+ left: the command is stopped$`, string(said))
	assert.Contains(t, string(said), `quorumlock: the release of the shared lease of "job" is not confirmed, it ends after 3s at the latest: `)
	assert.Contains(t, string(said), `quorumlock: the shared lease of "job" was about to end or lost: the command was stopped (signal 15, terminated)`)
}

func TestMinHoldKeepsWritersOutAfterACommandThatReads(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	begun := time.Now()
	o := invoke(t, addrs, "run", "--shared", "job", "--min-hold", "1s", "--", "true")
	assert.Equal(t, 0, o.code, o.stderr)
	_, err := open(t, addrs).Acquire(t.Context(), "job")
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(begun), time.Second)
}

func TestARiskOfASharedLeaseIsNotedAsOne(t *testing.T) {
	var notes []string
	s := &supervisor{what: "the shared lease of ", risky: map[string]bool{}, note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }}
	s.warn(quorumlock.AtRisk{Name: "job", Remaining: 6 * time.Second, Confirmed: 1}, true)
	s.calm(quorumlock.Renewed{Name: "job", Confirmed: 3, Margin: 1}, true)
	assert.Equal(t, []string{
		`the shared lease of "job" is at risk, start nothing irreversible: 1 nodes confirmed it, margin 0, 6s left`,
		`the shared lease of "job" is safe again: 3 nodes confirmed it, margin 1`,
	}, notes)
}
