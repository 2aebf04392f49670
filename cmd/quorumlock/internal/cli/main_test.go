//go:build unix

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// TestMain makes this test binary the command line, when a test starts it as such.
func TestMain(m *testing.M) {
	if os.Getenv("QUORUMLOCK_CLI_MAIN") != "" {
		if os.Getenv("QUORUMLOCK_CLI_MAIN") != "nested" {
			_ = os.Unsetenv("QUORUMLOCK_CLI_MAIN") // the commands that it runs are not command lines
		}
		if every, err := time.ParseDuration(os.Getenv("QUORUMLOCK_CLI_STILL_WAITING")); err == nil {
			stillWaiting = every
		}
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testkit.RunWaiting(m)
}

// patience is the limit for required events on a machine that stands still for seconds.
const patience = time.Minute

// commandLine returns quorumlock as a process of its own, with a clean environment.
func commandLine(tb testing.TB, addrs []string, args ...string) *exec.Cmd {
	tb.Helper()
	self, err := os.Executable()
	require.NoError(tb, err)
	c := exec.CommandContext(tb.Context(), self, args...)
	// The race detector sleeps a second at the end of a process, unless told not to.
	c.Env = []string{"QUORUMLOCK_CLI_MAIN=1", "GORACE=atexit_sleep_ms=0", "PATH=" + os.Getenv("PATH"), "HOME=" + tb.TempDir()}
	if len(addrs) > 0 {
		c.Env = append(c.Env, "QUORUMLOCK_NODES="+strings.Join(addrs, ","))
	}
	return c
}

// outcome has the results of a command line.
type outcome struct {
	stdout, stderr string
	code           int
}

// invoke runs a command line to its end.
func invoke(tb testing.TB, addrs []string, args ...string) outcome {
	tb.Helper()
	return finish(tb, commandLine(tb, addrs, args...))
}

func finish(tb testing.TB, c *exec.Cmd) outcome {
	tb.Helper()
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(tb, err, &exit, "%s", stderr.String())
	}
	return outcome{stdout.String(), stderr.String(), c.ProcessState.ExitCode()}
}

// within runs a command line in this process, which is enough where it starts nothing.
func within(tb testing.TB, args ...string) outcome {
	tb.Helper()
	var files [2]*os.File
	for i := range files {
		var err error
		files[i], err = os.Create(filepath.Join(tb.TempDir(), "output"))
		require.NoError(tb, err)
		defer func() { _ = files[i].Close() }()
	}
	code := Main(args, os.Stdin, files[0], files[1])
	var texts [2]string
	for i, file := range files {
		text, err := os.ReadFile(file.Name())
		require.NoError(tb, err)
		texts[i] = string(text)
	}
	return outcome{texts[0], texts[1], code}
}

// decoded reads one line of JSON.
func decoded[T any](tb testing.TB, line string) (v T) {
	tb.Helper()
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	require.NoError(tb, d.Decode(&v), line)
	return v
}

func eventually(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for until := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		require.True(tb, time.Now().Before(until), "%s: not within %v", what, patience)
	}
}

// open returns a Manager of the test, which is closed with it.
func open(tb testing.TB, addrs []string, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	opts = append(opts, quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
	var m *quorumlock.Manager
	eventually(tb, "a quorum", func() (ok bool) {
		var err error
		m, err = quorumlock.New(tb.Context(), quorumlock.Addrs(addrs...), opts...)
		require.True(tb, err == nil || errors.Is(err, quorumlock.ErrNoQuorum), "%v", err)
		return err == nil
	})
	tb.Cleanup(func() { closeManager(m) })
	return m
}

// three returns the addresses of three servers.
func three(tb testing.TB) []string {
	tb.Helper()
	return redistest.Addrs(redistest.Start(tb, 3))
}

// members returns the processes of a group that are not zombies, or have another thread than the first.
func members(group int) (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	if len(files) == 0 && syscall.Kill(-group, 0) == nil { // no Linux: zombies count
		return []string{strconv.Itoa(group)}
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 17 && fields[2] == strconv.Itoa(group) && fields[0] != "X" && (fields[0] != "Z" || fields[17] != "1") {
			found = append(found, string(stat[:min(len(stat), 40)]))
		}
	}
	return found
}

// written waits for a file to have a line, and returns it.
func written(tb testing.TB, file string) (line string) {
	tb.Helper()
	eventually(tb, file, func() bool {
		text, _ := os.ReadFile(file)
		var ended bool
		line, _, ended = strings.Cut(string(text), "\n")
		return ended
	})
	return line
}
