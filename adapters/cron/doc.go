// Package cronlock lets several processes run the same robfig/cron v3 schedule, with
// each run of a job in one of them, by a lock on a majority of independent Redis
// servers.
//
// A [Locker] makes a job ([Locker.Job]) or a wrapper for a chain ([Locker.Wrapper]).
// At a tick, one process gets the lock and runs the job; the others skip the tick. All of
// them skip it while an earlier run continues. So a job does not run twice at once while its
// lease is valid, nor twice for one tick while the processes reach the tick less than
// half of the minimum hold apart ([NewLocker]).
//
// Use schedules of the wall clock, such as "0 3 * * *", in one time zone
// (cron.WithLocation). "@every 1h" counts from the start of each process, so every
// process has ticks of its own. For such a schedule, run cron in one process only:
// examples/integrations/cron does so with Manager.Lead.
package cronlock
