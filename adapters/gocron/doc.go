// Package gocronlock lets several processes run the same gocron v2 schedule, with
// each job running in one of them, by a lock on a majority of independent Redis
// servers.
//
// There are two ways, as in gocron itself:
//
//   - An [Elector] makes one process the leader, which runs all jobs:
//     gocron.WithDistributedElector. When the leader dies or loses its lease,
//     another process takes over. Jobs need nothing else.
//   - A [Locker] lets the processes share the work: for each run of each job,
//     one of them gets the lock: gocron.WithDistributedLocker.
//
// With both, gocron uses the Elector only.
//
// gocron cannot stop a job whose lock is lost. A job that must stop then uses
// [Elector.Lease] or [Locker.Lease]: the lease has the context that ends with it, and the
// fencing token to pass along with each write.
package gocronlock
