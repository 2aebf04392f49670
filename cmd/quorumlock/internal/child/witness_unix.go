//go:build unix

package child

import (
	"io"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// witness is a process that a TERM ends, and the end of this one. Systemd and others send TERM to every
// process of a service; then the command must not get a second one from here.
type witness struct {
	pid   int
	life  io.Closer
	ended atomic.Pointer[time.Time] // by a TERM
}

const (
	witnessDelay = 250 * time.Millisecond // how long after a TERM for this process the witness may get its own
	sameTERM     = time.Second            // between two that were sent together
)

// startWitness returns nil where no process can be started.
func startWitness() *witness {
	c := exec.Command("cat")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := c.StdinPipe()
	if err != nil || c.Start() != nil {
		return nil
	}
	return &witness{pid: c.Process.Pid, life: life}
}

// Pass sends a signal on that this process has got. A TERM that went to the command as well is not repeated.
func (p *Process) Pass(s syscall.Signal) {
	if s != syscall.SIGTERM || p.witness == nil {
		p.Signal(s)
		return
	}
	time.AfterFunc(witnessDelay, func() {
		if at := p.witness.ended.Load(); at == nil || time.Since(*at) > sameTERM {
			p.Signal(s)
		}
	})
}
