// Package node runs operations on one Redis master: it queues them, sends what is queued
// as one batch, and delivers every answer.
//
// A [Node] has one worker goroutine and one connection for its operations. One batch is on its way at a time, so a node
// executes the operations in the order in which they were posted: while the connection lasts, a release never overtakes
// the acquisition that it undoes. After the connection has broken, data in the server's socket may still run after
// requests of the next connection, as long as its "not after" allows. A release that this may affect is sent once more
// after that time.
//
// Posting never blocks and never waits for the network. A node that hangs fills its own
// queue, which is capped, and delays no other node. The caller that posted waits on its
// own clock, and the worker calls its receiver if the answer still comes.
//
// The Nodes of a [Cluster] share one connection to each server (trunk), below the client of their link. For a Node,
// joining the trunk is a dial, and leaving it ends its connection; requests of other Nodes continue.
//
// Before anything else is sent on a new connection, the worker greets the node: it loads
// the scripts, once for each connection (the server returns their digests, so that this process computes no SHA-1),
// checks what kind of server answers, and runs the restart guard. A vote counts only if
// the connection that carried the answer has passed the greeting.
//
// # Parts
//
//	Post → lanes → worker → courier → link → the server, and the answers back to the receivers
//	                  └──→ greeter ───┘
//
// Each part has its own file. A part knows the parts to its right, and gets the rest as values and functions:
//
//	lanes       the requests that wait, in three lanes; the size of a batch (pace)
//	worker      the loop of the Node: connect, take a batch, send it, report the health
//	courier     the batch on the wire, its answers, and the requests that are sent again (retries)
//	greeter     the greeting: identity, one server at the address, restart guard, quarantine, lists of nodes
//	link        the connection: dialled, greeted, tested; the node's clock (meter), the answers
//	            that the node owes (debt), and all open connections (conns)
//	subscriber  the wake-ups, over a connection of its own
//	trunk       the connection that nodes of a cluster share (share, trunkClient)
//
// The messages are defined in internal/wire. internal/master finds the server of a failover group.
//
// # Goroutines and locks
//
// A Node has these goroutines: the worker, its transmitter, the subscriber, at times one that compares another
// connection to the address (oneServer), and for a failover group one that asks for the master. The transmitter works
// while the worker delivers the answers to the previous batch; of the worker's state it uses only the transfer and the
// link's client. lanes and conns have a mutex each. They are never held together, and receivers and the functions
// of [Config], all but its clock, run without a lock.
//
// The package depends on Redis and rueidis, and knows nothing of quorums.
package node
