package child

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// dieWithParent makes the kernel kill the command when this process is killed.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// proc is what /proc/PID/stat says about a process.
type proc struct {
	pid, parent, group, threads int
	began                       int // in ticks since the boot
	state                       byte
}

// processes returns all processes that this one sees, none without /proc.
func processes() (all []proc) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended in between
		}
		// The name of the process, in parentheses, may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 20 {
			continue
		}
		number := func(text []byte) int { n, _ := strconv.Atoi(string(text)); return n }
		all = append(all, proc{
			pid: pid, state: fields[0][0], parent: number(fields[1]), group: number(fields[2]), threads: number(fields[17]), began: number(fields[19]),
		})
	}
	return all
}

// groupsRun reports whether one of these groups has a process that is not a zombie. A zombie counts for kill(2) until its
// parent waits for it, and the first process of a container often never does. A process whose first thread has ended
// looks like a zombie, and has other threads.
func groupsRun(groups []int) bool {
	all := processes()
	return len(all) == 0 || slices.ContainsFunc(all, func(p proc) bool { // without /proc, kill(2) has found one
		return slices.Contains(groups, p.group) && p.state != 'X' && (p.state != 'Z' || p.threads > 1)
	})
}

// groupsBelow adds to known the other groups that have processes below a group: a nested quorumlock makes one, as does a
// shell with job control. For each group known has when its youngest process began. A group all of whose processes are
// younger is another one, and goes.
func groupsBelow(group int, known map[int]int) {
	all, below := processes(), map[int]bool{}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !below[p.pid] && (p.group == group || below[p.parent]) {
				below[p.pid], grown = true, true
			}
		}
	}
	maps.DeleteFunc(known, func(group, began int) bool {
		return !slices.ContainsFunc(all, func(p proc) bool { return p.group == group && p.began <= began })
	})
	own := syscall.Getpgrp()
	for _, p := range all {
		if below[p.pid] && p.group != group && p.group != own {
			known[p.group] = max(known[p.group], p.began)
		}
	}
}
