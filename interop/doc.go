// Package interop tests that other lock libraries and quorumlock exclude each
// other on the same nodes and key: redsync, bsm/redislock (one node) and
// node-redlock; and that the command line of an older commit of ours and readers
// of this one do. It contains only tests.
//
// The part with node-redlock needs node and npm: make interop installs the
// packages in bin/interop, which git ignores, and runs everything.
package interop
