//go:build unix && !linux

package main

import "runtime"

// pin lets the client use one core at a time. The choice of the core is the
// kernel's: only Linux lets a process make it.
func pin() error {
	runtime.GOMAXPROCS(1)
	return nil
}
