// Package differential runs random lists of operations by the Lua and by the simulation's script. The Lua runs on a
// server and on a node in the process. After each operation the package compares the answers, the messages and the
// keys. It also runs the operations of the conformance cases, without comparing their messages. Results of the
// simulation hold for the Lua as far as the two agree here.
package differential
