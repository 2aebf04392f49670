//go:build unix

package cli

import (
	"bufio"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/doctor"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// watching is a command line that watches for a failover.
type watching struct {
	stdout, stderr *bufio.Reader
	interrupt      func()
	wait           func() int
}

func watchFailover(tb testing.TB, addr string, args ...string) *watching {
	tb.Helper()
	c := commandLine(tb, []string{addr}, append([]string{"doctor", "--failover", "--settle", "2s"}, args...)...)
	stdout, err := c.StdoutPipe()
	require.NoError(tb, err)
	stderr, err := c.StderrPipe()
	require.NoError(tb, err)
	require.NoError(tb, c.Start())
	w := &watching{stdout: bufio.NewReader(stdout), stderr: bufio.NewReader(stderr)}
	w.interrupt = func() { require.NoError(tb, c.Process.Signal(syscall.SIGINT)) }
	w.wait = func() int {
		_ = c.Wait() // only the exit code counts
		return c.ProcessState.ExitCode()
	}
	line, err := w.stderr.ReadString('\n')
	require.NoError(tb, err)
	require.Contains(tb, line, "force a failover there now")
	return w
}

func (w *watching) report(tb testing.TB) (text string, code int) {
	tb.Helper()
	all, err := io.ReadAll(w.stdout)
	require.NoError(tb, err)
	return string(all), w.wait()
}

// behind starts a master and a replica behind an endpoint.
func behind(tb testing.TB) (master, replica *redistest.Server, endpoint *redistest.Proxy) {
	tb.Helper()
	master = redistest.Start(tb, 1, "--repl-diskless-sync-delay", "0")[0]
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(tb, err)
	replica = redistest.Start(tb, 1, "--replicaof", host+" "+port)[0]
	eventually(tb, "a replica", func() bool {
		text, _ := master.MustDo("INFO", "replication").(string)
		return strings.Contains(text, "state=online")
	})
	return master, replica, redistest.NewProxy(tb, master.Addr())
}

func TestDoctorReportsAFailover(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			master, replica, endpoint := behind(t)
			var args []string
			if format == "json" {
				args = []string{"--json"}
			}
			w := watchFailover(t, endpoint.Addr(), args...)
			host, port, err := net.SplitHostPort(replica.Addr())
			require.NoError(t, err)
			replica.MustDo("REPLICAOF", "NO", "ONE")
			master.MustDo("REPLICAOF", host, port)
			endpoint.Retarget(replica.Addr())
			line, err := w.stderr.ReadString('\n')
			require.NoError(t, err)
			assert.Contains(t, line, "a failover was seen")
			text, code := w.report(t)
			t.Log("\n" + text)
			if format == "json" {
				j := decoded[failoverJSON](t, text)
				assert.True(t, j.Failover.Seen)
				assert.True(t, j.Failover.RunIDChanged)
				assert.Contains(t, []doctor.OldConnection{doctor.OldReadOnly, doctor.OldSilent}, j.Failover.Old, "silent on a machine that stands still")
				assert.Equal(t, map[string]int{"ok": exitOK, "warnings": exitWarnings, "broken": exitBroken}[j.Verdict], code)
				assert.NotEmpty(t, j.Findings)
				return
			}
			plain(t, text)
			assert.Contains(t, text, "\nrun_id          changed\n")
			assert.Contains(t, text, "\nold connection  s")
			assert.Contains(t, text, "node 0 ("+endpoint.Addr()+"): never_fenced\n")
			assert.Contains(t, []int{exitWarnings, exitBroken}, code, "a write may be lost between the two commands")
		})
	}
}

func TestDoctorSaysThatNoFailoverWasSeen(t *testing.T) {
	t.Parallel()
	_, _, endpoint := behind(t)
	for _, end := range []string{"time", "interrupt"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			limit := "1s"
			if end == "interrupt" {
				limit = "1h"
			}
			w := watchFailover(t, endpoint.Addr(), "--for", limit)
			if end == "interrupt" {
				w.interrupt()
			}
			text, code := w.report(t)
			t.Log("\n" + text)
			plain(t, text)
			assert.Equal(t, exitWarnings, code)
			assert.True(t, strings.HasSuffix(text, "\nwarnings: no failover was seen\n"), text)
		})
	}
}

func TestDoctorWatchesAFailoverOfOneEndpointOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--failover", "--nodes", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"}, "--nodes lists 3 nodes"},
		{[]string{"--for", "1m"}, "give --failover as well"},
		{[]string{"--settle", "1m"}, "give --failover as well"},
		{[]string{"--failover", "--for", "0s"}, "--for 0s: must be 1s to 1h"},
		{[]string{"--failover", "--settle", "2h"}, "--settle 2h0m0s: must be 1s to 1h"},
		{[]string{"--failover", "--for", "soon"}, "is not a duration"},
	} {
		o := within(t, append([]string{"doctor"}, c.args...)...)
		assert.Equal(t, exitUsage, o.code, c.args)
		assert.Contains(t, o.stderr, c.want)
		assert.Equal(t, 1, strings.Count(o.stderr, "\n"), o.stderr)
	}
}

func TestAnEndpointThatCannotBeWatchedIsBroken(t *testing.T) {
	t.Parallel()
	_, replica, _ := behind(t)
	for _, addr := range []string{replica.Addr(), "127.0.0.1:1"} {
		o := invoke(t, []string{addr}, "doctor", "--failover")
		assert.Equal(t, exitBroken, o.code, o.stderr)
		assert.Empty(t, o.stderr)
		plain(t, o.stdout)
		j := decoded[failoverJSON](t, invoke(t, []string{addr}, "doctor", "--failover", "--json").stdout)
		assert.Equal(t, doctor.RowNotTried, j.Row)
	}
}
