//go:build unix

package child

import (
	"io"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// witness is a process that ends by a TERM, or with this process. Systemd and others send TERM to every process of a
// service; then the command must not get a second one from here.
type witness struct {
	pid   int
	life  io.Closer
	ended atomic.Pointer[time.Time] // by a TERM
}

const (
	witnessDelay = 250 * time.Millisecond // how long after this process's TERM the witness may get its own
	sameTERM     = time.Second            // between two TERMs that were sent together
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

// Pass sends a signal of this process on. A TERM that also went to the command is not repeated.
func (p *Process) Pass(s syscall.Signal) {
	if s != syscall.SIGTERM || p.witness == nil {
		p.send(s)
		return
	}
	time.AfterFunc(witnessDelay, func() {
		if at := p.witness.ended.Load(); at == nil || time.Since(*at) > sameTERM {
			p.send(s)
		}
	})
}
