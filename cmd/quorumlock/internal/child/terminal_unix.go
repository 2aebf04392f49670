//go:build unix

package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process, nil if it has none.
type terminal struct {
	file *os.File
	own  int // the process group of this process
}

func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: file, own: syscall.Getpgrp()}
}

// give makes a group the foreground group of the terminal, if this process has the terminal now. It reports whether the
// group has it.
func (t *terminal) give(group int) bool {
	if t == nil {
		return false
	}
	foreground, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	switch {
	case err != nil:
		return false
	case foreground == group:
		return true
	case foreground != t.own:
		return false
	}
	return unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group) == nil
}

// takeBack undoes give. This process is then in the background, and must ignore SIGTTOU.
func (t *terminal) takeBack(group int) {
	if t == nil {
		return
	}
	if foreground, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP); err == nil && foreground == group {
		_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, t.own)
	}
}

func (t *terminal) close() {
	if t != nil {
		_ = t.file.Close()
	}
}
