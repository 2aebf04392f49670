// Package child runs a command in a process group of its own and ends the
// whole group. A lock is released, or lost, only after every process of the
// group is dead, so the package works on groups and never on one process.
package child
