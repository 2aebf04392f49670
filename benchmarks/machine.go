//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/report"
)

// modules are the contestants' modules, as the results name them.
var modules = map[string]string{
	"github.com/redis/rueidis":               "rueidis and rueidislock",
	"github.com/redis/rueidis/rueidiscompat": "rueidiscompat",
	"github.com/go-redsync/redsync/v4":       "redsync",
	"github.com/redis/go-redis/v9":           "go-redis",
	"github.com/bsm/redislock":               "redislock",
}

// describe fills in what this program is and where it runs.
func describe(ctx context.Context, r *report.Run) {
	r.Go = runtime.Version()
	r.Machine = strconv.Itoa(runtime.NumCPU()) + " cores, " + processor()
	if commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude", "*").Output(); err == nil {
		r.Commit = strings.TrimSpace(string(commit))
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			if name, ok := modules[module.Path]; ok {
				r.Libraries = append(r.Libraries, name+" "+strings.TrimPrefix(module.Version, "v"))
			}
		}
	}
}

// processor returns the name of the processor.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOOS + "/" + runtime.GOARCH
}

// A load is what the machine and this program have used.
type load struct {
	busy, stolen, all float64 // of the machine, in ticks
	own               float64 // of this program and of all processes it has ended, in ticks
}

const ticksPerSecond = 100 // of /proc/stat

// readLoad returns the load since the machine was started; all is 0 where there
// is no /proc/stat.
func readLoad() (l load) {
	text, _ := os.ReadFile("/proc/stat")
	fields := strings.Fields(strings.SplitN(string(text), "\n", 2)[0])
	const idle, waiting, stolen, guest = 3, 4, 7, 8 // positions after "cpu"
	for i, field := range fields {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil || i-1 >= guest { // guests are in the user's time already
			continue
		}
		l.all += ticks
		switch i - 1 {
		case stolen:
			l.stolen += ticks
		case idle, waiting:
		default:
			l.busy += ticks
		}
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err == nil {
			l.own += time.Duration(r.Utime.Nano()+r.Stime.Nano()).Seconds() * ticksPerSecond
		}
	}
	return l
}

// since returns how much of the machine other processes and the hypervisor have
// taken since then, in percent.
func (l load) since() (others, stolen float64) {
	now := readLoad()
	all := now.all - l.all
	if all <= 0 {
		return 0, 0
	}
	others = 100 * max(now.busy-l.busy-(now.own-l.own), 0) / all
	return others, 100 * (now.stolen - l.stolen) / all
}
