package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// Clock ids of clock_gettime(2). The package calls it directly: the standard library has
// no name for these clocks, and one system call is not worth a dependency.
const (
	clockRealtime = 0
	clockBoottime = 7
)

// bootTime returns the time since boot, suspends included.
func bootTime() (time.Duration, bool) { return getTime(clockBoottime) }

// trusted reports whether the runtime's clock is the system's. It is not inside a testing/synctest bubble: there
// time.Now is faked, and a raw clock would continue between two instants of the bubble.
func trusted() bool {
	wall, ok := getTime(clockRealtime)
	return ok && (wall-time.Duration(time.Now().UnixNano())).Abs() < time.Minute
}

func getTime(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
