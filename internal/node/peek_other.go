//go:build !linux && !darwin

package node

import "syscall"

func peek(syscall.RawConn) (unread, ended bool) { return false, false }
