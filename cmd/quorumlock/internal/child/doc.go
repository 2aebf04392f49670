// Package child runs a command in a process group of its own and ends the
// whole group. A lock is released, or lost, only after every process of the
// group is dead, so the package works on groups and never on one process.
package child

import (
	"os"
	"syscall"
)

// Command is a command for Start, which adds nothing to it: no shell, no pipes.
type Command struct {
	Path  string   // of the file to execute
	Args  []string // with the command's name first
	Env   []string
	Files [3]*os.File // stdin, stdout and stderr
}

// Exit is the way in which a command ended.
type Exit struct {
	Code   int            // its exit code, when no signal killed it
	Signal syscall.Signal // the signal that killed it, 0 for none
}
