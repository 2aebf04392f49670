//go:build !unix

package child

import (
	"errors"
	"syscall"
)

// Process is a running command, which only Unix can have.
type Process struct{}

// Start fails: this system has no process groups that can be ended as one.
func Start(Command, func(string)) (*Process, error) {
	return nil, errors.New("run needs Unix: it ends a whole process group when the lock is lost")
}

func (*Process) Resume()               {}
func (*Process) End(syscall.Signal)    {}
func (*Process) Pass(syscall.Signal)   {}
func (*Process) Done() <-chan struct{} { return nil }
func (*Process) Exit() Exit            { return Exit{} }
func (*Process) Alive() bool           { return false }
func (*Process) Close()                {}
