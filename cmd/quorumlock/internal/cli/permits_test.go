//go:build unix

package cli

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

func TestAsManyCommandsRunAsThereArePermits(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	run := func(holder string) *exec.Cmd {
		c, _, _ := begin(t, addrs, "--permits", "2", "job", "--ttl", "60s", "--holder", holder, "--", "sh", "-c", "echo $$ >PID; exec sleep 600")
		return c
	}
	first, second := run("first"), run("second")
	o := invoke(t, addrs, "run", "--permits", "2", "job", "--wait", "0", "-E", "3", "--", "true")
	assert.Equal(t, 3, o.code)
	assert.Regexp(t, `^quorumlock: "job" is held by "(first|second)"; the lease expires in `, o.stderr)

	o = invoke(t, addrs, "inspect", "--permits", "3", "job")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Regexp(t, `(?s)^name     job\nheld     2 of 3 permits\nwaiters  0\n\nSLOT .*\n2 +free\n$`, o.stdout)
	assert.Contains(t, o.stdout, " first ")
	o = invoke(t, addrs, "inspect", "--permits", "3", "job", "--json")
	var got struct {
		Held, Limit int
		Slots       []struct{ Held bool }
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &got))
	assert.Equal(t, 2, got.Held)
	assert.Equal(t, 3, got.Limit)
	assert.Len(t, got.Slots, 3)

	waits := commandLine(t, addrs, "run", "--permits", "2", "job", "--", "sh", "-c", "test $QUORUMLOCK_NAME.$QUORUMLOCK_TOKEN != . && exit $((7 + QUORUMLOCK_SLOT))")
	require.NoError(t, waits.Start())
	m := open(t, addrs)
	eventually(t, "one waits", func() bool {
		s, err := m.Inspect(t.Context(), "job", quorumlock.Permits(2))
		return err == nil && s.Waiters == 1
	})
	assert.Regexp(t, `(?m)^[0-9a-f]{16} +[0-9.]+[a-zµ]+ +a permit of 2$`, invoke(t, addrs, "inspect", "--permits", "2", "job").stdout)
	var waiting struct {
		Queue []struct {
			Process, Since string
			WaitedMs       float64 `json:"waited_ms"`
			Shared         bool
			Permits        int
		}
		Slots []map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(invoke(t, addrs, "inspect", "--json", "--permits", "2", "job").stdout), &waiting))
	require.Len(t, waiting.Queue, 1)
	w := waiting.Queue[0]
	assert.Regexp(t, "^[0-9a-f]{16}$", w.Process)
	since, err := time.Parse(time.RFC3339Nano, w.Since)
	require.NoError(t, err)
	assert.InDelta(t, w.WaitedMs, time.Since(since).Milliseconds(), 30_000)
	assert.Positive(t, w.WaitedMs)
	assert.Equal(t, []any{false, 2}, []any{w.Shared, w.Permits})
	assert.NotContains(t, waiting.Slots[0], "queue", "the slots have one queue")
	slot := 0
	s, err := m.Inspect(t.Context(), "job", quorumlock.Permits(2))
	require.NoError(t, err)
	if s.Slots[1].Holder.Label == "first" {
		slot = 1
	}
	stop(t, first)
	_ = waits.Wait()
	assert.Equal(t, 7+slot, waits.ProcessState.ExitCode(), "it got the permit that was given back")
	stop(t, second)
}

func TestFlagsOfPermitsAreChecked(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]string{
		"--permits 0: must be 1 to 1024":    {"--permits", "0", "job"},
		"--permits 1025: must be 1 to 1024": {"--permits", "1025", "job"},
		"--permits with 2 names":            {"--permits", "2", "a", "b"},
		"--shared and --permits together":   {"--permits", "2", "--shared", "job"},
	} {
		o := invoke(t, []string{"127.0.0.1:1"}, append(append([]string{"run"}, args...), "--", "true")...)
		assert.Equal(t, exitUsage, o.code, text)
		assert.Contains(t, o.stderr, text)
	}
	o := invoke(t, []string{"127.0.0.1:1"}, "inspect", "--permits", "0", "job")
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "--permits 0: must be 1 to 1024")
}

// Watch prints a line for each permit, and then one for each change.
func TestWatchFollowsPermits(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithHolder("first"))
	watch := commandLine(t, addrs, "watch", "--permits", "2", "--every", "50ms", "job", "--json")
	out, err := watch.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watch.Start())
	t.Cleanup(func() { _ = watch.Process.Kill(); _ = watch.Wait() })
	lines := json.NewDecoder(out)
	next := func() string {
		var h struct {
			Event  string
			Slot   *int
			Holder *struct{ Label string }
		}
		require.NoError(t, lines.Decode(&h))
		require.NotNil(t, h.Slot)
		label := ""
		if h.Holder != nil {
			label = h.Holder.Label
		}
		return fmt.Sprintln(*h.Slot, h.Event, label)
	}
	assert.Equal(t, []string{"0 nobody \n", "1 nobody \n"}, []string{next(), next()})
	l, err := m.Acquire(t.Context(), "job", quorumlock.Permits(2))
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintln(l.Slot(), "held", "first"), next())
	require.NoError(t, l.Release(t.Context()))
	assert.Equal(t, fmt.Sprintln(l.Slot(), "nobody", ""), next())

	o := invoke(t, addrs, "watch", "--permits", "0", "job")
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "--permits 0: must be 1 to 1024")
}
