package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A command line with this variable gets the orphans below it as children, as the first process of a container does.
func init() {
	if os.Getenv("QUORUMLOCK_CLI_REAPER") != "" {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			panic(err)
		}
	}
}

// zombies counts the children of a process that it has not waited for.
func zombies(parent int) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, _ := os.ReadFile(file)
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == strconv.Itoa(parent) {
			n++
		}
	}
	return n
}

func TestRunAsTheFirstProcessOfAContainerReapsOrphans(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pids, end := filepath.Join(dir, "pids"), filepath.Join(dir, "end")
	c := commandLine(t, three(t), "run", "job", "--", "sh", "-c",
		`i=0; while [ $i -lt 40 ]; do (sh -c 'echo $$ >> "$0"' "$0" &); i=$((i+1)); done; until [ -e "$1" ]; do sleep 0.05; done; (sleep 600 &); exit 7`, pids, end)
	c.Env = append(c.Env, "QUORUMLOCK_CLI_REAPER=1")
	require.NoError(t, c.Start())
	eventually(t, "40 orphans", func() bool { text, _ := os.ReadFile(pids); return bytes.Count(text, []byte("\n")) == 40 })
	eventually(t, "no zombies", func() bool { return zombies(c.Process.Pid) == 0 })
	require.NoError(t, os.WriteFile(end, nil, 0o600))
	_ = c.Wait()
	assert.Equal(t, 7, c.ProcessState.ExitCode(), "the command's own, whatever its orphans end with")
}
