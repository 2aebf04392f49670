//go:build unix

package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// drawing is a text that would draw on a terminal, by the two ways to start a sequence.
const drawing = "\x1b[31m\u009b2J\r\u202e"

// silent checks that a terminal only shows the text.
func silent(tb testing.TB, what, text string) {
	tb.Helper()
	assert.True(tb, utf8.ValidString(text), "%s: %q", what, text)
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			assert.Fail(tb, "a byte that does not print", "%s: %q", what, text)
			return
		}
	}
}

// Values in every form that a node may have: our own with foreign text in each field, and another client's.
func TestNothingFromANodeReachesTheTerminalAsItIs(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	addrs := redistest.Addrs(servers)
	owner := strings.Repeat("a", 32)
	trace := drawing + strings.Repeat("\x1b", 55-len(drawing))
	name := "job" + drawing
	values := map[string]string{
		"ours":     owner + " 7 1700000000000000 " + trace + " holder" + drawing,
		"detached": "d " + owner + " 7 1700000000000000 " + trace + " holder" + drawing,
		"foreign":  "other" + drawing,
		"bytes":    "\xff\x9b2J" + drawing,
	}
	for what, value := range values {
		servers[0].MustDo("FLUSHALL")
		servers[0].MustDo("SET", config.DefaultPrefix+name, value, "PX", "60000")
		for _, args := range [][]string{
			{"inspect", name}, {"list"}, {"run", name, "--wait", "0", "--", "true"}, {"run", name, "--wait", "1ms", "--", "true"},
			{"ask-release", name, "--reason", drawing, "--by", drawing}, {"inspect", name}, {"revoke", name, "--reason", drawing}, {"inspect", name},
			{"doctor"}, {"release", name, "--dead", owner},
			{drawing}, {"inspect", drawing, drawing}, {"run", "x", "--", drawing}, {"renew", drawing},
		} {
			for _, json := range []bool{false, true} {
				if json {
					args = append([]string{"--json"}, args...)
				}
				o := invoke(t, addrs, args...)
				silent(t, what+": "+args[0], o.stdout)
				silent(t, what+": "+args[0], o.stderr)
			}
		}
	}
}

func TestFollowersShowNothingAsItIs(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	name := "job" + drawing
	for _, args := range [][]string{{"watch", name, "--every", "50ms"}, {"list", "--follow", "--interval", "100ms"}} {
		key := config.DefaultPrefix + name
		servers[0].MustDo("SET", key, "other"+drawing)
		c := commandLine(t, redistest.Addrs(servers), args...)
		var stdout, stderr testkit.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		require.NoError(t, c.Start())
		eventually(t, args[0]+" shows the lock", func() bool { return stdout.String() != "" })
		shown := stdout.String()
		servers[0].MustDo("DEL", key)
		eventually(t, args[0]+" shows its end", func() bool { return stdout.String() != shown })
		require.NoError(t, c.Process.Signal(ending()[0]))
		_ = c.Wait()
		silent(t, args[0], stdout.String())
		silent(t, args[0], stderr.String())
	}
}

func TestAnAskIsPrintedEscaped(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	file := filepath.Join(t.TempDir(), "begun")
	c := commandLine(t, addrs, "run", "job"+drawing, "--ttl", "1s", "--release-when-asked", "--", "sh", "-c", `echo > "$0"; exec sleep 600`, file)
	done := make(chan outcome, 1)
	go func() { done <- finish(t, c) }()
	written(t, file)
	o := invoke(t, addrs, "ask-release", "job"+drawing, "--reason", drawing, "--by", drawing)
	silent(t, "ask-release", o.stdout)
	o = <-done
	assert.Contains(t, o.stderr, `\x1b[31m`)
	silent(t, "run", o.stderr)
}

// A URL in --nodes usually has a password. No output repeats it, in whole or in part.
func TestNoCommandRepeatsThePasswordOfAURL(t *testing.T) {
	t.Parallel()
	for _, nodes := range []string{
		"redis://user:secret@127.0.0.1:1", "rediss://user:secret@127.0.0.1:1/0", "user:secret@127.0.0.1:1", "redis://:secret@127.0.0.1",
		":secret@127.0.0.1:1", "secret@127.0.0.1:1", "user:secret,secret@127.0.0.1:1", "redis://user:secret/@secret@127.0.0.1:1", "redis://secret",
		"127.0.0.1:1,redis://user:secret@127.0.0.1:2", "sentinel:locks@redis://user:secret@127.0.0.1:1", "sentinel:locks@user:secret@127.0.0.1:1",
		"sentinel://user:secret@127.0.0.1:1/locks", "slot:{a}@127.0.0.1:1+user:secret@127.0.0.1:2", "cluster:127.0.0.1:1+user:secret@127.0.0.1:2", "redis+sentinel://:secret@127.0.0.1:1", "unix://user:secret@/tmp/s",
	} {
		for _, args := range [][]string{
			{"inspect", "job"}, {"doctor"}, {"bench"}, {"run", "job", "--wait", "0", "--", "true"}, {"list"}, {"revoke", "job"}, {"doctor", "--failover"},
			{"release", "job", "--dead", strings.Repeat("a", 32)},
		} {
			o := invoke(t, nil, append([]string{"--nodes", nodes}, args...)...)
			assert.Equal(t, exitUsage, o.code, "%v", args)
			assert.NotContains(t, o.stdout+o.stderr, "secret", "%v", args)
			for _, says := range []string{"HOST:PORT", "--username", "--password-file", "--tls"} {
				assert.Contains(t, o.stderr, says, nodes)
			}
		}
	}
	for _, nodes := range []string{
		"user:secret%40127.0.0.1", "user:secret%40127.0.0.1:1", "secret%40localhost:1", "user%3Asecret%40localhost:1", "user:secret", "localhost:1,user:secret",
		"sentinel:locks@user:secret%40localhost:1", "sentinel:user:secret%40localhost:1",
	} {
		o := invoke(t, nil, "--nodes", nodes, "inspect", "job")
		assert.Equal(t, exitUsage, o.code, nodes)
		assert.NotContains(t, o.stdout+o.stderr, "secret", nodes)
		assert.Contains(t, o.stderr, "is not HOST:PORT", nodes)
	}
	c := commandLine(t, []string{"redis://user:secret@127.0.0.1:1"}, "inspect", "job")
	o := finish(t, c)
	require.Equal(t, exitUsage, o.code)
	assert.NotContains(t, o.stderr, "secret")
}
