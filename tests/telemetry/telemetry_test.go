// Package telemetry asserts that a real Collector and a real Prometheus get from examples/tracing what the
// documentation promises. make traces and make metrics name the programs. Without them only the checks are tested, on
// recorded answers.
package telemetry

import (
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

var programs struct{ example, collector, prometheus string }

func TestMain(m *testing.M) {
	flag.StringVar(&programs.example, "example", "", "the `program` examples/tracing")
	flag.StringVar(&programs.collector, "collector", "", "the `program` examples/tracing/collector")
	flag.StringVar(&programs.prometheus, "prometheus", "", "the `program` prometheus")
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// start starts a program with its own configuration file. At the end of the test it ends the program, by SIGTERM, and
// after 10 s by SIGKILL.
func start(t *testing.T, config, program string, args ...string) {
	t.Helper()
	if program == "" {
		t.Skip("needs -example and -collector or -prometheus: run make traces, make metrics")
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	for i, arg := range args {
		args[i] = os.Expand(arg, func(string) string { return file })
	}
	var out testkit.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %v\n%s", program, err, out.String())
		}
	})
}

// freeAddr returns an address of the loopback interface on which no process listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// listening waits until a process listens on the address.
func listening(t *testing.T, addr string) {
	t.Helper()
	testkit.Eventually(t, "a process listens on "+addr, func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		return err == nil && conn.Close() == nil
	})
}
