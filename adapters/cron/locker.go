package cronlock

import (
	"context"
	"errors"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quorumlock/quorumlock"
)

// namePrefix keeps the names of jobs apart from the other names that the program
// locks with the same Manager.
const namePrefix = "cron/"

// Locker gives each run of a job to one process. It is safe for concurrent use, also by
// several schedulers. It does not close its Manager.
type Locker struct {
	manager *quorumlock.Manager
	logger  cron.Logger
	options []quorumlock.AcquireOption
}

// NewLocker returns a Locker; the options are for each job's lease. The logger gets a line at
// Info for each tick that another process runs, and one at Error if the job did not run for another
// reason or lost its lease. Nil means cron.DefaultLogger.
//
// HoldAtLeast keeps the name taken even if the job ends sooner (quorumlock.WithMinHold), in whole
// milliseconds, so that a late process does not run the job again. Make it longer
// than twice the difference between the hosts' clocks, and shorter than half of the interval: one
// second suits most hosts. A process that finds the name taken waits for half of it
// (quorumlock.WithWait). With 0, a short job may run in every process, or in none.
func NewLocker(m *quorumlock.Manager, logger cron.Logger, holdAtLeast time.Duration, options ...quorumlock.AcquireOption) *Locker {
	if logger == nil {
		logger = cron.DefaultLogger
	}
	all := append([]quorumlock.AcquireOption{quorumlock.WithMinHold(holdAtLeast), quorumlock.WithWait(holdAtLeast / 2)}, options...)
	return &Locker{manager: m, logger: logger, options: all}
}

// Job returns a job for cron.AddJob that runs work in one process for each tick, under
// the lock "cron/" and the name. All processes give a job the same name, and different
// jobs different names. The context ends when the lease is lost, and when the Manager
// closes: work must return then. The lease has the fencing token for writes.
//
// cron.Stop cancels no job. To stop, wait for the context that it returns, and close the
// Manager afterwards, or before if the jobs should be cut short.
func (l *Locker) Job(name string, work func(ctx context.Context, lease *quorumlock.Lease)) cron.Job {
	return cron.FuncJob(func() {
		began := false
		err := l.manager.Do(context.Background(), namePrefix+name, func(ctx context.Context, lease *quorumlock.Lease) error {
			began = true
			work(ctx, lease)
			return nil
		}, l.options...)
		switch {
		case err == nil:
		case errors.Is(err, quorumlock.ErrHeld):
			l.logger.Info("skip", "job", name, "reason", err)
		case began: // work itself returns no error
			l.logger.Error(err, "the lease was lost while the job ran", "job", name)
		default:
			l.logger.Error(err, "the job did not run", "job", name)
		}
	})
}

// Wrapper returns a wrapper for cron.NewChain that does the same for any job. Such a job
// sees neither the lease nor its end, so use it where a second run does no harm. Behind
// cron.Recover, a panic of the job releases the lock and ends nothing else.
func (l *Locker) Wrapper(name string) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return l.Job(name, func(context.Context, *quorumlock.Lease) { job.Run() })
	}
}
