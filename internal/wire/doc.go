// Package wire is the language spoken with a Redis master: the requests and how the script
// takes them, the replies and what they mean, the keys, the value of a lock, and the messages
// that wake waiters.
//
// A node runs one script, [Apply], and nothing else changes its data. A [Request] is one or
// more operations of the script, and [Unpack] and [Reader] turn the script's answer into a
// [Reply]. The header of lua/head.lua describes a call and its reply, and each other file
// below lua/ describes its operations.
//
// The package sends nothing, reads no clock and starts no goroutine. It uses rueidis only to
// read replies. A Request that is posted to several nodes is shared by their workers: what
// changes after that is atomic.
package wire
