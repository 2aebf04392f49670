// Package cli is the command line of quorumlock: its commands, flags, output
// and exit codes.
package cli
