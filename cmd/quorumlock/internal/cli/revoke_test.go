//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

func TestAskReleaseReachesACommandThatRunsUnderALock(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	o := invoke(t, addrs, "ask-release", "job")
	assert.Equal(t, outcome{stdout: "\"job\" is not held\n"}, o)
	run := commandLine(t, addrs, "run", "job", "--ttl", "3s", "--holder", "nightly", "--release-when-asked", "--", "sleep", "600")
	var stderr bytes.Buffer
	run.Stderr = &stderr
	require.NoError(t, run.Start())
	m := open(t, addrs)
	eventually(t, "the lock", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Held })
	o = invoke(t, addrs, "ask-release", "job", "--reason", "deploy", "--by", "ops")
	assert.Equal(t, outcome{stdout: "asked nightly to release \"job\"; it finds out at its next renewal\n"}, o)
	_ = run.Wait()
	assert.Equal(t, exitSignalBase+15, run.ProcessState.ExitCode(), stderr.String())
	assert.Contains(t, stderr.String(), "\"job\" is asked for by ops: deploy\n")
	s, err := m.Inspect(t.Context(), "job")
	require.NoError(t, err)
	assert.False(t, s.Held)
}

func TestInspectShowsWhoAskedForALock(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(time.Minute))
	_, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	require.Equal(t, 0, invoke(t, addrs, "ask-release", "job", "--reason", "deploy", "--by", "ops").code)
	o := invoke(t, addrs, "inspect", "job")
	assert.Contains(t, o.stdout, "asked by ops: deploy\n")
	plain(t, o.stdout)
}

func TestRevokeTakesALockAwayAndWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	assert.Equal(t, outcome{stdout: "\"job\" is not held\n"}, invoke(t, addrs, "revoke", "job", "--wait"))
	m := open(t, addrs, quorumlock.WithTTL(3*time.Second), quorumlock.WithHolder("nightly"))
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	o := invoke(t, addrs, "revoke", "job", "--reason", "it hangs", "--by", "ops", "--wait")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Regexp(t, `^revoked "job" of nightly: ends at the latest at \S+Z, in \S+, or when the holder notices\n\S+Z nobody  job\n$`, o.stdout)
	lost := <-l.Lost()
	assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
	require.ErrorContains(t, lost.Nodes[0], "ops: it hangs")

	l, err = m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	r := decoded[revocationJSON](t, invoke(t, addrs, "revoke", "job", "--json").stdout)
	assert.Equal(t, l.Owner(), r.Holder.Owner)
	assert.Equal(t, 3, r.Marked)
	until, err := time.Parse(time.RFC3339Nano, r.Until)
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), until, time.Minute)
	<-l.Done()
}

// The revocation stands when its caller no longer waits for the end of the lease.
func TestASignalEndsTheWaitOfARevocation(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	servers[0].MustDo("SET", config.DefaultPrefix+"job", strings.Repeat("a", 32)+" 1 1700000000000000 - dead", "PX", "600000")
	c := commandLine(t, redistest.Addrs(servers), "revoke", "job", "--wait")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, line, `revoked "job" of dead`)
	require.NoError(t, c.Process.Signal(syscall.SIGINT))
	_ = c.Wait()
	assert.Equal(t, exitSignalBase+int(syscall.SIGINT), c.ProcessState.ExitCode())
}

func TestReleaseBreaksALockOnlyOfTheOwnerThatIsNamed(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	o := invoke(t, addrs, "release", "job")
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "use quorumlock revoke, which waits for the end of its lease")
	for _, wrong := range []string{"", "dead", strings.Repeat("A", 32), strings.Repeat("a", 33)} {
		o := invoke(t, addrs, "release", "job", "--dead", wrong)
		assert.Equal(t, exitUsage, o.code)
		assert.Contains(t, o.stderr, fmt.Sprintf("--dead %q: must be the owner that inspect shows", wrong))
	}
	o = invoke(t, addrs, "release", "job", "--permits", "3")
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "--permits without --dead")
	owner := strings.Repeat("a", 32)
	for text, name := range map[string]string{"must be valid UTF-8": "job\xffp1", "--dead with a handle": "-", "must have 1 to 512 bytes": ""} {
		o := invoke(t, addrs, "release", name, "--dead", owner)
		assert.Equal(t, exitUsage, o.code)
		assert.Contains(t, o.stderr, text)
	}
	for _, s := range servers[:2] { // a holder that died with a long lease
		s.MustDo("SET", config.DefaultPrefix+"job", owner+" 1 1700000000000000 - dead", "PX", "600000")
	}
	o = dead(t, addrs, strings.Repeat("b", 32)) // the holder before, or the next one
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, "nothing was deleted: "+strings.Repeat("b", 32)+` does not hold "job"`)
	assert.Equal(t, 2, keysLeft(servers))
	m := open(t, addrs)
	granted := make(chan *quorumlock.Lease, 1)
	go func() {
		l, err := m.Acquire(t.Context(), "job")
		assert.NoError(t, err)
		granted <- l
	}()
	eventually(t, "the waiter", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 1 })
	assert.Equal(t, outcome{stdout: "deleted the keys of " + owner + " on 2 of 3 nodes\n"}, dead(t, addrs, owner))
	select {
	case l := <-granted:
		assert.NotEqual(t, owner, l.Owner())
	case <-time.After(patience):
		t.Error("the waiter was not woken")
	}
}

