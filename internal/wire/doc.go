// Package wire is the language spoken with a Redis master: requests as arguments of the script,
// replies and their meaning, keys, the value of a lock, and the messages that wake waiters.
//
// A node runs the script [Apply]. Only [Lean] also changes its data: it does the same for single operations in the
// common cases. A [Request] is one or more operations of the script, and [Unpack] and [Reader] turn the script's answer
// into a [Reply]. The header of lua/head.lua describes a call and its reply, and each other file below lua/ describes
// its operations.
//
// The package sends nothing, reads no clock and starts no goroutine. It uses rueidis only to
// read replies. The workers of several nodes share a Request, so each field that changes after
// the request was posted is atomic.
package wire
