// Package quorumlocktest runs N Redis nodes inside the test process. With it, a program
// that uses quorumlock, or any rueidis client, can be tested without a server and without
// sockets, under every fault that a majority must survive.
//
// A node is a [miniredis] behind a relay. Real rueidis clients reach it through in-memory
// pipes; nothing is mocked on the side of the clients. Each node has its own clock, its
// own faults and its own run id.
//
//	func TestMyJobStopsWhenTheLeaseIsLost(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			cluster := quorumlocktest.Start(t, 3)
//			m := cluster.Manager(t)
//			lease, err := m.Acquire(t.Context(), "my-job")
//			...
//			time.Sleep(time.Minute)     // takes no time
//			cluster.ForceLost(t, lease) // or cluster.Kill(0, 1), Hang, Cut, StepClock(time.Minute)
//			...                         // the job must have stopped
//		})
//	}
//
// # Time
//
// Everything here runs on the clock of the process. Inside a [testing/synctest] bubble that clock is virtual: an hour
// of renewals takes about a second. A cluster belongs to the bubble in which it was created. Outside a bubble the
// package works in the same way, in real time. Under GODEBUG=fips140=on or only it must be outside: Go then draws
// random numbers from the time that its own work takes, and in a bubble work takes none.
//
// Keys expire by the clock of their node: the clock of the process, plus the steps of
// [Node.StepClock]. It stands still while a script runs.
//
// # Faults
//
// [Cluster.ForceLost] ends one lease as if another client had taken the lock, and [Cluster.ForceLostByName] one that
// the code under test does not expose. All other faults happen to nodes; the methods of a [Cluster] apply them to
// several nodes at once.
//
// Faults of the process: [Node.Kill], [Node.Restart], [Node.Hang], [Node.FlushAll],
// [Node.StepClock], [Node.Fail]. Faults of the network: [Node.Cut], [Node.CutReplies],
// [Node.Delay], [Cluster.Partition]. They combine: a node that is killed while it is cut
// off looks silent to its clients, not dead, until it is healed.
//
// A node runs a command between two faults, never during one. Once Kill, Hang, StepClock,
// FlushAll or Fail has returned, no command runs under the former state. Once Cut or
// Partition has returned, nothing sent from then on arrives.
//
// # Redis Cluster
//
// [StartRedisCluster] starts a whole Redis Cluster, for [quorumlock.NewCluster]: masters that share the hash
// slots, each with a replica. [RedisCluster.Failover] and [RedisCluster.Move] change the owner of slots. The
// tests hold it and a real cluster to the same cases.
//
// # Differences from Redis
//
// The package corrects miniredis where it can: INFO, CLIENT ID, publish/subscribe,
// read-only scripts, the texts of errors raised in scripts, and how Lua 5.1 prints and
// reads numbers. The tests compare it with recorded replies of Redis 7.0. These
// differences remain:
//
//   - The operator .. in a script joins a number of 15 digits or more exactly;
//     Redis writes 1.7952189895664e+15. Format with %.0f. Arithmetic on a string
//     reads "010" as octal; tonumber does it right. Fractions given to redis.call
//     are shorter: 0.1, not 0.10000000000000001.
//   - The Lua libraries bit, struct and cmsgpack are missing. If a script does not catch
//     an error({err = ...}), its text is lost: return redis.error_reply. If pcall catches
//     an error("CODE text"), it looks like the error of a command. After a caught error,
//     closures no longer share their variables with the function that declared them
//     and is still running.
//   - A key is gone as soon as its time to live has passed. Redis rounds to whole
//     milliseconds and keeps the key up to one longer; its PTTL can be one higher.
//   - A time to live of more than 292 years ends at once.
//   - In RESP3, ZRANGE WITHSCORES is flat, as in RESP2.
//   - In a Redis Cluster, all servers know of a change at once, no slot is half moved, streams do not move, and
//     PUBLISH reaches the subscribers of one server. A replica answers no reads.
//   - CONFIG, ROLE, CLIENT LIST, FUNCTION and client-side caching are missing. A
//     node is always writable, whatever [Node.SetRole] says.
//
// If a program relies on more than this, test it with a real server.
//
// [miniredis]: https://pkg.go.dev/github.com/alicebob/miniredis/v2
package quorumlocktest
