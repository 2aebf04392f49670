package main

import (
	"errors"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// pin makes this process, and all that it starts from now on, share one core: the
// last one that it may use.
func pin() error {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return err
	}
	core := -1
	for i := range len(allowed) * strconv.IntSize {
		if allowed.IsSet(i) {
			core = i
		}
	}
	one.Set(core)
	runtime.GOMAXPROCS(1)
	for range 2 { // a second time for threads that were started in between
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			if err := unix.SchedSetaffinity(id, &one); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}
