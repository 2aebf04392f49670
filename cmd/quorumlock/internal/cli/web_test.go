//go:build unix

package cli

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// served starts quorumlock web, and returns the URL that it prints. The end of the test stops it by SIGTERM.
func served(t *testing.T, addrs []string, args ...string) string {
	t.Helper()
	c := commandLine(t, addrs, append([]string{"web", "--listen", "127.0.0.1:0"}, args...)...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(syscall.SIGTERM) }, patience
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_, _ = io.Copy(io.Discard, out)
		_ = c.Wait() // the end of the test's context ends it
		assert.Zero(t, c.ProcessState.ExitCode(), stderr.String())
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err) // the command may still write to stderr
	return strings.TrimSpace(line)
}

func TestWebServesThePageOnLoopbackToLoopbackHosts(t *testing.T) {
	t.Parallel()
	url := served(t, three(t), "--trace-link", "https://jaeger.example/trace/{trace}")
	assert.Regexp(t, `^http://127\.0\.0\.1:\d+/$`, url)
	ask := func(host string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		r.Host = host
		transport := &http.Transport{DisableKeepAlives: true}
		answer, err := transport.RoundTrip(r)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, answer.Body)
		require.NoError(t, answer.Body.Close())
		return answer
	}
	for _, host := range []string{"", "localhost:7787", "LOCALHOST", "127.0.0.1", "127.8.8.8:80", "[::1]:7787", "[::1]"} {
		assert.Equal(t, http.StatusOK, ask(host).StatusCode, host)
	}
	for _, host := range []string{"evil.example", "evil.example:7787", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0:7787"} {
		assert.Equal(t, http.StatusMisdirectedRequest, ask(host).StatusCode, "%s: DNS may lead another site's name here", host)
	}

	// An open stream does not delay the end: served waits for it.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"events", nil)
	require.NoError(t, err)
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "data: ") {
	}
	assert.Contains(t, lines.Text(), "3 of 3 nodes are usable")
}

func TestWebAnswersOtherHostsOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:80", "example.com:80"} {
		o := invoke(t, addrs, "web", "--listen", listen)
		assert.Equal(t, exitUsage, o.code, listen)
		assert.Contains(t, o.stderr, "--allow-remote")
	}
	for _, args := range [][]string{{"--listen", "7787"}, {"--trace-link", "javascript://x/{trace}"}, {"--trace-link", "https://me:secret@x/{trace}"}, {"more"}} {
		o := invoke(t, addrs, append([]string{"web"}, args...)...)
		assert.Equal(t, exitUsage, o.code, args)
		assert.NotContains(t, o.stderr, "secret")
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, served(t, addrs, "--allow-remote"), nil)
	require.NoError(t, err)
	r.Host = "locks.example"
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, http.StatusOK, answer.StatusCode)
}
