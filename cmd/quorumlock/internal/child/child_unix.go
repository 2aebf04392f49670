//go:build unix

package child

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

// Process is a command that runs, and its process group.
type Process struct {
	group    int // the process id of the command, and the id of its group
	terminal *terminal
	resume   chan struct{} // capacity 1: the terminal may be ours again
	note     func(string)
	done     chan struct{} // closed when the command has ended
	exit     Exit          // valid after done
	witness  *witness      // nil without
	below    map[int]int   // groups below this one, see groupsBelow: the parents that show it may be gone by now
}

// Start runs a command in a process group of its own. Once it returns without an error, the signals by which a terminal
// stops a job are ignored in this process until Close: a stopped process does not renew its lease. The function note
// gets the messages for a person at the terminal.
func Start(c Command, note func(string)) (*Process, error) {
	p := &Process{note: note, below: map[int]int{}, resume: make(chan struct{}, 1), done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(c, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command and waits for it, and for orphans: the first process of a container gets them as children, and
// they stay zombies until it waits for them. On Linux the kernel kills the command when the thread that started it
// ends, so this goroutine keeps its thread.
func (p *Process) run(c Command, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	terminal := openTerminal()
	attributes := &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(attributes)
	all := &syscall.ProcAttr{
		Env: c.Env, Sys: attributes,
		Files: []uintptr{c.Files[0].Fd(), c.Files[1].Fd(), c.Files[2].Fd()},
	}
	group, err := syscall.ForkExec(c.Path, c.Args, all)
	if errors.Is(err, syscall.ENOEXEC) && isText(c.Path) { // a script without #!, as execvp(3) runs it
		group, err = syscall.ForkExec("/bin/sh", append([]string{"/bin/sh", c.Path}, c.Args[1:]...), all)
	}
	if err != nil {
		terminal.close()
		started <- &os.PathError{Op: "execute", Path: c.Path, Err: err}
		return
	}
	// Only now: the command would inherit ignored signals.
	signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU)
	p.group, p.terminal, p.witness = group, terminal, startWitness()
	started <- nil
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil && ended != group:
			if p.witness != nil && ended == p.witness.pid && status.Signaled() && status.Signal() == syscall.SIGTERM {
				now := time.Now()
				p.witness.ended.Store(&now)
			}
		case err != nil: // another process has waited for it: its code is unknown
			p.exit = Exit{Code: 1}
			close(p.done)
			return
		case status.Stopped():
			p.stopped(status.StopSignal())
		default:
			p.exit = Exit{Code: status.ExitStatus()}
			if status.Signaled() {
				p.exit = Exit{Signal: status.Signal()}
			}
			close(p.done)
			return
		}
	}
}

// isText reports whether a file begins like a script and not like a program for another machine.
func isText(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, 256)
	n, err := file.Read(head)
	return err == nil && bytes.IndexByte(head[:n], 0) < 0
}

// stopped continues a command that the terminal has stopped. A command that reads from the terminal, or changes its
// modes, gets the terminal, as from a shell with job control. Until then the terminal stays with this process, because
// another program of a pipeline may need it. A suspended command would hold the lock until someone remembers it, so
// Ctrl-Z does not suspend it.
func (p *Process) stopped(by syscall.Signal) {
	switch by {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if !p.terminal.give(p.group) {
			// A job in the background: the shell's fg sends SIGCONT, see Resume.
			p.note("the command waits for the terminal: bring this job to the foreground")
			select {
			case <-p.resume:
			default:
			}
			go p.awaitTerminal()
			return
		}
	case syscall.SIGTSTP:
		p.note("a command that holds a lock is not suspended: it continues")
	default:
		return // SIGSTOP: another process sent it, and continues it
	}
	p.send(syscall.SIGCONT)
}

// awaitTerminal gives the terminal to the command when this process has it again.
func (p *Process) awaitTerminal() {
	for {
		select {
		case <-p.done:
			return
		case <-p.resume:
			if p.terminal.give(p.group) {
				p.send(syscall.SIGCONT)
				return
			}
		}
	}
}

// Resume reports that this process was continued, perhaps in the foreground.
func (p *Process) Resume() {
	select {
	case p.resume <- struct{}{}:
	default:
	}
}

// send sends a signal to every process of the group.
func (p *Process) send(s syscall.Signal) { _ = syscall.Kill(-p.group, s) }

// End sends TERM or KILL to every process of the group, and on Linux of the groups below it: a nested quorumlock that is
// killed cannot kill the group of its command. Only one goroutine may call End and Alive.
func (p *Process) End(s syscall.Signal) {
	if s == syscall.SIGKILL {
		p.send(syscall.SIGSTOP) // at once: to look for the groups takes a while, and a parent that was killed shows none
	}
	groupsBelow(p.group, p.below)
	for group := range p.below {
		_ = syscall.Kill(-group, s)
		_ = syscall.Kill(-group, syscall.SIGCONT)
	}
	p.send(s)
	p.send(syscall.SIGCONT) // a stopped process would not see TERM
}

// Done is closed when the command itself has ended. Other processes of its group may continue: see Alive.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the command ended, after Done.
func (p *Process) Exit() Exit { return p.exit }

// Alive reports whether any process of the group, or of the groups below that End has reached, still runs, after Done.
func (p *Process) Alive() bool {
	for reaped := 1; reaped > 0; { // run no longer waits for orphans
		reaped, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
	}
	left := slices.DeleteFunc(slices.AppendSeq([]int{p.group}, maps.Keys(p.below)), func(group int) bool {
		return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
	})
	return len(left) > 0 && groupsRun(left)
}

// Close takes the terminal back. The command must have ended.
func (p *Process) Close() {
	if p.witness != nil {
		_ = p.witness.life.Close()
	}
	p.terminal.takeBack(p.group)
	p.terminal.close()
	signal.Reset(syscall.SIGTTIN, syscall.SIGTTOU)
}