func TestALockGoesFromOneCommandToTheNextByItsHandle(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs)
	o := invoke(t, addrs, "acquire", "job", "--ttl", "10m", "--holder", "script")
	require.Equal(t, 0, o.code, o.stderr)
	first := strings.TrimSpace(o.stdout)
	s, err := m.Inspect(t.Context(), "job")
	require.NoError(t, err)
	assert.Equal(t, "script", s.Holder.Label)
	assert.Greater(t, s.TTL, 9*time.Minute)
	o = invoke(t, addrs, "inspect", "job")
	assert.Contains(t, o.stdout, "detached kept for the process that has the handle, which may be at work\n")
	plain(t, o.stdout)
	for _, ttl := range []string{"1ms", "48h"} {
		assert.Equal(t, exitUsage, invoke(t, addrs, "renew", first, "--ttl", ttl).code, "and the lock is as it was")
	}
	o = invoke(t, addrs, "acquire", "job", "--wait", "0")
	assert.Equal(t, exitConflict, o.code)

	renew := commandLine(t, addrs, "renew", "-", "--ttl", "20m")
	renew.Stdin = strings.NewReader(first + "\n")
	o = finish(t, renew)
	require.Equal(t, 0, o.code, o.stderr)
	second := strings.TrimSpace(o.stdout)
	assert.NotEqual(t, first, second)
	s, err = m.Inspect(t.Context(), "job")
	require.NoError(t, err)
	assert.Greater(t, s.TTL, 19*time.Minute)
	for _, command := range []string{"renew", "release"} {
		o = invoke(t, addrs, command, first)
		assert.Equal(t, exitLost, o.code, "%s: %s", command, o.stderr)
		assert.Equal(t, 1, strings.Count(o.stderr, "\n"))
		assert.NotContains(t, o.stderr, first[5:20])
	}
	assert.Equal(t, outcome{}, invoke(t, addrs, "release", second))
	s, err = m.Inspect(t.Context(), "job")
	require.NoError(t, err)
	assert.False(t, s.Held)
	for _, args := range [][]string{{"renew", "job"}, {"release", "job"}} {
		assert.Equal(t, exitUsage, invoke(t, addrs, args...).code)
	}
}

// A script must not take the operator's signal for a lock that another client has.
func TestASignalEndsTheWaitOfAcquire(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	addrs := redistest.Addrs(servers)
	_, err := open(t, addrs).TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	c := commandLine(t, addrs, "acquire", "job")
	require.NoError(t, c.Start())
	testkit.Eventually(t, "it waits", func() bool { return servers[0].MustDo("ZCARD", wire.QueueKey(key)) == int64(1) })
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	_ = c.Wait()
	assert.Equal(t, exitSignalBase+int(syscall.SIGINT), c.ProcessState.ExitCode())
}

func TestAHandleIsJSON(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	o := invoke(t, addrs, "acquire", "job", "--json")
	require.Equal(t, 0, o.code, o.stderr)
	handle := decoded[map[string]string](t, o.stdout)["handle"]
	assert.Equal(t, outcome{}, invoke(t, addrs, "release", handle))
}

func TestALockWhoseHandleCannotBeWrittenIsReleased(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	closed, pipe, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	defer func() { _ = pipe.Close() }()
	outputs := map[string]*os.File{"closed": pipe}
	if full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil { // where there is one
		defer func() { _ = full.Close() }()
		outputs["full"] = full
	}
	for name, stdout := range outputs {
		acquire := commandLine(t, addrs, "acquire", name, "--ttl", "10m")
		acquire.Stdout = stdout
		require.Error(t, acquire.Run())
		s, err := open(t, addrs).Inspect(t.Context(), name)
		require.NoError(t, err)
		assert.False(t, s.Held, name)
	}
}
