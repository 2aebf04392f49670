//go:build unix

package cli

import (
	"encoding/json"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	assert.Regexp(t, `^quorumlock: "job" is held by "(first|second)", expires in `, o.stderr)

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
		_, slots, err := m.InspectPermits(t.Context(), "job", 2)
		return err == nil && slots[0].Waiters == 1
	})
	slot := 0
	_, slots, err := m.InspectPermits(t.Context(), "job", 2)
	require.NoError(t, err)
	if slots[1].Holder.Label == "first" {
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
		"--permits 0: must be 1 to 128":   {"--permits", "0", "job"},
		"--permits 129: must be 1 to 128": {"--permits", "129", "job"},
		"--permits with 2 names":          {"--permits", "2", "a", "b"},
		"--shared and --permits together": {"--permits", "2", "--shared", "job"},
	} {
		o := invoke(t, []string{"127.0.0.1:1"}, append(append([]string{"run"}, args...), "--", "true")...)
		assert.Equal(t, exitUsage, o.code, text)
		assert.Contains(t, o.stderr, text)
	}
	o := invoke(t, []string{"127.0.0.1:1"}, "inspect", "--permits", "0", "job")
	assert.Equal(t, exitUsage, o.code)
	assert.Contains(t, o.stderr, "--permits 0: must be 1 to 128")
}
