// Package differential runs random lists of operations by the Lua, on a server and on a node in the process, and by the
// simulation's script, and compares the answers, the messages and the keys after each operation. It does so with
// the operations of the conformance cases as well, but for the messages. What the simulation shows holds for the Lua
// as far as the two agree here.
package differential
