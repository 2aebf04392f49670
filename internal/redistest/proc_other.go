//go:build unix && !linux

package redistest

import "syscall"

// dieWithParent returns no attributes: only Linux can tie a process to its parent.
// Elsewhere the servers of a killed test binary keep running.
func dieWithParent() *syscall.SysProcAttr { return nil }

// awaitStopped does not wait, because there is no portable way to read the state of a
// process. A server may answer for a moment after Stop.
func awaitStopped(int) error { return nil }
