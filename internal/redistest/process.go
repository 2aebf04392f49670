//go:build unix

package redistest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// A process is a running child and the goroutine that waits for it.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the child is reaped, however it ended
}

// launch starts cmd. One goroutine, locked to its thread, forks the child and waits for
// it. The reason is that the death signal of dieWithParent fires when the forking thread
// ends, and the Go runtime may end a thread (for instance when its goroutine returns
// locked). So the thread lives as long as the child. That costs nothing, because waiting
// blocks a thread anyway.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.exited)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		<-p.exited
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal sends sig to the child. Once the child is reaped it returns os.ErrProcessDone,
// so it cannot signal another process with a recycled pid.
func (p *process) signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// kill ends the child and joins the goroutine that waits for it. SIGKILL needs no
// SIGCONT before it.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL) // fails only if the child has ended
	<-p.exited
}
