//go:build unix

package interop_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// older is the last commit without shared leases: its clients know neither readers nor permits.
const older = "599b1a0"

// command builds the command line of a commit; of the checkout if that is "".
func command(t *testing.T, commit string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	if commit != "" {
		from := root
		root = t.TempDir()
		out, err := exec.Command("sh", "-c", fmt.Sprintf("git -C %q archive %s | tar -x -C %q", from, commit, root)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	path := filepath.Join(t.TempDir(), "quorumlock")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = filepath.Join(root, "cmd", "quorumlock")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// commandRole is one way to run a command under the lock.
type commandRole struct {
	name   string
	args   []string
	reads  bool
	served atomic.Int64
}

// room notices when a writer is inside with another holder.
type room struct {
	mu               sync.Mutex
	readers, writers int
	wrong, together  int
}

func (r *room) change(reads bool, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reads {
		r.readers += by
	} else {
		r.writers += by
	}
	if r.writers > 1 || r.writers == 1 && r.readers > 0 {
		r.wrong++
	}
	if r.readers > 1 {
		r.together++
	}
}

// turn runs a command under the lock once. While it runs, it is inside the room.
func (c *commandRole) turn(ctx context.Context, r *room) error {
	cmd := exec.CommandContext(ctx, c.args[0], append(c.args[1:], "--", "sh", "-c", "echo held; read end; true")...)
	var said bytes.Buffer
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "held" {
		_, _ = io.Copy(io.Discard, stdout)
		return fmt.Errorf("%s: %q, %w, %s", c.name, line, cmd.Wait(), said.String())
	}
	r.change(c.reads, 1)
	time.Sleep(5 * time.Millisecond)
	r.change(c.reads, -1)
	c.served.Add(1)
	_ = stdin.Close()
	return cmd.Wait()
}

// Commands of an older commit, which knows no readers, run alongside readers and writers of this one, and a server is
// killed under them.
func TestAnOlderCommandExcludesReadersAndWritersOfThisOne(t *testing.T) {
	if os.Getenv("QUORUMLOCK_INTEROP") != "all" {
		t.Skip("builds the command of an older commit: make interop does that")
	}
	servers := redistest.Start(t, 3)
	flags := []string{"run", key, "--ttl", "5s", "--nodes", strings.Join(redistest.Addrs(servers), ",")}
	now, then := command(t, ""), command(t, older)
	roles := []*commandRole{
		{name: "a writer of the older commit", args: append([]string{then}, flags...)},
		{name: "a writer", args: append([]string{now}, flags...)},
		{name: "a reader", args: append([]string{now, flags[0], "--shared"}, flags[1:]...), reads: true},
		{name: "another reader", args: append([]string{now, flags[0], "--shared"}, flags[1:]...), reads: true},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var r room
	var running sync.WaitGroup
	began := time.Now()
	for _, c := range roles {
		for range 2 {
			running.Go(func() {
				for time.Since(began) < 10*time.Second && ctx.Err() == nil {
					assert.NoError(t, c.turn(ctx, &r), c.name)
				}
			})
		}
	}
	time.Sleep(4 * time.Second)
	servers[0].Kill()
	running.Wait()
	for _, c := range roles {
		t.Logf("%s had the lock %d times", c.name, c.served.Load())
		assert.Greater(t, c.served.Load(), int64(5), c.name)
	}
	t.Logf("readers were together %d times", r.together)
	assert.Positive(t, r.together)
	assert.Zero(t, r.wrong, "a writer beside another holder")
}
