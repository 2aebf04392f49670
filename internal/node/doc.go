// Package node speaks to one Redis master: it queues operations, sends what is
// queued as one pipeline, and says of every answer what it means.
//
// A [Node] has one worker goroutine and one connection. One batch is on its
// way at a time, so the operations of a node are executed in the order in
// which they were posted: a release never overtakes the acquire it cleans up
// after, as long as the connection stands. When it has broken, what the server
// has already in its socket may still run behind what comes over the next one,
// for as long as its "not after" allows; a release that this may have happened
// to is sent once more when that is over.
//
// Posting never blocks and never waits for the network. A node that hangs costs
// its own queue, which is capped, and nobody else's time: whoever posted waits
// on its own clock, and gets the answer, if it still comes, by a call from the
// worker.
//
// Before anything else is sent on a new connection, the worker greets the
// node: it loads the scripts (the server names their digests, so that this
// process computes no SHA-1), checks what kind of server answers, and runs the
// restart guard. A vote counts only when the connection on which it was
// answered has passed the greeting.
//
// The package knows Redis and rueidis; it knows nothing of quorums.
package node
