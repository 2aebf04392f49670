//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Cron mails each line.
func TestTheLoserOfACronJobPrintsNothing(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	l, err := open(t, addrs).Acquire(t.Context(), "job")
	require.NoError(t, err)
	for _, wait := range []string{"0", "50ms"} {
		assert.Equal(t, outcome{}, invoke(t, addrs, "run", "job", "--wait", wait, "-E", "0", "--", "true"), wait)
	}
	o := invoke(t, addrs, "run", "job", "--wait", "0", "--", "true")
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, "is held by")
	require.NoError(t, l.Release(t.Context()))
	assert.Equal(t, outcome{stdout: "won\n"}, invoke(t, addrs, "run", "job", "--wait", "0", "-E", "0", "--", "echo", "won"))
	assert.Equal(t, exitNoQuorum, invoke(t, []string{"127.0.0.1:1"}, "run", "job", "--wait", "0", "-E", "0", "--", "true").code)
}

func TestAScriptWithoutAFirstLineRunsAsUnderEnv(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("echo \"$QUORUMLOCK_NAME $1 $#\"\nexit 3\n"), 0o700))
	assert.Equal(t, outcome{stdout: "job a b 2\n", code: 3}, invoke(t, three(t), "run", "job", "--", script, "a b", "c"))
}

// The nesting that run suggests for several readers works, even with the password in the environment.
func TestANestedRunReachesTheServers(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1, "--user", "u", "on", ">word", "~*", "&*", "+@all", "--user", "default", "off")[0]
	c := commandLine(t, []string{s.Addr()})
	c.Args = append(c.Args, "run", "--shared", "a", "--", c.Path, "run", "--shared", "b", "--", "sh", "-c", `echo "$QUORUMLOCK_NAME/$QUORUMLOCK_PASSWORD"`)
	c.Env = append(c.Env, "QUORUMLOCK_CLI_MAIN=nested", "QUORUMLOCK_USERNAME=u", "QUORUMLOCK_PASSWORD=word")
	o := finish(t, c)
	assert.Equal(t, outcome{stdout: "b/\n"}, o)
	assert.Contains(t, invoke(t, []string{s.Addr()}, "run", "--shared", "a", "b", "--", "true").stderr, "--keep-password")
}

// descendants returns the processes below another one.
func descendants(parent int) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(append(pids, pid), descendants(pid)...)
		}
	}
	return pids
}

// Systemd sends TERM to every process of a service, but with KillMode=mixed only to the first one. The command gets one
// TERM in both cases.
func TestTheCommandOfAServiceGetsOneTERM(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	for i, mixed := range []bool{false, true, false, true} {
		dir := t.TempDir()
		begun, got := filepath.Join(dir, "begun"), filepath.Join(dir, "got")
		c := commandLine(t, addrs, "run", "job"+strconv.Itoa(i), "--", "sh", "-c",
			`trap 'echo TERM >> "$1"' TERM; echo $$ > "$0"; n=0; while [ $n -lt 20 ]; do sleep 0.1 & wait $!; n=$((n+1)); done; exit 5`, begun, got)
		require.NoError(t, c.Start())
		written(t, begun)
		time.Sleep(200 * time.Millisecond)
		service := []int{c.Process.Pid}
		if !mixed {
			service = append(service, descendants(c.Process.Pid)...)
		}
		for _, pid := range service {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		_ = c.Wait()
		assert.Equal(t, 5, c.ProcessState.ExitCode())
		text, err := os.ReadFile(got)
		require.NoError(t, err)
		assert.Equal(t, "TERM\n", string(text), "KillMode=mixed: %v", mixed)
	}
}
