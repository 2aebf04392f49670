//go:build linux || darwin

package node

import (
	"errors"
	"syscall"
)

// peek reports whether a socket has bytes that are not read yet, or has ended.
func peek(conn syscall.RawConn) (unread, ended bool) {
	_ = conn.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		unread = err == nil && n > 0
		ended = !unread && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return unread, ended
}
