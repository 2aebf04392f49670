//go:build unix && !linux

package child

import "syscall"

// dieWithParent does nothing: only Linux tells a process that its parent died.
func dieWithParent(*syscall.SysProcAttr) {}

// groupRuns reports what kill(2) has said: the group has a process.
func groupRuns(int) bool { return true }
