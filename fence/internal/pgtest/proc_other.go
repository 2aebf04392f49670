//go:build unix && !linux

package pgtest

import "syscall"

// dieWithParent needs Linux: elsewhere a server survives a test binary that is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
