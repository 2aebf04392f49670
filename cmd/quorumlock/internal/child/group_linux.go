package child

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// dieWithParent makes the kernel kill the command when this process is killed.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// proc is what /proc/PID/stat says about a process.
type proc struct {
	pid, parent, group, threads int
	state                       byte
}

// processes returns all processes that this one sees, none without /proc.
func processes() (all []proc) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended in between
		}
		// The name of the process, in parentheses, may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 18 {
			continue
		}
		number := func(text []byte) int { n, _ := strconv.Atoi(string(text)); return n }
		all = append(all, proc{
			pid: number([]byte(filepath.Base(filepath.Dir(file)))), state: fields[0][0],
			parent: number(fields[1]), group: number(fields[2]), threads: number(fields[17]),
		})
	}
	return all
}

// groupRuns reports whether a group has a process that is not a zombie. A zombie counts for kill(2) until its parent
// waits for it, and the first process of a container often never does. A process whose first thread has ended looks
// like a zombie, and has other threads.
func groupRuns(group int) bool {
	all := processes()
	return len(all) == 0 || slices.ContainsFunc(all, func(p proc) bool { // without /proc, kill(2) has found one
		return p.group == group && p.state != 'X' && (p.state != 'Z' || p.threads > 1)
	})
}

// groupsBelow returns the other groups that have processes below a group: a nested quorumlock
// makes one, as does a shell with job control.
func groupsBelow(group int) (groups []int) {
	all, below := processes(), map[int]bool{}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !below[p.pid] && (p.group == group || below[p.parent]) {
				below[p.pid], grown = true, true
			}
		}
	}
	own := syscall.Getpgrp()
	for _, p := range all {
		if below[p.pid] && p.group != group && p.group != own && !slices.Contains(groups, p.group) {
			groups = append(groups, p.group)
		}
	}
	return groups
}
