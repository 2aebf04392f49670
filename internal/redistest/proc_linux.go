package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// dieWithParent makes the kernel kill the process when the thread that forked it
// ends, so no server survives a test binary that panics or is killed. It is the
// thread, not the process: launch keeps that thread alive.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until a process sent SIGSTOP has stopped: the signal is
// only queued when kill returns, and the process may run on for a moment.
func awaitStopped(pid int) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The command name, in parentheses, may hold anything; the state follows it.
		_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if bytes.HasPrefix(state, []byte("T")) {
			return nil
		}
		if bytes.HasPrefix(state, []byte("Z")) || time.Now().After(deadline) {
			return fmt.Errorf("process %d has not stopped after SIGSTOP: state %.1s", pid, state)
		}
	}
}
