//go:build linux

package battery

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// An instant is a reading of CLOCK_MONOTONIC in nanoseconds. All processes of a host
// share that clock, so instants of different processes compare exactly.
type instant int64

// epoch has two readings of one instant: of the raw CLOCK_MONOTONIC, and of Go's
// time.Time.
var epoch = sync.OnceValue(func() (e struct {
	raw instant
	at  time.Time
}) {
	// The two clocks are not read at the same time, so the quickest of several tries is the most exact.
	quickest := time.Hour
	for range 20 {
		before := time.Now()
		raw := rawMonotonic()
		if took := time.Since(before); took < quickest {
			quickest, e.raw, e.at = took, raw, before
		}
	}
	return e
})

// now returns the present instant.
func now() instant { return instantOf(time.Now()) }

// instantOf converts a time that has a monotonic reading. All times that the library
// reports have one.
func instantOf(t time.Time) instant {
	e := epoch()
	return e.raw + instant(t.Sub(e.at))
}

// after returns the instant that is d later.
func (i instant) after(d time.Duration) instant { return i + instant(d) }

// since returns how much later i is than other.
func (i instant) since(other instant) time.Duration { return time.Duration(i - other) }

// wait sleeps until the instant has come.
func (i instant) wait() { time.Sleep(i.since(now())) }

func rawMonotonic() instant {
	const clockMonotonic = 1
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic(errno)
	}
	return instant(ts.Nano())
}

// A child is this test binary in another process, in one of the roles. It reads commands from its standard input and
// writes answers to its standard output, as one JSON value a line. It ends when its input or the test binary ends.
type child struct {
	role   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	exited chan struct{} // closed once the child is reaped
	err    error         // the result of Wait; read after exited is closed
}

const configVariable = "QUORUMLOCK_ROLE_CONFIG"

// spawn starts a child. The end of the test kills it, if it still runs.
func spawn(t *testing.T, role string, config any) *child {
	t.Helper()
	text, err := json.Marshal(config)
	require.NoError(t, err)
	c := &child{role: role, cmd: exec.Command(os.Args[0]), exited: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), "QUORUMLOCK_ROLE="+role, configVariable+"="+string(text))
	c.cmd.Stderr = os.Stderr // a panic or a data race of the child belongs in the test's output
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, write, err := os.Pipe() // not StdoutPipe: Wait would close it while it is read
	require.NoError(t, err)
	c.cmd.Stdout = write
	c.out = bufio.NewScanner(out)
	c.out.Buffer(nil, 1<<20)
	started := make(chan error, 1)
	go func() {
		defer close(c.exited)
		// The death signal is sent when the forking thread ends, so that thread must stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		_ = write.Close() // only the child's copy may stay open
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
		}
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // fails only if the child has ended
		<-c.exited
		_ = out.Close()
	})
	require.NoError(t, <-started)
	return c
}

// send sends a command to the child.
func (c *child) send(command any) error {
	text, err := json.Marshal(command)
	if err != nil {
		return err
	}
	_, err = c.in.Write(append(text, '\n'))
	return err
}

// receive reads an answer of the child. The test's own timeout ends a child that hangs.
func (c *child) receive(answer any) error {
	if !c.out.Scan() {
		return fmt.Errorf("%s ended without an answer: %w", c.role, errors.Join(c.out.Err(), io.ErrUnexpectedEOF))
	}
	return json.Unmarshal(c.out.Bytes(), answer)
}

// end closes the child's input and waits until it has ended. It returns an error if the
// child failed; a data race in the child is an error too.
func (c *child) end() error {
	_ = c.in.Close()
	<-c.exited
	if c.err != nil {
		return fmt.Errorf("%s: %w", c.role, c.err)
	}
	return nil
}

// pause stops the child, and returns the instant at which all of its threads had stopped.
func (c *child) pause() (instant, error) {
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(500 * time.Microsecond) {
		still, err := allStopped(c.cmd.Process.Pid)
		switch {
		case err != nil:
			return 0, err
		case still:
			return now(), nil
		case time.Now().After(deadline):
			return 0, fmt.Errorf("%s does not stop", c.role)
		}
	}
}

// resume continues a stopped child, and returns an instant just before that.
func (c *child) resume() (instant, error) {
	at := now()
	return at, c.cmd.Process.Signal(syscall.SIGCONT)
}

// allStopped reports whether all threads of a process are stopped. The state of the process itself covers only its
// first thread.
func allStopped(pid int) (bool, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return false, fmt.Errorf("process %d is gone: %w", pid, errors.Join(err, os.ErrProcessDone))
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended in between
		}
		if err != nil {
			return false, err
		}
		// The name, in parentheses, may contain anything; the state follows it.
		if !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T")) {
			return false, nil
		}
	}
	return true, nil
}

// roleConfig reads the configuration from spawn.
func roleConfig(config any) error {
	return json.Unmarshal([]byte(os.Getenv(configVariable)), config)
}

// roleFailed prints on standard error why a child cannot continue.
func roleFailed(err error) int {
	fmt.Fprintf(os.Stderr, "%s: %v\n", os.Getenv("QUORUMLOCK_ROLE"), err)
	return 1
}

// answer prints an answer, which child.receive reads.
func answer(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// residentBytes returns how much memory of this process is resident.
func residentBytes() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm: %q", text)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// guardedServers starts servers whose restart guard is longest, and which are trusted from the start. Only this
// function uses WithTrustEmptyNodes: a client with that option would also trust a node that comes back empty.
func guardedServers(t *testing.T, n int, longest time.Duration) []*redistest.Server {
	t.Helper()
	servers := redistest.Start(t, n)
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(redistest.Addrs(servers)...),
		quorumlock.WithTTL(longest), quorumlock.WithRestartGuard(longest), quorumlock.WithTrustEmptyNodes())
	require.NoError(t, err)
	require.NoError(t, m.Close(context.Background()))
	return servers
}

// proxyGrid puts a proxy between each client and each server, so that one client can be
// cut off from one server.
func proxyGrid(t *testing.T, clients int, servers []*redistest.Server) [][]*redistest.Proxy {
	t.Helper()
	grid := make([][]*redistest.Proxy, clients)
	for i := range grid {
		for _, s := range servers {
			grid[i] = append(grid[i], redistest.NewProxy(t, s.Addr()))
		}
	}
	return grid
}

func proxyAddrs(proxies []*redistest.Proxy) []string {
	addrs := make([]string, len(proxies))
	for i, p := range proxies {
		addrs[i] = p.Addr()
	}
	return addrs
}

// quantile returns the smallest value that at least this part of the values does not exceed, or zero if there are none.
func quantile[T int | int64 | float64 | time.Duration](values []T, part float64) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// fromEnv parses an environment variable, or returns the default if the variable is not
// set.
func fromEnv[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	v, err := parse(text)
	require.NoError(t, err, name)
	return v
}

// atLeastInFull marks a bar that a few repetitions on a busy machine may miss.
func atLeastInFull(bar string) string {
	if full {
		return bar
	}
	return bar + " in full"
}
