//go:build unix

package interop_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// nodeDir is where make interop has installed node-redlock, next to the script.
const nodeDir = "../bin/interop"

// requireNode skips the test where node-redlock is not installed. With
// QUORUMLOCK_INTEROP=all, which make interop sets, it fails.
func requireNode(t *testing.T) {
	t.Helper()
	_, installed := os.Stat(filepath.Join(nodeDir, "node_modules", "redlock"))
	_, node := exec.LookPath("node")
	if installed == nil && node == nil {
		return
	}
	const how = "node-redlock is not installed: run make interop, which needs node and npm"
	if os.Getenv("QUORUMLOCK_INTEROP") == "all" {
		t.Fatal(how)
	}
	t.Skip(how)
}

// script is a running node/redlock.js.
type script struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func startScript(t *testing.T, addrs []string, args ...string) *script {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(nodeDir, "redlock.js"))
	require.NoError(t, err)
	args = append([]string{file, strings.Join(addrs, ","), key}, args...)
	s := &script{t: t, cmd: exec.CommandContext(t.Context(), "node", args...)}
	s.cmd.Stderr = os.Stderr
	s.stdin, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.lines = bufio.NewScanner(stdout)
	require.NoError(t, s.cmd.Start())
	return s
}

// line returns the next line that the script prints.
func (s *script) line() string {
	s.t.Helper()
	require.True(s.t, s.lines.Scan(), "the script has ended: %v", s.lines.Err())
	return s.lines.Text()
}

func (s *script) release() {
	s.t.Helper()
	_, err := io.WriteString(s.stdin, "release\n")
	require.NoError(s.t, err)
}

func (s *script) wait() {
	s.t.Helper()
	require.NoError(s.t, s.stdin.Close())
	require.NoError(s.t, s.cmd.Wait())
}

func TestNodeRedlockIsRefusedALockThatWeHoldAndGetsItAfterwards(t *testing.T) {
	requireNode(t)
	addrs := redistest.Addrs(redistest.Start(t, 3))
	m := newManager(t, addrs)
	lease, err := m.Acquire(t.Context(), key)
	require.NoError(t, err)
	try := startScript(t, addrs, "try")
	require.Equal(t, "refused", try.line())
	try.wait()
	require.NoError(t, lease.Verify(t.Context()), "its clean-up has left our keys alone")

	waiting := startScript(t, addrs, "hold")
	said := make(chan string, 1)
	go func() {
		waiting.lines.Scan()
		said <- waiting.lines.Text()
	}()
	select {
	case line := <-said:
		t.Fatalf("node-redlock does not wait for the lock that we hold: %q", line)
	case <-time.After(time.Second):
	}
	require.NoError(t, lease.Release(t.Context()))
	line := <-said
	require.True(t, strings.HasPrefix(line, "held "), line)

	// And back: it holds, we wait.
	_, err = m.TryAcquire(t.Context(), key)
	var held *quorumlock.HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, strings.TrimPrefix(line, "held "), held.Holder.Owner)
	got := make(chan error, 1)
	go func() {
		lease, err := m.Acquire(t.Context(), key)
		if err == nil {
			err = lease.Release(t.Context())
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("we do not wait for the lock that node-redlock holds: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	waiting.release()
	require.NoError(t, <-got)
	require.Equal(t, "released", waiting.line())
	waiting.wait()
}

func TestUnderLoadNodeRedlockAndWeExcludeEachOther(t *testing.T) {
	requireNode(t)
	addrs := redistest.Addrs(redistest.Start(t, 3))
	had, overlaps := competeWithNode(t, newManager(t, addrs), addrs)
	require.Zero(t, overlaps, "two holders at the same time")
	for name, times := range had {
		require.Positive(t, times, "%s starves", name)
	}
}

// Different keys do not exclude: the check of the test above notices it.
func TestWithAnotherPrefixNodeRedlockAndWeDoNotExcludeEachOther(t *testing.T) {
	requireNode(t)
	addrs := redistest.Addrs(redistest.Start(t, 3))
	_, overlaps := competeWithNode(t, newManager(t, addrs, quorumlock.WithPrefix("other:")), addrs)
	require.Positive(t, overlaps)
}

// competeWithNode is compete with the script in place of a library, and with a
// Redis as the witness.
func competeWithNode(t *testing.T, m *quorumlock.Manager, addrs []string) (had map[string]int, overlaps int) {
	t.Helper()
	counter := redistest.Start(t, 1)[0]
	witness := newClients(t, []string{counter.Addr()})[0]
	s := startScript(t, addrs, "load", strconv.FormatInt(loadFor.Milliseconds(), 10), counter.Addr())
	type result struct{ had, overlaps int }
	done := make(chan result, 1)
	go func() {
		var theirs result
		if s.lines.Scan() {
			_, err := fmt.Sscanf(s.lines.Text(), "load %d %d", &theirs.had, &theirs.overlaps)
			assert.NoError(t, err, s.lines.Text())
		}
		done <- theirs
	}()
	results := make(chan result, 2)
	stop, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range cap(results) {
		go func() {
			var ours result
			defer func() { results <- ours }()
			for stop.Err() == nil {
				lease, err := m.Acquire(stop, key)
				if err != nil {
					return // the end
				}
				ours.had++
				if !assert.NoError(t, visit(t.Context(), witness, &ours.overlaps)) {
					return
				}
				assert.NoError(t, lease.Release(t.Context()))
				time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
			}
		}()
	}
	theirs := <-done
	cancel()
	had = map[string]int{"node-redlock": theirs.had}
	overlaps = theirs.overlaps
	for range cap(results) {
		ours := <-results
		had["quorumlock"] += ours.had
		overlaps += ours.overlaps
	}
	s.wait()
	t.Logf("had the lock: %v; overlaps: %d", had, overlaps)
	return had, overlaps
}

func visit(ctx context.Context, witness *redis.Client, overlaps *int) error {
	n, err := witness.Incr(ctx, "inside").Result()
	if err != nil {
		return err
	}
	if n != 1 {
		*overlaps++
	}
	time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
	return witness.Decr(ctx, "inside").Err()
}
