// Package interop tests that other lock libraries and quorumlock exclude each other on the same nodes and key: redsync,
// bsm/redislock (one node) and node-redlock. It tests the same for the command line of an older commit and readers of
// this one. It also compiles and runs what docs/migrating.md says. It contains only tests.
//
// client-go, etcd and Consul have hundreds of packages: their files have the tag peers,
// which make interop sets.
//
// The part with node-redlock needs node and npm: make interop installs the
// packages in bin/interop, which git ignores, and runs everything.
package interop
