// Package node runs operations on one Redis master: it queues them, sends what is queued
// as one batch, and classifies every answer.
//
// A [Node] has one worker goroutine and one connection for its operations. One batch is
// on its way at a time, so a node executes the operations in the order in which they were
// posted: while the connection lasts, a release never overtakes the acquisition that it
// undoes. After the connection has broken, data in the server's socket may still run
// after requests of the next connection, as long as its "not after" allows. A release
// that this may concern is sent once more when that time is over.
//
// Posting never blocks and never waits for the network. A node that hangs fills its own
// queue, which is capped, and delays no other node. The caller that posted waits on its
// own clock, and the worker calls its receiver if the answer still comes.
//
// Before anything else is sent on a new connection, the worker greets the node: it loads
// the script (the server returns its digest, so that this process computes no SHA-1),
// checks what kind of server answers, and runs the restart guard. A vote counts only if
// the connection that carried the answer has passed the greeting.
//
// The package depends on Redis and rueidis, and knows nothing of quorums.
package node
