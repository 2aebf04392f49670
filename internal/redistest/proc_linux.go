package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// dieWithParent makes the kernel kill the process when the thread that forked it ends. So
// no server survives a test binary that panics or is killed. The thread counts, not the
// process, so launch keeps that thread alive.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until a process that got SIGSTOP has stopped. When kill returns, the signal is only queued, and
// the process may continue for a moment.
func awaitStopped(pid int) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The command name, in parentheses, may contain any byte. The state follows it.
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if bytes.HasPrefix(state, []byte("T")) {
			return nil
		}
		if bytes.HasPrefix(state, []byte("Z")) || time.Now().After(deadline) {
			return fmt.Errorf("process %d has not stopped after SIGSTOP: state %.1s", pid, state)
		}
	}
}
