//go:build unix && !linux

package main

import "runtime"

// pin leaves it to the kernel where processes run: only Linux can be told. The
// client at least uses one core at a time.
func pin() error {
	runtime.GOMAXPROCS(1)
	return nil
}
