//go:build unix

package redistest

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

//go:embed shim/clock.c
var shimSource []byte

// compileShim returns the shared object of shim/clock.c. It is compiled once for each
// test binary and kept in memory, so no file stays on the disk.
var compileShim = sync.OnceValues(func() (object []byte, err error) {
	dir, err := os.MkdirTemp("", "redistest-shim")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	source, target := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, shimSource, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", target, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w:\n%s", err, out)
	}
	return os.ReadFile(target)
})

// A wallClock is the stepped clock of one server. It outlives the server's
// processes, as the clock of a host does.
type wallClock struct {
	shim, file string
	mapped     []byte        // of file
	offset     *atomic.Int64 // in mapped, ns
}

// newWallClock puts the shim and the offset into dir. It skips the test on a machine that
// cannot have such a clock. But on a CI machine (CI is set in the environment) a missing
// compiler fails the test.
func newWallClock(tb testing.TB, dir string) *wallClock {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Skipf("redistest: no clock to step: it needs the LD_PRELOAD of Linux, and this is %s", runtime.GOOS)
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("CI") != "" {
			tb.Fatalf("redistest: no clock to step: %v: CI is set, so this test must run: install gcc", err)
		}
		tb.Skipf("redistest: no clock to step: %v: install gcc to run this test", err)
	}
	object, err := compileShim()
	if err != nil {
		tb.Fatalf("redistest: clock: %v", err)
	}
	c := &wallClock{shim: filepath.Join(dir, "clock.so"), file: filepath.Join(dir, "clock")}
	if err := errors.Join(
		os.WriteFile(c.shim, object, 0o700),
		os.WriteFile(c.file, make([]byte, unsafe.Sizeof(*c.offset)), 0o600),
	); err != nil {
		tb.Fatalf("redistest: clock: %v", err)
	}
	file, err := os.OpenFile(c.file, os.O_RDWR, 0)
	if err != nil {
		tb.Fatalf("redistest: clock: %v", err)
	}
	defer func() { _ = file.Close() }()
	// Map the file here too. Another process shares it, and only a store to memory
	// appears to that process as a whole.
	c.mapped, err = syscall.Mmap(int(file.Fd()), 0, int(unsafe.Sizeof(*c.offset)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		tb.Fatalf("redistest: clock: %v", err)
	}
	c.offset = (*atomic.Int64)(unsafe.Pointer(&c.mapped[0]))
	return c
}

func (c *wallClock) environment() []string {
	return []string{"LD_PRELOAD=" + c.shim, "REDISTEST_CLOCK=" + c.file}
}

// StepClock steps the wall clock of a server started with Options.Clock by d, forward or
// back. The server notices the step at its next reading, Valkey 9 up to 5 ms later. Its monotonic clock does not
// step. Steps add up, and a restart does not undo them: they belong to the host.
func (s *Server) StepClock(d time.Duration) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clock == nil {
		s.tb.Fatalf("redistest: step the clock of %s: it was not started with Options.Clock, or its test is over", s.Addr())
	}
	s.clock.offset.Add(int64(d))
}

// dropClock unmaps the clock's file at the end of the test.
func (s *Server) dropClock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = syscall.Munmap(s.clock.mapped)
	s.clock = nil
}
