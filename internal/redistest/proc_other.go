//go:build unix && !linux

package redistest

import "syscall"

// dieWithParent asks for nothing: only Linux can tie a process to its parent.
// Servers of a test binary that is killed stay behind here.
func dieWithParent() *syscall.SysProcAttr { return nil }

// awaitStopped waits for nothing: there is no portable view of the state of a
// process. A server may answer for a moment after Stop.
func awaitStopped(int) error { return nil }
